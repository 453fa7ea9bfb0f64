"""Units: how every node of a graph can be cut, and where its cuts come from.

A node's units are a virtual sequence ``0 .. count - 1`` that can be cut anywhere. Cutting the root's units makes tasks;
pushing a range of units down, node by node (:mod:`millrace.engine.run.lowering`), finds what to read. Three kinds of
yield say how units relate to elements; only where each unit is one element can positions be counted, zipped or skipped
without reading.
"""

from __future__ import annotations

import enum
import functools
import hashlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError, anew
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import outline
from millrace.graph.source_nodes import FromArrays, FromGenerator, FromList, FromMapStyle
from millrace.planning.mixture import ENDLESS
from millrace.planning.node_mixtures import NodeMixture
from millrace.planning.random_keys import derive
from millrace.planning.sampler_orders import ComputedSampler, SamplerDraws
from millrace.planning.sequencing import (
    IN_SEQUENCE,
    NO_END,
    NO_SKIPS,
    PASSES,
    asserted_length,
    count_windows,
    has_no_end,
)
from millrace.planning.split_table import SplitTable, TableSummary, pack_tables, without_hashes

INFINITE = ENDLESS
"""Count of a node that never ends."""

Positions = npt.NDArray[np.int64]


class Cardinality(enum.IntEnum):
    """Number of elements that a unit gives."""

    ONE = 0
    AT_MOST_ONE = 1
    MANY = 2


@dataclass(frozen=True, slots=True)
class Units:
    """Units of one node.

    Attributes:
        count: number of units, :data:`INFINITE` if endless.
        yields: elements per unit.
        cheap: any order of units costs the same, so that a shuffle may permute them all.
        collecting: an operator at or below collects a varying number of elements and may leave some at a task's end.
        task_local: an operator at or below works on what a whole task has (a window, a collection), so that there must
            be one of it in a task.
        period: units after which collecting operators flush; ``count`` unless a ``repeat`` stands above them.
        reads: source elements (whole splits count as ``bytes``) behind one unit, roughly.
        bytes: stored bytes behind one unit, roughly; 0 if unknown.
        group: the largest number of elements that a collecting operator gathers.
        target: source elements that make a task of sensible size.
        refill: source elements that a task should have at least, as all data are read forward for them; 0: any number.
    """

    count: int
    yields: Cardinality
    cheap: bool
    collecting: bool = False
    task_local: bool = False
    period: int = INFINITE
    reads: float = 1.0
    bytes: float = 0.0
    group: int = 1
    target: int = 8192
    refill: int = 0


class UnplannableError(PipelineError):
    """Node that needs positions which its input doesn't have: the graph runs as one sequence."""

    def __init__(self, node: g.Node, reason: str, remedy: str = "") -> None:
        super().__init__(node, reason, remedy)
        self.node = node
        self.remedy = remedy or (
            "Put it before operators that change the number of elements, or do without it, and the work can be shared."
        )

    def __str__(self) -> str:
        return f"{self.node} {self.args[1]}"


