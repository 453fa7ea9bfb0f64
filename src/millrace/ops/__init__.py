"""Operators: the function that runs each node type; :mod:`millrace.ops.operator` has their contract.

``Repeat`` is missing: running an input again is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.graph import nodes, source_nodes
from millrace.ops import (
    batch,
    bucket,
    combining,
    filter,  # noqa: A004 - named after the operator
    group_by_window,
    identity,
    in_sequence,
    interleave,
    map,  # noqa: A004 - named after the operator
    positional,
    ragged_batch,
    rebatch,
    rejection_resample,
    sequence_packing,
    shuffle,
    window,
)
from millrace.ops.operator import Context

Operator = Callable[[Any, list[Iterator[Chunk]], Context], Iterator[Chunk]]

OPERATORS: dict[type[nodes.Node], Operator] = {
    nodes.Map: map.run,
    nodes.Filter: filter.run,
    nodes.TakeWhile: in_sequence.run_take_while,
    nodes.Scan: in_sequence.run_scan,
    nodes.Unique: in_sequence.run_unique,
    nodes.AssertCardinality: in_sequence.run_assert_cardinality,
    nodes.FlatMap: interleave.run_flat_map,
    source_nodes.FromGenerator: interleave.run_flat_map,
    nodes.Interleave: interleave.run_interleave,
    nodes.Unbatch: rebatch.run_unbatch,
    nodes.RejectionResample: rejection_resample.run,
    nodes.Prefetch: identity.run_prefetch,
    nodes.Cache: identity.run_unchanged,
    nodes.Autocache: identity.run_unchanged,
    nodes.WithOptions: identity.run_unchanged,
    nodes.Shuffle: shuffle.run,
    nodes.Batch: batch.run_batch,
    nodes.RaggedBatch: ragged_batch.run,
    nodes.PaddedBatch: batch.run_padded_batch,
    nodes.BucketBySequenceLength: bucket.run,
    nodes.GroupByWindow: group_by_window.run,
    nodes.Pack: sequence_packing.run,
    nodes.SlidingWindow: window.run,
    nodes.Rebatch: rebatch.run_rebatch,
    nodes.Take: positional.run_take,
    nodes.Skip: positional.run_skip,
    nodes.Shard: positional.run_shard,
    nodes.Enumerate: positional.run_enumerate,
    nodes.Zip: combining.run_zip,
    nodes.Concatenate: combining.run_concatenate,
    nodes.SampleFromDatasets: combining.run_sample,
    nodes.ChooseFromDatasets: combining.run_choose,
}
"""Functions by node type: ``OPERATORS[type(node)](node, inputs, context)`` yields the node's chunks."""
