"""Pipelines without data: real graphs and real plans, whose elements are numbers.

What a task puts out follows from its range of units alone, as with the engine: a unit gives one element, or none, or
some; operators that collect make groups, and leave the rest to the task's tail. So each element of an epoch can be
told from all others, and what any run of a task must put out is known.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.rounds import in_rounds
from millrace.graph.serialize import pack
from millrace.planning.cache_point import CachePoint, is_random
from millrace.planning.checkpoint import prints
from millrace.planning.orders import EpochOrders
from millrace.planning.plan import Piece, Plan, Task, plan_of
from millrace.planning.split_table import Split, SplitTable, files_table, pack_tables, positions_table, splits_table
from millrace.planning.units import Cardinality, Positions, UnitMap
from millrace.protocol.job_spec import JobSpec
from millrace.simulation.stored_files import COPIED, HASHED, NAMED, PIECES, SHARDS, StoredFiles
from millrace.worker.chunk_labels import Label, chunk_labels

Output = tuple[int, ...]
"""One output of a task: the elements that went into it."""

_MOST = 4
"""Elements that a unit gives at most."""
_SEQUENCE = 23
"""Units of a graph that runs as one sequence."""
_FUNCTION = g.Opaque(None, "modelled")
_RANDOM = g.Opaque(None, "modelled", takes_rng=True)
_VALUES = 1 << 32
"""More than there are elements of a pipeline."""
_MOST_ORDERS = 64
"""Epochs of a pipeline of which it is remembered in which order they read what is stored."""


def with_values(element: int, epoch: int) -> int:
    """Return an element with the random values that it has in an epoch."""
    return element + epoch * _VALUES


def bare(element: int) -> int:
    """Return an element without its random values."""
    return element % _VALUES


def values_of(element: int) -> int:
    """Return the epoch whose random values an element has."""
    return element // _VALUES


def unit_of(element: int) -> int:
    """Return the unit that gave an element."""
    return bare(element) // _MOST


def bytes_of(unit: int) -> int:
    """Return the bytes that a unit's elements take in a cache."""
    return (1 + unit % 3) << 20