class UnitMap:
    """Units of every node of a graph, given its split tables; pure arithmetic on top of them.

    Made of their summaries alone, it says how many units there are, and not which.

    Attributes:
        summaries: of the tables, by node id.
    """

    def __init__(
        self, graph: Graph, tables: Mapping[int, SplitTable] | Mapping[int, TableSummary], seed: int = 0
    ) -> None:
        self.graph = graph
        self.tables = cast("Mapping[int, SplitTable]", tables)
        self.summaries = {
            number: table if isinstance(table, TableSummary) else table.summary() for number, table in tables.items()
        }
        self.seed = seed
        on_error = graph.options().on_error
        self.skips = on_error == "skip"
        self._units: dict[int, Units | UnplannableError] = {}
        self.mixtures: dict[int, NodeMixture] = {}
        self.draws = SamplerDraws(sum(isinstance(node, g.Sample) for node in graph.nodes))
        for number, node in enumerate(graph.nodes):
            self._units[number] = self._analyse(number, node)

    def of(self, number: int) -> Units:
        """Units of node ``number``.

        Raises:
            UnplannableError: if it, or a node below it, cannot be planned.
        """
        found = self._units[number]
        if isinstance(found, UnplannableError):
            raise anew(found)
        return found

    def plannable(self, number: int) -> bool:
        """Whether :meth:`of` answers."""
        return isinstance(self._units[number], Units)

    def child_units(self, node: g.Node) -> list[Units]:
        """Units of a node's inputs."""
        return [self.of(self.graph.id_of(child)) for child in node.inputs]

    def firsts(self, numbers: Sequence[int]) -> Positions:
        """First unit of each of the nodes ``numbers`` in their concatenation, int64."""
        counts = [self.of(number).count for number in numbers]
        return np.array([min(INFINITE, sum(counts[:index])) for index in range(len(counts))], np.int64)

    @functools.cached_property
    def starts(self) -> dict[int, Positions]:
        """Position of each split's first element, int64, by source whose splits have known counts."""
        found = {}
        for number, table in self.tables.items():
            if table.pieces is not None and table.splits and table.count >= 0:
                counts = table.pieces.counts.array()
                found[number] = np.cumsum(counts) - counts
        return found

    @functools.cached_property
    def plan_digest(self) -> bytes:
        """Hash of what decides which elements a task of a plan has: operators, sources and ``on_error``; 16 bytes."""
        told = msgspec.msgpack.encode([outline(self.graph), self.skips])
        return hashlib.blake2b(told + pack_tables(without_hashes(self.tables)), digest_size=16).digest()

    def _analyse(self, number: int, node: g.Node) -> Units | UnplannableError:
        try:
            if isinstance(node, g.Source):
                return self._source(node, self.summaries[number])
            return _RULES[type(node)](self, number, node, self.child_units(node))
        except UnplannableError as error:
            if isinstance(node, g.Sample):
                raise PipelineError(_NO_POSITIONS.format(node=node)) from error
            if isinstance(node, g.Reservoir) and has_no_end(node.inputs[0]):
                raise PipelineError(NO_END.format(node=node)) from error
            if isinstance(node, g.Reservoir) and self.skips:
                raise PipelineError(NO_SKIPS.format(node=node)) from error
            return anew(error)

    def _source(self, node: g.Source, table: TableSummary) -> Units:
        target = _TASK_ELEMENTS.get(type(node), 8192)
        if table.count >= 0:
            size = (8.0 if isinstance(node, g.Range) else table.bytes / max(table.count, 1)) if table.count else 0.0
            calls_user = isinstance(node, FromMapStyle) and self.skips
            return Units(
                table.count,
                Cardinality.AT_MOST_ONE if calls_user else Cardinality.ONE,
                table.cheap,
                bytes=size,
                target=target,
            )
        size = table.bytes / max(table.pieces, 1)
        return Units(
            table.pieces, Cardinality.MANY, cheap=False, reads=max(size / 1024, 1.0), bytes=size, target=target
        )

    def collectors(self, root: g.Node) -> Iterator[int]:
        """Find the operators in ``root`` and below that may leave elements at a task's end."""
        for node in Graph(root).nodes:
            number = self.graph.id_of(node)
            if isinstance(node, _COLLECTORS) and self.of(number).collecting:
                yield number

    def permutes(self, number: int) -> bool:
        """Whether this shuffle is a permutation of all units of its input, rather than of blocks with a window."""
        (below,) = self.child_units(self.graph.nodes[number])
        return _permutable(below)

    @property
    def exact(self) -> bool:
        """Whether each unit of the root is one output, the same whatever range of units it is computed in."""
        root = self.graph.id_of(self.graph.root)
        if not self.plannable(root):
            return False
        units = self.of(root)
        return units.yields is Cardinality.ONE and not units.task_local

    def length(self) -> int | None:
        """Count the elements of the dataset; None if only reading can tell; :data:`INFINITE` if endless."""
        root = self.graph.id_of(self.graph.root)
        if not self.plannable(root):
            return asserted_length(self.graph.root, self.skips, self._count)
        return self._count(self.graph.root)

    def _count(self, node: g.Node) -> int | None:
        """Count the elements of a node, if its units say so."""
        number = self.graph.id_of(node)
        units = self.of(number) if self.plannable(number) else None
        return units.count if units is not None and units.yields is Cardinality.ONE else None


