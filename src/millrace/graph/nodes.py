"""Nodes of a dataset's graph: the user's pipeline, frozen, and nothing that runs.

A node knows its inputs and its parameters. User functions and user objects are opaque here: whoever plans
never calls them, and :mod:`millrace.graph.serialize` replaces them by numbered slots.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any, ClassVar, dataclass_transform

AUTOTUNE = -1
"""Value of ``num_parallel_calls`` that lets the engine choose (the default, as nothing is gained by a guess)."""


PACKING_WINDOW = 32
"""Open rows of ``pack`` by default; more of them leave hardly less padding."""


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


OP_NAMES: dict[type[Node], str] = {}
"""Names of operators in the public API, e.g. ``padded_batch``, by type of node: of all that a user can write."""


@dataclass_transform(eq_default=False, kw_only_default=True, frozen_default=True)
@dataclass(frozen=True, eq=False, kw_only=True)
class Node:
    """One operator or source. Compared by identity; ``inputs`` come first in the data flow.

    Subclasses are dataclasses of the same kind; with ``op``, the operator's name, they are listed in :data:`OP_NAMES`.
    """

    inputs: tuple[Node, ...] = ()
    op: ClassVar[str] = ""

    def __init_subclass__(cls, op: str = "") -> None:
        dataclass(frozen=True, eq=False, kw_only=True)(cls)
        if op:
            cls.op = OP_NAMES[cls] = op

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


class Source(Node):
    """Node without inputs; :mod:`millrace.sources` reads it."""


class Range(Source, op="range"):
    """Source of Python ints ``start, start + step, ...`` below ``stop``."""

    start: int
    stop: int
    step: int = 1


class Arrivals(Source):
    """Elements that arrive from a service, for operators behind ``distribute()``, which run in the training process."""

    op: ClassVar[str] = "distribute"


class FromFiles(Source, op="from_files"):
    """Files as elements: ``{"path": str, "bytes": bytes}``."""

    patterns: tuple[str, ...]
    """Paths, URLs or glob patterns; matches of one pattern come sorted, patterns in the order given."""
    digest: str = ""
    """Path or URL of the digest of these files, of this source and the other ones of files; empty: none."""


class FromTFRecords(Source, op="from_tfrecords"):
    """Records as elements: ``bytes``."""

    patterns: tuple[str, ...]
    compression: str | None = None
    """None (by the file's ending), ``""`` (none), ``"GZIP"`` or ``"ZLIB"``."""
    digest: str = ""


class FromWebDataset(Source, op="from_webdataset"):
    """Samples of tar shards as elements: ``{"__key__": str, "jpg": bytes, ...}``.

    With ``random_access`` each is read by its place in an index, in any order, else the shards from their start on.
    """

    patterns: tuple[str, ...]
    random_access: bool = False
    digest: str = ""


# -- element to element ------------------------------------------------------------------------------------------------


class Map(Node, op="map"):
    """Function ``fn(element)`` or ``fn(element, rng)`` of each element."""

    fn: Opaque
    num_parallel_calls: int = AUTOTUNE
    deterministic: bool = True


class Filter(Node, op="filter"):
    """Elements for which ``fn`` is true."""

    fn: Opaque


class RejectionResample(Node, op="rejection_resample"):
    """Pairs ``(class, element)``, left out or repeated so that classes come in the proportions of ``target_dist``.

    Attributes:
        class_fn: class of an element, from 0 on.
        target_dist: share of each class that there is to be.
        initial_dist: share of each class that there is; None: estimated, in each task from what came before.
        seed: of the choices; None: the pipeline's.
    """

    class_fn: Opaque
    target_dist: tuple[float, ...]
    initial_dist: tuple[float, ...] | None = None
    seed: int | None = None


class TakeWhile(Node, op="take_while"):
    """Elements up to the first for which ``fn`` is false."""

    fn: Opaque


class Scan(Node, op="scan"):
    """Outputs of ``fn(state, element)``, which gives the next state and an output, from ``initial_state`` on."""

    initial_state: Any
    fn: Opaque


class Unique(Node, op="unique"):
    """Elements that are not equal to an earlier one."""


class FlatMap(Node, op="flat_map"):
    """All elements of ``fn(element)``, a dataset or an iterable, one input after the other."""

    fn: Opaque


class Interleave(Node, op="interleave"):
    """Elements of ``cycle_length`` datasets ``fn(element)`` at a time, ``block_length`` from each in turn."""

    fn: Opaque
    cycle_length: int
    block_length: int = 1
    num_parallel_calls: int = AUTOTUNE
    deterministic: bool = True


class Unbatch(Node, op="unbatch"):
    """Rows of each batch."""


class Prefetch(Node, op="prefetch"):
    """Buffer of up to ``buffer_size`` elements computed ahead (AUTOTUNE: by bytes)."""

    buffer_size: int = AUTOTUNE


class Cache(Node, op="cache"):
    """Cache point: elements up to it are those of the first epoch, and are kept once computed."""

    path: str | None = None


class Autocache(Node, op="autocache"):
    """Cache point up to which reuse is acceptable.

    Attributes:
        mode: "auto": the service decides by measuring; "compute": never; "cache": as :class:`Cache`.
    """

    mode: str = "auto"


def always_reused(node: Node) -> bool:
    """Whether the pipeline asks for reuse at this node, whatever is measured."""
    return isinstance(node, Cache) or (isinstance(node, Autocache) and node.mode == "cache")


class WithOptions(Node, op="with_options"):
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


class Shuffle(Node, op="shuffle"):
    """Random order; of all positions where the source is of cheap random access, else within a window."""

    buffer_size: int
    seed: int | None = None
    reshuffle_each_iteration: bool = True


class Sample(Node, op="sample"):
    """Draws of a sampler, ``num_samples`` in each epoch (None: as many as there are elements).

    ``contents`` is a hash of the weights and the like that it draws by; empty: of one's own, of which that isn't known.
    """

    sampler: Opaque
    num_samples: int | None = None
    contents: str = ""
    seed: int | None = None


class Reservoir(Node, op="reservoir"):
    """Random order of the whole input, ``size`` elements of which are read forward at a time.

    Attributes:
        size: elements that are held at a time.
        levels: elements of each level between the input and memory, from the largest on.
        folders: those of the levels' files, one for each; empty: that for temporary files.
        with_replacement: each element is any of the input's, whatever came before; there are as many as in the input.
        seed: of the order; None: the pipeline's.
    """

    size: int
    levels: tuple[int, ...] = ()
    folders: tuple[str, ...] = ()
    with_replacement: bool = False
    seed: int | None = None


# -- many to one -------------------------------------------------------------------------------------------------------


class Batch(Node, op="batch"):
    """Stack of ``batch_size`` consecutive elements, leaf by leaf.

    Attributes:
        together: number of batches of one bucket that come one after the other, as a round; 0: each stands alone. Here
            and in the nodes below :mod:`millrace.graph.rounds` sets it, and no user.
        incomplete: at the end of the epoch what fills no round is left out ("drop"), or put into rounds of elements of
            several buckets, all but fewer elements than a round has batches ("mix").
        listed: a batch is the list of its elements, for ``collate``, a node behind it.
        fill_remainder: how a batch of fewer elements is filled up: "repeat" or "mask"; empty: not at all.
    """

    batch_size: int
    drop_remainder: bool = False
    together: int = 0
    incomplete: str = ""
    listed: bool = False
    fill_remainder: str = ""


class RaggedBatch(Batch, op="ragged_batch"):
    """Batch in which arrays keep their lengths: the rows of all, and where each begins."""


class PaddedBatch(Node, op="padded_batch"):
    """Batch whose leaves are padded to the longest of the batch or to ``padded_shapes``."""

    batch_size: int
    padded_shapes: Any = None
    """Pytree of shapes like the element: tuples of int or None (None: the longest of the batch)."""
    padding_values: Any = None
    """Number for all leaves or a pytree like the element; default zero, empty bytes and str."""
    drop_remainder: bool = False
    together: int = 0
    incomplete: str = ""
    fill_remainder: str = ""


class BucketBySequenceLength(Node, op="bucket_by_sequence_length"):
    """Padded batches of elements of similar length: bucket i holds lengths in [boundaries[i-1], boundaries[i])."""

    element_length_fn: Opaque
    bucket_boundaries: tuple[int, ...]
    bucket_batch_sizes: tuple[int, ...]
    padded_shapes: Any = None
    padding_values: Any = None
    pad_to_bucket_boundary: bool = False
    no_padding: bool = False
    drop_remainder: bool = False
    together: int = 0
    incomplete: str = ""


class GroupByWindow(Node, op="group_by_window"):
    """Elements of ``reduce_fn(key, elements)`` for each window of elements of one key."""

    key_fn: Opaque
    reduce_fn: Opaque
    window_size: int | None = None
    window_size_fn: Opaque | None = None


class Pack(Node, op="pack"):
    """Rows of exactly ``length`` tokens, filled with whole sequences.

    Attributes:
        length: tokens of a row.
        window: rows that are open at a time, at most.
        too_long: "error", or what becomes of longer sequences: "split" or "truncate".
        keys: leaves of a dict that are packed; None: all.
        padding_values: number for all leaves or a dict by leaf; default zero.
    """

    length: int
    window: int = PACKING_WINDOW
    too_long: str = "error"
    keys: tuple[str, ...] | None = None
    padding_values: Any = None


class SlidingWindow(Node, op="window"):
    """Lists of ``size`` elements, ``stride`` apart, that begin ``shift`` elements apart."""

    size: int
    shift: int
    stride: int = 1
    drop_remainder: bool = False

    @property
    def span(self) -> int:
        """Number of elements from the first of a window to its last, both included."""
        return (self.size - 1) * self.stride + 1


class Rebatch(Node, op="rebatch"):
    """Batches cut anew to ``batch_size`` rows."""

    batch_size: int
    drop_remainder: bool = False


# -- global ------------------------------------------------------------------------------------------------------------


class Repeat(Node, op="repeat"):
    """Input repeated ``count`` times; None for ever."""

    count: int | None = None


class Take(Node, op="take"):
    """First ``count`` elements (-1: all)."""

    count: int


class Skip(Node, op="skip"):
    """All but the first ``count`` elements (-1: none)."""

    count: int


class Shard(Node, op="shard"):
    """Every ``num_shards``-th element, from ``index`` on."""

    num_shards: int
    index: int


class AssertCardinality(Node, op="assert_cardinality"):
    """Elements as they are; other than ``count`` of them are an error."""

    count: int


class Enumerate(Node, op="enumerate"):
    """Pairs ``(start + i, element)``."""

    start: int = 0


class Zip(Node, op="zip"):
    """Tuples (or a dict, if ``keys``) of one element of each input, as long as the shortest."""

    keys: tuple[str, ...] | None = None


class Concatenate(Node, op="concatenate"):
    """All of the first input, then all of the second."""


class SampleFromDatasets(Node, op="sample_from_datasets"):
    """Elements from inputs drawn at random by ``weights``.

    Attributes:
        weights: one for each input; where they change, one set of them behind the other.
        cycle: inputs, each of which a ``repeat`` repeats without end, are taken until all have come to the end of a
            pass.
        weights_from: epochs or elements from which on each set holds, from 0 on, ascending; empty: there is one.
        weights_by: "epoch" or "element", where there are several.
    """

    weights: tuple[float, ...]
    seed: int | None = None
    stop_on_empty_dataset: bool = False
    cycle: bool = False
    weights_from: tuple[int, ...] = ()
    weights_by: str = ""

    @property
    def phases(self) -> list[tuple[int, tuple[float, ...]]]:
        """Each set of weights, with the epoch or element from which on it holds."""
        begins = self.weights_from or (0,)
        size = len(self.weights) // len(begins)
        return [(begin, self.weights[at * size : (at + 1) * size]) for at, begin in enumerate(begins)]

    def weights_of(self, epoch: int) -> list[tuple[int, tuple[float, ...]]]:
        """Weights of an epoch, with the element from which on they hold."""
        if self.weights_by != "epoch":
            return self.phases
        return [(0, next(weights for begin, weights in reversed(self.phases) if begin <= epoch))]

    @property
    def datasets(self) -> tuple[Node, ...]:
        """Inputs whose elements are drawn."""
        return self.inputs


class ChooseFromDatasets(Node, op="choose_from_datasets"):
    """Elements from inputs in a given order of these.

    Attributes:
        choices: numbers of inputs, one for each element; None: the last input gives them.
        times: how often these are gone through; None: without end.
        cycle: as of :class:`SampleFromDatasets`; the input that gives choices is not repeated.
    """

    choices: tuple[int, ...] | None = None
    times: int | None = None
    stop_on_empty_dataset: bool = True
    cycle: bool = False

    @property
    def datasets(self) -> tuple[Node, ...]:
        """Inputs whose elements are chosen."""
        return self.inputs if self.choices is not None else self.inputs[:-1]


MIXING = (SampleFromDatasets, ChooseFromDatasets)
"""Nodes each element of which is one of one of their inputs, and of each of these in its order."""
