"""Operators ``batch`` and ``padded_batch``: consecutive elements stacked leaf by leaf."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import cycle, islice
from typing import Any

import numpy as np

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
    if node.listed:
        return run_batches(node, inputs, context, list)
    return run_batches(node, inputs, context, lambda elements: stack(elements, label, allocate))


def run_padded_batch(node: PaddedBatch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield batches of ``node.batch_size`` elements, arrays padded to one shape.

    Raises:
        PipelineError: if elements differ in more than sizes, or are larger than ``node.padded_shapes``.
    """
    label, shapes, values = context.label, node.padded_shapes, node.padding_values
    return run_batches(
        node,
        inputs,
        context,
        lambda elements: stack_padded(elements, shapes, values, label, allocate=context.allocate, count=context.padded),
    )


def run_batches(
    node: Batch | PaddedBatch, inputs: list[Iterator[Chunk]], context: Context, build: Callable[[list[Any]], Any]
) -> Iterator[Chunk]:
    """Yield ``build`` of each ``node.batch_size`` elements, and of what is left at the end, filled up if that is asked.

    Args:
        node: says how many elements a batch has.
        inputs: one input.
        context: of the operator.
        build: makes a batch.
    """
    make = partial(_filled, node, build) if node.fill_remainder else build
    if not node.together:
        return run_groups(inputs[0], context, node.batch_size, node.drop_remainder, make)
    return run_buckets(inputs[0], context, node, [node.batch_size], _all_in_one, lambda _, elements: make(elements))


def _filled(node: Batch | PaddedBatch, build: Callable[[list[Any]], Any], elements: list[Any]) -> Any:
    """Build a batch of full size, by repeating its elements from the first on; with the mask of those that are data."""
    lacking = node.batch_size - len(elements)
    full = list(islice(cycle(elements), node.batch_size)) if lacking else elements
    if node.fill_remainder != "mask":
        return build(full)
    mask = np.arange(node.batch_size) < len(elements)
    if isinstance(node, Batch) and node.listed:
        return list(zip(build(full), mask.tolist(), strict=True))
    return build(full), mask


def _all_in_one(chunk: Chunk) -> Sorted:
    return range(len(chunk)), [0] * len(chunk), None