@dataclass(frozen=True)
class SimulatedPipeline:
    """A graph over given split tables.

    Attributes:
        name: in words.
        graph: real, but for its functions.
        tables: what listing its sources gives, by node.
        tasks: number of tasks wanted.
        fruitful: units of each pass that give an element; None: that looks random.
        files: the data set that it reads; None: what it reads no cache server has.
    """

    name: str
    graph: Graph
    tables: dict[int, SplitTable]
    tasks: int
    fruitful: frozenset[int] | None = None
    files: StoredFiles | None = None

    @cached_property
    def structure(self) -> bytes:
        """The graph as a job's spec holds it."""
        return pack(self.graph)[0]

    @cached_property
    def plan(self) -> Plan:
        """Plan as the dispatcher and each worker make it."""
        return plan_of(self._units, self.tasks)

    def plan_for(self, spec: JobSpec, chunks: int = 0) -> Plan:
        """Return the plan of a job: another one if its consumers are to get equally many elements, or for chunks."""
        if chunks:
            return self._chunked(chunks)
        return self.plan if spec.ranks is None else plan_of(self._units, self.tasks, spec.ranks)

    def _chunked(self, chunks: int) -> Plan:
        if chunks not in self._plans:
            self._plans[chunks] = plan_of(self._units, self.tasks, chunks=chunks)
        return self._plans[chunks]

    @cached_property
    def _plans(self) -> dict[int, Plan]:
        return {}

    def labels(self, chunks: int) -> Label:
        """Make the function that finds the label of what is read, as workers have it."""
        if chunks not in self._labels:
            self._labels[chunks] = chunk_labels(self.prints[0], self.tables[0], chunks)
        return self._labels[chunks]

    @cached_property
    def _labels(self) -> dict[int, Label]:
        return {}

    @property
    def positions(self) -> int:
        """Number of positions in its source, or of splits of which nobody has counted the elements."""
        return self._units.of(0).count

    @property
    def at_edges(self) -> bool:
        """Whether units at the edges of chunks have items of two of them."""
        root = self.graph.root
        return isinstance(root, g.Batch) and not self._units.of(self.graph.id_of(root)).collecting

    @cached_property
    def prints(self) -> list[str]:
        """Identity of the data of each source."""
        return prints(self.graph, self.tables)

    @cached_property
    def packed_tables(self) -> tuple[str, bytes]:
        """The blob that workers fetch, behind its digest."""
        data = pack_tables(self.tables)
        return hashlib.blake2b(data, digest_size=16).hexdigest(), data

    @cached_property
    def _units(self) -> UnitMap:
        return UnitMap(self.graph, self.tables)

    @cached_property
    def _point(self) -> int:
        """The node of the cache point; -1 if there is none."""
        nodes = enumerate(self.graph.nodes)
        return next((number for number, node in nodes if isinstance(node, g.Cache | g.Autocache)), -1)

    @property
    def cached(self) -> bool:
        """There is a cache point."""
        return self._point >= 0

    @cached_property
    def mixed(self) -> bool:
        """Its elements are those of a mixture."""
        return any(isinstance(node, g.SampleFromDatasets) for node in self.graph.nodes)

    @cached_property
    def random(self) -> bool:
        """A random function is below the cache point."""
        return any(map(is_random, self.graph.nodes))

    def points(self, seed: int) -> list[CachePoint]:
        """Its cache points, as a worker that has listed the sources of a job finds them.

        Args:
            seed: the job's.
        """
        if self._point < 0:
            return []
        mode = "cache" if g.always_reused(self.graph.nodes[self._point]) else "auto"
        below = Graph(self.graph.nodes[self._point].inputs[0])
        made = repr([pack(below)[0], seed if self.random else None]).encode()
        count = self._units.of(self._point).count
        fixed = ["map(modelled)"] if self.random else []
        digest = hashlib.blake2b(made, digest_size=16).hexdigest()
        return [CachePoint(self._point, "map", mode, digest, items=count, fixed=fixed, random=self.random)]

    def epoch_of_values(self, epoch: int, reused: int) -> int:
        """Return the epoch whose random values the elements of an epoch have.

        Args:
            epoch: the one that is read.
            reused: the point below which it is as the first one was; -1: none.
        """
        if not self.random:
            return 0
        return 0 if reused == self._point or g.always_reused(self.graph.nodes[self._point]) else epoch

    @staticmethod
    def units_of(task: Task) -> list[int]:
        """Return the units that a task reads itself."""
        if task.is_sequence or task.inputs:
            return []
        return [unit for piece in task.pieces for unit in range(piece.start + piece.first, piece.start + piece.last)]

    def positions_of(self, task: Task, seed: int, epoch: int, chunks: int) -> Positions:
        """Return the positions in the source that a task reads.

        Args:
            task: of the plan of the epoch.
            seed: the job's.
            epoch: its number.
            chunks: that it is read in; 0: as a whole.
        """
        units = self.units_of(task)
        key = seed, epoch, chunks
        if key not in self._positions:
            if len(self._positions) >= _MOST_ORDERS:
                self._positions.clear()
            self._positions[key] = self._by_unit(EpochOrders(self._units, seed, epoch, chunks))
        return np.array([position for unit in units for position in self._positions[key][unit]], np.int64)

    @cached_property
    def _positions(self) -> dict[tuple[int, int, int], list[list[int]]]:
        return {}

    def _by_unit(self, orders: EpochOrders) -> list[list[int]]:
        """Find the positions behind each unit of the root."""
        node, count = self.graph.root, self._units.of(self.graph.id_of(self.graph.root)).count
        at, owner = np.arange(count), np.arange(count)
        while node.inputs:
            number, below = self.graph.id_of(node), self._units.of(self.graph.id_of(node.inputs[0]))
            if node is self.graph.root and self.at_edges:
                assert isinstance(node, g.Batch)
                at = (at[:, None] * node.batch_size + np.arange(node.batch_size)).ravel()
                owner = np.repeat(owner, node.batch_size)[at < below.count]
                at = at[at < below.count]
            else:
                ((*_, at, _),) = orders.inputs(number, at, 0)
            node = node.inputs[0]
        found: list[list[int]] = [[] for _ in range(count)]
        for unit, position in zip(owner.tolist(), at.tolist(), strict=True):
            found[unit].append(position)
        return found

    def put_out(self, task: Task, elements: Sequence[int]) -> tuple[list[Output], list[int]]:
        """Return (outputs, what is left to the parent) of a run.

        Args:
            task: of the plan; without a parent it flushes.
            elements: of :meth:`born_in`, or what the inputs of a tail have left, in their order.
        """
        if task.is_sequence:
            return [(element,) for element in elements], []
        root = self._units.of(self.graph.id_of(self.graph.root))
        if not root.collecting:
            return [(element,) for element in elements], []
        groups = [tuple(elements[at : at + root.group]) for at in range(0, len(elements), root.group)]
        if groups and task.parent >= 0 and len(groups[-1]) < root.group:
            return groups[:-1], list(groups[-1])
        if groups and self.together and len(groups[-1]) < root.group:
            kept = len(groups[-1]) // self.together * self.together if self.mixes else 0
            groups[-1:] = [groups[-1][:kept]] if kept else []
        return groups, []

    @property
    def together(self) -> int:
        """Number of batches that are one output; 0: outputs are no rounds."""
        return getattr(self.graph.root, "together", 0)

    @property
    def batch_size(self) -> int:
        """Number of elements of a full batch."""
        return getattr(self.graph.root, "batch_size", 1)

    @property
    def mixes(self) -> bool:
        """Whether what fills no round makes a smaller one at the end of the epoch."""
        return getattr(self.graph.root, "incomplete", "") == "mix"

    def in_rounds(self, ranks: int, incomplete: str) -> SimulatedPipeline:
        """Return the same with outputs that are rounds of so many ranks."""
        return replace(self, name=f"{self.name}, in rounds", graph=in_rounds(self.graph, ranks, incomplete))

    def batches(self, output: Output) -> list[Output]:
        """Return what each rank gets of a round."""
        each = len(output) // self.together
        return [output[at : at + each] for at in range(0, len(output), each)]

    def born_in(self, task: Task) -> list[int]:
        """Return the elements that a task reads, whether it or a tail puts them out."""
        if task.is_sequence:
            return _elements(0, _SEQUENCE, Cardinality.AT_MOST_ONE)
        if task.parts:
            return [element for piece in task.parts for element in _of(piece)]
        if task.inputs:
            return []
        if self.fruitful is not None:
            units = range(task.start, task.stop)
            return [unit * _MOST for unit in units if unit % (self.plan.cycle or _VALUES) in self.fruitful]
        return _elements(task.start, task.stop, self._units.of(self.graph.id_of(self.graph.root)).yields)