_TASK_ELEMENTS: dict[type[g.Node], int] = {FromList: 1024, FromArrays: 1024, g.FromFiles: 1024, FromMapStyle: 512}
"""Elements per task where stored bytes don't say more: a guess at what costs seconds at most."""

_COLLECTORS = (g.Batch, g.PaddedBatch, g.BucketBySequenceLength, g.GroupByWindow, g.Pack, g.Rebatch)
"""Operators that collect, where they don't take a known number of elements."""

_SEQUENCES_PER_ROW = 4
"""Sequences in a packed row: a guess, as only their lengths tell."""

_Rule = Callable[[UnitMap, int, Any, list[Units]], Units]


def _same(_map: UnitMap, _number: int, _node: g.Node, below: list[Units]) -> Units:
    return below[0]


def _map(units: UnitMap, _number: int, _node: g.Map, below: list[Units]) -> Units:
    lossy = Cardinality.AT_MOST_ONE if units.skips else Cardinality.ONE
    return replace(below[0], yields=max(below[0].yields, lossy))


def _filter(_map: UnitMap, _number: int, _node: g.Filter, below: list[Units]) -> Units:
    return replace(below[0], yields=max(below[0].yields, Cardinality.AT_MOST_ONE))


def _many(_map: UnitMap, _number: int, _node: g.Node, below: list[Units]) -> Units:
    return replace(below[0], yields=Cardinality.MANY, cheap=False)


def _resampled(_map: UnitMap, _number: int, node: g.RejectionResample, below: list[Units]) -> Units:
    local = below[0].task_local or node.initial_dist is None
    return replace(below[0], yields=Cardinality.MANY, cheap=False, task_local=local)


def _shuffle(_map: UnitMap, _number: int, _node: g.Shuffle, below: list[Units]) -> Units:
    cheap = _permutable(below[0])
    return replace(below[0], cheap=cheap, task_local=below[0].task_local or not cheap)


def _permutable(units: Units) -> bool:
    return units.cheap and units.yields <= Cardinality.AT_MOST_ONE and units.count < INFINITE


def _batch(_map: UnitMap, _number: int, node: g.Batch | g.PaddedBatch, below: list[Units]) -> Units:
    units, size = below[0], node.batch_size
    if node.together or units.yields is not Cardinality.ONE:  # what fills no round goes to a tail, as of buckets
        return _collect(node, units, size * max(1, node.together))
    if units.count >= INFINITE:
        count = INFINITE
    else:
        count = units.count // size if node.drop_remainder else -(-units.count // size)
    return replace(units, count=count, reads=units.reads * size, bytes=units.bytes * size)


def _bucket(_map: UnitMap, _number: int, node: g.BucketBySequenceLength, below: list[Units]) -> Units:
    waiting = max(node.bucket_batch_sizes) * len(node.bucket_batch_sizes) * max(1, node.together)
    return _collect(node, below[0], waiting)


def _window(_map: UnitMap, _number: int, node: g.GroupByWindow, below: list[Units]) -> Units:
    return _collect(node, below[0], node.window_size or 64)


def _pack(_map: UnitMap, _number: int, node: g.Pack, below: list[Units]) -> Units:
    return _collect(node, below[0], node.window * _SEQUENCES_PER_ROW)


def _rebatch(_map: UnitMap, _number: int, node: g.Rebatch, below: list[Units]) -> Units:
    return _collect(node, below[0], 1)


def _collect(node: g.Node, units: Units, group: int) -> Units:
    if units.period < INFINITE:
        raise UnplannableError(
            node, "collects elements across a repeat of what another operator has collected; put repeat last"
        )
    group = max(units.group, group)
    return replace(units, yields=Cardinality.MANY, cheap=False, collecting=True, task_local=True, group=group)


