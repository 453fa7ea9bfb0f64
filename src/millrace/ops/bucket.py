"""Operator ``bucket_by_sequence_length``: padded batches of elements of similar length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.errors import PipelineError
from millrace.graph.nodes import BucketBySequenceLength
from millrace.ops.bucketing import Sorted, run_buckets
from millrace.ops.operator import Context
from millrace.ops.padding import fill_unknown, stack_padded
from millrace.ops.stacking import stack


def run(node: BucketBySequenceLength, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield a batch of a bucket as soon as it is full; at the end the rest, shortest bucket first.

    Raises:
        PipelineError: if a length is no whole number, an element belongs to no bucket with
            ``pad_to_bucket_boundary``, or elements of a batch don't fit together.
    """
    boundaries = np.asarray(node.bucket_boundaries, dtype=np.int64)

    def sort(chunk: Chunk) -> Sorted:
        indices, results, failure = context.call(node.element_length_fn, chunk)
        lengths, wrong = _lengths(node, results, context.label)
        numbers = np.searchsorted(boundaries, lengths, side="right").tolist()
        return range(len(chunk)) if indices is None else indices, numbers, wrong or failure

    def build(number: int, elements: list[Any]) -> Any:
        if node.no_padding:
            return stack(elements, context.label, context.allocate)
        shapes = node.padded_shapes
        if node.pad_to_bucket_boundary:
            shapes = fill_unknown(shapes, node.bucket_boundaries[number] - 1, elements, context.label)
        values, label = node.padding_values, context.label
        return stack_padded(elements, shapes, values, label, allocate=context.allocate, count=context.padded)

    return run_buckets(inputs[0], context, node, node.bucket_batch_sizes, sort, build)


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