def _elements(start: int, stop: int, yields: Cardinality) -> list[int]:
    """Units ``start`` to ``stop``; how many elements each gives looks random and is always the same."""
    if yields is Cardinality.ONE:
        return [unit * _MOST for unit in range(start, stop)]
    most = 2 if yields is Cardinality.AT_MOST_ONE else _MOST
    return [unit * _MOST + number for unit in range(start, stop) for number in range((unit * 40503 >> 3) % most)]


def _of(piece: Piece) -> list[int]:
    return _elements(piece.start + piece.first, piece.start + piece.last, Cardinality.ONE)


def _files(count: int) -> dict[int, SplitTable]:
    return {0: splits_table([Split(f"file-{number}", bytes=1 << 20) for number in range(count)])}


def _pictures(count: int) -> dict[int, SplitTable]:
    return {0: files_table((f"picture-{number}", 4 << 20, "") for number in range(count))}


def _range(count: int) -> dict[int, SplitTable]:
    return {0: positions_table(count)}


@lru_cache(maxsize=1)
def catalogue() -> tuple[SimulatedPipeline, ...]:
    """With and without tails, in one level and two; shuffled or not; one that can't be cut; one without an end; cached.

    Some have the same below their cache, so that they share what is kept.
    """
    numbers = g.Range(start=0, stop=48)
    many = g.Range(start=0, stop=160)
    files = g.FromTFRecords(patterns=("*",))
    odd = g.Filter(inputs=(numbers,), fn=_FUNCTION)
    batches = g.Batch(inputs=(odd,), batch_size=3)
    shuffled = g.Batch(inputs=(g.Shuffle(inputs=(files,), buffer_size=8),), batch_size=5)
    deep = g.Batch(inputs=(g.Filter(inputs=(many,), fn=_FUNCTION),), batch_size=3)
    twice = g.Repeat(inputs=(batches,), count=2)
    pictures = g.FromFiles(patterns=("*",))
    mapped = g.Map(inputs=(numbers,), fn=_FUNCTION)
    kept = g.Cache(inputs=(mapped,))
    auto = g.Filter(inputs=(g.Autocache(inputs=(mapped,)),), fn=_FUNCTION)
    random = g.Map(inputs=(numbers,), fn=_RANDOM)
    frozen = g.Filter(inputs=(g.Cache(inputs=(random,)),), fn=_FUNCTION)
    renewed = g.Autocache(inputs=(random,))
    behind = g.Batch(inputs=(g.Cache(inputs=(g.Filter(inputs=(many,), fn=_FUNCTION),)),), batch_size=3)
    endless = g.Repeat(inputs=(g.Shuffle(inputs=(pictures,), buffer_size=24),), count=None)
    return (
        SimulatedPipeline("a range", Graph(numbers), _range(48), 12),
        SimulatedPipeline(
            "shuffled batches of a range", Graph(g.Batch(inputs=(numbers,), batch_size=2)), _range(48), 8
        ),
        SimulatedPipeline("a filtered range", Graph(odd), _range(48), 9),
        SimulatedPipeline("batches of a filtered range", Graph(batches), _range(48), 10),
        SimulatedPipeline("shuffled batches of files", Graph(shuffled), _files(24), 12),
        SimulatedPipeline("tails of tails", Graph(deep), _range(160), 20),
        SimulatedPipeline("batches, repeated", Graph(twice), _range(48), 12),
        SimulatedPipeline("one task", Graph(g.Batch(inputs=(numbers,), batch_size=100)), _range(48), 1),
        SimulatedPipeline("one sequence", Graph(g.Take(inputs=(odd,), count=20)), _range(48), 4),
        SimulatedPipeline("nothing", Graph(g.Range(start=0, stop=0)), _range(0), 1),
        SimulatedPipeline("without end", Graph(endless), _pictures(24), 12),
        SimulatedPipeline("a cached range", Graph(kept), _range(48), 12),
        SimulatedPipeline("a filter behind an autocached range", Graph(auto), _range(48), 8),
        SimulatedPipeline("a filter behind a cached range with random values", Graph(frozen), _range(48), 10),
        SimulatedPipeline("an autocached range with random values", Graph(renewed), _range(48), 12),
        SimulatedPipeline("tails behind a cache", Graph(behind), _range(160), 20),
    )