def _need_positions(node: g.Node, below: list[Units]) -> None:
    if any(units.yields is not Cardinality.ONE for units in below):
        raise UnplannableError(
            node, "needs to know how many elements its input has, which only reading it all in order can tell"
        )


def _in_sequence(_map: UnitMap, _number: int, node: g.Node, _below: list[Units]) -> Units:
    raise UnplannableError(node, *IN_SEQUENCE[type(node)])


def _windows(_map: UnitMap, _number: int, node: g.SlidingWindow, below: list[Units]) -> Units:
    _need_positions(node, below)
    units, read = below[0], min(node.shift, node.size)
    if units.task_local and node.shift < node.span:
        raise UnplannableError(
            node,
            "has windows that overlap of elements that each task mixes, of which two tasks would have the same",
            "Shuffle behind it, or with reservoir(), and the work can be shared.",
        )
    count = INFINITE if units.count >= INFINITE else count_windows(node, units.count)
    return replace(units, count=count, reads=units.reads * read, bytes=units.bytes * read)


def _asserted(_map: UnitMap, _number: int, node: g.AssertCardinality, below: list[Units]) -> Units:
    _need_positions(node, below)
    if below[0].count != node.count:
        found = "without end" if below[0].count >= INFINITE else str(below[0].count)
        raise PipelineError(f"{node} expects {node.count} elements, and its input has {found}")
    return below[0]


def _take(_map: UnitMap, _number: int, node: g.Take, below: list[Units]) -> Units:
    if node.count < 0:
        return below[0]
    _need_positions(node, below)
    return replace(below[0], count=min(node.count, below[0].count))


def _skip(_map: UnitMap, _number: int, node: g.Skip, below: list[Units]) -> Units:
    _need_positions(node, below)
    count = below[0].count
    if node.count < 0:
        return replace(below[0], count=0)
    return replace(below[0], count=count if count >= INFINITE else max(0, count - node.count))


