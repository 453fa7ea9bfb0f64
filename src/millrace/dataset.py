"""The user's Dataset: a description that grows by one node with every method, and runs when it is iterated."""

from __future__ import annotations

import functools
import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from millrace import arguments
from millrace.distributed import DistributedDataset, ShardingPolicy, Sharing, Visitation
from millrace.errors import UnknownLengthError
from millrace.frameworks.readable import Readable
from millrace.functions.spawning import for_children
from millrace.graph import nodes as g
from millrace.graph.nodes import AUTOTUNE
from millrace.planning.checkpoint import Checkpoint, graph_digest
from millrace.planning.passes import Number, Passes, Share
from millrace.planning.plan import Plan, make_plan
from millrace.planning.shapes import Varying, varying
from millrace.planning.tables import SplitTable
from millrace.planning.units import INFINITE, UnitMap

if TYPE_CHECKING:
    from millrace.engine.local import LocalIterator

UserFunction = Callable[..., Any]


class Dataset(Readable):
    """An immutable, lazy description of an input pipeline.

    Start with a source (:meth:`range`, :meth:`from_files`, ...), add operators, and iterate: in this process, or with
    :meth:`distribute` on a service. Operators have tf.data's names and meanings. User functions take ``(element)`` or
    ``(element, rng)``; ``rng`` is a :class:`numpy.random.Generator` that depends on seed, epoch and element alone.
    """

    def __init__(self, node: g.Node) -> None:
        self._node = node
        self._tables: dict[int, SplitTable] | None = None
        self._passes = Passes()

    # -- sources -------------------------------------------------------------------------------------------------------

    @classmethod
    def range(cls, *args: int) -> Dataset:
        """Python ints as :class:`range` has them: of ``(stop)``, ``(start, stop)`` or ``(start, stop, step)``."""
        numbers = arguments.numbers(args)
        return cls(g.Range(start=numbers.start, stop=numbers.stop, step=numbers.step))

    @classmethod
    def from_list(cls, items: Sequence[Any]) -> Dataset:
        """The items of a sequence. They travel with the pipeline, so they should be small: paths, ids, rows."""
        return cls(g.FromList(items=g.Opaque(items, "items"), count=arguments.items(items)))

    @classmethod
    def from_files(cls, patterns: arguments.Patterns) -> Dataset:
        """One element per file: ``{"path": str, "bytes": bytes}``.

        Args:
            patterns: paths, URLs (``s3:// gs:// az:// http(s):// memory://``) or globs (``* ? [..] **``).
        """
        return cls(g.FromFiles(patterns=arguments.patterns("from_files", patterns)))

    @classmethod
    def from_tfrecords(cls, patterns: arguments.Patterns, *, compression: str | None = None) -> Dataset:
        """One element per record of TFRecord files: ``bytes``.

        Args:
            patterns: as for :meth:`from_files`.
            compression: None (by the file's ending), ``""``, ``"GZIP"`` or ``"ZLIB"``.
        """
        arguments.one_of("from_tfrecords", "compression", compression, (None, "", "GZIP", "ZLIB"))
        return cls(g.FromTFRecords(patterns=arguments.patterns("from_tfrecords", patterns), compression=compression))

    @classmethod
    def from_webdataset(cls, patterns: arguments.Patterns) -> Dataset:
        """One element per sample of tar shards, which may be ``shard-{000..012}.tar``: ``{"__key__": str, ...}``."""
        return cls(g.FromWebDataset(patterns=arguments.patterns("from_webdataset", patterns)))

    @classmethod
    def from_parquet(cls, patterns: arguments.Patterns, *, columns: Sequence[str] | None = None) -> Dataset:
        """One element per row of Parquet files: a dict by column; ``columns`` selects."""
        chosen = arguments.columns("from_parquet", columns)
        return cls(g.FromParquet(patterns=arguments.patterns("from_parquet", patterns), columns=chosen))

    @classmethod
    def from_map_style(cls, dataset: Any, *, key: str = "") -> Dataset:
        """``dataset[i]`` for every i below ``len(dataset)``: a torch Dataset, a list; ``key`` as for :meth:`map`."""
        held, count = arguments.map_style("from_map_style", dataset, key)
        return cls(g.FromMapStyle(dataset=held, count=count))

    @staticmethod
    def zip(*datasets: Dataset | Mapping[str, Dataset] | Sequence[Dataset]) -> Dataset:
        """Elements of several datasets side by side, as long as the shortest: tuples, or of a dict of them dicts."""
        return Dataset(g.Zip(**arguments.members("zip", datasets)))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Sequence[float] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
    ) -> Dataset:
        """Each element from a dataset chosen at random.

        Args:
            datasets: at least one.
            weights: of each dataset, not negative; None: all alike.
            seed: of the choices, which are the same in every epoch; None: the pipeline's.
            stop_on_empty_dataset: end when a dataset that has ended is chosen; else go on with the others.
        """
        label, stop = "sample_from_datasets", bool(stop_on_empty_dataset)
        inputs = arguments.members(label, (datasets,))["inputs"]
        chosen, number = arguments.weights(label, weights, len(inputs)), arguments.seed(label, seed)
        return Dataset(g.SampleFromDatasets(inputs=inputs, weights=chosen, seed=number, stop_on_empty_dataset=stop))

    # -- operators -----------------------------------------------------------------------------------------------------

    def map(
        self,
        map_func: UserFunction,
        num_parallel_calls: int | None = AUTOTUNE,
        deterministic: bool = True,
        *,
        key: str = "",
    ) -> Dataset:
        """``map_func(element)``, or ``map_func(element, rng)``, for each element.

        Args:
            map_func: a pure function; it may run on several threads and processes.
            num_parallel_calls: threads at a time in one process; AUTOTUNE: as many as pay; None: one.
            deterministic: keep the order; False permits another one under guarantees weaker than exactly-once.
            key: a name for this version of ``map_func``, if caches are to go by that instead of by what it computes.
        """
        return self._then(
            g.Map,
            fn=arguments.function("map", map_func, key=key),
            num_parallel_calls=arguments.parallel("map", num_parallel_calls),
            deterministic=bool(deterministic),
        )

    def filter(self, predicate: UserFunction, *, key: str = "") -> Dataset:
        """The elements for which ``predicate(element)`` is True; ``key`` as for :meth:`map`."""
        return self._then(g.Filter, fn=arguments.function("filter", predicate, key=key))

    def flat_map(self, map_func: UserFunction, *, key: str = "") -> Dataset:
        """All elements of ``map_func(element)``, a Dataset or iterable, one after the other; ``key`` as for ``map``."""
        return self._then(g.FlatMap, fn=arguments.function("flat_map", map_func, key=key))

    def interleave(
        self,
        map_func: UserFunction,
        cycle_length: int = 4,
        block_length: int = 1,
        num_parallel_calls: int | None = AUTOTUNE,
        deterministic: bool = True,
        *,
        key: str = "",
    ) -> Dataset:
        """Elements of ``cycle_length`` datasets ``map_func(element)`` at a time, ``block_length`` from each in turn."""
        return self._then(
            g.Interleave,
            fn=arguments.function("interleave", map_func, key=key),
            cycle_length=arguments.positive("interleave", "cycle_length", cycle_length),
            block_length=arguments.positive("interleave", "block_length", block_length),
            num_parallel_calls=arguments.parallel("interleave", num_parallel_calls),
            deterministic=bool(deterministic),
        )

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True) -> Dataset:
        """Random order.

        Where the source is cheap to read at any position (files, lists, ranges, map-style datasets) and elements come
        one to one from it, all of them are permuted, at no memory. Elsewhere files and parts of files are permuted,
        several are read in turn, and a window of ``buffer_size`` elements mixes them.

        Args:
            buffer_size: elements of the window.
            seed: the same gives the same orders, epoch by epoch; None: the pipeline's.
            reshuffle_each_iteration: a new order in every epoch and repetition.
        """
        return self._then(
            g.Shuffle,
            buffer_size=arguments.positive("shuffle", "buffer_size", buffer_size),
            seed=arguments.seed("shuffle", seed),
            reshuffle_each_iteration=bool(reshuffle_each_iteration),
        )

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """``batch_size`` consecutive elements as one: each leaf stacked along a new first axis."""
        size = arguments.positive("batch", "batch_size", batch_size)
        return self._then(g.Batch, batch_size=size, drop_remainder=bool(drop_remainder))

    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Dataset:
        """As :meth:`batch`, with each leaf padded at its ends first.

        Args:
            batch_size: elements of a batch.
            padded_shapes: a shape (tuple of int or None) for all leaves or a pytree of shapes; None, as a shape or a
                dimension: the longest of the batch.
            padding_values: a value for all leaves or a pytree of values; default zero or empty.
            drop_remainder: leave out a last, short batch.
        """
        return self._then(
            g.PaddedBatch,
            batch_size=arguments.positive("padded_batch", "batch_size", batch_size),
            padded_shapes=padded_shapes,
            padding_values=padding_values,
            drop_remainder=bool(drop_remainder),
        )

    def bucket_by_sequence_length(
        self,
        element_length_func: UserFunction,
        bucket_boundaries: Sequence[int],
        bucket_batch_sizes: Sequence[int],
        padded_shapes: Any = None,
        padding_values: Any = None,
        pad_to_bucket_boundary: bool = False,
        no_padding: bool = False,
        drop_remainder: bool = False,
    ) -> Dataset:
        """Padded batches of elements of similar length.

        Args:
            element_length_func: length of an element, an int.
            bucket_boundaries: ascending; bucket i holds lengths in ``[boundaries[i - 1], boundaries[i])``.
            bucket_batch_sizes: one more than boundaries.
            padded_shapes: see :meth:`padded_batch`.
            padding_values: see :meth:`padded_batch`.
            pad_to_bucket_boundary: pad to the boundary less one instead of to the longest of the batch.
            no_padding: all elements of a bucket have one shape.
            drop_remainder: leave out short batches at the end.
        """
        label = "bucket_by_sequence_length"
        boundaries, sizes = arguments.buckets(label, bucket_boundaries, bucket_batch_sizes)
        return self._then(
            g.BucketBySequenceLength,
            element_length_fn=arguments.function(label, element_length_func),
            bucket_boundaries=boundaries,
            bucket_batch_sizes=sizes,
            padded_shapes=padded_shapes,
            padding_values=padding_values,
            pad_to_bucket_boundary=bool(pad_to_bucket_boundary),
            no_padding=bool(no_padding),
            drop_remainder=bool(drop_remainder),
        )

    def group_by_window(
        self,
        key_func: UserFunction,
        reduce_func: Callable[[Any, Dataset], Any],
        window_size: int | None = None,
        window_size_func: UserFunction | None = None,
    ) -> Dataset:
        """``reduce_func(key, window)`` for each window of elements with one key, flattened.

        Args:
            key_func: key of an element, an int or anything hashable.
            reduce_func: of a key and a Dataset of a window's elements; returns a Dataset or an iterable.
            window_size: elements of a window; or
            window_size_func: window size of a key.
        """
        label = "group_by_window"
        return self._then(
            g.GroupByWindow,
            key_fn=arguments.function(label, key_func),
            reduce_fn=arguments.reducer(label, reduce_func),
            **arguments.window(label, window_size, window_size_func),
        )

    def rebatch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Batches cut anew to ``batch_size`` rows."""
        size = arguments.positive("rebatch", "batch_size", batch_size)
        return self._then(g.Rebatch, batch_size=size, drop_remainder=bool(drop_remainder))

    def unbatch(self) -> Dataset:
        """The rows of each batch."""
        return self._then(g.Unbatch)

    def repeat(self, count: int | None = None) -> Dataset:
        """The dataset ``count`` times; None or -1: without end."""
        return self._then(g.Repeat, count=None if count in (None, -1) else arguments.whole("repeat", "count", count, 0))

    def take(self, count: int) -> Dataset:
        """The first ``count`` elements; -1: all."""
        return self._then(g.Take, count=arguments.whole("take", "count", count, -1))

    def skip(self, count: int) -> Dataset:
        """All but the first ``count`` elements; -1: none."""
        return self._then(g.Skip, count=arguments.whole("skip", "count", count, -1))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every ``num_shards``-th element, from number ``index`` on."""
        shards = arguments.positive("shard", "num_shards", num_shards)
        return self._then(g.Shard, num_shards=shards, index=arguments.index("shard", "index", index, shards))

    def enumerate(self, start: int = 0) -> Dataset:
        """``(start + i, element)``."""
        return self._then(g.Enumerate, start=arguments.whole("enumerate", "start", start))

    def concatenate(self, dataset: Dataset) -> Dataset:
        """All of this dataset, then all of the other."""
        ours = self._node.inputs if isinstance(self._node, g.Concatenate) else (self._node,)
        return Dataset(g.Concatenate(inputs=(*ours, arguments.node("concatenate", dataset))))

    def prefetch(self, buffer_size: int = AUTOTUNE) -> Dataset:
        """Computes up to ``buffer_size`` elements ahead, on another thread; AUTOTUNE: as the memory allows."""
        size = buffer_size if buffer_size == AUTOTUNE else arguments.whole("prefetch", "buffer_size", buffer_size, 0)
        return self if size == 0 else self._then(g.Prefetch, buffer_size=size)

    def cache(self, path: str | os.PathLike[str] | None = None) -> Dataset:
        """Up to here every epoch is like the first, random functions included; elements are kept, as far as they fit.

        Args:
            path: folder or ``s3://``, ``gs://``, ``az://`` prefix to keep them in, also for later runs. None: the
                service's ``cache_dir``; without a service at most a quarter of this machine's memory.
        """
        return self._then(g.Cache, path=arguments.folder("cache", "path", path))

    def autocache(self, mode: str = "auto") -> Dataset:
        """Here a cache is acceptable: a service with a ``cache_dir`` measures if it pays, then it is as :meth:`cache`.

        Args:
            mode: "auto"; or "compute": never; or "cache": in any case.
        """
        arguments.one_of("autocache", "mode", mode, ("auto", "compute", "cache"))
        return self._then(g.Autocache, mode=mode)

    def with_options(
        self,
        *,
        on_error: str | UserFunction | None = None,
        buffer_bytes: int | None = None,
        num_threads: int | None = None,
        seed: int | None = None,
        rewrites: bool | None = None,
    ) -> Dataset:
        """Options of the whole pipeline; of several, the last wins, option by option.

        Args:
            on_error: what an element that fails in a user's function does: ``"raise"`` (the default), ``"skip"``, or a
                function of the :class:`millrace.ElementError` that returns the element to use instead.
            buffer_bytes: bytes that a running task, and any one element, may have between operators (default 256 MiB).
            num_threads: threads of one process that run user functions.
            seed: seed of everything random that has none of its own.
            rewrites: two maps may run as one, and the like, if the same comes out (default True; False to find faults).
        """
        return self._then(g.WithOptions, **arguments.options(on_error, buffer_bytes, num_threads, seed, rewrites))

    def __iter__(self) -> LocalIterator:
        """One epoch, computed in this process."""
        return self.read_epoch()

    def read_epoch(self, number: Number = None, share: Share | None = None) -> LocalIterator:
        """Elements of one epoch, or of a part of it, computed in this process; see :class:`Readable`."""
        from millrace.engine.local import read

        return read(self, self._passes, number, share)

    def peek(self, count: int) -> list[Any]:
        """The first ``count`` elements of the first epoch."""
        from millrace.engine.local import read

        with read(self, Passes(), 0) as elements:
            return [element for _, element in zip(range(count), elements, strict=False)]

    def prepare_to_fork(self) -> None:
        """Draws the seed, rather than each process its own."""
        self.adopt_seed(self.seed)

    def varying(self) -> Varying:
        """See :class:`Readable`."""
        return varying(UnitMap(self.graph, self.tables(), self.seed))

    def distribute(
        self,
        service: str | None = None,
        *,
        job_name: str | None = None,
        sharding: ShardingPolicy | Callable[..., Sequence[int]] = ShardingPolicy.DYNAMIC,
        visitation: Visitation = Visitation.EXACTLY_ONCE,
        deterministic: bool = False,
        num_consumers: int | None = None,
        equal_steps: bool = False,
        consumer_index: int | None = None,
        sharing: Sharing | None = None,
        workers: int | tuple[int, int] | str = "auto",
        target_workers: Literal["auto", "local", "remote", "any"] = "auto",
        local_workers: int | None = None,
        accelerators: int = 1,
        tasks: int | None = None,
        compression: Literal["lz4", "zstd"] | None = None,
        seed: int | None = None,
        priority: float = 1.0,
        tenant: str = "default",
        token: str | None = None,
    ) -> DistributedDataset:
        """This pipeline on a service; functions that cannot travel are refused here.

        Args:
            service: ``"grpc://host:port"`` of a dispatcher; None: one embedded here, from the first ``iter()`` on.
            job_name: consumers of one name share one job; None: a job of one's own.
            sharding: which worker runs which task; or a pure function (tasks, workers) -> a worker's index for each.
            visitation: how often an element may come.
            deterministic: elements in plan order: the same in every run with this seed, on any number of workers.
            num_consumers: how many processes read the job; None: whoever joins.
            equal_steps: all of them get equally many elements of an epoch; what cannot be divided is left out.
            consumer_index: which of them this is; None: the lowest that is free.
            sharing: not yet.
            workers: a number, (least, most), "auto" (as few as feed the consumer) or "cheapest" (for an element).
            target_workers: "local": only in this host; "remote": only the service's; "any"; "auto": local ones first.
            local_workers: processes that this host may have for it; None: for "auto" none, else the cores but one.
            accelerators: behind this consumer; for what an epoch costs, and what is cheapest.
            tasks: number of tasks of an epoch; None: by the data's size.
            compression: of what comes from other hosts; pays on slow links (``millrace bench link`` measures).
            seed: of everything random without a seed of its own; None: the pipeline's.
            priority: weight where jobs want more workers than there are: 2 is to have twice what 1 has (0.01 to 100).
            tenant: whose quota of workers the job counts against, and whose elements it reads from the service's cache.
            token: of the service; None: ``MILLRACE_TOKEN`` of the environment.

        Raises:
            ShippingError: a function or object cannot travel, with the name of what holds it back.
            PipelineError: choices that contradict each other.
        """
        return DistributedDataset(
            self,
            service,
            job_name=job_name,
            sharding=sharding,
            visitation=visitation,
            deterministic=deterministic,
            num_consumers=num_consumers,
            equal_steps=equal_steps,
            consumer_index=consumer_index,
            sharing=sharing,
            workers=workers,
            target_workers=target_workers,
            local_workers=local_workers,
            accelerators=accelerators,
            tasks=tasks,
            compression=compression,
            seed=seed,
            priority=priority,
            tenant=tenant,
            token=token,
        )

    def __len__(self) -> int:
        """Number of elements of an epoch, or UnknownLengthError if only reading can tell; may list files."""
        length = UnitMap(self.graph, self.tables(), self.seed).length()
        if length is None or length >= INFINITE:
            why = "is known only after reading it" if length is None else "has no end; put take(n) behind repeat()"
            raise UnknownLengthError(f"the length of {self} {why}")
        return length

    def __str__(self) -> str:
        """The operators, as they were called."""
        return "Dataset." + ".".join(str(node) for node in self.graph.nodes)

    __repr__ = __str__

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts with this seed and this epoch; a process being spawned gets lambdas too."""
        state = {**self.__dict__, "seed": self.seed, "_node": for_children(self._node), "_passes": self._passes.copy()}
        return {name: value for name, value in state.items() if name != "graph"}

    @functools.cached_property
    def graph(self) -> g.Graph:
        """The graph, with user functions."""
        return g.Graph(self._node)

    @functools.cached_property
    def seed(self) -> int:
        """The pipeline's seed: of ``with_options``, else of the last shuffle that has one, else drawn once."""
        chosen = self.graph.seed()
        return secrets.randbits(63) if chosen is None else chosen

    def tables(self) -> dict[int, SplitTable]:
        """Split table of every source, by node id. Lists the data the first time."""
        if self._tables is None:
            from millrace.engine.program import list_sources

            self._tables = list_sources(self.graph)
        return self._tables

    def plan(self, tasks: int | None = None) -> Plan:
        """How an epoch is cut into tasks."""
        return make_plan(self.graph, self.tables(), tasks=tasks, seed=self.seed)

    def _fresh_state(self) -> Checkpoint:
        return Checkpoint(seed=self.seed, epoch=self._passes.following, graph=graph_digest(self.graph))

    def _then(self, node_type: type[g.Node], **parameters: Any) -> Dataset:
        return Dataset(node_type(inputs=(self._node,), **parameters))