@lru_cache(maxsize=1)
def mixture() -> SimulatedPipeline:
    """Two datasets mixed, whose elements tell by which weights they were drawn."""
    parts = g.Range(start=0, stop=7), g.Range(start=7, stop=20)
    mixed = g.SampleFromDatasets(inputs=tuple(g.Repeat(inputs=(part,)) for part in parts), weights=(1.0, 1.0))
    tables = {0: positions_table(7), 2: positions_table(13)}
    return SimulatedPipeline("a mixture", Graph(g.Take(inputs=(mixed,), count=60)), tables, 15)


@lru_cache(maxsize=1)
def barren() -> tuple[SimulatedPipeline, ...]:
    """Without end: what gives nothing, batched across passes and within them, and what gives little."""
    some = g.Filter(inputs=(g.FromFiles(patterns=("*",)),), fn=_FUNCTION)
    repeated = g.Repeat(inputs=(some,), count=None)
    across = g.Batch(inputs=(repeated,), batch_size=3)
    within = g.Repeat(inputs=(g.Batch(inputs=(some,), batch_size=2),), count=None)
    return (
        SimulatedPipeline("nothing, without end", Graph(across), _pictures(64), 8, frozenset()),
        SimulatedPipeline("no batches, without end", Graph(within), _pictures(64), 8, frozenset()),
        SimulatedPipeline("hardly anything, without end", Graph(repeated), _pictures(40), 5, frozenset({33})),
    )