def _shard(_map: UnitMap, _number: int, node: g.Shard, below: list[Units]) -> Units:
    _need_positions(node, below)
    count = below[0].count
    if count < INFINITE:
        count = max(0, -(-(count - node.index) // node.num_shards))
    return replace(below[0], count=count)


def _drawn(_map: UnitMap, _number: int, node: g.Sample, below: list[Units]) -> Units:
    (units,) = below
    if not units.cheap or units.yields is not Cardinality.ONE or units.count >= INFINITE:
        raise PipelineError(_NO_POSITIONS.format(node=node))
    if isinstance(node.sampler.value, ComputedSampler):
        node.sampler.value.check(units.count)
    count = units.count if node.num_samples is None else node.num_samples
    if count and not units.count:
        raise PipelineError(f"{node} draws {count} elements in each epoch, and its input has none")
    return replace(units, count=count)


def _reservoir(_map: UnitMap, _number: int, node: g.Reservoir, below: list[Units]) -> Units:
    (units,) = below
    if units.count >= INFINITE:
        raise PipelineError(NO_END.format(node=node))
    if node.levels:
        raise UnplannableError(node, "has levels, which are one worker's", "Without levels the work can be shared.")
    if units.yields is not Cardinality.ONE:
        raise UnplannableError(node, *PASSES)
    refill = 0 if units.cheap else math.ceil(min(node.size, units.count) * units.reads)
    return replace(units, refill=max(units.refill, refill))


_NO_POSITIONS = (
    "{node} draws elements at any position, and its input can't be read so, or not without reading all before: it"
    " must have an end, each of its elements has to be one of files, a list, arrays, a map-style dataset or"
    ' from_webdataset(random_access=True), and nothing before it may leave elements out, on_error="skip" included'
)


def _enumerate(_map: UnitMap, _number: int, node: g.Enumerate, below: list[Units]) -> Units:
    _need_positions(node, below)
    return below[0]


def _zip(_map: UnitMap, _number: int, node: g.Zip, below: list[Units]) -> Units:
    _need_positions(node, below)
    return _of_several(below, min(units.count for units in below), [1] * len(below))


def _of_several(below: list[Units], count: int, weights: Sequence[float], total: float = 1.0) -> Units:
    """Units made of those of several inputs, in proportion to ``weights`` of ``total``."""
    yields = max(units.yields for units in below)
    return Units(
        count,
        yields,
        cheap=yields is Cardinality.ONE and all(units.cheap for units in below),
        collecting=any(units.collecting for units in below),
        task_local=any(units.task_local for units in below),
        reads=sum(units.reads * weight for units, weight in zip(below, weights, strict=True)) / total,
        bytes=sum(units.bytes * weight for units, weight in zip(below, weights, strict=True)) / total,
        group=max(units.group for units in below),
        target=min(units.target for units in below),
        refill=max(units.refill for units in below),
    )


def _concatenate(units_of: UnitMap, _number: int, node: g.Concatenate, below: list[Units]) -> Units:
    if any(units.period < INFINITE for units in below):
        raise UnplannableError(node, "follows a repeat of collected elements; put repeat last")
    collectors = [number for child in node.inputs for number in units_of.collectors(child)]
    if len(set(collectors)) < len(collectors):
        # What the shared operator leaves at the end of a task could belong to either input.
        raise UnplannableError(node, "has inputs that share an operator which collects elements")
    count = min(INFINITE, sum(units.count for units in below))
    counts = [units.count if units.count < INFINITE else 0 for units in below]
    if not any(counts):
        counts[0] = 1
    return _of_several(below, count, counts, sum(counts))


def _repeat(_map: UnitMap, _number: int, node: g.Repeat, below: list[Units]) -> Units:
    units = below[0]
    if units.count >= INFINITE or node.count == 1:
        return units
    count = min(INFINITE, units.count * node.count) if node.count is not None else (INFINITE if units.count else 0)
    period = min(units.period, units.count) if units.collecting else INFINITE
    cheap = units.cheap and units.yields is Cardinality.ONE and count < INFINITE
    return replace(units, count=count, period=period, cheap=cheap)


def _mixed(
    units_of: UnitMap, number: int, node: g.SampleFromDatasets | g.ChooseFromDatasets, below: list[Units]
) -> Units:
    if isinstance(node, g.ChooseFromDatasets) and node.choices is None:
        raise UnplannableError(node, "chooses by the elements of a dataset, which only reading it in order can tell")
    _need_positions(node, below)
    seed = units_of.seed if not isinstance(node, g.SampleFromDatasets) or node.seed is None else node.seed
    passes = [units_of.child_units(child)[0].count for child in node.inputs] if node.cycle else None
    key = derive(seed, units_of.graph.keys[number])
    mixture = units_of.mixtures[number] = NodeMixture(node, key, [units.count for units in below], passes)
    return _of_several(below, mixture.total, mixture.shares)


_RULES: dict[type[g.Node], _Rule] = {
    g.Map: _map,
    g.Filter: _filter,
    **dict.fromkeys(IN_SEQUENCE, _in_sequence),
    g.FlatMap: _many,
    FromGenerator: _many,
    g.Interleave: _many,
    g.Unbatch: _many,
    g.RejectionResample: _resampled,
    g.Prefetch: _same,
    g.Cache: _same,
    g.Autocache: _same,
    g.WithOptions: _same,
    g.Shuffle: _shuffle,
    g.Batch: _batch,
    g.RaggedBatch: _batch,
    g.PaddedBatch: _batch,
    g.BucketBySequenceLength: _bucket,
    g.GroupByWindow: _window,
    g.Pack: _pack,
    g.Rebatch: _rebatch,
    g.SlidingWindow: _windows,
    g.AssertCardinality: _asserted,
    g.Repeat: _repeat,
    g.Take: _take,
    g.Skip: _skip,
    g.Shard: _shard,
    g.Sample: _drawn,
    g.Reservoir: _reservoir,
    g.Enumerate: _enumerate,
    g.Zip: _zip,
    g.Concatenate: _concatenate,
    g.SampleFromDatasets: _mixed,
    g.ChooseFromDatasets: _mixed,
}
