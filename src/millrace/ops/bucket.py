"""Operator ``bucket_by_sequence_length``: padded batches of elements of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk, Origin, Positions
from millrace.errors import PipelineError
from millrace.graph.nodes import BucketBySequenceLength
from millrace.ops.collecting import Outbox, build_batch, with_leftovers, with_outbox
from millrace.ops.operator import Context
from millrace.ops.padding import fill_unknown, stack_padded
from millrace.ops.stacking import stack


@with_outbox
def run(
    outbox: Outbox, node: BucketBySequenceLength, inputs: list[Iterator[Chunk]], context: Context
) -> Iterator[Chunk]:
    """Yield a batch of a bucket as soon as it is full; at the end the rest, shortest bucket first.

    Raises:
        PipelineError: if a length is no whole number, an element belongs to no bucket with
            ``pad_to_bucket_boundary``, or elements of a batch don't fit together.
    """
    boundaries = np.asarray(node.bucket_boundaries, dtype=np.int64)
    origin, position, arrived = context.mixed(), 0, 0
    buckets: list[list[Any]] = [[] for _ in node.bucket_batch_sizes]
    arrivals: list[list[int]] = [[] for _ in node.bucket_batch_sizes]
    places: list[list[tuple[Origin, Positions]]] = [[] for _ in node.bucket_batch_sizes]
    for chunk in with_leftovers(inputs[0], context):
        indices, results, failure = context.call(node.element_length_fn, chunk)
        lengths, wrong = _lengths(node, results, context.label)
        failure = wrong or failure
        numbers = np.searchsorted(boundaries, lengths, side="right").tolist()
        for index, number in zip(range(len(chunk)) if indices is None else indices, numbers, strict=failure is None):
            bucket = buckets[number]
            bucket.append(chunk.elements[index])
            arrivals[number].append(arrived)
            places[number].append((chunk.origin, chunk.positions[index : index + 1]))
            arrived += 1
            if len(bucket) == node.bucket_batch_sizes[number]:
                yield from outbox.add(_build(node, number, bucket, places[number], context), origin, position)
                position += 1
                buckets[number], arrivals[number], places[number] = [], [], []
        if failure is not None:
            raise failure
        yield from outbox.flush()
    waiting = [
        pair for bucket, numbers in zip(buckets, arrivals, strict=True) for pair in zip(numbers, bucket, strict=True)
    ]
    waiting.sort(key=lambda pair: pair[0])
    if not waiting or context.leave([element for _, element in waiting]) or node.drop_remainder:
        return
    for number, bucket in enumerate(buckets):
        if bucket:
            yield from outbox.add(_build(node, number, bucket, places[number], context), origin, position)
            position += 1
    yield from outbox.flush()


def _build(
    node: BucketBySequenceLength,
    number: int,
    elements: list[Any],
    places: list[tuple[Origin, Positions]],
    context: Context,
) -> Any:
    label, allocate = context.label, context.allocate

    def build(elements: list[Any]) -> Any:
        if node.no_padding:
            return stack(elements, label, allocate)
        shapes = node.padded_shapes
        if node.pad_to_bucket_boundary:
            shapes = fill_unknown(shapes, node.bucket_boundaries[number] - 1, elements, label)
        return stack_padded(elements, shapes, node.padding_values, label, allocate=allocate)

    return build_batch(build, elements, places, context)


def _lengths(
    node: BucketBySequenceLength, results: list[Any], label: str
) -> tuple[np.ndarray[Any, np.dtype[np.int64]], PipelineError | None]:
    """Convert results to lengths, up to the first that cannot be one, and the error about that one."""
    lengths: list[int] = []
    try:
        for result in results:
            length = result if type(result) is int else _length(result, label)
            _check_bounded(node, length, label)
            lengths.append(length)
    except PipelineError as error:
        return np.array(lengths, dtype=np.int64), error
    return np.array(lengths, dtype=np.int64), None


def _length(result: Any, label: str) -> int:
    array = np.asarray(result)
    if array.ndim == 0 and array.dtype.kind in "iu":
        return int(array)
    raise PipelineError(
        f"{label}: the length function returned {'None' if result is None else f'a {type(result).__name__}'}, not an "
        "int. Return the element's length, e.g. len(element)."
    )


def _check_bounded(node: BucketBySequenceLength, length: int, label: str) -> None:
    last = node.bucket_boundaries[-1] if node.bucket_boundaries else 0
    if node.pad_to_bucket_boundary and not node.no_padding and length >= last:
        raise PipelineError(
            f"{label}: an element of length {length} is beyond the last bucket boundary, {last}, and with "
            "pad_to_bucket_boundary there is nothing to pad it to. Add a boundary above the longest length, or "
            "filter longer elements out before."
        )
