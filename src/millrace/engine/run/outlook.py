"""Outlook: what a task will ask of its sources, seen by lowering it without running anything."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

from millrace.elements.chunk import Chunk
from millrace.engine.run.index_streams import Feed
from millrace.engine.run.lowering import INTERLEAVED, Lowering
from millrace.engine.run.reading import foretold
from millrace.engine.run.task import RunningTask
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning.epoch_shape import FRESH, RunShape
from millrace.planning.plan import Task
from millrace.sources.read_queues import Feed as Entries
from millrace.sources.source import StoredSource

if TYPE_CHECKING:
    from millrace.engine.cache.cached_items import ActivePoint


class ComingTask(NamedTuple):
    """Task that will run, or runs.

    Attributes:
        task: of a plan.
        epoch: number of the epoch.
        shape: of the epoch.
        point: the cache point in use; None: none.
    """

    task: Task
    epoch: int
    shape: RunShape = FRESH
    point: ActivePoint | None = None


class Outlook(Lowering):
    """Positions that a task will ask of its sources, as far as that is seen without running anything.

    Below a cache in use they are those of the items that it does not have when the feed is read. Sources below an
    operator that deals its feed out are left out; so are tasks that are cut out of others.

    Args:
        task: that runs later, or now.
        graph: as written or rewritten.
        filled: the cache has by now what it will have when the task runs, about; if not, what is below it is left out.

    Attributes:
        feeds: by node id of a source.
        together: ids of sources of whose feed some arrays are read by turns.
    """

    def __init__(self, task: RunningTask, graph: Graph, *, filled: bool = True) -> None:
        super().__init__(task, graph)
        self._filled = filled
        self.feeds: dict[int, Feed] = {}
        self.together: set[int] = set()
        self._interleaving = False
        if not (task.task.is_sequence or task.task.is_tail or task.task.parts):
            self.root()

    def entries(self, number: int) -> Entries:
        """Foretell the entries that source ``number``, which is among the feeds, is asked for."""
        source, together = cast(StoredSource, self.task.source(number)), INTERLEAVED if number in self.together else 1
        return foretold(source, self.map.tables[number], self.feeds[number], self.map.starts.get(number), together)

    def units(self, number: int, feed: Feed, repetition: int = 0) -> Iterator[Chunk]:
        """Follow the feed down, and yield nothing."""
        node = self.graph.nodes[number]
        if isinstance(node, g.Source):
            if number not in self.feeds and self._interleaving:
                self.together.add(number)
            self.feeds.setdefault(number, feed)
        elif isinstance(node, (g.Cache, g.Autocache)):
            self._past(number, node, feed, repetition)
        else:
            super().units(number, feed, repetition)
        return iter(())

    def _past(self, number: int, node: g.Cache | g.Autocache, feed: Feed, repetition: int) -> None:
        """Follow past a cache point what is made there."""
        lowering, inner = self._below_point(number, repetition)
        if self.task.caching(number)[0] is not None:
            if not self._filled:
                return
            feed = self._items(number, node, repetition, lowering, inner).missing(feed)
        before, self.task = self.task, lowering.task
        self.units(self.graph.id_of(node.inputs[0]), feed, inner)
        self.task = before

    def _interleaved(self, child: int, stretches: Feed, repetition: int) -> Iterator[Chunk]:
        """Follow the stretches down, and yield nothing."""
        before, self._interleaving = self._interleaving, True
        self.units(child, stretches, repetition)
        self._interleaving = before
        return iter(())
