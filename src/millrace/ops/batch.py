"""Operators ``batch`` and ``padded_batch``: consecutive elements stacked leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Batch, PaddedBatch
from millrace.ops.bucketing import Sorted, run_buckets
from millrace.ops.collecting import run_groups
from millrace.ops.operator import Context
from millrace.ops.padding import stack_padded
from millrace.ops.stacking import stack


def run_batch(node: Batch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield batches of ``node.batch_size`` elements; :mod:`millrace.ops.stacking` lists what leaves become.

    Raises:
        PipelineError: if elements differ in structure, shape or dtype.
    """
    label, allocate = context.label, context.allocate
    return _run(node, inputs, context, lambda elements: stack(elements, label, allocate))


def run_padded_batch(node: PaddedBatch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield batches of ``node.batch_size`` elements, arrays padded to one shape.

    Raises:
        PipelineError: if elements differ in more than sizes, or are larger than ``node.padded_shapes``.
    """
    label, shapes, values = context.label, node.padded_shapes, node.padding_values
    return _run(
        node,
        inputs,
        context,
        lambda elements: stack_padded(elements, shapes, values, label, allocate=context.allocate, count=context.padded),
    )


def _run(
    node: Batch | PaddedBatch, inputs: list[Iterator[Chunk]], context: Context, build: Callable[[list[Any]], Any]
) -> Iterator[Chunk]:
    if not node.together:
        return run_groups(inputs[0], context, node.batch_size, node.drop_remainder, build)
    return run_buckets(inputs[0], context, node, [node.batch_size], _all_in_one, lambda _, elements: build(elements))


def _all_in_one(chunk: Chunk) -> Sorted:
    return range(len(chunk)), [0] * len(chunk), None