@lru_cache(maxsize=1)
def uneven() -> SimulatedPipeline:
    """Batches of what every other task has much of and the others hardly any, in two levels of tails."""
    some = g.Filter(inputs=(g.Range(start=0, stop=320),), fn=_FUNCTION)
    units = frozenset(unit for unit in range(320) if unit % 16 < (15 if unit // 16 % 2 == 0 else 1))
    return SimulatedPipeline("uneven tasks", Graph(g.Batch(inputs=(some,), batch_size=2)), _range(320), 20, units)


def stored() -> tuple[SimulatedPipeline, ...]:
    """Over files of a bucket: shuffled, so that they can be read in chunks, or not; with tails, and in batches.

    They are made anew each time, as they remember their plans and labels, in which there may be a planted bug.
    """
    photos = g.FromFiles(patterns=("s3://photos/*.jpg",))
    shuffled = g.Shuffle(inputs=(photos,), buffer_size=24)
    some = g.Filter(inputs=(shuffled,), fn=_FUNCTION)
    graphs: list[tuple[str, g.Node, StoredFiles]] = [
        ("shuffled photos", shuffled, NAMED),
        ("some of the photos", some, NAMED),
        ("batches of some of the photos", g.Batch(inputs=(some,), batch_size=3), NAMED),
        ("batches of photos", g.Batch(inputs=(shuffled,), batch_size=2), NAMED),
        ("photos in their order", g.Map(inputs=(photos,), fn=_FUNCTION), NAMED),
    ]
    for files in (HASHED, COPIED):
        source = g.FromFiles(patterns=(f"s3://{files.name}/*.jpg",), digest=f"s3://{files.name}/digest")
        graphs.append((f"shuffled files, {files.name}", g.Shuffle(inputs=(source,), buffer_size=24), files))
    return tuple(
        SimulatedPipeline(name, Graph(root), {0: files.table}, 12, files=files) for name, root, files in graphs
    )


def stored_shards() -> tuple[SimulatedPipeline, ...]:
    """Over shards of a bucket, cut into pieces or not: shuffled in blocks, so that they can be read in chunks, or not.

    They are made anew each time, as :func:`stored` are.
    """
    pieces = g.FromWebDataset(patterns=("s3://pieces/*.tar",))
    shards = g.FromTFRecords(patterns=("s3://shards/*.tar",))
    samples = g.Shuffle(inputs=(pieces,), buffer_size=24)
    records = g.Shuffle(inputs=(g.Map(inputs=(shards,), fn=_FUNCTION),), buffer_size=24)
    graphs: list[tuple[str, g.Node, StoredFiles]] = [
        ("shuffled samples", samples, PIECES),
        ("batches of samples", g.Batch(inputs=(samples,), batch_size=2), PIECES),
        (
            "batches of some of the samples",
            g.Batch(inputs=(g.Filter(inputs=(samples,), fn=_FUNCTION),), batch_size=3),
            PIECES,
        ),
        ("samples in their order", pieces, PIECES),
        ("shuffled records", records, SHARDS),
        ("batches of records", g.Batch(inputs=(records,), batch_size=5), SHARDS),
    ]
    return tuple(
        SimulatedPipeline(name, Graph(root), {0: files.table}, 12, files=files) for name, root, files in graphs
    )
