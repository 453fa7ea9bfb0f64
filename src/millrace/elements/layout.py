"""Message layout: the header's types, dtypes as text, and the Arrow framing around them.

A message is one Arrow IPC stream: a schema message, one record batch with a row per element, an end mark. The schema's
metadata holds under :data:`KEY` a JSON :class:`Header`, from which alone (with the offsets in the body) elements are
read back; the Arrow fields say the same in Arrow's words, for other readers. Buffers follow one another in the order
in which Arrow walks the fields, each at the next multiple of :data:`ALIGNMENT` bytes from the message's start.
"""

from __future__ import annotations

import json
import math
import re
import struct
from functools import lru_cache
from typing import Any, Literal, NamedTuple, TypeAlias, cast

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from millrace.errors import CodecError

KEY = b"millrace"
VERSION = 1
ALIGNMENT = 64
CELLS_PER_BYTE = 8
"""Most (row, node) pairs per byte of a body, so that a small message can't claim a billion Nones."""

FREE_BYTES = 24 << 20
"""Bytes of Python's memory, as :func:`row_bytes` counts it, that a message may become whatever its size."""
BYTES_PER_BYTE = 64
"""Bytes of it for each byte of a body. Bodies that become more are padded; those of batches never are."""

MAX_DEPTH = 56
"""Levels of Arrow fields: one for a container, one for each way in which its contents vary. Readers follow 64."""

GATHER = 16 * 1024
"""Bytes from which a value is sent from where it lies: below, copying costs less than one more entry for sendmsg."""

PYTHON_DTYPES = {"int": "<i8", "float": "<f8", "complex": "<c16", "bool": "|b1"}
"""Dtypes of Python's numbers in a message, by the kind of :class:`Fixed`."""

FIXED_SIZE_MAX = 2**31 - 1
_REMEMBERED_BYTES = 16 << 10
"""Schema messages up to this size are remembered."""
_MARK = struct.Struct("<iI")
END = _MARK.pack(-1, 0)


BlobKind: TypeAlias = Literal["str", "loose_str", "bytes", "numpy_str", "numpy_bytes", "big_int"]


class Fixed(msgspec.Struct, frozen=True, array_like=True, tag="fixed"):
    """Values of one dtype and shape, stacked. ``kind`` says what Python makes of a row."""

    kind: Literal["int", "float", "complex", "bool", "scalar", "array"]
    dtype: Any
    shape: tuple[int, ...]


class Ragged(msgspec.Struct, frozen=True, array_like=True, tag="ragged"):
    """Arrays of one dtype and number of dimensions (at least 1) whose shapes differ."""

    dtype: Any
    ndim: int


class Blobs(msgspec.Struct, frozen=True, array_like=True, tag="blobs"):
    """Strings of bytes. ``loose_str``: text with lone surrogates, as file names have; ``big_int``: beyond 64 bits."""

    kind: BlobKind


class Nothing(msgspec.Struct, frozen=True, array_like=True, tag="none"):
    """None in every row."""


class Record(msgspec.Struct, frozen=True, array_like=True, tag="record"):
    """Containers of one structure; a field per child.

    ``keys``: of a dict; of a namedtuple its class's name and the names of its fields; else empty.
    """

    kind: Literal["dict", "tuple", "list", "namedtuple"]
    keys: tuple[str | int, ...]
    children: tuple[Node, ...]


class Union(msgspec.Struct, frozen=True, array_like=True, tag="union"):
    """Rows of different kinds: a code per row names the child that has its value."""

    children: tuple[Node, ...]


Node: TypeAlias = Fixed | Ragged | Blobs | Nothing | Record | Union


class Header(msgspec.Struct, frozen=True, array_like=True):
    """Description of a message's elements, stored in the schema's metadata."""

    version: int
    rows: int
    root: Node


_DTYPE = re.compile(r"[<>|][biufcmMSUV]\d{1,10}(\[\d*[a-zA-Z]{1,2}\])?")

encode_header = msgspec.json.Encoder().encode
decode_header = msgspec.json.Decoder(Header).decode


