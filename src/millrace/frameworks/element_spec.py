"""Element specification: structure, shapes and dtypes that all elements of a dataset have, as far as that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.ragged import RaggedArray, is_ragged, ragged
from millrace.elements.tree import Path, path_text
from millrace.errors import PipelineError
from millrace.frameworks.base import Readable
from millrace.planning.shapes import Varying

_PEEKED = 4
"""First elements that are looked at."""


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Specification of a leaf of an element.

    Attributes:
        shape: sizes of its dimensions, None where elements differ; of a number or a string ``()``.
        dtype: of the array; of ``str`` and ``bytes`` that of numpy's kinds "U" and "S", of any length.
    """

    shape: tuple[int | None, ...]
    dtype: np.dtype[Any]


@dataclass(frozen=True, slots=True)
class ListSpec:
    """Specification of lists of any length, as windows and lists of a batch's elements are where the last has fewer.

    Attributes:
        item: specification that all items have.
    """

    item: Any


def infer(source: Readable, remedy: str) -> Any:
    """Find the specification of a dataset's elements: computes the first ones in this process.

    Args:
        source: the dataset.
        remedy: what to do where there is no element.

    Raises:
        PipelineError: there is no element, or elements differ in structure, dtype or number of dimensions.
    """
    elements = source.peek(_PEEKED)
    if not elements:
        raise PipelineError(f"this dataset has no element to find its element_spec by; {remedy}")
    return _spec(elements, source.varying(), ())


def is_strings(element: Any) -> bool:
    """Whether it is a list of strings, which is one leaf."""
    return isinstance(element, list) and bool(element) and all(isinstance(item, (str, bytes)) for item in element)


def _are_strings(elements: Sequence[Any]) -> bool:
    """Whether they are lists of strings, of which some may be empty."""
    lists = all(isinstance(each, list) for each in elements)
    return lists and any(map(is_strings, elements)) and all(is_strings(each) or not each for each in elements)


def as_leaf(leaf: Any, path: Path) -> npt.NDArray[Any]:
    """Make a leaf an array: strings become objects, other arrays stay as they are, but for the order of their bytes.

    Raises:
        PipelineError: it is no array, number or string.
    """
    if isinstance(leaf, (str, bytes)) or is_strings(leaf):
        return np.array(leaf, dtype=object)
    array = np.asarray(leaf)
    if array.dtype.kind in "US":
        return array.astype(object)
    if array.dtype.kind == "O" and not all(isinstance(item, (str, bytes)) for item in array.flat):
        kind = "None" if leaf is None else f"{type(leaf).__name__}"
        raise PipelineError(f"{kind} at {path_text(path)} is no tensor; convert it in a map(), or leave it out")
    return array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))


def _spec(elements: Sequence[Any], varying: Varying, path: Path) -> Any:
    """Find the spec that all ``elements`` fit."""
    first = elements[0]
    if all(map(is_ragged, elements)):
        values, splits = (_spec(column, varying, (*path, name)) for name, column in _columns(elements))
        rows = [None if rows is None or rows - 1 in varying.rows else rows for rows in splits.shape]
        return ragged(replace(values, shape=(None, *values.shape[1:])), replace(splits, shape=tuple(rows)))
    if isinstance(first, dict):
        if any(not isinstance(other, dict) or other.keys() != first.keys() for other in elements):
            raise _differ(path)
        return {key: _spec([each[key] for each in elements], varying, (*path, key)) for key in first}
    if isinstance(first, (tuple, list)) and not _are_strings(elements):
        lists = all(isinstance(each, list) for each in elements)
        if lists and not path and (len(first) in varying.rows or len({len(each) for each in elements}) > 1):
            return ListSpec(_spec([item for each in elements for item in each], varying, (0,)))
        if any(not isinstance(other, (tuple, list)) or len(other) != len(first) for other in elements):
            raise _differ(path)
        columns = zip(*elements, strict=True)
        parts = [_spec(column, varying, (*path, index)) for index, column in enumerate(columns)]
        return parts if isinstance(first, list) else getattr(type(first), "_make", tuple)(parts)
    return _leaf_spec(elements, varying, path)


def _columns(elements: Sequence[RaggedArray]) -> list[tuple[str, list[Any]]]:
    return [("values", [each[0] for each in elements]), ("row_splits", [each[1] for each in elements])]


def _leaf_spec(leaves: Sequence[Any], varying: Varying, path: Path) -> ArraySpec:
    strings = _are_strings(leaves)
    arrays = [np.array(leaf, dtype=object) if strings else as_leaf(leaf, path) for leaf in leaves]
    first = arrays[0]
    types = sorted({str(array.dtype) for array in arrays})
    if len(types) > 1 or len({array.ndim for array in arrays}) > 1:
        kinds = " and ".join(sorted({f"{array.dtype} of rank {array.ndim}" for array in arrays}))
        raise PipelineError(f"elements differ at {path_text(path)}: {kinds}; make them alike in a map()")
    shape: list[int | None] = list(first.shape)
    for axis, size in enumerate(first.shape):
        padded = varying.padded and axis > 0 and size not in varying.fixed
        short = axis == 0 and size in varying.rows
        if padded or short or any(array.shape[axis] != size for array in arrays):
            shape[axis] = None
    known = next((place for place, leaf in enumerate(leaves) if not strings or leaf), 0)
    return ArraySpec(tuple(shape), _dtype(leaves[known], arrays[known]))


def _dtype(leaf: Any, array: npt.NDArray[Any]) -> np.dtype[Any]:
    if array.dtype.kind != "O":
        return array.dtype
    given = np.asarray(leaf).dtype.kind
    of_bytes = given == "S" or (given == "O" and isinstance(next(iter(array.flat), ""), bytes))
    return np.dtype("S" if of_bytes else "U")


def _differ(path: Path) -> PipelineError:
    return PipelineError(f"elements differ in structure at {path_text(path)}; make them alike in a map()")
