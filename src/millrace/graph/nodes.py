"""Nodes of a dataset's graph: the user's pipeline, frozen, and nothing that runs.

A node knows its inputs and its parameters. User functions and user objects are opaque here: whoever plans
never calls them, and :mod:`millrace.graph.serialize` replaces them by numbered slots.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields, replace
from typing import Any

AUTOTUNE = -1
"""Value of ``num_parallel_calls`` that lets the engine choose (the default, as nothing is gained by a guess)."""


@dataclass(frozen=True, eq=False, slots=True)
class Opaque:
    """User's object that is carried but never looked into by ``graph``, ``planning`` or ``control``.

    Attributes:
        value: the object; in a graph read from its structure alone, None.
        name: how to call it in messages, e.g. ``decode``.
        where: where it was defined, e.g. ``train.py:12``; empty if unknown.
        takes_rng: a function that wants ``(element, rng)``.
        key: the version that the user gave it; empty: it has to be told from ``value``.
    """

    value: Any
    name: str = ""
    where: str = ""
    takes_rng: bool = False
    key: str = ""


@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One operator or source. Compared by identity; ``inputs`` come first in the data flow."""

    inputs: tuple[Node, ...] = ()

    @property
    def op(self) -> str:
        """Name of the operator in the public API, e.g. ``padded_batch``."""
        return OP_NAMES[type(self)]

    def opaques(self) -> Iterator[tuple[str, Opaque]]:
        """List every opaque parameter as (field name, value)."""
        for spec in fields(self):
            value = getattr(self, spec.name)
            if isinstance(value, Opaque):
                yield spec.name, value

    def __str__(self) -> str:
        inside = ", ".join(opaque.name for _, opaque in self.opaques() if opaque.name)
        return f"{self.op}({inside})"


# -- sources -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Source(Node):
    """Node without inputs; :mod:`millrace.sources` reads it."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Range(Source):
    """Source of Python ints ``start, start + step, ...`` below ``stop``."""

    start: int
    stop: int
    step: int = 1


@dataclass(frozen=True, eq=False, kw_only=True)
class Arrivals(Source):
    """Elements that arrive from a service, for operators behind ``distribute()``, which run in the training process."""

    @property
    def op(self) -> str:
        """Name of the operator in the public API."""
        return "distribute"


@dataclass(frozen=True, eq=False, kw_only=True)
class FromList(Source):
    """Items of a sequence."""

    items: Opaque
    count: int


@dataclass(frozen=True, eq=False, kw_only=True)
class FromFiles(Source):
    """Files as elements: ``{"path": str, "bytes": bytes}``."""

    patterns: tuple[str, ...]
    """Paths, URLs or glob patterns; matches of one pattern come sorted, patterns in the order given."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FromTFRecords(Source):
    """Records as elements: ``bytes``."""

    patterns: tuple[str, ...]
    compression: str | None = None
    """None (by the file's ending), ``""`` (none), ``"GZIP"`` or ``"ZLIB"``."""


@dataclass(frozen=True, eq=False, kw_only=True)
class FromWebDataset(Source):
    """Samples of tar shards as elements: ``{"__key__": str, "jpg": bytes, ...}``."""

    patterns: tuple[str, ...]


@dataclass(frozen=True, eq=False, kw_only=True)
class FromParquet(Source):
    """Rows as elements: a dict by column."""

    patterns: tuple[str, ...]
    columns: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class FromArrays(Source):
    """Rows of arrays. ``contents`` is the hash of the arrays, or a function that computes it by reading them all."""

    arrays: Opaque
    count: int
    contents: str | Callable[[], str]


@dataclass(frozen=True, eq=False, kw_only=True)
class FromMapStyle(Source):
    """Items ``dataset[i]`` for i in ``range(len(dataset))``."""

    dataset: Opaque
    count: int


# -- element to element ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Map(Node):
    """Function ``fn(element)`` or ``fn(element, rng)`` of each element."""

    fn: Opaque
    num_parallel_calls: int = AUTOTUNE
    deterministic: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Filter(Node):
    """Elements for which ``fn`` is true."""

    fn: Opaque


@dataclass(frozen=True, eq=False, kw_only=True)
class FlatMap(Node):
    """All elements of ``fn(element)``, a dataset or an iterable, one input after the other."""

    fn: Opaque


@dataclass(frozen=True, eq=False, kw_only=True)
class Interleave(Node):
    """Elements of ``cycle_length`` datasets ``fn(element)`` at a time, ``block_length`` from each in turn."""

    fn: Opaque
    cycle_length: int
    block_length: int = 1
    num_parallel_calls: int = AUTOTUNE
    deterministic: bool = True


