"""The user's Dataset: a description that grows by one node with every method, and runs when it is iterated."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any, Literal, Self

from millrace import mixture_arguments, validation
from millrace.distributed import DistributedDataset
from millrace.errors import PipelineError
from millrace.frameworks.base import Viewable
from millrace.graph import nodes as g
from millrace.graph import source_nodes as s
from millrace.graph.source_nodes import FromArrays, FromList, FromMapStyle, FromParquet
from millrace.guarantees import ShardingPolicy, Sharing, Visitation
from millrace.order_operators import OrderOperators
from millrace.pipeline import Pipeline
from millrace.whole_numbers import whole
from millrace.windowed import pipeline_of

if TYPE_CHECKING:
    from millrace.engine.run.local_epoch import LocalIterator
    from millrace.policies.bucket_boundaries import SuggestedBuckets
    from millrace.sources.saved_manifest import SavedInfo


class Dataset(OrderOperators, Viewable):
    """An immutable, lazy description of an input pipeline.

    Start with a source (:meth:`range`, :meth:`from_files`, ...), add operators, and iterate: in this process, or with
    :meth:`distribute` on a service. Operators have tf.data's names and meanings. User functions take ``(element)`` or
    ``(element, rng)``; ``rng`` is a :class:`numpy.random.Generator` that depends on seed, epoch and element alone.
    """

    _source: Pipeline

    def __init__(self, node: g.Node | None = None) -> None:
        super().__init__(Pipeline(validation.begun(node)))

    # -- sources -------------------------------------------------------------------------------------------------------

    @classmethod
    def range(cls, *args: int) -> Dataset:
        """Python ints as :class:`range` has them: of ``(stop)``, ``(start, stop)`` or ``(start, stop, step)``."""
        numbers = validation.numbers(args)
        return cls(g.Range(start=numbers.start, stop=numbers.stop, step=numbers.step))

    @classmethod
    def from_list(cls, items: Sequence[Any]) -> Dataset:
        """Items of a sequence. They travel with the pipeline, so they should be small: paths, ids, rows."""
        return cls(FromList(items=g.Opaque(items, "items"), count=validation.items(items)))

    @classmethod
    def from_arrays(cls, arrays: Any) -> Dataset:
        """One element per row of arrays with equally many: of ``{"x": x, "y": y}`` first ``{"x": x[0], "y": y[0]}``.

        Workers on this host share one copy of the arrays, however many they are. Elsewhere they are sent, up to 1 GiB.

        Args:
            arrays: in dicts, tuples and lists, or one alone: of numpy, or what numpy can view. They must stay as they
                are; rows are views that can't be written to.

        Raises:
            PipelineError: their numbers of rows differ, or something is no array; a ValueError that names them.
        """
        held, count, contents = validation.arrays(arrays)
        return cls(FromArrays(arrays=held, count=count, contents=contents))

    @classmethod
    def from_files(cls, patterns: validation.Patterns, *, digest: validation.DigestPath = None) -> Dataset:
        """One element per file: ``{"path": str, "bytes": bytes}``.

        Args:
            patterns: paths, URLs (``s3:// gs:// az:// http(s):// memory://``) or globs (``* ? [..] **``).
            digest: path or URL of the digest of these files, which ``millrace digest`` makes and whoever lists them
                reads: what is read is compared with it.

        Raises:
            SourceChangedError: while it is read; a file is not what it was when the digest was made.
        """
        known = validation.digest("from_files", digest)
        return cls(g.FromFiles(patterns=validation.patterns("from_files", patterns), digest=known))

    @classmethod
    def from_tfrecords(
        cls, patterns: validation.Patterns, *, compression: str | None = None, digest: validation.DigestPath = None
    ) -> Dataset:
        """One element per record of TFRecord files: ``bytes``.

        Args:
            patterns: as for :meth:`from_files`.
            compression: None (by the file's ending), ``""``, ``"GZIP"`` or ``"ZLIB"``.
            digest: as for :meth:`from_files`, of the records.
        """
        label = "from_tfrecords"
        packed = validation.compression(label, compression)
        given, known = validation.patterns(label, patterns), validation.digest(label, digest)
        return cls(g.FromTFRecords(patterns=given, compression=packed, digest=known))

    @classmethod
    def from_webdataset(
        cls, patterns: validation.Patterns, *, random_access: bool = False, digest: validation.DigestPath = None
    ) -> Dataset:
        """One element per sample of tar shards, which may be ``shard-{000..012}.tar``: ``{"__key__": str, ...}``.

        Args:
            patterns: as for :meth:`from_files`.
            random_access: read each sample for itself, so that :meth:`shuffle` permutes them all, where the shards are
                local or have an index (``millrace pack`` makes one); False: read many with one request, in pieces of
                which :meth:`shuffle` mixes some.
            digest: as for :meth:`from_files`, of the members of the shards.
        """
        label = "from_webdataset"
        given, known = validation.patterns(label, patterns), validation.digest(label, digest)
        return cls(g.FromWebDataset(patterns=given, random_access=bool(random_access), digest=known))

    @classmethod
    def from_parquet(
        cls,
        patterns: validation.Patterns,
        *,
        columns: Sequence[str] | None = None,
        digest: validation.DigestPath = None,
    ) -> Dataset:
        """One element per row of Parquet files: a dict by column.

        Args:
            patterns: as for :meth:`from_files`.
            columns: names of those that are read; None: all.
            digest: as for :meth:`from_files`, of the column chunks of row groups.
        """
        label = "from_parquet"
        given, chosen = validation.patterns(label, patterns), validation.columns(label, columns)
        return cls(FromParquet(patterns=given, columns=chosen, digest=validation.digest(label, digest)))

    @classmethod
    def from_text(cls, patterns: validation.Patterns, *, compression: str | None = None) -> Dataset:
        """One element per line of text files in UTF-8: a ``str`` without the end of the line.

        Args:
            patterns: as for :meth:`from_files`.
            compression: as for :meth:`from_tfrecords`.
        """
        known = validation.compression("from_text", compression)
        return cls(s.FromText(patterns=validation.patterns("from_text", patterns), compression=known))

    @classmethod
    def from_csv(
        cls,
        patterns: validation.Patterns,
        *,
        columns: Sequence[str] | None = None,
        names: Sequence[str] | None = None,
        types: Mapping[str, type] | None = None,
        delimiter: str = ",",
        compression: str | None = None,
    ) -> Dataset:
        """One element per row of CSV files: a dict by column. A missing number is None.

        Args:
            patterns: as for :meth:`from_files`.
            columns: names of those that are read; None: all.
            names: of the files' columns, where these have no first line that says them; None: they have.
            types: by column int, float, str, bytes or bool; of others what the first file's first MiB looks like. The
                first file has all columns that are named here.
            delimiter: one character between values, which may be in double quotes.
            compression: as for :meth:`from_tfrecords`.
        """
        label = "from_csv"
        node = s.FromCSV(
            patterns=validation.patterns(label, patterns),
            columns=validation.columns(label, columns),
            names=validation.columns(label, names, "names"),
            types=validation.column_types(label, types),
            delimiter=validation.delimiter(label, delimiter),
            compression=validation.compression(label, compression),
        )
        return cls(node)

    @classmethod
    def from_fixed_length_records(
        cls,
        patterns: validation.Patterns,
        record_bytes: int,
        *,
        header_bytes: int = 0,
        footer_bytes: int = 0,
        compression: str | None = None,
    ) -> Dataset:
        """One element per record of files whose records have one length: ``bytes``.

        Args:
            patterns: as for :meth:`from_files`.
            record_bytes: of a record.
            header_bytes: at each file's beginning, left out.
            footer_bytes: at each file's end, left out.
            compression: as for :meth:`from_tfrecords`.
        """
        label = "from_fixed_length_records"
        node = s.FromFixedLengthRecords(
            patterns=validation.patterns(label, patterns),
            record_bytes=validation.positive(label, "record_bytes", record_bytes),
            header_bytes=whole(label, "header_bytes", header_bytes, 0),
            footer_bytes=whole(label, "footer_bytes", footer_bytes, 0),
            compression=validation.compression(label, compression),
        )
        return cls(node)

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, max_age: float | timedelta | None = None) -> Dataset:
        """Elements that :meth:`save` has written to ``path``, in their order.

        Args:
            path: of the folder, or a URL.
            max_age: a timedelta, or seconds; what is older now is refused. None: age doesn't matter.

        Raises:
            SourceError: it is older than ``max_age``; the message says how old.
        """
        folder = _saved_path("load", path)
        if max_age is not None:
            from millrace.sources.saving import check_age

            check_age(folder, max_age)
        return cls(s.Load(path=folder))

    @classmethod
    def saved_info(cls, path: str | os.PathLike[str]) -> SavedInfo:
        """Look what :meth:`save` has written to ``path``: elements, bytes, files, and what made them, and when."""
        from millrace.sources.saving import saved_info

        return saved_info(_saved_path("saved_info", path))

    @classmethod
    def from_generator(cls, generator: Callable[..., Iterable[Any]], *, key: str = "") -> Dataset:
        """Elements of ``generator()``, or ``generator(rng)``, a generator function or whatever gives an iterable.

        One worker runs it, from its beginning in each epoch, and when it goes on from a state. If it has no end, put
        :meth:`take` behind it. ``key`` as for :meth:`map`.
        """
        function = validation.generator("from_generator", generator, key)
        return cls(s.FromGenerator(inputs=(g.Range(start=0, stop=1),), fn=function))

    @classmethod
    def from_map_style(cls, dataset: Any, *, key: str = "") -> Dataset:
        """``dataset[i]`` for every i below ``len(dataset)``: a torch Dataset, a list; ``key`` as for :meth:`map`."""
        held, count = validation.map_style("from_map_style", dataset, key)
        return cls(FromMapStyle(dataset=held, count=count))

    @staticmethod
    def zip(*datasets: Dataset | Mapping[str, Dataset] | Sequence[Dataset]) -> Dataset:
        """Elements of several datasets side by side, as long as the shortest: tuples, or of a dict of them dicts."""
        return Dataset(g.Zip(**validation.members("zip", datasets)))

    @staticmethod
    def sample_from_datasets(
        datasets: Sequence[Dataset],
        weights: Sequence[float] | Mapping[int, Sequence[float]] | None = None,
        seed: int | None = None,
        stop_on_empty_dataset: bool = False,
        *,
        cycle: bool = False,
        weights_by: Literal["epoch", "element"] = "epoch",
    ) -> Dataset:
        """Each element from a dataset chosen at random.

        Args:
            datasets: at least one.
            weights: of each dataset, not negative; None: all alike. Where they change, a dict of such lists by the
                epoch from which on they hold: ``{0: [0.9, 0.1], 5: [0.5, 0.5]}``.
            seed: of the choices, which are the same in every epoch with the same weights; None: the pipeline's.
            stop_on_empty_dataset: end when a dataset that has ended is chosen; else go on with the others.
            cycle: datasets that have ended begin again, until all have ended once.
            weights_by: what a dict of weights goes by: the number of the epoch, or within each epoch that of the
                element of this dataset, both from 0 on.

        Raises:
            PipelineError: these are no weights, or both ends are asked for; or, where it is read, epochs would not all
                have equally many elements.
        """
        label, mixed = "sample_from_datasets", mixture_arguments.ends(stop_on_empty_dataset, cycle)
        if stop_on_empty_dataset and cycle:
            raise PipelineError(
                f"{label}: with cycle=True no dataset is empty: leave stop_on_empty_dataset out, or cycle"
            )
        inputs = validation.members(label, (datasets,))["inputs"]
        mixed |= mixture_arguments.weights(label, weights, weights_by, len(inputs))
        inputs, number = mixture_arguments.repeated(inputs, cycle), validation.seed(label, seed)
        return Dataset(g.SampleFromDatasets(inputs=inputs, seed=number, **mixed))

    @staticmethod
    def choose_from_datasets(
        datasets: Sequence[Dataset],
        choice_dataset: Dataset | Sequence[int],
        stop_on_empty_dataset: bool = True,
        *,
        cycle: bool = False,
    ) -> Dataset:
        """Each element from the dataset that is next by number.

        Args:
            datasets: at least one.
            choice_dataset: dataset of numbers of ``datasets``, from 0 on; or a list of them, which is gone through
                again and again: ``[0, 1]`` takes each of two in turn, ``[0, 0, 0, 1]`` three elements to one.
            stop_on_empty_dataset: end when a dataset that has ended is chosen; else pass over it.
            cycle: datasets that have ended begin again, until all that are chosen have ended once.

        Raises:
            PipelineError: a choice is no number of a dataset, here or when it is read.
        """
        label, mixed = "choose_from_datasets", mixture_arguments.ends(stop_on_empty_dataset, cycle)
        inputs = validation.members(label, (datasets,))["inputs"]
        chosen, times, read = mixture_arguments.choices(label, choice_dataset, len(inputs))
        inputs = (*mixture_arguments.repeated(inputs, cycle), *read)
        return Dataset(g.ChooseFromDatasets(inputs=inputs, choices=chosen, times=times, **mixed))

    # -- operators that need another dataset; the others are those of Operators ----------------------------------------

    def concatenate(self, dataset: Dataset) -> Dataset:
        """All of this dataset, then all of the other."""
        node = self._source.node
        ours = node.inputs if isinstance(node, g.Concatenate) else (node,)
        return Dataset(g.Concatenate(inputs=(*ours, validation.node("concatenate", dataset))))

    # -- running -------------------------------------------------------------------------------------------------------

    def __iter__(self) -> LocalIterator:
        """One epoch, computed in this process."""
        return self._source.read_epoch()

    def suggest_buckets(
        self,
        element_length_func: Callable[[Any], int] | None = None,
        *,
        buckets: int = 8,
        sample: int = 10_000,
        batch_tokens: int | None = None,
    ) -> SuggestedBuckets:
        """Find bucket boundaries for :meth:`bucket_by_sequence_length` that leave as little padding as can be.

        Computes the first elements of the first epoch in this process; where these are not like the others, put
        :meth:`shuffle` before. ``reason`` of what it gives says in a sentence how much padding is left. ::

            found = ds.suggest_buckets(length, batch_tokens=16_384)
            ds = ds.bucket_by_sequence_length(length, found.boundaries, found.batch_sizes)

        Args:
            element_length_func: length of an element; None: of its longest array.
            buckets: most that there may be.
            sample: number of elements to look at.
            batch_tokens: most that a batch may have, padding included, for ``batch_sizes``; None: these are empty. A
                batch with an element that is longer than all that were looked at may have more.
        """
        from millrace.length_sample import suggested_buckets

        return suggested_buckets(self._source, element_length_func, buckets, sample, batch_tokens)

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
        coordinated: bool = False,
        incomplete: Literal["drop", "mix"] = "drop",
        cycle_length: int | None = None,
        consumer_index: int | None = None,
        sharing: Sharing | None = None,
        window_bytes: int | None = None,
        workers: int | tuple[int, int] | str = "auto",
        target_workers: Literal["auto", "local", "remote", "any"] = "auto",
        local_workers: int | None = None,
        accelerators: int = 1,
        tasks: int | None = None,
        compression: Literal["lz4", "zstd"] | None = None,
        seed: int | None = None,
        priority: float = 1.0,
        tenant: str = "default",
        untrusted_cache: Literal["recompute", "refuse"] = "recompute",
        token: str | None = None,
        tls: str | None = None,
        progress: bool = False,
    ) -> DistributedDataset:
        """Have a service compute this pipeline; functions that cannot travel are refused here.

        Args:
            service: ``"grpc://host:port"`` of a dispatcher; None: one embedded here, from the first ``iter()`` on.
            job_name: consumers of one name read one job, of which each gets a part; None: a job of one's own.
            sharding: which worker runs which task; or a pure function (tasks, workers) -> a worker's index for each.
            visitation: how often an element may come.
            deterministic: elements in plan order: the same in every run with this seed, on any number of workers.
            num_consumers: how many processes read the job; None: whoever joins.
            equal_steps: all of them get equally many elements of an epoch; what cannot be divided is left out.
            coordinated: each step gives all of them batches of one length bucket, and all get equally many; needs
                ``num_consumers`` and a pipeline that makes batches, and implies ``deterministic``.
            incomplete: of ``coordinated``, what fills no round of batches of a bucket at the end of an epoch: left out
                ("drop"), or put together into rounds of mixed lengths ("mix").
            cycle_length: of ``coordinated``, tasks that are read at a time, a round of each in turn (1 to 64); None: 4.
            consumer_index: which of them this is; None: the lowest that is free.
            sharing: jobs that are alike and say so have the pipeline computed once for all of them.
            window_bytes: of ``Sharing.WINDOW``, what each worker keeps for slower jobs; None: half its buffer or more.
            workers: a number, (least, most), "auto" (as few as feed the consumer) or "cheapest" (for an element).
            target_workers: "local": only in this host; "remote": only the service's; "any"; "auto": local ones first.
            local_workers: processes that this host may have for it; None: for "auto" none, else the cores but one.
            accelerators: behind this consumer; for what an epoch costs, and what is cheapest.
            tasks: number of tasks of an epoch; None: by the data's size.
            compression: of what comes from other hosts; pays on slow links (``millrace bench link`` measures).
            seed: of everything random without a seed of its own; None: the pipeline's.
            priority: weight where jobs want more workers than there are: 2 is to have twice what 1 has (0.01 to 100).
            tenant: whose quota of workers the job counts against, and whose elements it reads from the service's cache.
            untrusted_cache: where a tenant keeps elements of this pipeline that this one may not read: make them again,
                with a warning, or refuse the job with AccessDeniedError.
            token: of the service; None: ``MILLRACE_TOKEN`` of the environment, or on loopback this user's own.
            tls: folder with certificates, if the service has one (``millrace tls init``); None: ``MILLRACE_TLS`` of the
                environment.
            progress: show on standard error how fast elements come: a line that is alive, and one for each epoch.

        Raises:
            ShippingError: a function or object cannot travel, with the name of what holds it back.
            PipelineError: choices that contradict each other.
        """
        chosen = {name: value for name, value in locals().items() if name not in {"self", "service", "token", "tls"}}
        made = validation.written(type(self).distribute, service, **chosen)
        kind = pipeline_of(sharing, visitation)
        return DistributedDataset(kind(self._source, service, token=token, tls=tls, made=made, **chosen))

    def __pipeline__(self) -> Pipeline:
        """Pipeline behind the dataset: for millrace's own use."""
        return self._source

    def _then(self, node_type: type[g.Node], **parameters: Any) -> Self:
        return type(self)(node_type(inputs=(self._source.node,), **parameters))


def _saved_path(operator: str, path: Any) -> str:
    folder = validation.folder(operator, "path", path)
    if folder is None:
        raise PipelineError(f"{operator} takes the path that a dataset was saved to, not None")
    return folder
