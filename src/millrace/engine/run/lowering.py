"""Lowering: from a graph and a range of units to a stream of chunks.

Units are pushed down as feeds of positions, elements come up as chunks. Every node is lowered by one rule: sources
read, nodes that only rename positions rename them, nodes that combine datasets deal the feed out and merge what
comes back, all others are operators over the chunks of their inputs (:mod:`millrace.ops`). A graph that cannot be
planned is lowered by :meth:`Lowering.stream`, whole, in order; a tail by :meth:`Lowering.tail`, from the operators on
that left it something.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from itertools import chain
from typing import Any, NamedTuple, cast

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.cache.cached_items import Items
from millrace.engine.cache.cached_tasks import TaskItem
from millrace.engine.run import index_streams
from millrace.engine.run.fused import run_fused
from millrace.engine.run.index_streams import Array, Feed, Route
from millrace.engine.run.keyed_refills import Passes, levels_above, refills
from millrace.engine.run.reading import read_positions, read_splits, read_whole_splits
from millrace.engine.run.refills import Refills
from millrace.engine.run.task import NodeContext, RunningTask
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.rewrites.fusion import Fused
from millrace.ops import OPERATORS
from millrace.planning.random_keys import repetition_of
from millrace.planning.unit_ids import itemised
from millrace.planning.units import INFINITE, Cardinality
from millrace.sources.source import PositionSource, SequentialSource

INTERLEAVED = 4
_INTERLEAVED_BLOCK = 64
"""Under a windowed shuffle a task reads so many stretches of its data at a time, so many elements from each in turn."""

Chunks = Iterator[Chunk]


class _Deal(NamedTuple):
    """Deal of a node's units to its parts: where each goes, what a part makes of its units, and how many it has."""

    number: int
    route: Route
    part: Callable[[int, Feed], Chunks]
    most: Callable[[int], int]


