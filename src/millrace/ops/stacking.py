"""Stacking: elements to batches and back, leaf by leaf.

A batch is a pytree like its elements, with all their values of one leaf in each of its leaves:

==================================  ========================================================================
leaf of the elements                leaf of the batch of n
==================================  ========================================================================
array, shape ``s``, dtype ``d``     array, shape ``(n, *s)``, dtype ``d``
numpy scalar, dtype ``d``           array, shape ``(n,)``, dtype ``d``
bool, int, float, complex           array, shape ``(n,)``, dtype bool, int64, float64, complex128; int beside
                                    float makes float64
str                                 array, shape ``(n,)``, dtype ``U`` (width of the longest)
bytes                               list of n bytes, as a numpy ``S`` array would pad them and lose trailing zeros
array of any number of rows         of ``ragged_batch`` alone: ragged, see :mod:`millrace.elements.ragged`
==================================  ========================================================================

Anything else that numpy makes an array of without guessing (``__array__``, so tensors and pictures) counts as one.
Columns are taken apart level by level for all elements at once, which costs less than flattening each of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from operator import attrgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.named import fields_of, named
from millrace.elements.ragged import is_ragged, ragged
from millrace.elements.tree import Path, by_key, path_text
from millrace.errors import PipelineError

Array = npt.NDArray[Any]
Allocate = Callable[[tuple[int, ...], np.dtype[Any]], Array]
"""Allocator of the array that a leaf of a batch is written into: ``allocate(shape, dtype)``, contents arbitrary."""

_SHAPE, _DTYPE = attrgetter("shape"), attrgetter("dtype")


class MismatchError(PipelineError):
    """Element that cannot be stacked with the batch's first; operators add which elements of the data these are.

    Attributes:
        index: the element's place in the batch.
    """

    def __init__(self, message: str, index: int) -> None:
        super().__init__(message)
        self.index = index


_NUMBERS: dict[type, type[np.generic]] = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


def stack(elements: Sequence[Any], label: str, allocate: Allocate = np.empty, path: Path = ()) -> Any:
    """Stack ``elements`` (at least one) to a batch; each array's bytes are copied once, into an array of ``allocate``.

    Raises:
        PipelineError: if structures, shapes or dtypes differ; it names the leaf and what to do.
    """
    kind = type(elements[0])
    if kind in _NUMBERS and set(map(type, elements)) == {kind}:  # one look at each is enough for small elements
        return _numbers(elements, _NUMBERS[kind], label, path)
    children = columns(elements, label, path)
    if children is None:
        return stack_leaf(elements, label, allocate, path)
    return rebuild(elements[0], [stack(column, label, allocate, inner) for inner, column in children])


def stack_leaf(column: Sequence[Any], label: str, allocate: Allocate, path: Path) -> Array | list[bytes]:
    """Stack the values of one leaf."""
    kinds = set(map(type, column))
    if len(kinds) == 1 or kinds == {int, float}:
        kind = float if len(kinds) == 2 else next(iter(kinds))
        if kind in _NUMBERS:
            return _numbers(column, _NUMBERS[kind], label, path)
        if kind is np.ndarray:
            return _arrays(column, label, allocate, path)
    if all(issubclass(kind, bytes) for kind in kinds):
        return list(column)
    if all(issubclass(kind, str) for kind in kinds):
        return _strings(column, label, path)
    if any(issubclass(kind, (str, bytes)) for kind in kinds) or (bool in kinds and len(kinds) > 1):
        raise _types_differ(column, label, path)
    return _arrays([as_array(value, label, path, i) for i, value in enumerate(column)], label, allocate, path)


def concatenate(batches: Sequence[Any], label: str, allocate: Allocate = np.empty, path: Path = ()) -> Any:
    """Concatenate the rows of ``batches`` (at least one) into one batch.

    Raises:
        PipelineError: if structures, dtypes or the shapes of rows differ, naming the leaf.
    """
    if all(map(is_bytes_column, batches)):
        return [row for batch in batches for row in batch]
    if all(map(is_ragged, batches)):
        sizes = np.concatenate([np.diff(splits) for _, splits in batches])
        return ragged(concatenate([values for values, _ in batches], label, allocate, path), splits_of(sizes))
    children = columns(batches, label, path)
    if children is not None:
        return rebuild(batches[0], [concatenate(column, label, allocate, inner) for inner, column in children])
    arrays = [as_array(batch, label, path) for batch in batches]
    shapes = [array.shape[1:] for array in arrays]
    if len(set(shapes)) > 1:
        index, other = _first_other(shapes)
        raise PipelineError(
            f"{label}: rows of different shapes{at(path)}: {shapes[0]} in one batch, {other} in the batch {index} "
            "further on. Pad them to one shape before, or rebatch before they differ."
        )
    dtype = one_dtype(arrays, label, path)
    rows = sum(len(array) for array in arrays)
    return np.concatenate(arrays, out=allocate((rows, *shapes[0]), dtype))


def count_rows(batch: Any, label: str) -> int:
    """Count the rows of a batch.

    Raises:
        PipelineError: if a leaf has no rows, or leaves have different numbers of them.
    """
    counts = list(_row_counts(batch, label, ()))
    for path, count in counts:
        if count != counts[0][1]:
            raise PipelineError(
                f"{label}: {counts[0][1]} rows{at(counts[0][0])}, {count} rows{at(path)}. The leaves of a batch need "
                "the same first dimension."
            )
    return counts[0][1] if counts else 0


def slice_rows(batch: Any, start: int, stop: int) -> Any:
    """View rows ``start`` to ``stop`` of a batch."""
    if is_bytes_column(batch) or not isinstance(batch, (dict, list, tuple)):
        return batch[start:stop]
    if is_ragged(batch):
        values, splits = batch
        own = splits[start : stop + 1]
        return ragged(values[own[0] : own[-1]], own - own[0])
    return rebuild(batch, [slice_rows(child, start, stop) for _, child in _children(batch, ())])


def split_rows(batch: Any, rows: int) -> list[Any]:
    """Split a batch into its ``rows`` elements; arrays of more than one dimension give views."""
    if is_bytes_column(batch):
        return list(batch)
    if is_ragged(batch):
        values, splits = batch
        return [values[start:stop] for start, stop in pairwise(splits.tolist())]
    if not isinstance(batch, (dict, list, tuple)):
        strings = isinstance(batch, np.ndarray) and batch.dtype.kind == "U" and batch.ndim == 1
        return batch.tolist() if strings else list(batch)
    parts = [split_rows(child, rows) for _, child in _children(batch, ())]
    if not parts:
        return [batch] * rows
    if isinstance(batch, dict):
        keys = list(batch)
        return [dict(zip(keys, values, strict=True)) for values in zip(*parts, strict=True)]
    if type(batch) is tuple:
        return list(zip(*parts, strict=True))
    return [rebuild(batch, values) for values in zip(*parts, strict=True)]


def splits_of(sizes: Iterable[int]) -> Array:
    """Compute where rows of these sizes begin, and where the last one ends: int64 of shape (rows + 1,)."""
    return np.cumsum(np.array([0, *sizes], np.int64))


def is_bytes_column(batch: Any) -> bool:
    """Whether this part of a batch is a list of bytes, as :func:`stack` makes it."""
    return type(batch) is list and bool(batch) and isinstance(batch[0], bytes)


def columns(elements: Sequence[Any], label: str, path: Path) -> list[tuple[Path, list[Any]]] | None:
    """Take one level of ``elements`` apart: (path, values) of each child, or None if they are leaves.

    Raises:
        PipelineError: if they are not alike.
    """
    first = elements[0]
    if isinstance(first, dict):
        found = by_key(elements)
        if found is not None:
            return [((*path, key), column) for key, column in found]
    elif isinstance(first, (list, tuple)):
        kinds = set(map(type, elements))
        if (len(kinds) == 1 or _are_one(kinds)) and set(map(len, elements)) == {len(first)}:
            return [((*path, i), list(column)) for i, column in enumerate(zip(*elements, strict=True))]
    elif not any(issubclass(kind, (dict, list, tuple)) for kind in set(map(type, elements))):
        return None
    raise _structures_differ(elements, label, path)


def _are_one(kinds: set[type]) -> bool:
    """Whether these are the class of a namedtuple, and what stands for it where an element was read from bytes."""
    kind = next(iter(kinds))
    fields = fields_of(kind)
    if fields is None or named(kind.__name__, fields) not in kinds:
        return False
    return all(each.__name__ == kind.__name__ and fields_of(each) == fields for each in kinds)


def rebuild(like: Any, values: Iterable[Any]) -> Any:
    """Build a container like ``like`` with ``values`` as its children."""
    if isinstance(like, dict):
        return dict(zip(like, values, strict=True))
    if hasattr(like, "_fields"):
        return tuple.__new__(type(like), values)  # whatever a class of the user's takes as it is made
    return tuple(values) if isinstance(like, tuple) else list(values)


def as_array(value: Any, label: str, path: Path, index: int = 0) -> Array:
    """Convert ``value``, of element ``index``, to an array that shares its memory where it can.

    Raises:
        MismatchError: if it is not something numeric.
    """
    if isinstance(value, np.ma.MaskedArray):
        raise MismatchError(
            f"{label}: a masked array{at(path)} would lose its mask in a batch. Use .filled(...) in a map() before, or "
            "give data and mask.",
            index,
        )
    if isinstance(value, (np.ndarray, np.generic, bool, int, float, complex)) or hasattr(value, "__array__"):
        array = np.asarray(value)
        if not array.dtype.hasobject:
            return array
    elif hasattr(value, "__array_interface__"):
        return np.asarray(value)
    raise _no_array(value, label, path, index)


def _no_array(value: Any, label: str, path: Path, index: int) -> MismatchError:
    return MismatchError(
        f"{label}: {_describe(value)}{at(path)} cannot be a part of a batch. Leaves are arrays, numbers, str or bytes; "
        "convert it in a map() before, or leave it out.",
        index,
    )


def _numbers(column: Sequence[Any], dtype: type[np.generic], label: str, path: Path) -> Array:
    try:
        return np.array(column, dtype=dtype)
    except OverflowError:
        index, culprit = next((i, value) for i, value in enumerate(column) if not -(2**63) <= value < 2**63)
        raise MismatchError(
            f"{label}: {culprit}{at(path)} does not fit into int64. Give it a dtype in a map() before, e.g. "
            "np.uint64(value).",
            index,
        ) from None


def _strings(column: Sequence[str], label: str, path: Path) -> Array:
    suspicious = "\0" in "".join(column)
    culprit = next((i for i, value in enumerate(column) if value.endswith("\0")), None) if suspicious else None
    if culprit is not None:
        raise MismatchError(
            f"{label}: {_short(column[culprit])}{at(path)} ends in a NUL character, which numpy would drop. Encode it "
            "to bytes in a map() before.",
            culprit,
        )
    if not {str, np.str_} >= set(map(type, column)):  # numpy asks others, as enumerations, what they show themselves as
        column = [str.__str__(value) for value in column]
    return np.array(column, dtype=np.str_)


def _arrays(arrays: Sequence[Array], label: str, allocate: Allocate, path: Path) -> Array:
    return _joined(arrays, allocate) if _alike(arrays) else _stacked(arrays, label, allocate, path)


def _alike(arrays: Sequence[Array]) -> bool:
    """Whether they are of one shape and dtype, at least one dimension and no Python objects."""
    first = arrays[0]
    return (
        first.ndim > 0
        and not first.dtype.hasobject
        and len(set(map(_SHAPE, arrays))) == 1
        and len(set(map(_DTYPE, arrays))) == 1
    )


def _joined(arrays: Sequence[Array], allocate: Allocate) -> Array:
    """Stack like np.stack, which looks at each array once more."""
    first = arrays[0]
    out = allocate((len(arrays), *first.shape), first.dtype)
    np.concatenate(arrays, out=out.reshape(len(arrays) * len(first), *first.shape[1:]))
    return out


def _stacked(arrays: Sequence[Array], label: str, allocate: Allocate, path: Path) -> Array:
    dtype = one_dtype(arrays, label, path)
    shape = arrays[0].shape
    if len({array.shape for array in arrays}) > 1:
        index, other = _first_other([array.shape for array in arrays])
        raise MismatchError(
            f"{label}: ragged shapes{at(path)}: {shape} in the batch's first element, {other} in its element {index}. "
            "Use padded_batch() to pad them to one shape, or make them alike in a map() before.",
            index,
        )
    return np.stack(arrays, out=allocate((len(arrays), *shape), dtype))


def one_dtype(arrays: Sequence[Array], label: str, path: Path) -> np.dtype[Any]:
    """Return the dtype that all ``arrays`` have; of str and bytes arrays the widest.

    Raises:
        PipelineError: if they differ, or hold Python objects.
    """
    first = arrays[0].dtype
    dtypes = {array.dtype for array in arrays}
    if first.hasobject:
        raise _no_array(arrays[0], label, path, 0)
    if len(dtypes) > 1:
        if first.kind in "SU" and {dtype.kind for dtype in dtypes} == {first.kind}:
            return np.result_type(*dtypes)
        index, other = _first_other([array.dtype for array in arrays])
        raise MismatchError(
            f"{label}: different dtypes{at(path)}: {first} in the batch's first element, {other} in its element "
            f"{index}. Convert them to one dtype in a map() before.",
            index,
        )
    return first


def _row_counts(batch: Any, label: str, path: Path) -> Iterable[tuple[Path, int]]:
    if is_bytes_column(batch):
        yield path, len(batch)
    elif is_ragged(batch):
        yield path, len(batch[1]) - 1
    elif isinstance(batch, (dict, list, tuple)):
        for inner, child in _children(batch, path):
            yield from _row_counts(child, label, inner)
    else:
        shape = getattr(batch, "shape", ())
        if not shape:
            raise PipelineError(
                f"{label}: {_describe(batch)}{at(path)} has no rows. It needs batches: arrays (or lists of bytes) "
                "whose first dimension counts the rows; leave other leaves out in a map() before."
            )
        yield path, shape[0]


def _children(tree: Any, path: Path) -> list[tuple[Path, Any]]:
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    return [((*path, key), child) for key, child in items]


def _types_differ(column: Sequence[Any], label: str, path: Path) -> MismatchError:
    index, other = _first_other([type(value) for value in column])
    return MismatchError(
        f"{label}: different types{at(path)}: {type(column[0]).__name__} in the batch's first element, "
        f"{other.__name__} in its element {index}. Convert them to one type in a map() before.",
        index,
    )


def _structures_differ(elements: Sequence[Any], label: str, path: Path) -> MismatchError:
    first = _structure(elements[0])
    index, (_, other) = _first_other([(type(element), _structure(element)) for element in elements])
    if other == first:
        return MismatchError(
            f"{label}: two classes of one name{at(path)}: {first} in the batch's first element, and another one in its "
            f"element {index}. Define the class once, outside of the function that uses it.",
            index,
        )
    lists = isinstance(elements[0], list) and isinstance(elements[index], list)
    remedy = (
        "A list is a structure, each of its items a leaf: make it one array (np.asarray) in a map() before."
        if lists
        else "Make them alike in a map() before."
    )
    return MismatchError(
        f"{label}: different structures{at(path)}: {first} in the batch's first element, {other} in its element "
        f"{index}. {remedy}",
        index,
    )


def _structure(element: Any) -> str:
    if isinstance(element, dict):
        return f"{type(element).__name__} with keys {', '.join(map(repr, element)) or 'none'}"
    if isinstance(element, (list, tuple)):
        return f"{type(element).__name__} of {len(element)}"
    return "a leaf"


def _describe(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"an array of {value.dtype}"
    return "None" if value is None else f"a value of type {type(value).__name__}"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


def _first_other(values: Sequence[Any]) -> tuple[int, Any]:
    return next((i, value) for i, value in enumerate(values) if value != values[0])


def at(path: Path) -> str:
    """Describe the place of a leaf for messages; empty for an element that is one leaf."""
    return f" at {path_text(path)}" if path else ""