_ENTRY_BYTES = 60
_OBJECT_BYTES: dict[str, int] = {"bool": 0, "scalar": 56, "str": 57, "bytes": 41}


def row_bytes(node: Node) -> int:
    """Bytes that Python takes for the value of a row, without the values within it and the bytes of its data.

    Somewhat more than it takes is counted, never less: of a dict that grows up to 60 for each entry, for example.
    """
    slot = 8
    match node:
        case Nothing():
            return slot
        case Fixed(kind="array"):
            return slot + _array_bytes(len(node.shape))
        case Fixed():
            return slot + _OBJECT_BYTES.get(node.kind, 40)
        case Ragged():
            return slot + _array_bytes(1) + _array_bytes(node.ndim) + 40 * (1 + max(node.ndim, 1))
        case Blobs():
            return slot + 40 + _OBJECT_BYTES.get(node.kind, 120)
        case Record(kind="dict"):
            return slot + 64 + (_ENTRY_BYTES * max(len(node.children), 2) if node.children else 0)
        case Record():
            return slot + 80 + slot * len(node.children)
        case Union():
            return 2 * slot


def _array_bytes(ndim: int) -> int:
    return 96 + 16 * max(ndim, 1)


# -- dtypes ------------------------------------------------------------------------------------------------------------


def describe_dtype(dtype: np.dtype[Any]) -> Any:
    """Describe ``dtype`` as JSON: its numpy name, or a dict for structured dtypes, subarrays and those of ml_dtypes.

    Raises:
        TypeError: for dtypes whose values are Python objects or pointers.
    """
    if dtype.hasobject or dtype.char == "T":
        raise TypeError(f"arrays of dtype {dtype} hold Python objects, not data")
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return {"base": describe_dtype(base), "shape": list(shape)}
    if dtype.names is not None:
        fields = [dtype.fields[name] for name in dtype.names] if dtype.fields is not None else []
        return {
            "names": list(dtype.names),
            "formats": [describe_dtype(each[0]) for each in fields],
            "offsets": [each[1] for each in fields],
            "titles": [each[2] if len(each) > 2 else None for each in fields],
            "itemsize": dtype.itemsize,
            "aligned": dtype.isalignedstruct,
        }
    if dtype.type.__module__ == "ml_dtypes":
        return {"ml_dtypes": dtype.name}
    return dtype.str


def parse_dtype(text: Any) -> np.dtype[Any]:
    """Parse a description by :func:`describe_dtype`; ``text`` may come from anywhere.

    Raises:
        CodecError: if it names a dtype of objects, or one of ml_dtypes where that package is missing.
        TypeError, ValueError, KeyError: if it describes no dtype.
    """
    dtype = _simple_dtype(text) if isinstance(text, str) else _compound_dtype(text)
    if dtype.hasobject or dtype.char == "T":
        raise CodecError(f"a message with values of dtype {dtype} was refused: they would be pointers")
    return dtype


@lru_cache(maxsize=256)
def _simple_dtype(text: str) -> np.dtype[Any]:
    if not _DTYPE.fullmatch(text):
        raise ValueError(f"dtype {text!r}")
    return np.dtype(text)


def _compound_dtype(text: dict[str, Any]) -> np.dtype[Any]:
    if "ml_dtypes" in text:
        return _ml_dtype(str(text["ml_dtypes"]))
    if "base" in text:
        return np.dtype((parse_dtype(text["base"]), tuple(map(int, text["shape"]))))
    fields = {name: text[name] for name in ("names", "offsets", "itemsize")}
    if any(title is not None for title in text["titles"]):
        fields["titles"] = text["titles"]
    fields["formats"] = [parse_dtype(each) for each in text["formats"]]
    dtype: np.dtype[Any] = np.dtype(cast("Any", fields), align=bool(text["aligned"]))  # its stubs want a TypedDict
    return dtype


def _ml_dtype(name: str) -> np.dtype[Any]:
    try:
        import ml_dtypes
    except ImportError:
        raise CodecError(f"a message has values of dtype {name}; to read them, pip install ml_dtypes") from None
    scalar = getattr(ml_dtypes, name, None)
    if not (isinstance(scalar, type) and issubclass(scalar, np.generic)):
        raise CodecError(f"the installed ml_dtypes has no dtype {name}; install the version that the workers have")
    return np.dtype(scalar)