@dataclass(frozen=True, eq=False, kw_only=True)
class Unbatch(Node):
    """Rows of each batch."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prefetch(Node):
    """Buffer of up to ``buffer_size`` elements computed ahead (AUTOTUNE: by bytes)."""

    buffer_size: int = AUTOTUNE


@dataclass(frozen=True, eq=False, kw_only=True)
class Cache(Node):
    """Cache point: elements up to it are those of the first epoch, and are kept once computed."""

    path: str | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Autocache(Node):
    """Cache point up to which reuse is acceptable.

    Attributes:
        mode: "auto": the service decides by measuring; "compute": never; "cache": as :class:`Cache`.
    """

    mode: str = "auto"


def always_reused(node: Node) -> bool:
    """Whether the pipeline asks for reuse at this node, whatever is measured."""
    return isinstance(node, Cache) or (isinstance(node, Autocache) and node.mode == "cache")


@dataclass(frozen=True, eq=False, kw_only=True)
class WithOptions(Node):
    """Options for the whole pipeline; of several, the one nearest the end wins, option by option. None: the default.

    Attributes:
        on_error: ``"raise"`` (the default), ``"skip"``, or a function of the :class:`millrace.ElementError` that
            returns the element to use instead.
        buffer_bytes: bound on the bytes that a running task holds (default 256 MiB).
        num_threads: threads of one process that run user functions (default: by the machine).
        seed: seed of everything random that has none of its own.
        rewrites: whether what runs may differ from what was written where nothing that comes out does (the default;
            see :mod:`millrace.graph.rewrites`).
        reads_in_flight: reads of files of another machine that a process has under way at once (default: as many as
            pay).
    """

    on_error: Opaque | str | None = None
    buffer_bytes: int | None = None
    num_threads: int | None = None
    seed: int | None = None
    rewrites: bool | None = None
    reads_in_flight: int | None = None


# -- order -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Shuffle(Node):
    """Random order; of all positions where the source is of cheap random access, else within a window."""

    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True


# -- many to one -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Batch(Node):
    """Stack of ``batch_size`` consecutive elements, leaf by leaf."""

    batch_size: int
    drop_remainder: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class PaddedBatch(Node):
    """Batch whose leaves are padded to the longest of the batch or to ``padded_shapes``."""

    batch_size: int
    padded_shapes: Any = None
    """Pytree of shapes like the element: tuples of int or None (None: the longest of the batch)."""
    padding_values: Any = None
    """Number for all leaves or a pytree like the element; default zero, empty bytes and str."""
    drop_remainder: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class BucketBySequenceLength(Node):
    """Padded batches of elements of similar length: bucket i holds lengths in [boundaries[i-1], boundaries[i])."""

    element_length_fn: Opaque
    bucket_boundaries: tuple[int, ...]
    bucket_batch_sizes: tuple[int, ...]
    padded_shapes: Any = None
    padding_values: Any = None
    pad_to_bucket_boundary: bool = False
    no_padding: bool = False
    drop_remainder: bool = False


@dataclass(frozen=True, eq=False, kw_only=True)
class GroupByWindow(Node):
    """Elements of ``reduce_fn(key, elements)`` for each window of elements of one key."""

    key_fn: Opaque
    reduce_fn: Opaque
    window_size: int | None = None
    window_size_fn: Opaque | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Rebatch(Node):
    """Batches cut anew to ``batch_size`` rows."""

    batch_size: int
    drop_remainder: bool = False


# -- global ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False, kw_only=True)
class Repeat(Node):
    """Input repeated ``count`` times; None for ever."""

    count: int | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Take(Node):
    """First ``count`` elements (-1: all)."""

    count: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Skip(Node):
    """All but the first ``count`` elements (-1: none)."""

    count: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Shard(Node):
    """Every ``num_shards``-th element, from ``index`` on."""

    num_shards: int
    index: int


@dataclass(frozen=True, eq=False, kw_only=True)
class Enumerate(Node):
    """Pairs ``(start + i, element)``."""

    start: int = 0


@dataclass(frozen=True, eq=False, kw_only=True)
class Zip(Node):
    """Tuples (or a dict, if ``keys``) of one element of each input, as long as the shortest."""

    keys: tuple[str, ...] | None = None


@dataclass(frozen=True, eq=False, kw_only=True)
class Concatenate(Node):
    """All of the first input, then all of the second."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SampleFromDatasets(Node):
    """Elements from inputs drawn at random by ``weights``."""

    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty_dataset: bool = False


