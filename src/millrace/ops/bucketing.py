"""Bucketing: elements wait in buckets until there are enough for a batch, or for the batches of a round."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import accumulate, chain
from typing import Any

from millrace.elements.chunk import Chunk, Origin, Positions
from millrace.graph.nodes import Batch, BucketBySequenceLength, PaddedBatch
from millrace.ops.collecting import Outbox, build_batch, with_leftovers, with_outbox
from millrace.ops.operator import Context

Sorted = tuple[Iterable[int], list[int], Exception | None]
"""(indices of a chunk's elements, the number of the bucket of each, the error about the element after them)."""


_Came = tuple[int, Origin, Positions, int]
"""(number among all arrivals, origin and positions of the chunk, index in the chunk) of an element."""


@with_outbox
def run_buckets(
    outbox: Outbox,
    chunks: Iterator[Chunk],
    context: Context,
    node: Batch | PaddedBatch | BucketBySequenceLength,
    sizes: Sequence[int],
    sort: Callable[[Chunk], Sorted],
    build: Callable[[int, list[Any]], Any],
) -> Iterator[Chunk]:
    """Yield batches of one bucket each, in rounds of ``node.together``; at the end the rest, first bucket first.

    Args:
        outbox: of this run.
        chunks: the input.
        context: of the operator.
        node: says what comes in rounds, and what becomes of the rest.
        sizes: of a batch of each bucket.
        sort: finds the buckets of a chunk's elements.
        build: makes a batch of elements, the last of which are of the bucket with this number.
    """
    origin, position, arrived, together = context.mixed(), 0, 0, node.together or 1
    buckets: list[list[Any]] = [[] for _ in sizes]
    came: list[list[_Came]] = [[] for _ in sizes]
    for chunk in with_leftovers(chunks, context):
        indices, numbers, failure = sort(chunk)
        elements, place, positions = chunk.elements, chunk.origin, chunk.positions
        for index, number in zip(indices, numbers, strict=failure is None):
            bucket = buckets[number]
            bucket.append(elements[index])
            came[number].append((arrived, place, positions, index))
            arrived += 1
            if len(bucket) < sizes[number] * together:
                continue
            for stop in range(sizes[number], len(bucket) + 1, sizes[number]):
                part = slice(stop - sizes[number], stop)
                made = _build(build, number, bucket[part], came[number][part], context)
                yield from outbox.add(made, origin, position)
                position += 1
            buckets[number], came[number] = [], []
        if failure is not None:
            raise failure
        yield from outbox.flush()
    left, places = list(chain.from_iterable(buckets)), list(chain.from_iterable(came))
    by_arrival = sorted(range(len(left)), key=lambda each: places[each][0])
    if not left or context.leave([left[each] for each in by_arrival]):
        return
    of = [number for number, bucket in enumerate(buckets) for _ in bucket]
    start = 0
    for size in last_batches(list(map(len, buckets)), sizes, node):
        part, start = slice(start, start + size), start + size
        made = _build(build, of[start - 1], left[part], places[part], context)
        yield from outbox.add(made, origin, position)
        position += 1
    if node.together:
        context.leave_out(len(left) - start)
    yield from outbox.flush()


def _build(
    build: Callable[[int, list[Any]], Any], number: int, elements: list[Any], came: list[_Came], context: Context
) -> Any:
    places = ((origin, positions[index : index + 1]) for _, origin, positions, index in came)
    return build_batch(partial(build, number), elements, places, context)


def last_batches(
    counts: Sequence[int], sizes: Sequence[int], node: Batch | PaddedBatch | BucketBySequenceLength
) -> list[int]:
    """Choose the sizes of the batches at the end of the epoch, which take what is left in order of the buckets.

    A round takes as much as is left, but no batch more elements than the bucket of any element of its round allows:
    the elements of long sequences come in few. Without a remainder, only sizes that batches have elsewhere are chosen.

    Args:
        counts: elements left in each bucket.
        sizes: of a batch of each bucket.
        node: of the operator.
    """
    if not node.together:
        return [] if node.drop_remainder else [count for count in counts if count]
    if node.incomplete == "drop":
        return []
    ends, together = list(accumulate(counts)), node.together
    possible = sorted(set(sizes) if node.drop_remainder else range(1, max(sizes) + 1), reverse=True)
    start, found = 0, list[int]()

    def fits(size: int) -> bool:
        stop = start + size * together
        concerned = (
            most for count, end, most in zip(counts, ends, sizes, strict=True) if end > start and end - count < stop
        )
        return stop <= ends[-1] and size <= min(concerned)

    while (size := next(filter(fits, possible), 0)) > 0:
        found += [size] * together
        start += size * together
    return found