# -- Arrow -------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=128)
def schema_message(header: bytes) -> bytes:
    """Build the schema message of a stream with this header; cached, for batches of one shape repeat it."""
    root = decode_header(header).root
    if isinstance(root, Record) and root.kind == "dict":
        fields = _fields(root)
    else:
        fields = [pa.field("element", _arrow_type(root))]
    message: bytes = pa.schema(fields, metadata={KEY: header}).serialize().to_pybytes()
    return message


def _fields(record: Record) -> list[pa.Field]:
    keys = record.keys[1:] if record.kind == "namedtuple" else record.keys
    names = keys or range(len(record.children))
    return [pa.field(str(name), _arrow_type(child)) for name, child in zip(names, record.children, strict=True)]


def _arrow_type(node: Node) -> pa.DataType:
    match node:
        case Fixed(shape=()):
            return arrow_value_type(parse_dtype(node.dtype))
        case Fixed():
            return pa.list_(arrow_value_type(parse_dtype(node.dtype)), math.prod(node.shape))
        case Ragged():
            values = pa.large_list(arrow_value_type(parse_dtype(node.dtype)))
            if node.ndim == 1:
                return values
            return pa.struct([("values", values), ("shape", pa.list_(pa.int64(), node.ndim))])
        case Blobs():
            return pa.large_utf8() if node.kind == "str" else pa.large_binary()
        case Nothing():
            return pa.null()
        case Record():
            return pa.struct(_fields(node))
        case Union():
            fields = [pa.field(str(code), _arrow_type(child)) for code, child in enumerate(node.children)]
            return pa.dense_union(fields)


def arrow_value_type(dtype: np.dtype[Any]) -> pa.DataType:
    """Arrow's number type of the same bytes, else a string of ``itemsize`` bytes (bools too: Arrow's are bits)."""
    if dtype.kind in "iuf" and dtype.isnative and dtype.isbuiltin == 1 and dtype.itemsize <= 8:
        return pa.from_numpy_dtype(dtype)
    return pa.binary(dtype.itemsize)


# The metadata of a record batch is a flatbuffer of two tables, always laid out like this (all little-endian):
_TABLES = struct.Struct(
    "<I"  # 0: where Message is
    "HHHHHH"  # 4: shape of Message: sizes of this and of the table, offsets of its four values
    "ihBxqI4x"  # 16, Message: back to its shape, version, header type, body length at 24, where RecordBatch is at 32
    "HHHHH6x"  # 40: shape of RecordBatch: sizes, offsets of length, nodes, buffers
    "iIqI"  # 56, RecordBatch: back to its shape, where nodes are at 60, length at 64, where buffers are at 72
    "I"  # 76: number of nodes; they follow, 16 bytes each: rows, nulls
)
_METADATA_V5 = 4
_RECORD_BATCH = 3


