"""Rows of Python and numpy values from Arrow's columns, converted column by column.

A row depends on its own values and the column's type alone, never on the rows that happen to be beside it.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import numpy.typing as npt


def to_rows(batch: Any, columns: list[str] | None = None) -> list[dict[str, Any]]:
    """Convert a ``pyarrow.RecordBatch`` to rows, with ``columns`` in that order (None: all)."""
    names = batch.schema.names if columns is None else columns
    values = [to_values(batch.column(name)) for name in names]
    if not values:
        return [{} for _ in range(batch.num_rows)]
    return [dict(zip(names, row, strict=True)) for row in zip(*values, strict=True)]


def to_values(array: Any) -> list[Any]:
    """Convert a ``pyarrow.Array`` to one Python or numpy value per element; see :mod:`millrace.sources.parquet`."""
    import pyarrow.types as types  # noqa: PLR0402

    kind = array.type
    if hasattr(array, "storage"):  # an extension type
        return _tensors(array) if hasattr(array, "to_numpy_ndarray") else to_values(array.storage)
    if types.is_dictionary(kind):
        return to_values(array.dictionary_decode())
    if types.is_timestamp(kind) or types.is_date(kind) or types.is_duration(kind):
        return _or_none(array, list(array.to_numpy(zero_copy_only=False)))
    if types.is_list(kind) or types.is_large_list(kind):
        return _or_none(array, _lists(array))
    if types.is_fixed_size_list(kind):
        return _or_none(array, _fixed_lists(array))
    if types.is_struct(kind):
        names = [field.name for field in kind]
        columns = [to_values(column) for column in array.flatten()]
        rows = zip(*columns, strict=True) if columns else itertools.repeat((), len(array))
        return _or_none(array, [dict(zip(names, row, strict=True)) for row in rows])
    plain = _numeric(kind) and not array.null_count
    values: list[Any] = _numbers(array).tolist() if plain else array.to_pylist()
    return values


def _numeric(kind: Any) -> bool:
    import pyarrow.types as types  # noqa: PLR0402

    return bool(types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind))


def _or_none(array: Any, values: list[Any]) -> list[Any]:
    if not array.null_count:
        return values
    return [value if there else None for value, there in zip(values, _valid(array).tolist(), strict=True)]


def _lists(array: Any) -> list[Any]:
    offsets = _numbers(array.offsets)
    begin, end = int(offsets[0]), int(offsets[-1])
    bounds = (offsets - begin).tolist()
    return _slices(array.values.slice(begin, end - begin), bounds)


def _slices(values: Any, bounds: list[int]) -> list[Any]:
    """Cut ``values`` at ``bounds``: an array per slice if they are numbers, else a list."""
    pairs = list(itertools.pairwise(bounds))
    if not _numeric(values.type):
        items = to_values(values)
        return [items[low:high] for low, high in pairs]
    # A copy each: a row that is kept must not keep all of its neighbours, and users write into arrays.
    flat = _numbers(values)
    if not values.null_count:
        return [flat[low:high].copy() for low, high in pairs]
    valid = _valid(values)
    return [
        flat[low:high].copy() if valid[low:high].all() else values.slice(low, high - low).to_pylist()
        for low, high in pairs
    ]


def _fixed_lists(array: Any) -> list[Any]:
    rows = len(array)
    shape: list[int] = []
    complete = np.ones(rows, dtype=bool)
    values, first = array, None
    while rows and hasattr(values.type, "list_size"):
        width = values.type.list_size
        values = values.values.slice(values.offset * width, len(values) * width)
        shape.append(width)
        first = values if first is None else first
        if values.null_count:
            complete &= _valid(values).reshape(rows, -1).all(axis=1)
    if not rows or not _numeric(values.type):
        return _slices(first, list(range(0, (rows + 1) * shape[0], shape[0]))) if rows else []
    flat = _numbers(values).reshape(rows, *shape)
    return [
        row.copy() if whole else array.slice(at, 1).to_pylist()[0]
        for at, (row, whole) in enumerate(zip(flat, complete.tolist(), strict=True))
    ]


def _tensors(array: Any) -> list[Any]:
    if not array.null_count and not array.storage.values.null_count:
        return [np.array(tensor) for tensor in array.to_numpy_ndarray()]
    rows = (array.slice(at, 1) for at in range(len(array)))
    return [
        row.to_pylist()[0]
        if row.null_count or row.storage.flatten().null_count
        else np.array(row.to_numpy_ndarray()[0])
        for row in rows
    ]


def _numbers(values: Any) -> npt.NDArray[Any]:
    """Numbers of an array, arbitrary where one is missing."""
    import pyarrow as pa

    if values.null_count:
        values = pa.Array.from_buffers(values.type, len(values), [None, values.buffers()[1]], offset=values.offset)
    if pa.types.is_boolean(values.type):
        numbers: npt.NDArray[Any] = values.to_numpy(zero_copy_only=False)
        return numbers
    # Where to_numpy() serves, too: it would import pandas if that is there, half a second before the first row.
    return np.from_dlpack(values)


def _valid(values: Any) -> npt.NDArray[np.bool_]:
    valid: npt.NDArray[np.bool_] = values.is_valid().to_numpy(zero_copy_only=False)
    return valid