class Lowering:
    """Lowering of the nodes of one graph for one running task.

    Args:
        task: planned from the graph as written.
        graph: as written or rewritten; nodes have the same numbers in both.
    """

    def __init__(self, task: RunningTask, graph: Graph) -> None:
        self.task, self.graph = task, graph
        self.map = task.units
        self._over: set[int] = set()
        """Endless repeats that have ended, as a pass gave no element."""

    def root(self) -> Chunks:
        """Yield the elements of the task."""
        task, root = self.task.task, self.graph.id_of(self.graph.root)
        if task.is_sequence:
            return self.stream(root)
        if task.is_tail:
            return self.tail(root)
        return self.units(root, index_streams.blocks(task.start, task.stop))

    def units(self, number: int, feed: Feed, repetition: int = 0) -> Chunks:
        """Yield the elements of the units of ``feed`` at node ``number``."""
        node = self.graph.nodes[number]
        rule = _RULES.get(type(node))
        if isinstance(node, g.Source):
            chunks = self._read(number, node, feed, repetition)
        elif rule is not None:
            chunks = rule(self, number, node, feed, repetition)
        else:
            chunks = self._operator(number, node, [self._input(node, feed, repetition)], repetition)
        return self.task.measured(number, chunks)

    def stream(self, number: int, repetition: int = 0) -> Chunks:
        """Yield all elements of node ``number``, in order."""
        node = self.graph.nodes[number]
        if self.map.plannable(number):
            return self.units(number, index_streams.blocks(0, self.map.of(number).count), repetition)
        below = [self.graph.id_of(child) for child in node.inputs]
        if isinstance(node, g.Repeat):
            chunks = self._repeat_stream(node, below[0], repetition)
        elif isinstance(node, g.Reservoir):
            chunks = self._reservoir_stream(number, node, below[0], repetition)
        elif isinstance(node, g.Concatenate):
            chunks = chain.from_iterable(self.stream(child, repetition) for child in below)
        elif isinstance(node, (g.Cache, g.Autocache)):
            lowering, inner = self._below_point(number, repetition)
            chunks = lowering.stream(below[0], inner)
        elif isinstance(node, g.MIXING) and node.cycle:
            inputs = [self._passes(child, repetition) for child in below[: len(node.datasets)]]
            chosen = [self.stream(child, repetition) for child in below[len(inputs) :]]
            chunks = self._operator(number, node, inputs + chosen, repetition)
        else:
            chunks = self._operator(number, node, [self.stream(child, repetition) for child in below], repetition)
        return self.task.measured(number, chunks)

    def tail(self, number: int) -> Chunks:
        """Yield what earlier tasks left to the operators at node ``number`` and below, and nothing else."""
        if not self.map.of(number).collecting:
            return iter(())
        node = self.graph.nodes[number]
        lowering, _ = self._below_point(number, 0)
        below = [lowering.tail(self.graph.id_of(child)) for child in node.inputs]
        if isinstance(node, (g.Concatenate, g.Repeat)):
            chunks: Chunks = chain.from_iterable(below)
        else:
            chunks = self._operator(number, node, below, 0)
        return self.task.measured(number, chunks)

    def _operator(
        self,
        number: int,
        node: g.Node,
        inputs: list[Chunks],
        repetition: int,
        outputs: Callable[[], Iterator[tuple[Origin, int, int]]] | None = None,
    ) -> Chunks:
        if isinstance(node, Fused):
            return run_fused(self.task, [(self.graph.id_of(part), part) for part in node.parts], inputs[0], repetition)
        context = NodeContext(self.task, number, repetition, outputs)
        return OPERATORS[type(node)](node, inputs, context)

    # -- sources and order ---------------------------------------------------------------------------------------------

    def _read(self, number: int, node: g.Source, feed: Feed, repetition: int) -> Chunks:
        source, table = self.task.source(number), self.map.tables[number]
        origin, context = Origin(number, 0, repetition), NodeContext(self.task, number, repetition)
        if table.cheap:
            return read_positions(cast(PositionSource, source), table, feed, origin, context)
        sequential = cast(SequentialSource, source)
        if table.count < 0:
            return read_whole_splits(sequential, table, feed, origin, context)
        starts = self.map.starts.get(number, np.empty(0, np.int64))  # none of a source in which there is nothing
        return read_splits(sequential, table, feed, origin, starts, context)

    def _input(self, node: g.Node, feed: Feed, repetition: int) -> Chunks:
        return self.units(self.graph.id_of(node.inputs[0]), feed, repetition)

    def _take(self, _number: int, node: g.Take | g.AssertCardinality, feed: Feed, repetition: int) -> Chunks:
        return self._input(node, feed, repetition)

    def _skip(self, _number: int, node: g.Skip, feed: Feed, repetition: int) -> Chunks:
        return self._input(node, (units + node.count for units in feed), repetition)

    def _shard(self, _number: int, node: g.Shard, feed: Feed, repetition: int) -> Chunks:
        return self._input(node, (units * node.num_shards + node.index for units in feed), repetition)

    def _enumerate(self, _number: int, node: g.Enumerate, feed: Feed, repetition: int) -> Chunks:
        ours, below = index_streams.tee(feed, 2)
        cursor = index_streams.Cursor(ours)
        for chunk in self._input(node, below, repetition):
            numbers = (cursor.take(len(chunk)) + node.start).tolist()
            yield Chunk(list(zip(numbers, chunk.elements, strict=True)), chunk.origin, chunk.positions)

    def _shuffle(self, number: int, node: g.Shuffle, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        order = self.task.orders.of(number, repetition)
        feed = chain.from_iterable(map(order.stretches, feed))
        if not order.windowed:
            return self.units(child, feed, repetition)
        local = self.map.of(child).task_local
        inputs = self.units(child, feed, repetition) if local else self._interleaved(child, feed, repetition)
        return self._operator(number, node, [inputs], repetition)

    def _drawn(self, number: int, node: g.Sample, feed: Feed, repetition: int) -> Chunks:
        order = self.task.orders.of(number, repetition)
        ours, theirs = index_streams.tee(feed, 2)
        return index_streams.positioned(
            self._input(node, map(order.at, theirs), repetition), ours, Origin(number, 0, repetition)
        )

    def _reservoir(self, number: int, node: g.Reservoir, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        context, order = NodeContext(self.task, number, repetition), self.task.orders.of(number, repetition)
        read = functools.partial(self.units, child, repetition=repetition)
        refills = Refills(order.at, read, node.size, context.budget, self.map.of(child).bytes)
        return refills.chunks(feed, Origin(number, 0, repetition), context.chunk_size)

    def _interleaved(self, child: int, stretches: Feed, repetition: int) -> Chunks:
        """Interleave several stretches of the child's units, a block of elements from each in turn."""
        active: list[index_streams.Elements] = []
        repeats = self._repeats_of(child)
        while True:
            while len(active) < INTERLEAVED and self._over.isdisjoint(repeats):
                stretch = next(stretches, None)
                if stretch is None:
                    break
                active.append(index_streams.Elements(self.units(child, iter([stretch]), repetition)))
            if not active:
                return
            for elements in list(active):
                taken = 0
                for chunk in elements.take(_INTERLEAVED_BLOCK):
                    taken += len(chunk)
                    yield chunk
                if taken < _INTERLEAVED_BLOCK:
                    active.remove(elements)

    def _repeats_of(self, number: int) -> set[int]:
        """Numbers of the repeats of which all comes that node ``number`` gives."""
        node, found = self.graph.nodes[number], set[int]()
        while len(node.inputs) == 1:
            found |= {self.graph.id_of(node)} if isinstance(node, g.Repeat) else set()
            (node,) = node.inputs
        return found

    # -- batches whose boundaries are known ----------------------------------------------------------------------------

    def _batch(self, number: int, node: g.Batch | g.PaddedBatch, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        below = self.map.of(child)
        if self.map.of(number).yields is not Cardinality.ONE:
            return self._operator(number, node, [self.units(child, feed, repetition)], repetition)
        size = node.batch_size
        ours, theirs = index_streams.tee(feed, 2)
        origin = Origin(number, 0, repetition)

        def outputs() -> Iterator[tuple[Origin, int, int]]:
            for units in ours:
                for unit in units.tolist():
                    yield origin, unit, min(size, below.count - unit * size)

        rows = np.arange(min(size, below.count), dtype=np.int64)

        def elements() -> Feed:
            step = max(1, index_streams.BLOCK // size)
            for units in theirs:
                for start in range(0, len(units), step):
                    wanted = (units[start : start + step, None] * size + rows).ravel()
                    yield wanted[wanted < below.count]

        return self._operator(number, node, [self.units(child, elements(), repetition)], repetition, outputs)

    def _window(self, number: int, node: g.SlidingWindow, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        count = self.map.of(child).count
        ours, theirs = index_streams.tee(feed, 2)
        origin = Origin(number, 0, repetition)

        def outputs() -> Iterator[tuple[Origin, int, int]]:
            for units in ours:
                for unit in units.tolist():
                    yield origin, unit, min(node.span, count - unit * node.shift)

        def elements() -> Feed:
            for begin, end in index_streams.covered(theirs, node.shift, node.span):
                yield from index_streams.blocks(begin, min(end, count))

        return self._operator(number, node, [self.units(child, elements(), repetition)], repetition, outputs)

    # -- cache points --------------------------------------------------------------------------------------------------

    def _point(self, number: int, node: g.Cache | g.Autocache, feed: Feed, repetition: int) -> Chunks:
        lowering, inner = self._below_point(number, repetition)
        return self._items(number, node, repetition, lowering, inner).chunks(feed)

    def _items(
        self, number: int, node: g.Cache | g.Autocache, repetition: int, lowering: Lowering, inner: int
    ) -> Items | TaskItem:
        """Items of a point, made by ``lowering`` in the repetition ``inner``."""
        child = self.graph.id_of(node.inputs[0])

        def make(units: Feed) -> Chunks:
            return lowering.units(child, units, inner)

        point, writer = self.task.caching(number)
        context = NodeContext(self.task, number, repetition)
        if not itemised(self.map, child):
            return TaskItem(lowering.task, number, context, make, point, writer)
        return Items(lowering.task.orders, number, context, make, repetition, inner, point, writer)

    def _below_point(self, number: int, repetition: int) -> tuple[Lowering, int]:
        """Lowering of the input of node ``number``, and the repetition there: where elements are reused, the first."""
        if not self.task.reuses(number):
            return self, repetition
        return Lowering(self.task.below(number), self.graph), 0

    # -- several inputs ------------------------------------------------------------------------------------------------

    def _zip(self, number: int, node: g.Zip, feed: Feed, repetition: int) -> Chunks:
        ours, *below = index_streams.tee(feed, 1 + len(node.inputs))
        inputs = [
            self.units(self.graph.id_of(child), units, repetition)
            for child, units in zip(node.inputs, below, strict=True)
        ]
        zipped = self._operator(number, node, inputs, repetition)
        return index_streams.positioned(zipped, ours, Origin(number, 0, repetition))

    def _mixed(self, number: int, node: g.Node, feed: Feed, repetition: int) -> Chunks:
        children = [self.graph.id_of(child) for child in node.inputs]

        def part(which: int, units: Feed) -> Chunks:
            return self.units(children[which], units, repetition)

        ours, theirs = index_streams.tee(feed, 2)
        deal = _Deal(number, self.task.orders.mixture(number).resolve, part, self._counts(children))
        return index_streams.positioned(self._merged(deal, theirs), ours, Origin(number, 0, repetition))

    def _concatenate(self, number: int, node: g.Concatenate, feed: Feed, repetition: int) -> Chunks:
        children = [self.graph.id_of(child) for child in node.inputs]
        starts = self.map.firsts(children)

        def route(units: Array) -> tuple[Array, Array]:
            which = np.searchsorted(starts, units, side="right") - 1
            return which, units - starts[which]

        def part(which: int, units: Feed) -> Chunks:
            return self.units(children[which], units, repetition)

        return self._combined(_Deal(number, route, part, self._counts(children)), feed, repetition)

    def _repeat(self, number: int, node: g.Repeat, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        count = self.map.of(child).count
        if count >= INFINITE or node.count == 1:
            return self.units(child, feed, repetition_of(repetition, 0))

        def route(units: Array) -> tuple[Array, Array]:
            turn, within = np.divmod(units, count)
            return turn, within

        def part(turn: int, units: Feed) -> Chunks:
            return self.units(child, units, repetition_of(repetition, turn))

        if node.count is None and self.task.task.is_sequence and self.map.of(child).yields is not Cardinality.ONE:
            return self._until_empty(number, feed, route, part, count)
        return self._combined(_Deal(number, route, part, lambda _turn: count), feed, repetition)

    def _until_empty(
        self, number: int, feed: Feed, route: Route, part: Callable[[int, Feed], Chunks], count: int
    ) -> Chunks:
        """Yield the passes of an endless repeat, up to the first whole one that gives nothing; units come in order."""
        for which, units in index_streams.parts(feed, route):
            assert which is not None, "a sequence is in order"
            asked = made = 0

            def counted(units: Feed = units) -> Feed:
                nonlocal asked
                for some in units:
                    asked += len(some)
                    yield some

            for chunk in part(which, counted()):
                made += len(chunk)
                yield chunk
            if asked == count and not made:
                self._over.add(number)
                return

    @functools.cached_property
    def _asked_again(self) -> set[int]:
        """Nodes of which a unit may be asked for more than once."""
        graph = self.map.graph
        again = [
            node
            for node in graph.nodes
            if isinstance(node, (g.Sample, g.Reservoir))
            or (isinstance(node, g.SlidingWindow) and node.shift < node.span)
        ]
        return {graph.id_of(below) for node in again for below in Graph(node).nodes if below is not node}

    def _counts(self, children: list[int]) -> Callable[[int], int]:
        counts = [self.map.of(child).count for child in children]
        return counts.__getitem__

    def _combined(self, deal: _Deal, feed: Feed, repetition: int) -> Chunks:
        """Chain parts while units ascend, from then on merge them element by element.

        Where each unit is one element it is identified by its unit here, so that its random numbers are the same in
        whatever order it comes.
        """
        if self.map.of(deal.number).yields is not Cardinality.ONE:
            return self._parts(deal, feed)
        ours, theirs = index_streams.tee(feed, 2)
        return index_streams.positioned(self._parts(deal, theirs), ours, Origin(deal.number, 0, repetition))

    def _parts(self, deal: _Deal, feed: Feed) -> Chunks:
        for which, units in index_streams.parts(feed, deal.route):
            yield from self._merged(deal, units) if which is None else deal.part(which, units)

    def _merged(self, deal: _Deal, feed: Feed) -> Chunks:
        """Yield one element for each unit, from the part that ``route`` names; positions are for the caller to give."""
        most = (lambda _part: INFINITE) if deal.number in self._asked_again else deal.most
        routes = index_streams.Routes(feed, deal.route, most)
        streams: dict[int, index_streams.Elements] = {}
        origin = Origin(deal.number, 0)
        for choices in routes.choices():
            start = 0
            while start < len(choices):
                wanted = choices[start : start + self.task.chunk_size(deal.number)]
                start += len(wanted)
                elements: list[Any] = [None] * len(wanted)
                complete, failure = len(wanted), None
                for which in np.unique(wanted).tolist():
                    if which not in streams:
                        streams[which] = index_streams.Elements(deal.part(which, routes.reader(which)))
                    places = np.flatnonzero(wanted == which).tolist()
                    taken: list[Any] = []
                    try:
                        for chunk in streams[which].take(len(places)):
                            taken += chunk.elements
                    except Exception as error:  # noqa: BLE001 - raised once what is before it has been taken
                        if places[len(taken)] < complete:
                            complete, failure = places[len(taken)], error
                        places = places[: len(taken)]
                    for place, element in zip(places, taken, strict=True):
                        elements[place] = element
                if complete:
                    yield Chunk(elements[:complete], origin, range(complete))
                if failure is not None:
                    raise failure

    def _passes(self, number: int, repetition: int) -> Chunks:
        """Yield all passes of the endless ``repeat`` ``number``, and behind each an empty chunk."""
        (child,) = self.graph.nodes[number].inputs
        for turn in itertools.count():
            yield from self.stream(self.graph.id_of(child), repetition_of(repetition, turn))
            yield Chunk([], Origin(number, 0), range(0))

    def _reservoir_stream(self, number: int, node: g.Reservoir, child: int, repetition: int) -> Chunks:
        context, orders = NodeContext(self.task, number, repetition), self.task.orders
        read = functools.partial(self.stream, child, repetition)
        passes = Passes(read, orders.reservoir_key(number, repetition), context.label)
        if node.with_replacement:
            count = passes.measure()
            drawn = Refills(
                orders.of_reservoir(number, repetition, count).at, passes.pick, node.size, context.budget, 0
            )
            yield from drawn.chunks(index_streams.blocks(0, count), context.mixed(), context.chunk_size)
            return
        position = 0
        with levels_above(passes, node.levels, node.folders, context.label) as level:
            for held in refills(level, node.size, context.budget):
                held.reverse()
                while held:  # and what has gone out takes no memory here
                    size = max(1, context.chunk_size())
                    out = held[: -size - 1 : -1]
                    del held[-size:]
                    yield Chunk(out, context.mixed(), range(position, position + len(out)))
                    position += len(out)

    def _repeat_stream(self, node: g.Repeat, child: int, repetition: int) -> Chunks:
        turn = 0
        while node.count is None or turn < node.count:
            empty = True
            for chunk in self.stream(child, repetition_of(repetition, turn)):
                empty = False
                yield chunk
            if empty and node.count is None:
                return
            turn += 1


_Rule = Callable[[Lowering, int, Any, Feed, int], Chunks]

_RULES: dict[type[g.Node], _Rule] = {
    g.Take: Lowering._take,  # noqa: SLF001 - this table is part of the class
    g.Skip: Lowering._skip,  # noqa: SLF001
    g.Shard: Lowering._shard,  # noqa: SLF001
    g.Enumerate: Lowering._enumerate,  # noqa: SLF001
    g.Shuffle: Lowering._shuffle,  # noqa: SLF001
    g.Sample: Lowering._drawn,  # noqa: SLF001
    g.Reservoir: Lowering._reservoir,  # noqa: SLF001
    g.Batch: Lowering._batch,  # noqa: SLF001
    g.RaggedBatch: Lowering._batch,  # noqa: SLF001
    g.PaddedBatch: Lowering._batch,  # noqa: SLF001
    g.SlidingWindow: Lowering._window,  # noqa: SLF001
    g.AssertCardinality: Lowering._take,  # noqa: SLF001
    g.Zip: Lowering._zip,  # noqa: SLF001
    g.SampleFromDatasets: Lowering._mixed,  # noqa: SLF001
    g.ChooseFromDatasets: Lowering._mixed,  # noqa: SLF001
    g.Concatenate: Lowering._concatenate,  # noqa: SLF001
    g.Repeat: Lowering._repeat,  # noqa: SLF001
    g.Cache: Lowering._point,  # noqa: SLF001
    g.Autocache: Lowering._point,  # noqa: SLF001
}
