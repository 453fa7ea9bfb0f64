"""From a graph and a range of units to a stream of chunks.

Units are pushed down as feeds of positions, elements come up as chunks. Every node is lowered by one rule: sources
read, nodes that only rename positions rename them, nodes that combine datasets deal the feed out and merge what
comes back, all others are operators over the chunks of their inputs (:mod:`millrace.ops`). A graph that cannot be planned is lowered by
:meth:`Lowering.stream`, whole, in order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine import feeds
from millrace.engine.feeds import Array, Feed
from millrace.engine.measure import measured
from millrace.engine.reading import read_positions, read_splits
from millrace.engine.task import NodeContext, RunningTask
from millrace.graph import nodes as g
from millrace.ops import OPERATORS
from millrace.planning.keys import derive
from millrace.planning.permutation import permute
from millrace.planning.units import INFINITE, Yield

_INTERLEAVED = 4
_INTERLEAVED_BLOCK = 64
"""Under a windowed shuffle a task reads this many stretches of its data at a time, so many elements from each in turn."""

Chunks = Iterator[Chunk]


class Lowering:
    """Lowers the nodes of one graph for one running task."""

    def __init__(self, task: RunningTask) -> None:
        self.task = task
        self.graph = task.units.graph
        self.map = task.units

    def units(self, number: int, feed: Feed, repetition: int = 0) -> Chunks:
        """The elements of the units of ``feed`` at node ``number``."""
        node = self.graph.nodes[number]
        rule = _RULES.get(type(node))
        if isinstance(node, g.Source):
            chunks = self._read(number, node, feed, repetition)
        elif rule is not None:
            chunks = rule(self, number, node, feed, repetition)
        else:
            below = [self.units(self.graph.id_of(child), feed, repetition) for child in node.inputs]
            chunks = self.operator(number, node, below, repetition)
        return measured(chunks, self.task.measures[number])

    def stream(self, number: int, repetition: int = 0) -> Chunks:
        """All elements of node ``number``, in order."""
        node = self.graph.nodes[number]
        if self.map.plannable(number):
            return self.units(number, feeds.blocks(0, self.map.of(number).count), repetition)
        below = [self.graph.id_of(child) for child in node.inputs]
        if isinstance(node, g.Repeat):
            chunks = self._repeat_stream(node, below[0], repetition)
        elif isinstance(node, g.Concatenate):
            chunks = (chunk for child in below for chunk in self.stream(child, repetition))
        else:
            chunks = self.operator(number, node, [self.stream(child, repetition) for child in below], repetition)
        return measured(chunks, self.task.measures[number])

    def operator(
        self,
        number: int,
        node: g.Node,
        inputs: list[Chunks],
        repetition: int,
        outputs: Callable[[], Iterator[tuple[Origin, int, int]]] | None = None,
    ) -> Chunks:
        """The operator of ``node`` over ``inputs``."""
        context = NodeContext(self.task, number, repetition, outputs)
        return OPERATORS[type(node)](node, inputs, context)

    # -- sources and order ---------------------------------------------------------------------------------------------

    def _read(self, number: int, node: g.Source, feed: Feed, repetition: int) -> Chunks:
        source, table = self.task.source(number), self.map.tables[number]
        context = NodeContext(self.task, number, repetition)
        if table.cheap:
            return read_positions(source, feed, Origin(number, 0, repetition), context)
        return read_splits(source, table, feed, number, repetition, context)

    def _input(self, node: g.Node, feed: Feed, repetition: int) -> Chunks:
        return self.units(self.graph.id_of(node.inputs[0]), feed, repetition)

    def take(self, _number: int, node: g.Take, feed: Feed, repetition: int) -> Chunks:
        return self._input(node, feed, repetition)

    def skip(self, _number: int, node: g.Skip, feed: Feed, repetition: int) -> Chunks:
        return self._input(node, (units + node.count for units in feed), repetition)

    def shard(self, _number: int, node: g.Shard, feed: Feed, repetition: int) -> Chunks:
        return self._input(node, (units * node.num_shards + node.index for units in feed), repetition)

    def enumerate(self, _number: int, node: g.Enumerate, feed: Feed, repetition: int) -> Chunks:
        ours, below = feeds.tee(feed, 2)
        cursor = feeds.Cursor(ours)
        for chunk in self._input(node, below, repetition):
            numbers = (cursor.take(len(chunk)) + node.start).tolist()
            yield Chunk(list(zip(numbers, chunk.elements, strict=True)), chunk.origin, chunk.positions)

    def shuffle(self, number: int, node: g.Shuffle, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        count = self.map.of(child).count
        key = self.task.shuffle_key(number, node, repetition)
        if self.map.permutes(number):
            return self._input(node, (permute(units, count, key) for units in feed), repetition)
        if count >= INFINITE:
            return self.operator(number, node, [self._input(node, feed, repetition)], repetition)
        order = self.task.block_order(number, child, key)
        stretches = (stretch for units in feed for stretch in order(units))
        return self.operator(number, node, [self._interleaved(child, stretches, repetition)], repetition)

    def _interleaved(self, child: int, stretches: Iterator[tuple[int, int]], repetition: int) -> Chunks:
        """Several stretches of the child's units at a time, a block of elements from each in turn."""
        active: list[feeds.Elements] = []
        while True:
            while len(active) < _INTERLEAVED:
                stretch = next(stretches, None)
                if stretch is None:
                    break
                active.append(feeds.Elements(self.units(child, feeds.blocks(*stretch), repetition)))
            if not active:
                return
            for elements in list(active):
                taken = 0
                for chunk in elements.take(_INTERLEAVED_BLOCK):
                    taken += len(chunk)
                    yield chunk
                if taken < _INTERLEAVED_BLOCK:
                    active.remove(elements)

    # -- batches whose boundaries are known ----------------------------------------------------------------------------

    def batch(self, number: int, node: g.Batch | g.PaddedBatch, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        below = self.map.of(child)
        if below.yields is not Yield.ONE:
            return self.operator(number, node, [self.units(child, feed, repetition)], repetition)
        size = node.batch_size
        ours, theirs = feeds.tee(feed, 2)
        origin = Origin(number, 0, repetition)

        def outputs() -> Iterator[tuple[Origin, int, int]]:
            for units in ours:
                for unit in units.tolist():
                    yield origin, unit, min(size, below.count - unit * size)

        rows = np.arange(size, dtype=np.int64)

        def elements() -> Feed:
            for units in theirs:
                step = max(1, feeds.BLOCK // size)
                for start in range(0, len(units), step):
                    wanted = (units[start : start + step, None] * size + rows).ravel()
                    yield wanted[wanted < below.count]

        return self.operator(number, node, [self.units(child, elements(), repetition)], repetition, outputs)

    # -- several inputs ------------------------------------------------------------------------------------------------

    def zip(self, number: int, node: g.Zip, feed: Feed, repetition: int) -> Chunks:
        ours, *below = feeds.tee(feed, 1 + len(node.inputs))
        inputs = [
            self.units(self.graph.id_of(child), units, repetition)
            for child, units in zip(node.inputs, below, strict=True)
        ]
        zipped = self.operator(number, node, inputs, repetition)
        return feeds.positioned(zipped, ours, Origin(number, 0, repetition))

    def sample(self, number: int, node: g.SampleFromDatasets, feed: Feed, repetition: int) -> Chunks:
        mixture = self.map.mixtures[number]
        children = [self.graph.id_of(child) for child in node.inputs]
        return self._merge(
            number,
            feed,
            mixture.resolve,
            lambda which, units: self.units(children[which], units, repetition),
            repetition,
        )

    def concatenate(self, number: int, node: g.Concatenate, feed: Feed, repetition: int) -> Chunks:
        children = [self.graph.id_of(child) for child in node.inputs]
        counts = [self.map.of(child).count for child in children]
        starts = np.array([sum(counts[:index]) for index in range(len(counts))], np.int64)

        def route(units: Array) -> tuple[Array, Array]:
            which = np.searchsorted(starts, units, side="right") - 1
            return which.astype(np.int64), units - starts[which]

        return self._parts(
            number, feed, route, lambda which, units: self.units(children[which], units, repetition), repetition
        )

    def repeat(self, number: int, node: g.Repeat, feed: Feed, repetition: int) -> Chunks:
        child = self.graph.id_of(node.inputs[0])
        count = self.map.of(child).count
        if count >= INFINITE:
            return self.units(child, feed, repetition)

        def route(units: Array) -> tuple[Array, Array]:
            turn, within = np.divmod(units, count)
            return turn, within

        def part(turn: int, units: Feed) -> Chunks:
            return self.units(child, units, _nested(repetition, turn))

        return self._parts(number, feed, route, part, repetition)

    def _parts(
        self,
        number: int,
        feed: Feed,
        route: Callable[[Array], tuple[Array, Array]],
        part: Callable[[int, Feed], Chunks],
        repetition: int,
    ) -> Chunks:
        """Parts one after the other while units ascend, else merged element by element."""
        for units in feed:
            which, within = route(units)
            if feeds.ascends(units):
                for start, stop in feeds.runs(which):
                    yield from part(int(which[start]), iter([within[start:stop]]))
            else:
                yield from self._merge(number, iter([units]), route, part, repetition)

    def _merge(
        self,
        number: int,
        feed: Feed,
        route: Callable[[Array], tuple[Array, Array]],
        part: Callable[[int, Feed], Chunks],
        repetition: int,
    ) -> Chunks:
        """One element for each unit, from the part that ``route`` names."""
        ours, theirs = feeds.tee(feed, 2)
        routes = feeds.Routes(theirs, route)
        streams: dict[int, feeds.Elements] = {}

        def merged() -> Chunks:
            for choices in routes.choices():
                step = self.task.chunk_size()
                for start in range(0, len(choices), step):
                    wanted = choices[start : start + step]
                    elements: list[Any] = [None] * len(wanted)
                    for which in np.unique(wanted).tolist():
                        if which not in streams:
                            streams[which] = feeds.Elements(part(which, routes.reader(which)))
                        places = np.flatnonzero(wanted == which).tolist()
                        taken = [e for chunk in streams[which].take(len(places)) for e in chunk.elements]
                        for place, element in zip(places, taken, strict=True):
                            elements[place] = element
                    yield Chunk(elements, Origin(number, 0, repetition), range(0))

        return feeds.positioned(merged(), ours, Origin(number, 0, repetition))

    def _repeat_stream(self, node: g.Repeat, child: int, repetition: int) -> Chunks:
        turn = 0
        while node.count is None or turn < node.count:
            empty = True
            for chunk in self.stream(child, _nested(repetition, turn)):
                empty = False
                yield chunk
            if empty:
                return
            turn += 1


def _nested(repetition: int, turn: int) -> int:
    """Number of a repetition within a repetition: the turn itself unless there is one around it."""
    return turn if not repetition else derive(repetition, turn) >> 1


_Rule = Callable[[Lowering, int, Any, Feed, int], Chunks]

_RULES: dict[type[g.Node], _Rule] = {
    g.Take: Lowering.take,
    g.Skip: Lowering.skip,
    g.Shard: Lowering.shard,
    g.Enumerate: Lowering.enumerate,
    g.Shuffle: Lowering.shuffle,
    g.Batch: Lowering.batch,
    g.PaddedBatch: Lowering.batch,
    g.Zip: Lowering.zip,
    g.SampleFromDatasets: Lowering.sample,
    g.Concatenate: Lowering.concatenate,
    g.Repeat: Lowering.repeat,
}
