"""Pipeline of a distributed dataset with operators behind ``distribute()``: those run in the training process."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.errors import PipelineError, StateError, UnknownLengthError
from millrace.frameworks.base import Readable
from millrace.functions.spawn_pickling import picklable_for_spawn
from millrace.graph import nodes as g
from millrace.graph.notation import notation
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import PASSING
from millrace.planning.checkpoint import Checkpoint, PipelineIdentity, fit, graph_digest, pack, parse_all
from millrace.planning.epoch_cursor import Number, Share
from millrace.planning.shapes import Varying, varying
from millrace.planning.split_table import TableSummary
from millrace.planning.units import UnitMap
from millrace.served import ServedPipeline

if TYPE_CHECKING:
    from millrace.client.behind import BehindReader
    from millrace.engine.run.arrival_metrics import ArrivalMetrics
    from millrace.policies.saved_data import MadeOf

_KEEPING = (
    "would keep what comes to this process in this epoch, and in the next one others come: put it before distribute(), "
    "where the service keeps elements for all"
)
_REFUSED: Mapping[type[g.Node], str] = {
    g.Cache: _KEEPING,
    g.Autocache: _KEEPING,
    g.Repeat: "cannot go on with the next epoch, as an iterator of a distributed dataset is one: put it before "
    "distribute(), iterate several times, or write .epochs(n)",
}
_UNEVEN = (
    *(g.Filter, g.TakeWhile, g.Unique, g.FlatMap, g.Interleave, g.Unbatch, g.Rebatch),
    *(g.BucketBySequenceLength, g.GroupByWindow, g.Pack),
)
"""Operators that may give one rank more elements than another, of equally many."""
_COUNTING = (g.Take, g.Skip, g.Shard, g.Enumerate, g.AssertCardinality)
"""Operators that count what one process gets."""
_OF_ALL = (*_COUNTING, g.TakeWhile, g.Scan, g.Unique)
"""Operators that go by all that one process has had."""


def continued(
    source: ServedPipeline | ContinuedPipeline, node_type: type[g.Node], parameters: Mapping[str, Any]
) -> ContinuedPipeline:
    """Continue a pipeline by one more operator behind ``distribute()``.

    Raises:
        PipelineError: the operator cannot be there.
    """
    served, root = (source.served, source.node) if isinstance(source, ContinuedPipeline) else (source, g.Arrivals())
    node = node_type(inputs=(root,), **parameters)
    if node_type in _REFUSED:
        raise PipelineError(f"{node} behind distribute() {_REFUSED[node_type]}")
    uneven = isinstance(node, _UNEVEN) or (isinstance(node, g.WithOptions) and node.on_error == "skip")
    if served.equal_steps and uneven:
        promise = "coordinated" if served.coordinated else "equal_steps"
        raise PipelineError(
            f"{node} behind distribute({promise}=True) may give one rank more elements than another: put it before "
            "distribute()"
        )
    return ContinuedPipeline(served, node)


class ContinuedPipeline(Readable):
    """Operators over what comes from a service.

    Args:
        served: what comes.
        node: the last of a chain of operators that begins with :class:`millrace.graph.nodes.Arrivals`.

    Attributes:
        served: see there; ``node`` likewise.
    """

    def __init__(self, served: ServedPipeline, node: g.Node) -> None:
        self.served, self.node = served, node
        self._now: Any = None
        self._metrics: ArrivalMetrics | None = None  # of the last iterator

    @functools.cached_property
    def _operators(self) -> Graph:
        return Graph(self.node)

    @functools.cached_property
    def _digest(self) -> str:
        passing = all(isinstance(node, (g.Arrivals, *PASSING)) for node in self._operators.nodes)
        return "" if passing else graph_digest(self._operators)

    def read_epoch(self, number: Number = None, share: Share | None = None) -> BehindReader:
        """Elements of one epoch; see :class:`Readable`.

        Raises:
            PipelineError: an operator goes by all that one process has had, and this is one of several helpers.
        """
        from millrace.client.behind import BehindReader
        from millrace.engine.run.arrival_metrics import ArrivalMetrics

        of_all = next((node for node in self._operators.nodes if isinstance(node, _OF_ALL)), None)
        if share is not None and share[1] > 1 and of_all is not None:
            raise PipelineError(
                f"{of_all} behind distribute() goes by all that one process has had, and this is one of {share[1]} "
                "processes of a DataLoader: put it before distribute(), or use num_workers=0"
            )
        loaded, now = self.served.loaded, list[Callable[[], Checkpoint]]()
        graph, metrics = self._operators, ArrivalMetrics(self._operators)
        started = functools.partial(self.served.started, self.served.load_id)
        reader = self.served.reader(number, share)
        try:
            found = BehindReader(reader, graph, self._digest, loaded, self._fit, started, now, metrics)
        except BaseException:
            reader.close()
            raise
        self._now, self._metrics = functools.partial(_latest, now), metrics
        return found

    def state_dict(self) -> dict[str, Any]:
        """See :class:`Readable`."""
        return pack(self._fresh_state() if self._now is None else self._now())

    def load_state_dict(self, state: Any) -> None:
        """See :class:`Readable`."""
        self.served.load_state_dict([pack(each) for each in self._fit(state)])
        self._now = None

    def has_no_end(self) -> bool:
        """See :class:`Readable`."""
        nodes = self._operators.nodes
        ended = any(isinstance(node, g.TakeWhile) or (isinstance(node, g.Take) and node.count >= 0) for node in nodes)
        return not ended and self.served.has_no_end()

    def set_weights(self, weights: Sequence[float]) -> int:
        """See :class:`Readable`."""
        return self.served.set_weights(weights)

    @property
    def load_id(self) -> int | None:
        """See :class:`Readable`."""
        return self.served.load_id

    @property
    def whole(self) -> bool:
        """See :class:`Readable`."""
        return self.served.whole

    def forget_state(self) -> None:
        """See :class:`Readable`."""
        self.served.forget_state()

    def _fit(self, state: Any) -> tuple[Checkpoint, ...]:
        """Make states what the served pipeline loads.

        Raises:
            StateError: they are not of these operators, or not of as many ranks where operators count.
        """
        loaded = parse_all(state)
        for each in loaded:
            fit(each.identity, PipelineIdentity(behind=self._digest))
        epoch, ranks = min(each.next_epoch for each in loaded), self.served.ranks
        counting = next((node for node in self._operators.nodes if isinstance(node, (*_COUNTING, g.TakeWhile))), None)
        read = [
            each for each in loaded if each.epoch == epoch and (each.counts or each.done or each.later or each.begun)
        ]
        if counting is not None and any(each.ranks != ranks for each in read):
            raise StateError(
                f"{counting} behind distribute() counts what one process gets, and the state is of {loaded[0].ranks} "
                f"processes, where there are {ranks} now: go on with as many, or from a state of an epoch's end"
            )
        return tuple(msgspec.structs.replace(each, behind="") for each in loaded)

    def _fresh_state(self) -> Checkpoint:
        return msgspec.structs.replace(self.served.before(), behind=self._digest)

    def adopt_seed(self, seed: int | None) -> None:
        """See :class:`Readable`."""
        self.served.adopt_seed(seed)

    def peek(self, count: int) -> list[Any]:
        """See :class:`Readable`; all is computed in this process."""
        from millrace.pipeline import Pipeline

        return Pipeline(_onto(self.node, self.served.pipeline.node)).peek(count)

    def made_of(self) -> MadeOf:
        """See :class:`Readable`."""
        return self.served.made_of(functools.partial(_onto, self.node), str(self))

    def varying(self) -> Varying:
        """See :class:`Readable`; how much the operators make of what comes, nobody knows before."""
        there = self.served.varying()
        here = varying(UnitMap(self._operators, {0: TableSummary(cheap=False, count=-1, pieces=1)}))
        return Varying(there.rows | here.rows, there.padded or here.padded, there.fixed | here.fixed)

    def prepare_to_fork(self) -> None:
        """See :class:`Readable`."""
        self.served.prepare_to_fork()

    def will_read(self, epochs: int) -> None:
        """See :class:`ServedPipeline`."""
        self.served.will_read(epochs)

    def status(self) -> dict[str, Any]:
        """Status of the service and of the operators here; see :meth:`millrace.DistributedDataset.status`."""
        found = self.served.status()
        return found if self._metrics is None else self._metrics.status(found)

    def close(self) -> None:
        """See :class:`ServedPipeline`."""
        self.served.close()

    def __len__(self) -> int:
        """Length, as far as it follows from that of what comes.

        Raises:
            UnknownLengthError: else.
        """
        table = TableSummary(cheap=False, count=len(self.served))
        length = UnitMap(self._operators, {0: table}).length()
        if length is None:
            raise UnknownLengthError(f"the length of {self} is known only after reading it")
        return length

    def __str__(self) -> str:
        """See :class:`Readable`."""
        return f"{self.served}{notation(self._operators)}"

    def __getstate__(self) -> dict[str, Any]:
        """State of a copy: in another process it joins by itself; a process being spawned gets lambdas too."""
        return {"served": self.served, "node": picklable_for_spawn(self.node), "_now": None, "_metrics": None}


def _latest(now: list[Callable[[], Checkpoint]]) -> Checkpoint:
    return now[0]()


def _onto(node: g.Node, source: g.Node) -> g.Node:
    """Put the chain of operators behind another source."""
    return source if isinstance(node, g.Arrivals) else replace(node, inputs=(_onto(node.inputs[0], source),))
