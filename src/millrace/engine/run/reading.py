"""Reading of sources: feeds of units in, chunks of elements out."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice, pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.metrics import close
from millrace.engine.run import index_streams
from millrace.engine.run.index_streams import Array, Feed
from millrace.errors import ElementError, ElementTooLargeError, SourceCorruptError
from millrace.planning.orders import runs
from millrace.planning.split_table import Split, SplitTable
from millrace.sources.read_queues import Feed as Entries
from millrace.sources.source import PositionSource, SequentialSource, StoredSource
from millrace.sources.store_requests import Entry

if TYPE_CHECKING:
    from millrace.engine.run.task import NodeContext

_CHUNK_BYTES = 4 << 20
_OVER: Any = object()


def read_positions(
    source: PositionSource, table: SplitTable, feed: Feed, origin: Origin, context: NodeContext
) -> Iterator[Chunk]:
    """Read elements at the positions of ``feed``; on several threads where that pays, ahead where it is remote.

    Raises:
        ElementTooLargeError: before a file is read that is larger than all buffers.
    """

    def wanted(feed: Feed) -> Iterator[Chunk]:
        for units in feed:
            start = 0
            while start < len(units):
                part = units[start : start + context.chunk_size()]
                if table.sizes:
                    part = part[: _affordable(table, part, context.limit)]
                start += len(part)
                yield Chunk(cast("list[object]", part), origin, part)  # stands for its elements until they are read

    def read(chunk: Chunk) -> Chunk:
        return context.fetch(source.fetch, Chunk([], chunk.origin, chunk.positions))

    if context.reads is None:
        for chunk in context.in_order(read, wanted(feed), context.AUTOTUNE):
            if chunk.elements or chunk.failure is not None:  # else all of its samples were skipped
                yield chunk
        return
    announced, asked = index_streams.tee(feed, 2)
    with context.announcing(foretold(cast(StoredSource, source), table, announced)) as go_on:
        for chunk in wanted(asked):
            go_on()
            positions = np.asarray(chunk.positions, np.int64)
            elements, error = context.fetch_each(source.fetch, positions)
            yield Chunk(elements, chunk.origin, index_streams.compact(positions[: len(elements)]), error)


def _affordable(table: SplitTable, positions: Array, limit: int) -> int:
    """Count the files at ``positions`` that go into one chunk; at least one."""
    total = 0
    for count, position in enumerate(positions.tolist()):
        size = table.sizes[position]
        if size > limit:
            raise ElementTooLargeError(
                f"{table.names[position]} has {size} bytes, and the pipeline may hold {limit}; "
                "raise with_options(buffer_bytes=...), or leave it out"
            )
        total += size
        if total > _CHUNK_BYTES and count:
            return count
    return len(positions)


def read_splits(
    source: SequentialSource, table: SplitTable, feed: Feed, origin: Origin, starts: Array, context: NodeContext
) -> Iterator[Chunk]:
    """Read elements of a sequential source whose units are elements.

    Args:
        source: the reader.
        table: of splits with known counts.
        feed: positions in the source.
        origin: of the source; chunks have the split's.
        starts: position of each split's first element.
        context: of the source's node.
    """
    reading = _Reading(source, table, origin, context)
    announced, asked = _announced(source, table, feed, starts, context)
    with announced as go_on, contextlib.closing(reading):
        for units in asked:
            go_on()
            splits = np.searchsorted(starts, units, side="right") - 1
            for first, last in runs(splits):
                split = int(splits[first])
                offsets = units[first:last] - starts[split]
                place = origin._replace(split=split)
                for begin, end in pairwise([0, *(np.flatnonzero(np.diff(offsets) <= 0) + 1).tolist(), len(offsets)]):
                    yield from _chosen(reading, offsets[begin:end], place)


def read_whole_splits(
    source: SequentialSource, table: SplitTable, feed: Feed, origin: Origin, context: NodeContext
) -> Iterator[Chunk]:
    """Read elements of a sequential source whose units are whole splits."""
    announced, asked = _announced(source, table, feed, None, context)
    with announced as go_on:
        for units in asked:
            for split in units.tolist():
                go_on()
                position = 0
                place = origin._replace(split=split)
                with contextlib.closing(
                    _Lists(source, table.splits[split], 0, place, context, context.chunk_size)
                ) as lists:
                    while (elements := lists.next(position)) is not None:
                        yield Chunk(elements, place, range(position, position + len(elements)))
                        position += len(elements)


# -- foretelling -------------------------------------------------------------------------------------------------------


def _announced(
    source: SequentialSource, table: SplitTable, feed: Feed, starts: Array | None, context: NodeContext
) -> tuple[contextlib.AbstractContextManager[Callable[[], None]], Feed]:
    """Announce what reading the units of ``feed`` asks of a store; return the announcement, and the feed."""
    if context.reads is None:
        return contextlib.nullcontext(lambda: None), feed
    ahead, asked = index_streams.tee(feed, 2)
    return context.announcing(foretold(cast(StoredSource, source), table, ahead, starts)), asked


def foretold(
    source: StoredSource, table: SplitTable, feed: Feed, starts: Array | None = None, together: int = 1
) -> Entries:
    """Foretell the entries that reading the units of ``feed`` asks a source for, in order.

    Args:
        source: the reader.
        table: of the source.
        feed: positions in the source, or numbers of whole splits where those are its units.
        starts: position of each split's first element, where units are elements; None: they are files, or whole splits.
        together: arrays of the feed that are read by turns.
    """
    if together > 1:
        yield from _by_turns((foretold(source, table, iter([units]), starts) for units in feed), together)
    elif starts is None:
        for units in feed:
            for unit in units.tolist():
                yield from source.entries(unit)
    else:
        current, at, told = -1, 0, set[Entry]()
        for units in feed:
            splits = np.searchsorted(starts, units, side="right") - 1
            for first, last in runs(splits):
                split, offsets = int(splits[first]), units[first:last] - starts[splits[first]]
                if split != current or int(offsets[0]) < at:
                    current, told = split, set()
                at = int(offsets.max()) + 1
                for entry in source.entries(split, int(offsets.min()), at):
                    if entry not in told:
                        yield entry
                    if entry is not None:
                        told.add(entry)


def _by_turns(feeds: Iterator[Entries], count: int) -> Entries:
    """Yield an entry of each of ``count`` feeds in turn; the next one steps in for one that has ended."""
    active = deque(islice(feeds, count))
    while active:
        entry = next(active[0], _OVER)
        if entry is _OVER:
            active.popleft()
            active.extend(islice(feeds, 1))
            continue
        yield cast("Entry | None", entry)
        if entry is not None:
            active.rotate(-1)


# -- reading in sequence -----------------------------------------------------------------------------------------------


def _chosen(reading: _Reading, offsets: Array, origin: Origin) -> Iterator[Chunk]:
    """Choose the elements at ascending ``offsets`` of a split."""
    low, high = int(offsets[0]), int(offsets[-1]) + 1
    every = high - low == len(offsets)
    for start, elements in reading.lists(origin.split, low, high):
        chunk = Chunk(elements, origin, range(start, start + len(elements)))
        if every and start >= low:
            yield chunk
            continue
        first, last = np.searchsorted(offsets, [start, start + len(elements)]).tolist()
        if first < last:
            chosen = (offsets[first:last] - start).tolist()
            yield chunk.keep(chosen, [elements[index] for index in chosen])


class _Lists:
    """Elements of a split from one on, list by list; where reading fails, those before come one by one."""

    def __init__(
        self,
        source: SequentialSource,
        split: Split,
        start: int,
        place: Origin,
        context: NodeContext,
        wanted: Callable[[], int],
    ) -> None:
        self._source, self._split, self._place, self._context = source, split, place, context
        self._singly = False
        self._lists = source.read(split, start, -1, wanted)

    def next(self, position: int) -> list[Any] | None:
        """Read the list of elements from ``position`` on, which is where the last one ended; None after the last."""
        try:
            return self._context.next_list(self._lists, self._place, position)
        except (SourceCorruptError, ElementError):  # of one element; a store that is away would not be back
            if self._singly or self._context.watched:
                raise
        self._singly = True
        self.close()
        self._lists = self._source.read(self._split, position, -1, lambda: 1)
        return self.next(position)

    def close(self) -> None:
        close(self._lists)


class _Reading:
    """Split that is kept open from one request to the next, as feeds ask for what follows more often than not."""

    def __init__(self, source: SequentialSource, table: SplitTable, origin: Origin, context: NodeContext) -> None:
        self._source, self._table, self._origin, self._context = source, table, origin, context
        self._split = -1
        self._at = self._stop = 0
        self._lists: _Lists | None = None

    def lists(self, split: int, low: int, high: int) -> Iterator[tuple[int, list[Any]]]:
        """Yield (offset, elements) of consecutive lists that cover [low, high) of a split, and perhaps some before."""
        if split != self._split or low < self._at:
            self.close()
            self._split, self._at = split, low
            place = self._origin._replace(split=split)
            self._lists = _Lists(self._source, self._table.splits[split], low, place, self._context, self._wanted)
        assert self._lists is not None
        self._stop = high
        while self._at < high:
            elements = self._lists.next(self._at)
            if elements is None:
                piece = self._table.splits[split]
                raise SourceCorruptError(
                    f"{piece.location} ended after {self._at} of the {piece.count} elements that it had when listed"
                )
            start = self._at
            self._at += len(elements)
            yield start, elements

    def close(self) -> None:
        if self._lists is not None:
            self._lists.close()
        self._lists, self._split = None, -1

    def _wanted(self) -> int:
        return max(1, min(self._context.chunk_size(), self._stop - self._at))
