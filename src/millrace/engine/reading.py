"""Reading sources: feeds of units in, chunks of elements out."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine import feeds
from millrace.engine.feeds import Array, Feed
from millrace.planning.tables import SplitTable
from millrace.sources.contract import PositionSource, SequentialSource

if TYPE_CHECKING:
    from millrace.engine.task import NodeContext


def read_positions(
    source: PositionSource | SequentialSource, feed: Feed, origin: Origin, context: NodeContext
) -> Iterator[Chunk]:
    """Elements at the positions of ``feed``; read on several threads where reading takes its time."""
    fetch = cast(PositionSource, source).fetch

    def wanted() -> Iterator[Chunk]:
        for units in feed:
            start = 0
            while start < len(units):
                size = context.chunk_size()
                part = units[start : start + size]
                yield Chunk(cast("list[object]", part), origin, part)  # stands for its elements until they are read
                start += size

    def read(chunk: Chunk) -> Chunk:
        positions = cast(Array, chunk.positions)
        return context.fetch(fetch, Chunk([], chunk.origin, positions))

    yield from context.in_order(read, wanted(), context.AUTOTUNE)


def read_splits(
    source: PositionSource | SequentialSource,
    table: SplitTable,
    feed: Feed,
    node: int,
    repetition: int,
    context: NodeContext,
) -> Iterator[Chunk]:
    """Elements of a sequential source: of whole splits if units are splits, else at the positions of ``feed``."""
    reader = cast(SequentialSource, source)
    if table.count < 0:
        for units in feed:
            for split in units.tolist():
                position = 0
                origin = Origin(node, split, repetition)
                for elements in reader.read(table.splits[split], 0, -1, context.chunk_size):
                    yield Chunk(elements, origin, range(position, position + len(elements)))
                    position += len(elements)
        return
    starts = context.split_starts(table)
    for units in feed:
        splits = (np.searchsorted(starts, units, side="right") - 1).astype(np.int64)
        for first, last in feeds.runs(splits):
            split = int(splits[first])
            offsets = units[first:last] - starts[split]
            for begin, end in _ascending(offsets):
                yield from _read_offsets(
                    reader, table, split, offsets[begin:end], Origin(node, split, repetition), context
                )


def _ascending(offsets: Array) -> Iterator[tuple[int, int]]:
    """(start, stop) of each strictly ascending stretch."""
    edges = (np.flatnonzero(offsets[1:] <= offsets[:-1]) + 1).tolist()
    yield from zip([0, *edges], [*edges, len(offsets)], strict=True)


def _read_offsets(
    reader: SequentialSource, table: SplitTable, split: int, offsets: Array, origin: Origin, context: NodeContext
) -> Iterator[Chunk]:
    low, high = int(offsets[0]), int(offsets[-1]) + 1
    position = low
    every = high - low == len(offsets)
    for elements in reader.read(table.splits[split], low, high, context.chunk_size):
        chunk = Chunk(elements, origin, range(position, position + len(elements)))
        position += len(elements)
        if every:
            yield chunk
            continue
        first, last = np.searchsorted(offsets, [position - len(elements), position]).tolist()
        chosen = (offsets[first:last] - (position - len(elements))).tolist()
        if chosen:
            yield chunk.keep(chosen, [elements[index] for index in chosen])
