"""Decoder from Arrow columns to elements: the reading half of :mod:`.codec`."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from itertools import pairwise, starmap
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.layout import (
    ALIGNMENT,
    BYTES_PER_BYTE,
    CELLS_PER_BYTE,
    FREE_BYTES,
    GATHER,
    PYTHON_DTYPES,
    BlobKind,
    Blobs,
    Fixed,
    Node,
    Nothing,
    Ragged,
    Record,
    Union,
    parse_dtype,
    row_bytes,
)
from millrace.elements.named import named_by
from millrace.elements.scattered_buffer import ScatteredBuffer

_INT64 = np.dtype("<i8")


class ColumnDecoder:
    """Cursor over the buffers of a body; it believes no count that the body's size doesn't bear out.

    Args:
        message: buffer that holds the body.
        start: offset of the body in it, in bytes.
        stop: offset of the body's end, in bytes.
        own: arrays are copies.
    """

    def __init__(self, message: ScatteredBuffer, start: int, stop: int, *, own: bool = False) -> None:
        self._message = message
        self._start = start
        self._size = stop - start
        self._at = 0
        self._cells = self._size * CELLS_PER_BYTE
        self._affordable = FREE_BYTES + self._size * BYTES_PER_BYTE
        self._own = own

    def read(self, node: Node, rows: int, wanted: slice) -> list[Any]:
        """Read the ``wanted`` values of ``node``, which has one per row; ``wanted`` is a range within the rows."""
        self._cells -= rows
        if rows < 0 or self._cells < 0:
            raise ValueError(f"{rows} rows don't fit")
        self._affordable -= rows * row_bytes(node)
        if self._affordable < 0:
            raise ValueError(f"{rows} rows of {node.__struct_config__.tag} are more than {self._size} bytes warrant")
        match node:
            case Fixed():
                return self._fixed(node, rows, wanted)
            case Ragged():
                return self._ragged(node, rows, wanted)
            case Blobs():
                return self._strings(node.kind, rows, wanted)
            case Nothing():
                return [None] * (wanted.stop - wanted.start)
            case Record():
                return self._records(node, rows, wanted)
            case Union():
                return self._union(node, rows, wanted)

    def _next(self, size: int) -> int:
        """Advance past the next buffer, of ``size`` bytes; return its offset in the message."""
        offset = self._at + -self._at % ALIGNMENT
        self._at = offset + size
        if self._at > self._size:
            raise ValueError(f"values end at byte {self._at} of a body of {self._size}")
        return self._start + offset

    def _values(self, dtype: np.dtype[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
        """View the next buffer as an array."""
        if min(shape) < 0:
            raise ValueError(f"shape {shape}")
        size = dtype.itemsize * math.prod(shape)
        start = self._next(size)
        values: npt.NDArray[Any] = np.ndarray(shape, dtype, self._message.view(start, start + size))
        _check_characters(values)
        return values

    def _offsets(self, rows: int, wanted: slice) -> tuple[list[int], int]:
        """Read offsets: those of the wanted values with the end of the last one, and the end of all values."""
        offsets = self._values(_INT64, (rows + 1,))
        if offsets[0] != 0 or not (offsets[1:] >= offsets[:-1]).all():
            raise ValueError("offsets that aren't in order")
        listed: list[int] = offsets[wanted.start : wanted.stop + 1].tolist()
        return listed, int(offsets[-1])

    def _owned(self, arrays: list[npt.NDArray[Any]]) -> list[npt.NDArray[Any]]:
        return [each.copy() for each in arrays] if self._own else arrays

    def _fixed(self, node: Fixed, rows: int, wanted: slice) -> list[Any]:
        if node.kind in PYTHON_DTYPES:
            values: list[Any] = self._values(np.dtype(PYTHON_DTYPES[node.kind]), (rows,))[wanted].tolist()
            return values
        dtype = parse_dtype(node.dtype)
        if node.kind == "scalar":
            scalars = self._values(dtype, (rows,))[wanted]
            return list(scalars.copy() if self._own else scalars)
        if min(node.shape, default=0) < 0:
            raise ValueError(f"shape {node.shape}")
        size = dtype.itemsize * math.prod(node.shape)
        start = self._next(size * rows)
        arrays = self._message.rows(start + size * wanted.start, wanted.stop - wanted.start, node.shape, dtype)
        if dtype.kind in "UV":
            for each in arrays:
                _check_characters(each)
        return self._owned(arrays)

    def _ragged(self, node: Ragged, rows: int, wanted: slice) -> list[Any]:
        offsets, end = self._offsets(rows, wanted)
        values = self._values(parse_dtype(node.dtype), (end,))
        arrays = [values[start:stop] for start, stop in pairwise(offsets)]
        if node.ndim == 1:
            return self._owned(arrays)
        shapes = self._values(_INT64, (rows, node.ndim))
        if (shapes < 0).any():
            raise ValueError("a negative shape")
        shaped = [each.reshape(shape) for each, shape in zip(arrays, shapes[wanted].tolist(), strict=True)]
        return self._owned(shaped)

    def _strings(self, kind: BlobKind, rows: int, wanted: slice) -> list[Any]:
        offsets, end = self._offsets(rows, wanted)
        data = self._values(np.dtype(np.uint8), (end,)).data
        first = offsets[0]
        if kind == "str":
            whole = bytes(data[first : offsets[-1]]) if offsets[-1] - first < GATHER * len(offsets) else b"\xff"
            if whole.isascii():
                text = whole.decode()
                return [text[start - first : stop - first] for start, stop in pairwise(offsets)]
        make = _BLOB_MAKERS[kind]
        return [make(data[start:stop]) for start, stop in pairwise(offsets)]

    def _records(self, node: Record, rows: int, wanted: slice) -> list[Any]:
        columns = [self.read(child, rows, wanted) for child in node.children]
        count = wanted.stop - wanted.start
        if node.kind == "dict":
            keys = node.keys
            if len(keys) != len(columns):
                raise ValueError(f"{len(keys)} keys for {len(columns)} columns")
            return [dict(zip(keys, row, strict=True)) for row in zip(*columns, strict=True)] or [
                {} for _ in range(count)
            ]
        tuples = list(zip(*columns, strict=True)) if columns else [()] * count
        if node.kind == "namedtuple":
            return list(starmap(named_by(node.keys, len(columns)), tuples))
        return tuples if node.kind == "tuple" else list(map(list, tuples))

    def _union(self, node: Union, rows: int, wanted: slice) -> list[Any]:
        codes = self._values(np.dtype(np.uint8), (rows,))
        self._values(np.dtype("<i4"), (rows,))  # where each row is in its part, which follows from the codes
        kinds = len(node.children)
        totals, starts, stops = (
            np.bincount(part, minlength=kinds).tolist() for part in (codes, codes[: wanted.start], codes[: wanted.stop])
        )
        parts = [
            iter(self.read(child, total, slice(start, stop)))
            for child, total, start, stop in zip(node.children, totals, starts, stops, strict=True)
        ]
        return [next(parts[code]) for code in codes[wanted].tolist()]


def _check_characters(values: npt.NDArray[Any]) -> None:
    """Refuse code points beyond Unicode: numpy would make strings of them that break Python's invariants."""
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
