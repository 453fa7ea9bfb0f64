"""Operators that users call on a dataset: each checks its arguments, where they were written, and adds a node."""

from __future__ import annotations

import os
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

from millrace import validation
from millrace.equivalents import NamesEquivalents
from millrace.graph import nodes as g
from millrace.graph.nodes import AUTOTUNE
from millrace.whole_numbers import whole

UserFunction = Callable[..., Any]


class Operators(NamesEquivalents):
    """Operators with tf.data's names and meanings; each method gives another dataset and leaves this one as it is."""

    @abstractmethod
    def _then(self, node_type: type[g.Node], **parameters: Any) -> Self:
        """Add one more node at the end."""

    def map(
        self,
        map_func: UserFunction,
        num_parallel_calls: int | None = AUTOTUNE,
        deterministic: bool = True,
        *,
        key: str = "",
    ) -> Self:
        """``map_func(element)``, or ``map_func(element, rng)``, for each element.

        Args:
            map_func: a pure function; it may run on several threads and processes.
            num_parallel_calls: threads at a time in one process; AUTOTUNE: as many as pay; None: one.
            deterministic: keep the order; False permits another one under guarantees weaker than exactly-once.
            key: a name for this version of ``map_func``, if caches are to go by that instead of by what it computes.
        """
        return self._then(
            g.Map,
            fn=validation.function("map", map_func, key=key),
            num_parallel_calls=validation.parallel("map", num_parallel_calls),
            deterministic=bool(deterministic),
        )

    def parse_example(self, features: Mapping[str, Any], num_parallel_calls: int | None = AUTOTUNE) -> Self:
        """Features of serialized ``tf.train.Example`` records, a dict by name, without TensorFlow.

        Args:
            features: by name a ``FixedLenFeature(shape, dtype, default_value)`` or a ``VarLenFeature(dtype)`` of
                :mod:`millrace.tf_example`, or TensorFlow's; dtypes are int64, float32 and bytes.
            num_parallel_calls: as for :meth:`map`.
        """
        from millrace.tf_example import ExampleParser

        parser = ExampleParser(features)
        return self._then(
            g.Map,
            fn=g.Opaque(parser, "parse_example", key=repr(parser)),
            num_parallel_calls=validation.parallel("parse_example", num_parallel_calls),
            deterministic=True,
        )

    def filter(self, predicate: UserFunction, *, key: str = "") -> Self:
        """Elements for which ``predicate(element)`` is True; ``key`` as for :meth:`map`."""
        return self._then(g.Filter, fn=validation.function("filter", predicate, key=key))

    def take_while(self, predicate: UserFunction, *, key: str = "") -> Self:
        """Elements up to the first for which ``predicate(element)`` is False; ``key`` as for :meth:`map`.

        The pipeline runs as one task, in order.
        """
        return self._then(g.TakeWhile, fn=validation.function("take_while", predicate, key=key))

    def scan(self, initial_state: Any, scan_func: UserFunction, *, key: str = "") -> Self:
        """One output for each element: ``scan_func(state, element)`` returns the next state and the output.

        The pipeline runs as one task, in order.

        Args:
            initial_state: the first state, in each epoch anew.
            scan_func: a function of the state and the element.
            key: as for :meth:`map`.
        """
        function = validation.function("scan", scan_func, ("state", "element"), key)
        return self._then(g.Scan, initial_state=initial_state, fn=function)

    def unique(self) -> Self:
        """Elements that are not equal to an earlier one. The pipeline runs as one task, in order."""
        return self._then(g.Unique)

    def flat_map(self, map_func: UserFunction, *, key: str = "") -> Self:
        """All elements of ``map_func(element)``, a Dataset or iterable, one after the other; ``key`` as for ``map``."""
        return self._then(g.FlatMap, fn=validation.function("flat_map", map_func, key=key))

    def interleave(
        self,
        map_func: UserFunction,
        cycle_length: int = 4,
        block_length: int = 1,
        num_parallel_calls: int | None = AUTOTUNE,
        deterministic: bool = True,
        *,
        key: str = "",
    ) -> Self:
        """Elements of ``cycle_length`` datasets ``map_func(element)`` at a time, ``block_length`` from each in turn."""
        return self._then(
            g.Interleave,
            fn=validation.function("interleave", map_func, key=key),
            cycle_length=validation.positive("interleave", "cycle_length", cycle_length),
            block_length=validation.positive("interleave", "block_length", block_length),
            num_parallel_calls=validation.parallel("interleave", num_parallel_calls),
            deterministic=bool(deterministic),
        )

    def shuffle(self, buffer_size: int, seed: int | None = None, reshuffle_each_iteration: bool | None = None) -> Self:
        """Random order.

        Where the source is cheap to read at any position (files, lists, ranges, map-style datasets) and elements come
        one to one from it, all of them are permuted, at no memory. Elsewhere files and parts of files are permuted,
        several are read in turn, and a window of ``buffer_size`` elements mixes them.

        Args:
            buffer_size: elements of the window.
            seed: the same gives the same orders, epoch by epoch; None: the pipeline's.
            reshuffle_each_iteration: a new order in every epoch and repetition; None: True.
        """
        return self._then(
            g.Shuffle,
            buffer_size=validation.positive("shuffle", "buffer_size", buffer_size),
            seed=validation.seed("shuffle", seed),
            reshuffle_each_iteration=reshuffle_each_iteration is None or bool(reshuffle_each_iteration),
        )

    def batch(
        self,
        batch_size: int,
        drop_remainder: bool = False,
        *,
        fill_remainder: str | None = None,
        collate: UserFunction | None = None,
        key: str = "",
    ) -> Self:
        """``batch_size`` consecutive elements as one: each leaf stacked along a new first axis.

        Args:
            batch_size: elements of a batch.
            drop_remainder: leave out a last, short batch.
            fill_remainder: give a short batch ``batch_size`` rows, too, by repeating its elements from the first on.
                "repeat": that is all; "mask": each batch is a pair ``(batch, mask)``, with a mask of bool that says
                which rows are no repetition.
            collate: makes the batch of the list of its elements, in the place of stacking: ``collate(elements)``, or
                ``collate(elements, rng)``; with a mask the list is of pairs ``(element, bool)``.
            key: of ``collate``, as for :meth:`map`.
        """
        if collate is not None:
            validation.function("batch", collate, ("elements",), key)
        batches = self._then(
            g.Batch,
            **validation.batch("batch", batch_size, drop_remainder, fill_remainder),
            listed=collate is not None,
        )
        return batches if collate is None or collate is list else batches.map(collate, key=key)

    def ragged_batch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Batches as of :meth:`batch`, in which arrays may differ in their first dimension, without padding.

        Each array of one dimension or more becomes a namedtuple ``Ragged(values, row_splits)``: the rows of all, and an
        int64 array of ``batch_size + 1`` places; element i has ``values[row_splits[i] : row_splits[i + 1]]``.
        """
        return self._then(g.RaggedBatch, **validation.batch("ragged_batch", batch_size, drop_remainder, None))

    def padded_batch(
        self,
        batch_size: int,
        padded_shapes: Any = None,
        padding_values: Any = None,
        drop_remainder: bool = False,
        *,
        fill_remainder: str | None = None,
    ) -> Self:
        """Batches as of :meth:`batch`, with each leaf padded at its ends first.

        Args:
            batch_size: elements of a batch.
            padded_shapes: a shape (tuple of int or None) for all leaves or a pytree of shapes; None, as a shape or a
                dimension: the longest of the batch.
            padding_values: a value for all leaves or a pytree of values; default zero or empty.
            drop_remainder: leave out a last, short batch.
            fill_remainder: as of :meth:`batch`.
        """
        return self._then(
            g.PaddedBatch,
            padded_shapes=validation.padded_shapes("padded_batch", padded_shapes),
            padding_values=padding_values,
            **validation.batch("padded_batch", batch_size, drop_remainder, fill_remainder),
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
    ) -> Self:
        """Pad and batch elements of similar length.

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
        boundaries, sizes = validation.buckets(label, bucket_boundaries, bucket_batch_sizes)
        return self._then(
            g.BucketBySequenceLength,
            element_length_fn=validation.function(label, element_length_func),
            bucket_boundaries=boundaries,
            bucket_batch_sizes=sizes,
            padded_shapes=validation.padded_shapes(label, padded_shapes),
            padding_values=padding_values,
            pad_to_bucket_boundary=bool(pad_to_bucket_boundary),
            no_padding=bool(no_padding),
            drop_remainder=bool(drop_remainder),
        )

    def group_by_window(
        self,
        key_func: UserFunction,
        reduce_func: Callable[[Any, Any], Any],
        window_size: int | None = None,
        window_size_func: UserFunction | None = None,
    ) -> Self:
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
            key_fn=validation.function(label, key_func),
            reduce_fn=validation.reducer(label, reduce_func),
            **validation.window(label, window_size, window_size_func),
        )

    def pack(
        self,
        length: int,
        *,
        window: int = g.PACKING_WINDOW,
        too_long: str = "error",
        keys: str | Sequence[str] | None = None,
        padding_values: Any = None,
    ) -> Self:
        """Sequence packing: rows of exactly ``length`` tokens, each filled with several whole sequences.

        An element is a sequence (an array or a list of numbers), or a dict of sequences of one length. A row is a dict
        of the same leaves (``"tokens"``, where elements are no dicts), with ``"segment_ids"`` (1, 2, ... for the
        sequences of the row, 0 for padding) and ``"positions"`` (from 0 in each sequence), int32.

        Args:
            length: tokens of a row.
            window: rows that are filled at a time; more leave less padding, and hold more in memory.
            too_long: what becomes of a sequence of more than ``length`` tokens: "error", "truncate", or "split" into
                several sequences.
            keys: leaves of a dict that are packed, the others being left out; None: all.
            padding_values: a number for all leaves, or a dict of numbers by leaf, e.g. ``{"labels": -100}``; default
                zero.
        """
        validation.one_of("pack", "too_long", too_long, ("error", "split", "truncate"))
        return self._then(
            g.Pack,
            length=validation.positive("pack", "length", length, (1 << 31) - 1),
            window=validation.positive("pack", "window", window, 1 << 16),
            too_long=too_long,
            keys=validation.columns("pack", [keys] if isinstance(keys, str) else keys, "keys"),
            padding_values=padding_values,
        )

    def window(self, size: int, shift: int | None = None, stride: int = 1, drop_remainder: bool = False) -> Self:
        """Windows of ``size`` elements, each a list, which overlap where ``shift`` is less than they span.

        Args:
            size: elements of a window; the last ones may have fewer.
            shift: elements from the beginning of a window to that of the next; None: ``size``.
            stride: elements from one of a window to its next.
            drop_remainder: leave out windows with fewer elements.
        """
        length = validation.positive("window", "size", size)
        return self._then(
            g.SlidingWindow,
            size=length,
            shift=length if shift is None else validation.positive("window", "shift", shift),
            stride=validation.positive("window", "stride", stride),
            drop_remainder=bool(drop_remainder),
        )

    def rebatch(self, batch_size: int, drop_remainder: bool = False) -> Self:
        """Batches cut anew to ``batch_size`` rows."""
        size = validation.positive("rebatch", "batch_size", batch_size)
        return self._then(g.Rebatch, batch_size=size, drop_remainder=bool(drop_remainder))

    def unbatch(self) -> Self:
        """Rows of each batch."""
        return self._then(g.Unbatch)

    def repeat(self, count: int | None = None) -> Self:
        """Repeat the dataset ``count`` times; None or -1: without end."""
        return self._then(g.Repeat, count=None if count in (None, -1) else whole("repeat", "count", count, 0))

    def take(self, count: int) -> Self:
        """First ``count`` elements; -1: all."""
        return self._then(g.Take, count=whole("take", "count", count, -1))

    def skip(self, count: int) -> Self:
        """All but the first ``count`` elements; -1: none."""
        return self._then(g.Skip, count=whole("skip", "count", count, -1))

    def shard(self, num_shards: int, index: int) -> Self:
        """Every ``num_shards``-th element, from number ``index`` on."""
        shards = validation.positive("shard", "num_shards", num_shards)
        return self._then(g.Shard, num_shards=shards, index=validation.index("shard", "index", index, shards))

    def assert_cardinality(self, expected_cardinality: int) -> Self:
        """All elements as they are, of which there must be so many; that is what ``len()`` says then.

        Raises:
            PipelineError: while it is read; there are more, or fewer.
        """
        label = "assert_cardinality"
        return self._then(g.AssertCardinality, count=whole(label, "expected_cardinality", expected_cardinality, 0))

    def enumerate(self, start: int = 0) -> Self:
        """``(start + i, element)``."""
        return self._then(g.Enumerate, start=whole("enumerate", "start", start))

    def prefetch(self, buffer_size: int = AUTOTUNE) -> Self:
        """Compute up to ``buffer_size`` elements ahead, on another thread; AUTOTUNE: as the memory allows."""
        size = buffer_size if buffer_size == AUTOTUNE else whole("prefetch", "buffer_size", buffer_size, 0)
        return self if size == 0 else self._then(g.Prefetch, buffer_size=size)

    def cache(self, path: str | os.PathLike[str] | None = None) -> Self:
        """Up to here every epoch is like the first, random functions included; elements are kept, as far as they fit.

        Args:
            path: folder or ``s3://``, ``gs://``, ``az://`` prefix to keep them in, also for later runs. None: the
                service's ``cache_dir``; without a service at most a quarter of this machine's memory.
        """
        return self._then(g.Cache, path=validation.folder("cache", "path", path))

    def autocache(self, mode: str = "auto") -> Self:
        """Allow a cache here: a service with a ``cache_dir`` measures if it pays, and then it is as :meth:`cache`.

        Args:
            mode: "auto"; or "compute": never; or "cache": in any case.
        """
        validation.one_of("autocache", "mode", mode, ("auto", "compute", "cache"))
        return self._then(g.Autocache, mode=mode)

    def with_options(
        self,
        *,
        on_error: str | UserFunction | None = None,
        buffer_bytes: int | None = None,
        num_threads: int | None = None,
        seed: int | None = None,
        rewrites: bool | None = None,
        reads_in_flight: int | None = None,
    ) -> Self:
        """Options of the whole pipeline; of several, the last wins, option by option.

        Args:
            on_error: what an element that fails in a user's function does: ``"raise"`` (the default), ``"skip"``, or a
                function of the :class:`millrace.ElementError` that returns the element to use instead.
            buffer_bytes: bytes that a running task, and any one element, may have between operators (default 256 MiB).
            num_threads: threads of one process that run user functions.
            seed: seed of everything random that has none of its own.
            rewrites: two maps may run as one, and the like, if the same comes out (default True; False to find faults).
            reads_in_flight: reads of files in object stores and on web servers that one process has under way at once,
                up to 1024; by default as many as it finds to pay, up to 256.
        """
        chosen = validation.options(on_error, buffer_bytes, num_threads, seed, rewrites, reads_in_flight)
        return self._then(g.WithOptions, **chosen)
