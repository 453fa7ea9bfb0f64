"""Cached items: at a cache point kept items are read, all others are made, and perhaps kept from now on.

An item is the output of a unit of the point's input, or of a few consecutive units where one may give many elements. At
the point elements are named anew, by their item: so operators above see no difference between items that were read and
those that were made, nor between a point in use and one that isn't.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import closing, nullcontext
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
import numpy.typing as npt

from millrace.blocks.block_index import ItemLocations
from millrace.blocks.block_keys import as_bytes
from millrace.elements.chunk import Chunk, Origin
from millrace.engine.run import index_streams
from millrace.engine.run.element_names import first_made
from millrace.engine.run.index_streams import Array, Feed
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning.element_origins import element_origins
from millrace.planning.orders import EpochOrders, runs
from millrace.planning.unit_ids import identities, item_keys, joined
from millrace.planning.units import Cardinality, UnitMap

if TYPE_CHECKING:
    from millrace.blocks.block_index import ItemIndex
    from millrace.blocks.block_keys import Keys
    from millrace.engine.cache.cache_writer import Added, CacheWriter
    from millrace.engine.run.task import NodeContext

Chunks = Iterator[Chunk]
Make = Callable[[Feed], Chunks]

_LOOKED_UP = 1024
"""Items whose origins are computed at a time."""
_SOON = 16
"""Least number of items that are looked up at a time: some take hardly longer than one."""
GROUP = 64
"""Units of an item where one may give many elements, but for whole splits: a unit alone may not be worth a key."""


@dataclass
class ActivePoint:
    """Active cache point of a pipeline in this process.

    Attributes:
        number: of its node.
        fingerprint: see :func:`millrace.planning.cache_point.point_fingerprint`.
        random: something random is below it.
        catalog: index of what is kept already.
        hits: items that were read, by all who use this object.
        misses: items that were made, by all who use this object.
    """

    number: int
    fingerprint: bytes
    random: bool
    catalog: ItemIndex
    hits: int = 0
    misses: int = 0

    def find(self, keys: Keys, writer: CacheWriter | None) -> ItemLocations:
        """Locate items, those included that the task itself has made by now.

        Args:
            keys: uint8 of shape (n, 16).
            writer: writer of what the task makes.
        """
        found = self.catalog.find(keys)
        missing = found.block < 0
        if writer is not None and missing.any() and (names := writer.again(keys[missing])):
            self.catalog.learn(names)
            found = self.catalog.find(keys)
        return found


class Items:
    """Items of one point, in one stretch of what a running task asks of it.

    Args:
        orders: of the shuffles of the graph as written.
        number: of the point's node.
        context: of that node.
        make: chunks of the node's input for a feed of its units.
        repetition: of a ``repeat`` above.
        inner: that repetition below the point, another where elements are reused.
        point: the active point, if it is this one.
        writer: writer of what is made; None: it is not kept.
    """

    def __init__(
        self,
        orders: EpochOrders,
        number: int,
        context: NodeContext,
        make: Make,
        repetition: int,
        inner: int,
        point: ActivePoint | None,
        writer: CacheWriter | None,
    ) -> None:
        units = orders.units
        self._orders, self._number, self._context, self._make = orders, number, context, make
        self._inner = inner
        self._point, self._writer = point, writer
        self._child = units.graph.id_of(units.graph.nodes[number].inputs[0])
        self._origin = Origin(number, 0, repetition)
        self._key = units.graph.keys[number]
        self._yields = units.of(self._child).yields
        self._run = 1 if whole_splits(units, self._child) else GROUP
        self._stops: dict[int, int] = {}

    def chunks(self, feed: Feed) -> Chunks:
        """Yield the elements of the units of ``feed``."""
        items = self._items(feed)
        chunks = self._made(items) if self._point is None else self._mixed(items)
        return self._numbered(chunks) if self._yields is Cardinality.MANY else chunks

    def missing(self, feed: Feed) -> Feed:
        """Yield of each array of ``feed`` the units of the items that would be made if they were asked for now."""
        if self._point is None:
            yield from feed
            return
        for units in feed:
            wanted = [some for some in self._items(iter([units])) if len(some)]
            made = [some[self._point.catalog.find(self._keys(some)).block < 0] for some in wanted]
            items = np.concatenate([np.empty(0, np.int64), *made])
            if not len(items):
                continue
            single = self._yields is not Cardinality.MANY
            yield items if single else np.concatenate([self._units_of(item) for item in items.tolist()])

    # -- items: each called by its first unit --------------------------------------------------------------------------

    def _items(self, feed: Feed) -> Feed:
        if self._yields is not Cardinality.MANY:
            yield from feed
            return
        rest: Array = np.empty(0, np.int64)
        for units in feed:
            rest = np.concatenate([rest, units])
            begins = np.flatnonzero((np.diff(rest) != 1) | (rest[1:] % self._run == 0)) + 1
            if len(begins):
                yield self._noted(rest[: begins[-1]], begins[:-1])
                rest = rest[begins[-1] :]  # the last one may go on
        if len(rest):
            yield self._noted(rest, begins=np.empty(0, np.int64))

    def _noted(self, units: Array, begins: Array) -> Array:
        firsts: Array = units[np.concatenate([[0], begins])]
        lasts = units[np.concatenate([begins, [len(units)]]) - 1]
        self._stops.update(zip(firsts.tolist(), (lasts + 1).tolist(), strict=True))
        return firsts

    def _units_of(self, item: int) -> Array:
        return np.arange(item, self._stops.get(item, item + 1), dtype=np.int64)

    def _keys(self, items: Array) -> Keys:
        assert self._point is not None
        single = self._yields is not Cardinality.MANY
        units = items if single else np.concatenate([self._units_of(item) for item in items.tolist()])
        found = identities(self._orders, self._child, units, random=self._point.random, repetition=self._inner)
        if not single:
            found = joined(found, np.cumsum([self._stops[item] - item for item in items.tolist()]))
        return item_keys(self._point.fingerprint, found)

    # -- made ----------------------------------------------------------------------------------------------------------

    def _made(self, items: Feed) -> Generator[Chunk, None, None]:
        """Make the items, in order; elements are named by them."""
        if self._yields is Cardinality.ONE:
            ours, theirs = index_streams.tee(items, 2)
            yield from index_streams.positioned(self._make(theirs), ours, self._origin)
        elif self._yields is Cardinality.AT_MOST_ONE:
            ours, theirs = index_streams.tee(items, 2)
            yield from self._matched(self._make(theirs), index_streams.Cursor(ours))
        else:
            for some in items:
                for item in some.tolist():
                    for chunk in self._make(iter([self._units_of(item)])):
                        yield Chunk(chunk.elements, self._origin, np.full(len(chunk), item))

    def _matched(self, chunks: Chunks, items: index_streams.Cursor) -> Chunks:
        """Match elements to items by their origins, as some of the items gave nothing."""
        waiting: Array = np.empty(0, np.int64)
        where: dict[tuple[int, int, int, int], int] = {}
        for chunk in chunks:
            named = np.empty(len(chunk), np.int64)
            for index, position in enumerate(chunk.positions):
                place = (*chunk.origin, int(position))
                while place not in where:
                    waiting = items.take(_LOOKED_UP)
                    assert len(waiting), f"no item is at {place}"
                    found = element_origins(self._orders, self._child, waiting, self._inner)
                    where.update(
                        zip(zip(*(column.tolist() for column in found), strict=True), waiting.tolist(), strict=True)
                    )
                named[index] = where.pop(place)
            yield Chunk(chunk.elements, self._origin, named)

    # -- in use --------------------------------------------------------------------------------------------------------

    def _mixed(self, items: Feed) -> Chunks:
        """Read items that are kept and make the others, in order."""
        assert self._point is not None
        point = self._point

        def looked_up() -> Feed:
            """Look items up: items, the block of each (-1: of none), where in it, and the two halves of its key."""
            for some in filter(len, items):
                keys, start = self._keys(some), 0
                while start < len(some):
                    # No sooner than they are needed: until then this task may make them elsewhere.
                    few = len(some) if self._writer is None else max(_SOON, self._context.chunk_size())
                    part, named = some[start : start + few], keys[start : start + few]
                    start += len(part)
                    found = point.find(named, self._writer)
                    there = int(np.count_nonzero(found.block >= 0))
                    point.hits += there
                    point.misses += len(part) - there
                    yield np.stack([part, *found, *named.view(np.int64).T])

        def of(looked_up: Feed, *, kept: bool) -> Feed:
            for some in looked_up:
                chosen = (some[1] >= 0) == kept
                if chosen.any():
                    yield some[:, chosen]

        ours, theirs, others = index_streams.tee(looked_up(), 3)
        read = _ByItem(self._read(of(theirs, kept=True)), self._yields)
        made = _ByItem(self._keeping(of(others, kept=False)), self._yields)
        for both in ours:
            start, mixed = 0, len(np.unique(both[1] >= 0)) > 1
            while start < both.shape[1]:
                # Where nothing is to be woven, elements are passed on in the chunks in which they come.
                step = self._context.chunk_size() if mixed or self._yields is not Cardinality.ONE else both.shape[1]
                some, block, *_ = both[:, start : start + step]
                there = block >= 0
                start += len(some)
                if there.all() or not there.any():
                    yield from (read if there.all() else made).take(some)
                elif self._yields is Cardinality.ONE:
                    yield self._put_back([*read.take(some[there])], [*made.take(some[~there])], some, there)
                else:
                    yield self._woven([*read.take(some[there]), *made.take(some[~there])], some)
        made.end()

    def _put_back(self, read: list[Chunk], made: list[Chunk], items: Array, there: npt.NDArray[np.bool_]) -> Chunk:
        """Put elements of one each where their items are, of which one may be asked for more than once."""
        elements: list[object] = [None] * len(items)
        for chunks, which in ((read, there), (made, ~there)):
            its = chain.from_iterable(chunk.elements for chunk in chunks)
            for index, element in zip(np.flatnonzero(which).tolist(), its, strict=True):
                elements[index] = element
        return Chunk(elements, self._origin, items)

    def _woven(self, chunks: list[Chunk], items: Array) -> Chunk:
        elements = [element for chunk in chunks for element in chunk.elements]
        named = np.concatenate([np.empty(0, np.int64), *(np.asarray(chunk.positions, np.int64) for chunk in chunks)])
        sorts = np.argsort(items)
        order = np.argsort(sorts[np.searchsorted(items, named, sorter=sorts)], kind="stable")
        return Chunk([elements[index] for index in order.tolist()], self._origin, named[order])

    def _read(self, found: Feed) -> Chunks:
        """Read the elements of items that are kept, where they were found. Items that turn out to be lost are made."""
        assert self._point is not None
        catalog = self._point.catalog

        def wanted() -> Chunks:
            for some in found:
                start = 0
                while start < some.shape[1]:
                    part, *where = some[:3, start : start + self._context.chunk_size()]
                    start += len(part)
                    yield Chunk(cast("list[object]", np.stack(where, axis=1)), self._origin, part)

        def read(chunk: Chunk) -> Chunk:
            where = cast("Array", chunk.elements)  # stands for the elements
            return Chunk(list(catalog.read(ItemLocations(*where.T))), self._origin, chunk.positions)

        for chunk in self._context.in_order(read, wanted(), self._context.AUTOTUNE):
            there = [elements is not None for elements in chunk.elements]
            for start, stop in [(0, len(chunk))] if all(there) else runs(np.array(there)):
                part = chunk.slice(start, stop)
                if not there[start]:
                    yield from self._made(iter([np.asarray(part.positions, np.int64)]))
                    continue
                flat = [element for elements in part.elements for element in elements]
                named = np.asarray(part.positions, np.int64)
                if self._yields is not Cardinality.ONE:
                    named = np.repeat(named, [len(elements) for elements in part.elements])
                if flat:
                    yield Chunk(flat, self._origin, named)

    def _keeping(self, looked_up: Feed) -> Chunks:
        """Make items, and keep them from now on."""
        if self._writer is None:
            yield from self._made(some[0] for some in looked_up)
            return
        ours, theirs = index_streams.tee(looked_up, 2)
        keyed = chain.from_iterable(map(_keyed, ours))
        # Only an item of many elements may go on in the next chunk.
        opened = self._writer.writing() if self._yields is Cardinality.MANY else nullcontext(self._writer)
        with closing(self._made(some[0] for some in theirs)) as made, opened as writing:
            if self._yields is Cardinality.ONE:
                yield from self._keeping_each(made, keyed, self._writer)
                return
            now = -1
            for chunk in made:
                self._look_for_skipped(self._writer)
                added: Added = []
                named = np.asarray(chunk.positions, np.int64)
                for start, stop in runs(named):
                    item = int(named[start])
                    while now != item:
                        now, key = next(keyed)
                        added.append((key, []))
                    if not added:
                        added.append((None, []))  # more of the last one
                    added[-1][1].extend(chunk.elements[start:stop])
                writing.add(added)
                yield chunk
            self._look_for_skipped(self._writer)
            writing.add([(key, []) for _, key in keyed])  # those that gave nothing

    def _keeping_each(self, made: Chunks, keyed: Iterator[tuple[int, bytes]], writer: CacheWriter) -> Chunks:
        """Keep items of one element each; one that is asked for more than once is kept once."""
        kept = set[bytes]()
        for chunk in made:
            self._look_for_skipped(writer)
            added: Added = []
            for element in chunk.elements:
                _, key = next(keyed)
                if key not in kept:
                    kept.add(key)
                    added.append((key, [element]))
            writer.add(added)
            yield chunk

    def _look_for_skipped(self, writer: CacheWriter) -> None:
        if self._context.skipped:
            # It can't be told from one that a filter left out, and may not fail the next time.
            writer.give_up("an element was skipped, as on_error says", lasting=False)

    def _numbered(self, chunks: Chunks) -> Chunks:
        """Give each element a position of its own, where an item has many elements."""
        last, count = -1, 0
        for chunk in chunks:
            positions = np.empty(len(chunk), np.int64)
            named = np.asarray(chunk.positions, np.int64)
            for start, stop in runs(named):
                item = int(named[start])
                count = count if item == last else 0
                first = first_made(self._key, item) + count
                positions[start:stop] = np.arange(first, first + stop - start)
                last, count = item, count + stop - start
            yield Chunk(chunk.elements, self._origin, positions)


class _ByItem:
    """Cursor that takes the elements of some items at a time from a stream that has them in the same order."""

    def __init__(self, chunks: Chunks, yields: Cardinality) -> None:
        self._chunks, self._yields = chunks, yields
        self._chunk: Chunk | None = None

    def take(self, items: Array) -> Chunks:
        """Take the elements of ``items``, which follow those that were taken before."""
        while len(items):
            chunk = self._chunk or next(self._chunks, None)
            self._chunk = None
            if chunk is None:
                return
            if self._yields is Cardinality.ONE:
                count = min(len(chunk), len(items))
                items = items[count:]
            else:
                outside = np.flatnonzero(~np.isin(np.asarray(chunk.positions, np.int64), items))
                count = int(outside[0]) if len(outside) else len(chunk)
            if count:
                yield chunk if count == len(chunk) else chunk.slice(0, count)
            if count < len(chunk):
                self._chunk = chunk.slice(count, len(chunk))
                return
            if self._yields is Cardinality.AT_MOST_ONE and int(chunk.positions[-1]) == int(items[-1]):
                return  # nothing more of these can come

    def end(self) -> None:
        """Check that all elements were taken; the stream may do what it does at its end."""
        if self._chunk is not None or next(self._chunks, None) is not None:
            raise RuntimeError("a stream has elements of items that nobody asked for")


def _keyed(looked_up: Array) -> Iterator[tuple[int, bytes]]:
    """Pair items with their keys."""
    keys = np.ascontiguousarray(looked_up[3:].T).view(np.uint8)
    return zip(looked_up[0].tolist(), as_bytes(keys), strict=True)


def whole_splits(units: UnitMap, number: int) -> bool:
    """Whether the units of a node are whole splits of a source."""
    below = Graph(units.graph.nodes[number]).nodes
    sources = [units.graph.id_of(node) for node in below if isinstance(node, g.Source)]
    return any(units.tables[source].count < 0 for source in sources)
