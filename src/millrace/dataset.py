"""The user's Dataset: a description that grows by one node with every method, and runs when it is iterated."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from millrace.errors import PipelineError, UnknownLengthError
from millrace.functions.signature import describe, name_of, where_of
from millrace.graph import nodes as g
from millrace.graph.nodes import AUTOTUNE
from millrace.planning.plan import Plan
from millrace.planning.tables import SplitTable
from millrace.planning.units import INFINITE, UnitMap

if TYPE_CHECKING:
    from millrace.distributed import DistributedDataset, ShardingPolicy, Sharing, Visitation
    from millrace.engine.local import LocalIterator
    from millrace.engine.program import Program

UserFunction = Callable[..., Any]


class Dataset:
    """An immutable, lazy description of an input pipeline.

    Start with a source (:meth:`range`, :meth:`from_files`, ...), add operators, and iterate: in this process, or with
    :meth:`distribute` on a service. Operators have tf.data's names and meanings. User functions take ``(element)`` or
    ``(element, rng)``, where ``rng`` is a :class:`numpy.random.Generator` that depends on seed, epoch and element alone.
    """

    def __init__(self, node: g.Node) -> None:
        self._node = node
        self._graph: g.Graph | None = None
        self._tables: dict[int, SplitTable] | None = None
        self._seed: int | None = None
        self._epochs = itertools.count()

    # -- sources -------------------------------------------------------------------------------------------------------

    @classmethod
    def range(cls, *args: int) -> Dataset:
        """Python ints, as :class:`range` counts them: ``range(stop)``, ``range(start, stop)``, ``range(start, stop, step)``."""
        try:
            numbers = range(*args)
        except (TypeError, ValueError) as error:
            raise PipelineError(f"range{args}: {error}") from None
        return cls(g.Range(start=numbers.start, stop=numbers.stop, step=numbers.step))

    @classmethod
    def from_list(cls, items: Sequence[Any]) -> Dataset:
        """The items of a sequence. They travel with the pipeline, so they should be small: paths, ids, rows."""
        if isinstance(items, (str, bytes)) or not hasattr(items, "__len__") or not hasattr(items, "__getitem__"):
            raise PipelineError(
                f"from_list takes a sequence (something with len() and [i]), not {type(items).__name__}; "
                "for a generator write from_list(list(...))"
            )
        return cls(g.FromList(items=g.Opaque(items, "items"), count=len(items)))

    @classmethod
    def from_files(cls, patterns: str | Sequence[str]) -> Dataset:
        """One element per file: ``{"path": str, "bytes": bytes}``.

        Args:
            patterns: paths, URLs (``s3:// gs:// az:// http(s):// memory://``) or globs (``*``, ``?``, ``[..]``, ``**``).
        """
        return cls(g.FromFiles(patterns=_patterns("from_files", patterns)))

    @classmethod
    def from_tfrecords(cls, patterns: str | Sequence[str], *, compression: str | None = None) -> Dataset:
        """One element per record of TFRecord files: ``bytes``.

        Args:
            patterns: as for :meth:`from_files`.
            compression: None (by the file's ending), ``""``, ``"GZIP"`` or ``"ZLIB"``.
        """
        if compression not in (None, "", "GZIP", "ZLIB"):
            raise PipelineError(f'from_tfrecords: compression is None, "", "GZIP" or "ZLIB", not {compression!r}')
        return cls(g.FromTFRecords(patterns=_patterns("from_tfrecords", patterns), compression=compression))

    @classmethod
    def from_webdataset(cls, patterns: str | Sequence[str]) -> Dataset:
        """One element per sample of tar shards: ``{"__key__": str, "jpg": bytes, ...}``.

        Args:
            patterns: as for :meth:`from_files`; also ``shard-{000..012}.tar``.
        """
        return cls(g.FromWebDataset(patterns=_patterns("from_webdataset", patterns)))

    @classmethod
    def from_parquet(cls, patterns: str | Sequence[str], *, columns: Sequence[str] | None = None) -> Dataset:
        """One element per row of Parquet files: a dict by column; ``columns`` selects."""
        chosen = None if columns is None else tuple(columns)
        return cls(g.FromParquet(patterns=_patterns("from_parquet", patterns), columns=chosen))

    @classmethod
    def from_map_style(cls, dataset: Any) -> Dataset:
        """``dataset[i]`` for every i below ``len(dataset)``: a torch Dataset, a Hugging Face dataset, a list."""
        if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
            raise PipelineError(
                f"from_map_style takes something with len() and [i], and {type(dataset).__name__} is not; "
                "an iterable has no positions that could be shared out"
            )
        name = type(dataset).__name__
        return cls(g.FromMapStyle(dataset=g.Opaque(dataset, name, where_of(type(dataset))), count=len(dataset)))

    @staticmethod
    def zip(*datasets: Dataset | Mapping[str, Dataset] | Sequence[Dataset]) -> Dataset:
        """Elements of several datasets side by side, as long as the shortest.

        Takes datasets (or one tuple of them) and yields tuples, or a dict of datasets and yields dicts.
        """
        if len(datasets) == 1 and isinstance(datasets[0], Mapping):
            named = datasets[0]
            inputs = tuple(_node("zip", dataset) for dataset in named.values())
            return Dataset(g.Zip(inputs=inputs, keys=tuple(named)))
        several = datasets[0] if len(datasets) == 1 and isinstance(datasets[0], (tuple, list)) else datasets
        if not several:
            raise PipelineError("zip needs at least one dataset")
        return Dataset(g.Zip(inputs=tuple(_node("zip", dataset) for dataset in several)))

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
        inputs = tuple(_node("sample_from_datasets", dataset) for dataset in datasets)
        chosen = (1.0,) * len(inputs) if weights is None else tuple(float(weight) for weight in weights)
        if not inputs or len(chosen) != len(inputs) or min(chosen) < 0 or not sum(chosen) > 0:
            raise PipelineError(
                f"sample_from_datasets needs one weight >= 0 for each dataset and one above 0: "
                f"{len(inputs)} datasets, weights {list(chosen)}"
            )
        node = g.SampleFromDatasets(
            inputs=inputs, weights=chosen, seed=seed, stop_on_empty_dataset=stop_on_empty_dataset
        )
        return Dataset(node)

    # -- operators -----------------------------------------------------------------------------------------------------

    def map(
        self, map_func: UserFunction, num_parallel_calls: int | None = AUTOTUNE, deterministic: bool = True
    ) -> Dataset:
        """``map_func(element)``, or ``map_func(element, rng)``, for each element.

        Args:
            map_func: a pure function; it may run on several threads and processes.
            num_parallel_calls: threads at a time in one process; AUTOTUNE: as many as pay; None: one.
            deterministic: keep the order; False permits another one under guarantees weaker than exactly-once.
        """
        parallel = _parallel("map", num_parallel_calls)
        return self._then(
            g.Map, fn=_function("map", map_func), num_parallel_calls=parallel, deterministic=deterministic
        )

    def filter(self, predicate: UserFunction) -> Dataset:
        """The elements for which ``predicate(element)`` is True."""
        return self._then(g.Filter, fn=_function("filter", predicate))

    def flat_map(self, map_func: UserFunction) -> Dataset:
        """All elements of ``map_func(element)``, a Dataset or any iterable, one input after the other."""
        return self._then(g.FlatMap, fn=_function("flat_map", map_func))

    def interleave(
        self,
        map_func: UserFunction,
        cycle_length: int = 4,
        block_length: int = 1,
        num_parallel_calls: int | None = AUTOTUNE,
        deterministic: bool = True,
    ) -> Dataset:
        """Elements of ``cycle_length`` datasets ``map_func(element)`` at a time, ``block_length`` from each in turn."""
        return self._then(
            g.Interleave,
            fn=_function("interleave", map_func),
            cycle_length=_positive("interleave", "cycle_length", cycle_length),
            block_length=_positive("interleave", "block_length", block_length),
            num_parallel_calls=_parallel("interleave", num_parallel_calls),
            deterministic=deterministic,
        )

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool = True) -> Dataset:
        """Random order.

        Where the source is cheap to read at any position (files, lists, ranges, map-style datasets) and elements come one to
        one from it, all of them are permuted, at no memory. Elsewhere files and parts of files are permuted, several are read in
        turn, and a window of ``buffer_size`` elements mixes them.

        Args:
            buffer_size: elements of the window.
            seed: the same seed gives the same orders, epoch by epoch; None: the pipeline's.
            reshuffle_each_iteration: a new order in every epoch and repetition.
        """
        return self._then(
            g.Shuffle,
            buffer_size=_positive("shuffle", "buffer_size", buffer_size),
            seed=seed,
            reshuffle_each_iteration=reshuffle_each_iteration,
        )

    def batch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """``batch_size`` consecutive elements as one: each leaf stacked along a new first axis."""
        size = _positive("batch", "batch_size", batch_size)
        return self._then(g.Batch, batch_size=size, drop_remainder=drop_remainder)

    def padded_batch(
        self, batch_size: int, padded_shapes: Any = None, padding_values: Any = None, drop_remainder: bool = False
    ) -> Dataset:
        """As :meth:`batch`, with each leaf padded at its ends first.

        Args:
            batch_size: elements of a batch.
            padded_shapes: a shape (tuple of int or None) for all leaves or a pytree of shapes; None, as a shape or a dimension:
                the longest of the batch.
            padding_values: a value for all leaves or a pytree of values; default zero or empty.
            drop_remainder: leave out a last, short batch.
        """
        return self._then(
            g.PaddedBatch,
            batch_size=_positive("padded_batch", "batch_size", batch_size),
            padded_shapes=padded_shapes,
            padding_values=padding_values,
            drop_remainder=drop_remainder,
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
        boundaries, sizes = tuple(bucket_boundaries), tuple(bucket_batch_sizes)
        if len(sizes) != len(boundaries) + 1 or list(boundaries) != sorted(set(boundaries)):
            raise PipelineError(
                "bucket_by_sequence_length needs ascending bucket_boundaries and one more bucket_batch_sizes than "
                f"boundaries, not {list(boundaries)} and {list(sizes)}"
            )
        for size in sizes:
            _positive("bucket_by_sequence_length", "every batch size", size)
        return self._then(
            g.BucketBySequenceLength,
            element_length_fn=_function("bucket_by_sequence_length", element_length_func),
            bucket_boundaries=boundaries,
            bucket_batch_sizes=sizes,
            padded_shapes=padded_shapes,
            padding_values=padding_values,
            pad_to_bucket_boundary=pad_to_bucket_boundary,
            no_padding=no_padding,
            drop_remainder=drop_remainder,
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
        if (window_size is None) == (window_size_func is None):
            raise PipelineError("group_by_window takes either window_size or window_size_func")
        label = "group_by_window"
        about = describe(reduce_func, label, ("key", "window"))
        return self._then(
            g.GroupByWindow,
            key_fn=_function(label, key_func),
            reduce_fn=g.Opaque(_WindowReducer(reduce_func), about.name, about.where),
            window_size=None if window_size is None else _positive(label, "window_size", window_size),
            window_size_fn=None if window_size_func is None else _function(label, window_size_func, ("key",)),
        )

    def rebatch(self, batch_size: int, drop_remainder: bool = False) -> Dataset:
        """Batches cut anew to ``batch_size`` rows."""
        size = _positive("rebatch", "batch_size", batch_size)
        return self._then(g.Rebatch, batch_size=size, drop_remainder=drop_remainder)

    def unbatch(self) -> Dataset:
        """The rows of each batch."""
        return self._then(g.Unbatch)

    def repeat(self, count: int | None = None) -> Dataset:
        """The dataset ``count`` times; None or -1: without end."""
        endless = count is None or count == -1
        if not endless and (not _is_int(count) or count < 0):
            raise PipelineError(f"repeat takes a count >= 0, or None for ever, not {count!r}")
        return self._then(g.Repeat, count=None if endless else count)

    def take(self, count: int) -> Dataset:
        """The first ``count`` elements; -1: all."""
        return self._then(g.Take, count=_at_least("take", "count", count, -1))

    def skip(self, count: int) -> Dataset:
        """All but the first ``count`` elements; -1: none."""
        return self._then(g.Skip, count=_at_least("skip", "count", count, -1))

    def shard(self, num_shards: int, index: int) -> Dataset:
        """Every ``num_shards``-th element, from number ``index`` on."""
        shards = _positive("shard", "num_shards", num_shards)
        if not _is_int(index) or not 0 <= index < shards:
            raise PipelineError(f"shard: index must be an int from 0 to {shards - 1}, not {index!r}")
        return self._then(g.Shard, num_shards=shards, index=index)

    def enumerate(self, start: int = 0) -> Dataset:
        """``(start + i, element)``."""
        return self._then(g.Enumerate, start=start)

    def concatenate(self, dataset: Dataset) -> Dataset:
        """All of this dataset, then all of the other."""
        return Dataset(g.Concatenate(inputs=(self._node, _node("concatenate", dataset))))

    def prefetch(self, buffer_size: int = AUTOTUNE) -> Dataset:
        """Computes up to ``buffer_size`` elements ahead, on another thread; AUTOTUNE: as the memory allows."""
        if buffer_size != AUTOTUNE:
            _at_least("prefetch", "buffer_size", buffer_size, 0)
        return self if buffer_size == 0 else self._then(g.Prefetch, buffer_size=buffer_size)

    def cache(self, path: str | None = None) -> Dataset:
        """Elements up to here are kept once computed. Not yet: for now they are computed each time."""
        return self._then(g.Cache, path=path)

    def autocache(self) -> Dataset:
        """Up to here reuse is acceptable; the service decides. Not yet: for now it never pays."""
        return self._then(g.Autocache)

    def with_options(
        self,
        *,
        on_error: str | UserFunction | None = None,
        buffer_bytes: int | None = None,
        num_threads: int | None = None,
        seed: int | None = None,
    ) -> Dataset:
        """Options of the whole pipeline; of several, the last wins, option by option.

        Args:
            on_error: what an element that fails in a user's function does: ``"raise"`` (the default), ``"skip"``, or a
                function of the :class:`millrace.ElementError` that returns the element to use instead.
            buffer_bytes: bytes that a running task may hold between operators (default 256 MiB).
            num_threads: threads of one process that run user functions.
            seed: seed of everything random that has none of its own.
        """
        handler: g.Opaque | str | None
        if on_error is None or isinstance(on_error, str):
            if on_error not in (None, "raise", "skip"):
                raise PipelineError(f'with_options: on_error is "raise", "skip" or a function, not {on_error!r}')
            handler = on_error
        else:
            handler = _function("with_options", on_error, ("error",))
        for name, value in (("buffer_bytes", buffer_bytes), ("num_threads", num_threads)):
            if value is not None:
                _positive("with_options", name, value)
        return self._then(
            g.WithOptions, on_error=handler, buffer_bytes=buffer_bytes, num_threads=num_threads, seed=seed
        )

    # -- running -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> LocalIterator:
        """One epoch, computed in this process."""
        from millrace.engine.local import LocalIterator

        return LocalIterator(self._program(), next(self._epochs))

    def distribute(
        self,
        service: str | None = None,
        *,
        job_name: str | None = None,
        sharding: ShardingPolicy | Callable[..., Sequence[int]] | None = None,
        visitation: Visitation | None = None,
        deterministic: bool = False,
        num_consumers: int | None = None,
        consumer_index: int | None = None,
        sharing: Sharing | None = None,
        workers: int | str = "auto",
        target_workers: str = "auto",
        accelerators: int = 1,
        tasks: int | None = None,
        compression: str | None = None,
        seed: int | None = None,
        token: str | None = None,
    ) -> DistributedDataset:
        """This pipeline on a service; functions that cannot travel are refused here.

        Args:
            service: ``"grpc://host:port"`` of a dispatcher; None: an embedded service on this machine, started at the first
                ``iter()`` and stopped with the result's life.
            job_name: consumers of one name share one job; None: a job of one's own.
            sharding: a :class:`millrace.ShardingPolicy` (default DYNAMIC), or a pure function of (task numbers, worker ids)
                that returns for each task the index of a worker.
            visitation: a :class:`millrace.Visitation` (default EXACTLY_ONCE).
            deterministic: elements in plan order: the same in every run with this seed, on any number of workers.
            num_consumers: how many processes read the job; None: whoever joins.
            consumer_index: which of them this is; None: the lowest that is free.
            sharing: not yet.
            workers: of an embedded service: a number, or "auto": one per core.
            target_workers: not yet.
            accelerators: behind this consumer; for the cost of an epoch.
            tasks: number of tasks of an epoch; None: by the data's size.
            compression: not yet.
            seed: of everything random without a seed of its own; None: the pipeline's.
            token: of the service; None: ``MILLRACE_TOKEN`` of the environment.

        Raises:
            ShippingError: a function or object cannot travel, with the name of what holds it back.
            PipelineError: choices that contradict each other.
        """
        from millrace.distributed import DistributedDataset, ShardingPolicy, Visitation

        return DistributedDataset(
            self,
            service,
            job_name=job_name,
            sharding=ShardingPolicy.DYNAMIC if sharding is None else sharding,
            visitation=Visitation.EXACTLY_ONCE if visitation is None else visitation,
            deterministic=deterministic,
            num_consumers=num_consumers,
            consumer_index=consumer_index,
            sharing=sharing,
            workers=workers,
            target_workers=target_workers,
            accelerators=accelerators,
            tasks=tasks,
            compression=compression,
            seed=seed,
            token=token,
        )

    def __len__(self) -> int:
        """Number of elements of an epoch; may list files.

        Raises:
            UnknownLengthError: only reading can tell, or there is no end.
        """
        length = UnitMap(self.graph, self.tables(), self.seed).length()
        if length is None:
            raise UnknownLengthError(f"the length of {self} is known only after reading it")
        if length >= INFINITE:
            raise UnknownLengthError(f"{self} has no end; put take(n) behind repeat()")
        return length

    def __bool__(self) -> bool:
        """A dataset is something, also when it is empty or its length unknown."""
        return True

    def __str__(self) -> str:
        """The operators, as they were called."""
        return "Dataset." + ".".join(str(node) for node in self.graph.nodes)

    __repr__ = __str__

    def __getstate__(self) -> dict[str, Any]:
        """A copy in another process starts with this seed and this epoch."""
        return {**self.__dict__, "_graph": None, "_seed": self.seed}

    @property
    def graph(self) -> g.Graph:
        """The graph, with user functions."""
        if self._graph is None:
            self._graph = g.Graph(self._node)
        return self._graph

    @property
    def seed(self) -> int:
        """The pipeline's seed: of ``with_options``, else of the last shuffle that has one, else drawn once."""
        if self._seed is None:
            chosen = self.graph.options().seed
            if chosen is None:
                seeds = [
                    node.seed for node in self.graph.nodes if isinstance(node, g.Shuffle) and node.seed is not None
                ]
                chosen = seeds[-1] if seeds else secrets.randbits(63)
            self._seed = chosen
        return self._seed

    def tables(self) -> dict[int, SplitTable]:
        """Split table of every source, by node id. Lists the data the first time."""
        if self._tables is None:
            from millrace.engine.program import list_sources

            self._tables = list_sources(self.graph)
        return self._tables

    def plan(self, tasks: int | None = None) -> Plan:
        """How an epoch is cut into tasks."""
        from millrace.planning.plan import make_plan

        return make_plan(self.graph, self.tables(), tasks=tasks, seed=self.seed)

    def _program(self) -> Program:
        from millrace.engine.program import Program

        return Program(self.graph, self.tables(), seed=self.seed)

    def _then(self, node_type: type[g.Node], **parameters: Any) -> Dataset:
        return Dataset(node_type(inputs=(self._node,), **parameters))


class _WindowReducer:
    """Gives ``reduce_func`` its window as a dataset."""

    def __init__(self, reduce_func: Callable[[Any, Dataset], Any]) -> None:
        self.reduce_func = reduce_func

    def __call__(self, key: Any, elements: list[Any]) -> Any:
        return self.reduce_func(key, Dataset.from_list(elements))


def _function(operator: str, function: Any, arguments: Sequence[str] = ("element",)) -> g.Opaque:
    about = describe(function, operator, arguments)
    return g.Opaque(function, about.name, about.where, about.takes_rng)


def _patterns(operator: str, patterns: str | Sequence[str]) -> tuple[str, ...]:
    several = (patterns,) if isinstance(patterns, str) else tuple(str(pattern) for pattern in patterns)
    if not several:
        raise PipelineError(f"{operator} needs at least one path or pattern, and the list is empty")
    return several


def _node(operator: str, dataset: Any) -> g.Node:
    if not isinstance(dataset, Dataset):
        raise PipelineError(f"{operator} takes datasets, not {type(dataset).__name__} ({name_of(dataset)})")
    return dataset._node  # noqa: SLF001 - of the same class


def _is_int(value: Any) -> bool:
    return hasattr(value, "__index__") and not isinstance(value, bool)


def _at_least(operator: str, name: str, value: Any, least: int) -> int:
    if not _is_int(value) or int(value) < least:
        raise PipelineError(f"{operator}: {name} must be a whole number of at least {least}, not {value!r}")
    return int(value)


def _positive(operator: str, name: str, value: Any) -> int:
    return _at_least(operator, name, value, 1)


def _parallel(operator: str, value: int | None) -> int:
    if value is None:
        return 1
    return value if value == AUTOTUNE else _positive(operator, "num_parallel_calls", value)