def batch_message(rows: int, nodes: list[int], buffers: list[int], body_size: int, start: int) -> bytes:
    """Build the head of a record batch message, without its body.

    This is written by hand because pyarrow's own writer aligns buffers to 8 bytes only.

    Args:
        rows: number of rows of the batch.
        nodes: (rows, nulls) of each field in Arrow's order, in one list.
        buffers: (offset in the body, bytes) of each buffer, in one list.
        body_size: bytes of the body, a multiple of 8.
        start: offset of this head in the message, in bytes; it is padded so that the body is at a multiple of 64.
    """
    tables = _tables(rows, len(nodes) // 2, body_size)
    vectors = struct.pack(f"<{len(nodes)}q4xI{len(buffers)}q", *nodes, len(buffers) // 2, *buffers)
    size = 8 + len(tables) + len(vectors)
    padding = -(start + size) % ALIGNMENT
    return b"".join([struct.pack("<iI", -1, size - 8 + padding), tables, vectors, bytes(padding)])


def _tables(rows: int, nodes: int, body_size: int) -> bytes:
    return _TABLES.pack(
        *(16, 12, 24, 4, 6, 16, 8),
        *(12, _METADATA_V5, _RECORD_BATCH, body_size, 24),
        *(10, 20, 8, 4, 16),
        *(16, 16, rows, 12 + 16 * nodes),
        nodes,
    )


class Heads(NamedTuple):
    """Content of the heads before a message's body.

    Attributes:
        header: of the schema.
        start: offset of the body in the message, in bytes.
        stop: offset of the body's end, in bytes.
        array: dtype and shape of each element, if all are arrays alike: then they follow one another from ``start`` on.
    """

    header: Header
    start: int
    stop: int
    array: tuple[np.dtype[Any], tuple[int, ...]] | None


def read_heads(raw: npt.NDArray[np.uint8]) -> Heads:
    """Read the heads of the message that starts in ``raw``.

    Args:
        raw: uint8 of one dimension, at least all bytes before the body.

    Raises:
        CodecError: if the message was written by another version of millrace.
        pa.ArrowException, OSError, EOFError, ValueError, KeyError, msgspec.MsgspecError, struct.error: if these are not
            the first bytes of a message.
    """
    _, size = _MARK.unpack_from(raw.data)
    _, more = _MARK.unpack_from(raw.data, 8 + size)
    heads = raw[: 16 + size + more].tobytes()
    return _read_heads(heads) if len(heads) <= _REMEMBERED_BYTES else _read_heads.__wrapped__(heads)


@lru_cache(maxsize=256)
def _read_heads(heads: bytes) -> Heads:
    """Parse the heads; cached, for messages of one shape and size repeat them."""
    mark, size = _MARK.unpack_from(heads)
    if mark != -1:
        raise ValueError("no schema message at the start")
    schema = heads[: 8 + size]
    header = _read_schema(schema) if len(schema) <= _REMEMBERED_BYTES else _read_schema.__wrapped__(schema)
    start, stop = _read_batch_head(heads, 8 + size)
    root, array = header.root, None
    if isinstance(root, Fixed) and root.kind == "array" and min(root.shape, default=0) >= 0:
        dtype = parse_dtype(root.dtype)
        if dtype.kind in "biufcmM" and header.rows * dtype.itemsize * math.prod(root.shape) <= stop - start:
            array = dtype, tuple(root.shape)
    return Heads(header, start, stop, array)


@lru_cache(maxsize=128)
def _read_schema(message: bytes) -> Header:
    """Parse the metadata of a schema message; cached, for batches of one shape repeat it."""
    schema = pa.ipc.read_message(pa.BufferReader(message))
    if schema.type != "schema":  # read_schema would take it for one, and crash
        raise ValueError(f"a {schema.type} message where a schema should be")
    metadata = pa.ipc.read_schema(schema).metadata
    if not metadata or KEY not in metadata:
        raise CodecError("an Arrow stream without millrace's metadata: it was written by another program")
    text = metadata[KEY]
    try:
        header = decode_header(text)
    except msgspec.ValidationError:
        _check_version(text)
        raise
    if header.version != VERSION:
        _check_version(text)
    return header


def _read_batch_head(heads: bytes, at: int) -> tuple[int, int]:
    """Read the body's start and stop from the record batch head at ``at``; only heads of this layout are accepted."""
    mark, size = _MARK.unpack_from(heads, at)
    fields = _TABLES.unpack_from(heads, at + 8)
    body_size, rows, nodes = fields[10], fields[19], fields[21]
    if mark != -1 or heads[at + 8 : at + 8 + _TABLES.size] != _tables(rows, nodes, body_size):
        raise ValueError("no record batch after the schema")
    start = at + 8 + size
    if start > len(heads) or size < _TABLES.size or body_size < 0:
        raise ValueError(f"the body of {body_size} bytes starts at byte {start} of {len(heads)}")
    return start, start + body_size


def _check_version(text: bytes) -> None:
    """Raise CodecError if the header that couldn't be read is of another version."""
    found = json.loads(text)[0]
    if found != VERSION:
        raise CodecError(
            f"a message of format {found}, and this millrace reads format {VERSION}: "
            "run the same version of millrace everywhere"
        )