OP_NAMES: dict[type[Node], str] = {
    Range: "range",
    FromList: "from_list",
    FromArrays: "from_arrays",
    FromFiles: "from_files",
    FromTFRecords: "from_tfrecords",
    FromWebDataset: "from_webdataset",
    FromParquet: "from_parquet",
    FromMapStyle: "from_map_style",
    Map: "map",
    Filter: "filter",
    FlatMap: "flat_map",
    Interleave: "interleave",
    Unbatch: "unbatch",
    Prefetch: "prefetch",
    Cache: "cache",
    Autocache: "autocache",
    WithOptions: "with_options",
    Shuffle: "shuffle",
    Batch: "batch",
    PaddedBatch: "padded_batch",
    BucketBySequenceLength: "bucket_by_sequence_length",
    GroupByWindow: "group_by_window",
    Rebatch: "rebatch",
    Repeat: "repeat",
    Take: "take",
    Skip: "skip",
    Shard: "shard",
    Enumerate: "enumerate",
    Zip: "zip",
    Concatenate: "concatenate",
    SampleFromDatasets: "sample_from_datasets",
}


class Graph:
    """Root node and, by number, all nodes below it: inputs before the nodes that use them.

    Node ids are positions in :attr:`nodes`; they depend on structure alone, so that they agree between processes.

    Attributes:
        root: the node that yields the dataset's elements.
        nodes: all nodes, by id.
        keys: for each node the number that stands for it in the keys of random generators. Nodes that only pass, choose
            or order elements are numbered apart, so that adding or moving a ``prefetch`` or a ``shuffle`` leaves the
            random choices of all others as they are.
    """

    def __init__(self, root: Node) -> None:
        self.root = root
        self.nodes: tuple[Node, ...] = tuple(_postorder(root))
        self.keys: tuple[int, ...] = tuple(_keys(self.nodes))
        self._ids = {node: number for number, node in enumerate(self.nodes)}

    def id_of(self, node: Node) -> int:
        """Return the number of a node of this graph."""
        return self._ids[node]

    def sources(self) -> Iterator[tuple[int, Source]]:
        """List every source as (id, node)."""
        for number, node in enumerate(self.nodes):
            if isinstance(node, Source):
                yield number, node

    def options(self) -> WithOptions:
        """Merge the pipeline's options: what stands nearest the root wins, option by option."""
        merged: dict[str, Any] = {}
        for node in reversed(self.nodes):
            if isinstance(node, WithOptions):
                for spec in fields(node):
                    value = getattr(node, spec.name)
                    if spec.name != "inputs" and value is not None:
                        merged.setdefault(spec.name, value)
        return WithOptions(**merged)

    def seed(self) -> int | None:
        """Return the seed that the user gave: of the options, else of the last shuffle that has one."""
        seeds = [node.seed for node in self.nodes if isinstance(node, Shuffle) and node.seed is not None]
        chosen = self.options().seed
        return chosen if chosen is not None else seeds[-1] if seeds else None

    def reachable(self) -> Iterator[Node]:
        """List the root and all that it needs, inputs first, without the nodes that :meth:`rewritten` has left out."""
        return _postorder(self.root)

    def rewritten(self, change: Callable[[int, Node], Node]) -> Graph:
        """Apply ``change`` to every node, inputs first; the result runs in place of this graph.

        ``change`` takes a node's number and the node, its inputs changed already. It returns that node, a new one that
        takes
        its place, or one of its inputs, which then stands for it.

        Numbers stay, and with them all that goes by number: keys, split tables, units, measures. Nodes left out are
        still in
        ``nodes``, though nothing leads to them, and :meth:`id_of` them is the number of the node that stands for them.
        """
        ids, nodes, done = dict(self._ids), list(self.nodes), dict[Node, Node]()
        for node in self.reachable():
            number = ids[node]
            given = _with_inputs(node, tuple([done[child] for child in node.inputs]))
            done[node] = changed = change(number, given)
            ids[changed] = ids[node] = ids[given] = ids.get(changed, number)
            nodes[ids[changed]] = changed
        new = copy.copy(self)
        new.root, new.nodes, new._ids = done[self.root], tuple(nodes), ids  # noqa: SLF001 - of this class
        return new


def _postorder(root: Node) -> Iterator[Node]:
    seen: set[int] = set()
    stack: list[tuple[Node, bool]] = [(root, False)]
    while stack:
        node, expanded = stack.pop()
        if expanded:
            yield node
        elif id(node) not in seen:
            seen.add(id(node))
            stack.append((node, True))
            stack.extend((child, False) for child in reversed(node.inputs))


def _keys(nodes: tuple[Node, ...]) -> Iterator[int]:
    kinds = ((), (Shuffle, Take, Skip, Shard), (Prefetch, Cache, Autocache, WithOptions))
    counts = [0, 0, 0]
    for node in nodes:
        kind = next((number for number, types in enumerate(kinds) if isinstance(node, types)), 0)
        yield (kind << 32) + counts[kind]
        counts[kind] += 1


def _with_inputs(node: Node, inputs: tuple[Node, ...]) -> Node:
    same = all(new is old for new, old in zip(inputs, node.inputs, strict=True))
    return node if same else replace(node, inputs=inputs)
