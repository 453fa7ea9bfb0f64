"""Operator ``ragged_batch``: batches of arrays whose first dimensions differ, without padding."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.elements.ragged import RaggedArray, ragged
from millrace.elements.tree import Path
from millrace.graph.nodes import RaggedBatch
from millrace.ops.batch import run_batches
from millrace.ops.operator import Context
from millrace.ops.stacking import (
    Allocate,
    Array,
    MismatchError,
    as_array,
    at,
    columns,
    one_dtype,
    rebuild,
    splits_of,
    stack_leaf,
)


def run(node: RaggedBatch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield batches in which each array of one dimension or more is ragged; other leaves are stacked.

    Raises:
        PipelineError: if elements differ in structure, dtype, or the shapes of an array's rows.
    """
    label, allocate = context.label, context.allocate
    return run_batches(node, inputs, context, lambda elements: _stack(elements, label, allocate, ()))


def _stack(elements: Sequence[Any], label: str, allocate: Allocate, path: Path) -> Any:
    children = columns(elements, label, path)
    if children is not None:
        return rebuild(elements[0], [_stack(column, label, allocate, inner) for inner, column in children])
    if all(isinstance(leaf, np.ndarray) or hasattr(leaf, "__array__") for leaf in elements):
        arrays = [as_array(leaf, label, path, index) for index, leaf in enumerate(elements)]
        if all(array.ndim for array in arrays):
            return _join(arrays, label, allocate, path)
    return stack_leaf(elements, label, allocate, path)


def _join(arrays: Sequence[Array], label: str, allocate: Allocate, path: Path) -> RaggedArray:
    dtype, inner = one_dtype(arrays, label, path), arrays[0].shape[1:]
    for index, array in enumerate(arrays):
        if array.shape[1:] != inner:
            raise MismatchError(
                f"{label}: rows of different shapes{at(path)}: {inner} in the batch's first element, {array.shape[1:]} "
                f"in its element {index}. Only the first dimension may vary: pad or flatten the others in a map() "
                "before.",
                index,
            )
    splits = splits_of([len(array) for array in arrays])
    values = np.concatenate(arrays, out=allocate((int(splits[-1]), *inner), dtype))
    return ragged(values, splits)
