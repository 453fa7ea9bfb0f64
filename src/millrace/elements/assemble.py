"""Columns into elements: the decoding half of :mod:`.codec`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.layout import (
    ALIGNMENT,
    CELLS_PER_BYTE,
    GATHER,
    BlobKind,
    Blobs,
    Fixed,
    Node,
    Nothing,
    Ragged,
    Record,
    Union,
    parse_dtype,
)
from millrace.elements.pieces import Pieces

_PYTHON_DTYPES = {"int": "<i8", "float": "<f8", "complex": "<c16", "bool": "|b1"}
_INT64 = np.dtype("<i8")


class Reader:
    """Takes buffers from a body one after the other; nothing is believed that the body's size doesn't bear out."""

    def __init__(self, message: Pieces, start: int, stop: int) -> None:
        self._message = message
        self._start = start
        self._size = stop - start
        self._at = 0
        self._cells = self._size * CELLS_PER_BYTE

    def read(self, node: Node, rows: int) -> list[Any]:
        """The values of ``node``, one per row."""
        self._cells -= rows
        if rows < 0 or self._cells < 0:
            raise ValueError(f"{rows} rows don't fit")
        match node:
            case Fixed():
                return self._fixed(node, rows)
            case Ragged():
                return self._ragged(node, rows)
            case Blobs():
                return self._strings(node.kind, rows)
            case Nothing():
                return [None] * rows
            case Record():
                return self._records(node, rows)
            case Union():
                return self._union(node, rows)

    def _next(self, size: int) -> int:
        """Where the next buffer, of ``size`` bytes, starts in the message."""
        offset = self._at + -self._at % ALIGNMENT
        self._at = offset + size
        if self._at > self._size:
            raise ValueError(f"values end at byte {self._at} of a body of {self._size}")
        return self._start + offset

    def _values(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """The next buffer as a view."""
        if min(shape) < 0:
            raise ValueError(f"shape {shape}")
        size = dtype.itemsize * math.prod(shape)
        start = self._next(size)
        values: npt.NDArray[Any] = np.ndarray(shape, dtype, self._message.view(start, start + size))
        _check_characters(values)
        return values

    def _offsets(self, rows: int) -> list[int]:
        offsets = self._values(_INT64, (rows + 1,))
        if offsets[0] != 0 or not (offsets[1:] >= offsets[:-1]).all():
            raise ValueError("offsets that aren't in order")
        listed: list[int] = offsets.tolist()
        return listed

    def _fixed(self, node: Fixed, rows: int) -> list[Any]:
        if node.kind in _PYTHON_DTYPES:
            values: list[Any] = self._values(np.dtype(_PYTHON_DTYPES[node.kind]), (rows,)).tolist()
            return values
        if node.kind == "scalar":
            return list(self._values(parse_dtype(node.dtype), (rows,)))
        dtype = parse_dtype(node.dtype)
        if min(node.shape, default=0) < 0:
            raise ValueError(f"shape {node.shape}")
        start = self._next(dtype.itemsize * math.prod(node.shape) * rows)
        arrays = self._message.rows(start, rows, node.shape, dtype)
        if dtype.kind in "UV":
            for each in arrays:
                _check_characters(each)
        return arrays

    def _ragged(self, node: Ragged, rows: int) -> list[Any]:
        offsets = self._offsets(rows)
        values = self._values(parse_dtype(node.dtype), (offsets[-1],))
        arrays = [values[start:stop] for start, stop in pairwise(offsets)]
        if node.ndim == 1:
            return arrays
        shapes = self._values(_INT64, (rows, node.ndim))
        if (shapes < 0).any():
            raise ValueError("a negative shape")
        return [each.reshape(shape) for each, shape in zip(arrays, shapes.tolist(), strict=True)]

    def _strings(self, kind: BlobKind, rows: int) -> list[Any]:
        offsets = self._offsets(rows)
        data = self._values(np.dtype(np.uint8), (offsets[-1],)).data
        if kind == "str":
            whole = bytes(data) if offsets[-1] < GATHER * rows else b"\xff"
            if whole.isascii():
                text = whole.decode()
                return [text[start:stop] for start, stop in pairwise(offsets)]
        make = _BLOB_MAKERS[kind]
        return [make(data[start:stop]) for start, stop in pairwise(offsets)]

    def _records(self, node: Record, rows: int) -> list[Any]:
        columns = [self.read(child, rows) for child in node.children]
        if node.kind == "dict":
            keys = node.keys
            if len(keys) != len(columns):
                raise ValueError(f"{len(keys)} keys for {len(columns)} columns")
            return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)] or [
                {} for _ in range(rows)
            ]
        tuples = list(zip(*columns, strict=True)) if columns else [()] * rows
        return tuples if node.kind == "tuple" else list(map(list, tuples))

    def _union(self, node: Union, rows: int) -> list[Any]:
        codes = self._values(np.dtype(np.uint8), (rows,))
        self._values(np.dtype("<i4"), (rows,))  # where each row is in its part, which follows from the codes
        counts = np.bincount(codes, minlength=len(node.children)).tolist()
        parts = [iter(self.read(child, count)) for child, count in zip(node.children, counts, strict=True)]
        return [next(parts[code]) for code in codes.tolist()]


def _check_characters(values: npt.NDArray[Any]) -> None:
    """Refuses characters that are none: numpy would make of them strings that break Python's invariants."""
    dtype = values.dtype
    if dtype.kind not in "UV":
        return
    if dtype.kind == "U" and values.nbytes:
        characters = np.ascontiguousarray(values).view(np.dtype(np.uint32).newbyteorder(dtype.byteorder))
        if characters.max() > sys.maxunicode:
            raise ValueError("characters beyond Unicode's last")
    for name in dtype.names or ():
        _check_characters(values[name])


_BLOB_MAKERS: dict[str, Callable[[memoryview], Any]] = {
    "str": lambda data: str(data, "utf-8"),
    "loose_str": lambda data: str(data, "utf-8", "surrogatepass"),
    "bytes": bytes,
    "numpy_str": lambda data: np.str_(str(data, "utf-8", "surrogatepass")),
    "numpy_bytes": lambda data: np.bytes_(bytes(data)),
    "big_int": lambda data: int.from_bytes(data, "little", signed=True),
}
