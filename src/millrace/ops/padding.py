"""Padding: elements to batches with each leaf padded to one shape."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from millrace.elements.tree import Path
from millrace.errors import PipelineError
from millrace.ops.stacking import Allocate, Array, MismatchError, as_array, at, columns, one_dtype, rebuild, stack_leaf

Count = Callable[[int, int], None]
"""Is told of each padded array how many of its numbers are padding, and how many it has."""
Shape = tuple[int | None, ...] | None
"""Shape of one leaf: None as a dimension, or instead of all, is the longest of the batch."""


def stack_padded(
    elements: Sequence[Any],
    shapes: Any,
    values: Any,
    label: str,
    *,
    allocate: Allocate = np.empty,
    count: Count = lambda padding, size: None,
    path: Path = (),
) -> Any:
    """Stack as :func:`millrace.ops.stacking.stack`, with arrays padded at the end of each dimension.

    Args:
        elements: at least one.
        shapes: a shape for all leaves or a pytree of them like an element, or None. Dimensions are int, or None (also
            -1, as in tf.data) for the longest of the batch.
        values: what to pad with: a value for all leaves or a pytree of them like an element. None: zero, empty str or
            bytes.
        label: the operator, for messages.
        allocate: makes the arrays of the batch.
        count: is told how much of each array is padding, those of one number for each element aside.
        path: of these elements within their batch, for messages.

    Raises:
        PipelineError: if structures, ranks or dtypes differ, an element is larger than its padded shape or a value
            does not fit the leaf's dtype; it names the leaf.
    """
    children = columns(elements, label, path)
    if children is None:
        shape = _leaf_shape(shapes, label, path)
        return _pad_leaf(elements, shape, values, label, allocate=allocate, count=count, path=path)
    like = elements[0]
    inner_shapes = _shapes_of_children(shapes, like, label, path)
    inner_values = _values_of_children(values, like, label, path)
    return rebuild(
        like,
        [
            stack_padded(column, shape, value, label, allocate=allocate, count=count, path=inner)
            for (inner, column), shape, value in zip(children, inner_shapes, inner_values, strict=True)
        ],
    )


def fill_unknown(shapes: Any, size: int, elements: Sequence[Any], label: str, path: Path = ()) -> Any:
    """Complete ``shapes`` for these elements to a pytree in which each unknown dimension is ``size``.

    Raises:
        PipelineError: if ``shapes`` doesn't fit the elements, or says nothing about a leaf of more than one dimension,
            whose sequence could be any of them.
    """
    children = columns(elements, label, path)
    if children is not None:
        inner = _shapes_of_children(shapes, elements[0], label, path)
        return rebuild(
            elements[0],
            [
                fill_unknown(shape, size, column, label, name)
                for (name, column), shape in zip(children, inner, strict=True)
            ],
        )
    shape = _leaf_shape(shapes, label, path)
    if shape is None:
        rank = np.ndim(elements[0])
        if rank > 1:
            raise PipelineError(
                f"{label}: pad_to_bucket_boundary needs padded_shapes, as the leaf{at(path)} has {rank} dimensions: "
                f"write None for those of the sequence, e.g. {(None, *np.shape(elements[0])[1:])}."
            )
        shape = (None,) * rank
    return tuple(size if dimension is None else dimension for dimension in shape)


def _pad_leaf(
    column: Sequence[Any], shape: Shape, value: Any, label: str, *, allocate: Allocate, count: Count, path: Path
) -> Array | list[bytes]:
    if not any(hasattr(leaf, "__array__") or hasattr(leaf, "__array_interface__") for leaf in column):
        if shape:
            raise PipelineError(_rank_message(label, path, shape, ()))
        return stack_leaf(column, label, allocate, path)
    arrays = [as_array(leaf, label, path, index) for index, leaf in enumerate(column)]
    dtype = one_dtype(arrays, label, path)
    rank = arrays[0].ndim
    for index, array in enumerate(arrays):
        if array.ndim != rank:
            raise MismatchError(
                f"{label}: different numbers of dimensions{at(path)}: {rank} in the batch's first element, "
                f"{array.ndim} in its element {index}. Padding changes sizes only; make them alike in a map() before.",
                index,
            )
    if shape is not None and len(shape) != rank:
        raise PipelineError(_rank_message(label, path, shape, arrays[0].shape))
    target = _target([array.shape for array in arrays], shape, label, path)
    if target:
        size = len(arrays) * math.prod(target)
        count(size - sum(array.size for array in arrays), size)
    if all(array.shape == target for array in arrays):
        return np.stack(arrays, out=allocate((len(arrays), *target), dtype))
    fill = fill_value(value, dtype, label, path)
    out = allocate((len(arrays), *target), np.result_type(dtype, fill) if dtype.kind in "SU" else dtype)
    for row, array in zip(out, arrays, strict=True):
        if array.shape != target:
            row[...] = fill
        row[tuple(map(slice, array.shape))] = array
    return out


def _target(shapes: list[tuple[int, ...]], shape: Shape, label: str, path: Path) -> tuple[int, ...]:
    longest = tuple(map(max, zip(*shapes, strict=True)))
    if shape is None:
        return longest
    target = tuple(size if size is not None else most for size, most in zip(shape, longest, strict=True))
    for index, actual in enumerate(shapes):
        if any(size > limit for size, limit in zip(actual, target, strict=True)):
            raise MismatchError(
                f"{label}: shape {actual}{at(path)} of the batch's element {index} is larger than its padded shape "
                f"{shape}. Cut it in a map(), leave it out with a filter(), or write None where the longest decides.",
                index,
            )
    return target


def fill_value(value: Any, dtype: np.dtype[Any], label: str, path: Path) -> Array:
    """Convert a padding value to the dtype of a leaf; None is zero.

    Raises:
        PipelineError: if it is no value of that dtype.
    """
    if value is None:
        return np.zeros((), dtype=dtype)
    given = np.asarray(value)
    if given.ndim == 0 and given.dtype.kind == dtype.kind and dtype.kind in "SU":
        return given
    if given.ndim == 0 and given.dtype.kind in "biufc" and dtype.kind in "biufc":
        if dtype.kind in "fc" and (dtype.kind == "c" or given.dtype.kind != "c"):
            return given.astype(dtype)
        if given.dtype.kind in "biu" or (given.dtype.kind == "f" and np.isfinite(given)):
            converted = given.astype(dtype)
            if converted == given:
                return converted
    raise PipelineError(
        f"{label}: padding value {value!r} is no {dtype}{at(path)}. Give padding_values as a structure like the "
        "element, with a value of its dtype for each leaf (None: zero)."
    )


def _is_shape(shape: Any) -> bool:
    return isinstance(shape, (tuple, list)) and all(
        size is None or (isinstance(size, (int, np.integer)) and not isinstance(size, bool)) for size in shape
    )


def _leaf_shape(shapes: Any, label: str, path: Path) -> Shape:
    if shapes is None:
        return None
    if not _is_shape(shapes):
        raise PipelineError(
            f"{label}: padded_shapes has {shapes!r}{at(path)}, where the element has one leaf. A shape is a tuple of "
            "int, and None where the longest element decides."
        )
    return tuple(None if size is None or size < 0 else int(size) for size in shapes)


def _shapes_of_children(shapes: Any, like: Any, label: str, path: Path) -> list[Any]:
    if isinstance(like, dict):
        if shapes is None or _is_shape(shapes):
            return [shapes] * len(like)
        if isinstance(shapes, dict) and shapes.keys() == like.keys():
            return [shapes[key] for key in like]
    else:
        # (None, None) for an element of two leaves: a shape for each, unknown; (None, 3): one shape for both.
        for_each = isinstance(shapes, (tuple, list)) and len(shapes) == len(like)
        if for_each and not any(isinstance(size, (int, np.integer)) for size in shapes):
            return list(shapes)
        if shapes is None or _is_shape(shapes):
            return [shapes] * len(like)
    raise PipelineError(
        f"{label}: padded_shapes {shapes!r} does not fit the element{at(path)}, {_container(like)}. Give one shape "
        "for all leaves, or a structure of shapes like the element."
    )


def _values_of_children(values: Any, like: Any, label: str, path: Path) -> list[Any]:
    if isinstance(like, dict) and isinstance(values, dict) and values.keys() == like.keys():
        return [values[key] for key in like]
    if isinstance(like, (tuple, list)) and isinstance(values, (tuple, list)) and len(values) == len(like):
        return list(values)
    if isinstance(values, (dict, tuple, list)):
        raise PipelineError(
            f"{label}: padding_values {values!r} does not fit the element{at(path)}, {_container(like)}. Give one "
            "value for all leaves, or a structure of values like the element."
        )
    return [values] * len(like)


def _container(like: Any) -> str:
    return f"a dict with keys {', '.join(map(repr, like))}" if isinstance(like, dict) else f"a tuple of {len(like)}"


def _rank_message(label: str, path: Path, shape: Shape, actual: tuple[int, ...]) -> str:
    return (
        f"{label}: padded shape {shape}{at(path)} has {len(shape or ())} dimensions, the element there {len(actual)} "
        f"(shape {actual}). Give padded_shapes as a structure like the element if leaves differ."
    )
