"""Pipeline behind a dataset: its graph, its seed, what its sources hold, and how far its iterators are."""

from __future__ import annotations

import functools
import secrets
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, TypeVar

from millrace.errors import UnknownLengthError
from millrace.frameworks.base import Readable
from millrace.functions.spawn_pickling import picklable_for_spawn
from millrace.graph import nodes as g
from millrace.graph.notation import notation
from millrace.graph.operator_graph import Graph
from millrace.planning.checkpoint import Checkpoint, graph_digest
from millrace.planning.epoch_cursor import EpochCursor, Number, Share
from millrace.planning.plan import Plan, make_plan
from millrace.planning.sequencing import has_no_end
from millrace.planning.shapes import Varying, varying
from millrace.planning.split_table import SplitTable
from millrace.planning.units import INFINITE, UnitMap

if TYPE_CHECKING:
    from millrace.engine.run.local_epoch import LocalIterator
    from millrace.policies.saved_data import MadeOf

T = TypeVar("T")


class Pipeline(Readable):
    """A graph that is read in this process. Its seed, and what its sources hold, are found once.

    Args:
        node: the last of the graph.

    Attributes:
        node: see there.
    """

    def __init__(self, node: g.Node) -> None:
        self.node = node
        self._tables: dict[int, SplitTable] | None = None
        self._passes = EpochCursor()

    def read_epoch(self, number: Number = None, share: Share | None = None) -> LocalIterator:
        """Elements of one epoch, or of a part of it, computed in this process; see :class:`Readable`."""
        from millrace.engine.run.local_epoch import read

        return self._passes.read_by(read(self, self._passes, number, share))

    def peek(self, count: int) -> list[Any]:
        """See :class:`Readable`."""
        return list(self.first(count, lambda element: element))

    def first(self, count: int, function: Callable[[Any], T]) -> Iterator[T]:
        """Compute ``function`` of each of the first ``count`` elements of the first epoch, in this process."""
        from millrace.engine.run.local_epoch import read

        with read(self, EpochCursor(), 0) as elements:
            for _, element in zip(range(count), elements, strict=False):
                yield function(element)

    def made_of(self) -> MadeOf:
        """See :class:`Readable`; a seed that nobody chose doesn't count."""
        from millrace.sources.provenance import made_of

        return made_of(self.graph, self.tables(), str(self)).judged(self._passes.why_unlike(self._fresh_state))

    def has_no_end(self) -> bool:
        """See :class:`Readable`."""
        return has_no_end(self.node)

    def prepare_to_fork(self) -> None:
        """Draw the seed, rather than each process its own."""
        self.adopt_seed(self.seed)

    def varying(self) -> Varying:
        """See :class:`Readable`."""
        return varying(UnitMap(self.graph, self.tables(), self.seed))

    def __len__(self) -> int:
        """See :class:`Readable`; may list files."""
        length = UnitMap(self.graph, self.tables(), self.seed).length()
        if length is None or length >= INFINITE:
            why = "is known only after reading it" if length is None else "has no end; put take(n) behind repeat()"
            raise UnknownLengthError(f"the length of {self} {why}")
        return length

    def __str__(self) -> str:
        """See :class:`Readable`."""
        return notation(self.graph)

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy, which starts with this seed and this epoch; a process being spawned gets lambdas too."""
        state = {
            **self.__dict__,
            "seed": self.seed,
            "node": picklable_for_spawn(self.node),
            "_passes": self._passes.copy(),
        }
        return {name: value for name, value in state.items() if name != "graph"}

    @functools.cached_property
    def graph(self) -> Graph:
        """The graph, with user functions."""
        return Graph(self.node)

    @functools.cached_property
    def seed(self) -> int:
        """The pipeline's seed: of ``with_options``, else of the last shuffle that has one, else drawn once."""
        chosen = self.graph.seed()
        return secrets.randbits(63) if chosen is None else chosen

    def tables(self) -> dict[int, SplitTable]:
        """Split table of every source, by node id. Lists the data the first time."""
        if self._tables is None:
            from millrace.engine.run.program import list_sources
            from millrace.engine.run.slow_listing import announced

            with announced(self) as seen:
                self._tables = list_sources(self.graph, seen)
        return self._tables

    def plan(self, tasks: int | None = None) -> Plan:
        """Plan of an epoch: how it is cut into tasks."""
        return make_plan(self.graph, self.tables(), tasks=tasks, seed=self.seed)

    def _fresh_state(self) -> Checkpoint:
        return Checkpoint(seed=self.seed, epoch=self._passes.following, graph=graph_digest(self.graph))
