"""Element codec: elements to bytes and back, for the wire and the cache alike.

Many elements travel as columns: one buffer per leaf, whatever their number. Where elements of one message differ in
structure, type or dtype, the column becomes a union at that place; order is kept. The bytes are an Arrow IPC stream
(:mod:`.layout`); :mod:`.encode_columns` writes columns and :mod:`.decode_columns` reads them. Decoding unpickles
nothing, and any bytes either decode or raise :class:`millrace.CodecError`.

Python's numbers, ``str``, ``bytes``, ``None`` and numpy's scalars keep their types; instances of their subclasses
become the plain type, namedtuples keep their name and fields (:mod:`.named`), array-likes (``__array__``) become numpy
arrays.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.elements.decode_columns import ColumnDecoder
from millrace.elements.encode_columns import Body, Piece, encode_column
from millrace.elements.layout import END, VERSION, Header, read_heads
from millrace.elements.row_access import RowLayout, fixed_row_layout
from millrace.elements.scattered_buffer import ScatteredBuffer
from millrace.errors import CodecError

_MALFORMED = (
    *(pa.ArrowException, msgspec.MsgspecError, struct.error, OSError, EOFError, MemoryError, RecursionError),
    *(ArithmeticError, LookupError, TypeError, ValueError),
)


def encode(elements: Sequence[Any]) -> list[Piece]:
    """Encode all of ``elements`` as one message, given as its pieces in order.

    Arrays and ``bytes`` of 16 KiB and more are not copied: pieces are views of them, so they must not change until the
    message is sent (non-contiguous and Fortran-ordered ones are copied once, to C order). Each leaf's values start at a
    multiple of 64 bytes from the message's start; the values of the following elements come directly after.

    Raises:
        CodecError: if a leaf cannot become bytes; the message names its place, e.g. ``["image"][0]``, and the remedy.
    """
    body = Body()
    try:
        root = encode_column(body, elements, (), 0)
    except RecursionError:
        raise CodecError("an element contains itself or is nested too deeply; flatten it in .map(...)") from None
    return body.message(Header(VERSION, len(elements), root))


def row_layout(message: npt.NDArray[np.uint8]) -> RowLayout | None:
    """Layout for reading single elements of ``message``; see :func:`millrace.elements.row_access.fixed_row_layout`.

    Raises:
        CodecError: if these are not the first bytes of a message.
    """
    try:
        return fixed_row_layout(message)
    except CodecError:
        raise
    except _MALFORMED as error:
        raise CodecError(f"these bytes are not the first of a message of elements: {error}") from error


def decode(
    message: bytes | bytearray | memoryview | npt.NDArray[np.uint8] | ScatteredBuffer,
    start: int = 0,
    stop: int | None = None,
    *,
    own: bool = False,
) -> list[Any]:
    """Decode the elements of the message at the start of ``message``; bytes behind its end mark are ignored.

    Arrays are views of ``message`` and keep its memory alive; they are writable if it is. All else is copied. If the
    memory is aligned to 64 bytes, so are the arrays of a message's first element; those of the others are aligned to
    their dtype's size. The first part of a :class:`ScatteredBuffer` has to hold everything before the body.

    Args:
        message: the bytes.
        start: index of the first element to decode; the elements outside of the range are not read.
        stop: index before which to stop; None: the number of elements.
        own: arrays are copies, writable, and keep no memory alive but their own.

    Raises:
        CodecError: if the bytes are not a whole message of this version, whatever they are.
    """
    try:
        raw = message.head if isinstance(message, ScatteredBuffer) else np.frombuffer(message, np.uint8)
        header, begin, end, array = read_heads(raw)
        alone = array is not None and header.rows == 1 and start == 0 and stop != 0
        if array is not None and alone and not own and raw[end : end + len(END)].tobytes() == END:
            dtype, shape = array  # what large elements mostly are
            return [np.ndarray(shape, dtype, raw, begin)]
        pieces = message if isinstance(message, ScatteredBuffer) else ScatteredBuffer([raw])
        if pieces.view(end, end + len(END)).tobytes() != END:
            raise ValueError("no end mark after the elements")
        first, last, _ = slice(start, stop).indices(header.rows)
        wanted = slice(first, max(first, last))
        return ColumnDecoder(pieces, begin, end, own=own).read(header.root, header.rows, wanted)
    except CodecError:
        raise
    except _MALFORMED as error:
        raise CodecError(
            f"these bytes are not a whole message of elements, they were truncated or damaged on the way: {error}"
        ) from error
