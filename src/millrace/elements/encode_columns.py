"""Encoder from elements to Arrow columns: the writing half of :mod:`.codec`.

A *column encoder* writes a column of values of one kind. It appends the Arrow description of each field, in Arrow's
order, and the bytes, to a :class:`Body`; the node that it returns says in the header how to read them.
"""

from __future__ import annotations

import array
import math
from collections.abc import Callable, Hashable, Iterable, Sequence
from functools import lru_cache, partial
from operator import attrgetter, itemgetter
from typing import Any, Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from millrace.elements.layout import (
    ALIGNMENT,
    BYTES_PER_BYTE,
    CELLS_PER_BYTE,
    END,
    FIXED_SIZE_MAX,
    FREE_BYTES,
    GATHER,
    MAX_DEPTH,
    BlobKind,
    Blobs,
    Fixed,
    Header,
    Node,
    Nothing,
    Ragged,
    Record,
    Union,
    batch_message,
    describe_dtype,
    encode_header,
    row_bytes,
    schema_message,
)
from millrace.elements.named import fields_of
from millrace.elements.plain import plain_key
from millrace.elements.tree import Path, path_text
from millrace.errors import CodecError

Piece: TypeAlias = bytes | memoryview
"""A contiguous run of bytes; ``len`` counts bytes."""

_UNION_MAX = 127
"""Kinds per union; Arrow allows 128. Further kinds are nested."""


class Body:
    """Body of a message under construction, with the counts that Arrow's head needs."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []
        self.size = 0
        self.cells = 0
        self.object_bytes = 0
        self._nodes: list[int] = []
        self._buffers: list[int] = []

    def field(self, rows: int, nulls: int = 0) -> None:
        """Add the next field in Arrow's order."""
        self._nodes += (rows, nulls)

    def no_validity(self) -> None:
        """Add an empty validity buffer: Arrow has one for all fields but unions and nulls."""
        self._buffers += (self.size, 0)

    def put(self, pieces: Iterable[Piece], size: int) -> None:
        """Add the next buffer: ``size`` bytes in all."""
        padding = -self.size % ALIGNMENT
        if padding:
            self.pieces.append(bytes(padding))
            self.size += padding
        self._buffers += (self.size, size)
        self.pieces += pieces
        self.size += size

    def put_array(self, values: array.array[Any] | npt.NDArray[Any]) -> None:
        """Add the next buffer: the bytes of ``values``, contiguous."""
        view = memoryview(values).cast("B") if isinstance(values, array.array) else _bytes_of(values)
        self.put((view,), len(view))

    def message(self, header: Header) -> list[Piece]:
        """Assemble the whole message; runs of small pieces are joined."""
        least = max(self.size, -(-self.cells // CELLS_PER_BYTE), -(-(self.object_bytes - FREE_BYTES) // BYTES_PER_BYTE))
        padding = least + -least % 8 - self.size
        schema = schema_message(encode_header(header))
        batch = batch_message(header.rows, self._nodes, self._buffers, self.size + padding, len(schema))
        message: list[Piece] = []
        run: list[Piece] = []
        for piece in (schema, batch, *self.pieces, bytes(padding), END):
            if len(piece) < GATHER:
                run.append(piece)
            else:
                message += (b"".join(run), piece)
                run = []
        return [*message, b"".join(run)]


_Encoder: TypeAlias = Callable[[Body, Sequence[Any], Path, int], Node]
"""Writer of a column of values of one kind; the arguments are those of :func:`encode_column`."""


def encode_column(body: Body, column: Sequence[Any], path: Path, depth: int) -> Node:
    """Write ``column``, the values of all elements at ``path``; ``depth`` counts Arrow's fields above it."""
    if depth > MAX_DEPTH:
        raise CodecError(
            f"{path_text(path[:4])}... is nested too deeply (about {MAX_DEPTH} levels); flatten it in .map(...)"
        )
    body.cells += len(column)
    kinds = set(map(type, column))
    shredders = {_encoder(kind) for kind in kinds}
    if len(shredders) > 1:
        return _union(body, column, [_encoder(type(value)) for value in column], path, depth)
    shredder = shredders.pop() if shredders else _nothing
    if shredder is None:
        raise CodecError(
            f"{_place(path)} is of type {_name(kinds.pop())}, which has no form as bytes; "
            "make it a numpy array, number, str, bytes or None in .map(...)"
        )
    node = shredder(body, column, path, depth)
    body.object_bytes += len(column) * row_bytes(node)
    return node


def _place(path: Path) -> str:
    return path_text(path) if path else "the element"


def _name(kind: type) -> str:
    return kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"


def _find_encoder(kind: type) -> _Encoder | None:
    """Find the encoder for instances of ``kind``; None if they have no form as bytes."""
    fields = fields_of(kind)
    if fields is not None:
        return _named(kind.__name__, fields)
    for base, shredder in _ENCODERS:
        if issubclass(kind, base):
            return shredder
    return _arrays if hasattr(kind, "__array__") or hasattr(kind, "__array_interface__") else None


_encoder: Callable[[type], _Encoder | None] = lru_cache(maxsize=1024)(_find_encoder)


def _union(body: Body, column: Sequence[Any], labels: Sequence[Hashable], path: Path, depth: int) -> Union:
    """Write the column as one part per label, each part encoded by itself."""
    codes = {label: code for code, label in enumerate(dict.fromkeys(labels))}
    if len(codes) > _UNION_MAX:
        codes = {label: code * _UNION_MAX // len(codes) for label, code in codes.items()}
    parts: list[list[Any]] = [[] for _ in range(max(codes.values()) + 1)]
    types = [codes[label] for label in labels]
    positions = array.array("i")
    for code, value in zip(types, column, strict=True):
        positions.append(len(parts[code]))
        parts[code].append(value)
    body.field(len(column))
    body.put((bytes(types),), len(types))
    body.put_array(positions)
    return Union(tuple([encode_column(body, part, path, depth + 1) for part in parts]))


def _dicts(body: Body, column: Sequence[dict[Any, Any]], path: Path, depth: int) -> Node:
    key_lists = set(map(tuple, column))
    for keys in key_lists:
        _check_keys(keys, path)
    if len(key_lists) > 1:
        return _union(body, column, list(map(tuple, column)), path, depth)
    keys = key_lists.pop()
    if depth:  # the fields of a message of dicts are the schema's own
        body.field(len(column))
        body.no_validity()
    children = [encode_column(body, list(map(itemgetter(key), column)), (*path, key), depth + 1) for key in keys]
    return Record("dict", tuple(map(plain_key, keys)), tuple(children))


def _check_keys(keys: tuple[Any, ...], path: Path) -> None:
    for key in keys:
        if isinstance(key, str):
            fits = key.isprintable() or not any("\ud800" <= char <= "\udfff" for char in key)
        else:
            fits = isinstance(key, int) and not isinstance(key, bool) and -(2**63) <= key < 2**63
        if not fits:
            raise CodecError(
                f"{_place(path)} has the key {key!r}; keys of dicts must be str or int, so rename it in .map(...)"
            )


def _sequences(
    kind: Literal["tuple", "list"], body: Body, column: Sequence[Sequence[Any]], path: Path, depth: int
) -> Record | Union:
    lengths = set(map(len, column))
    if len(lengths) > 1:
        return _union(body, column, list(map(len, column)), path, depth)
    body.field(len(column))
    body.no_validity()
    columns = zip(*column, strict=True)
    return Record(
        kind, (), tuple([encode_column(body, part, (*path, at), depth + 1) for at, part in enumerate(columns)])
    )


@lru_cache(maxsize=1024)
def _named(name: str, fields: tuple[str, ...]) -> _Encoder:
    """Encode namedtuples of this name and these fields: always by the same function, so that a column is no union."""

    def shredder(body: Body, column: Sequence[Any], path: Path, depth: int) -> Node:
        node = _sequences("tuple", body, column, path, depth)
        return node if isinstance(node, Union) else Record("namedtuple", (name, *fields), node.children)

    return shredder


def _nothing(body: Body, column: Sequence[None], path: Path, depth: int) -> Nothing:
    body.field(len(column), len(column))
    return Nothing()


def _numbers(code: str, body: Body, column: Sequence[Any], path: Path, depth: int) -> Fixed | Blobs:
    """Write Python ints (as 64 bits, if all fit) or floats."""
    try:
        values = array.array(code, column)
    except OverflowError:
        sizes = [value.bit_length() // 8 + 1 for value in column]
        data = [value.to_bytes(size, "little", signed=True) for value, size in zip(column, sizes, strict=True)]
        return _blobs(body, "big_int", data, sizes)
    body.field(len(column))
    body.no_validity()
    body.put_array(values)
    return Fixed("int", "<i8", ()) if code == "q" else Fixed("float", "<f8", ())


def _bools(body: Body, column: Sequence[bool], path: Path, depth: int) -> Fixed:
    body.field(len(column))
    body.no_validity()
    body.put((bytes(column),), len(column))
    return Fixed("bool", "|b1", ())


def _complexes(body: Body, column: Sequence[complex], path: Path, depth: int) -> Fixed:
    body.field(len(column))
    body.no_validity()
    body.put_array(np.array(column, np.complex128))
    return Fixed("complex", "<c16", ())


def _scalars(body: Body, column: Sequence[np.generic], path: Path, depth: int) -> Node:
    dtypes = list(map(attrgetter("dtype"), column))
    if len(set(dtypes)) > 1:
        return _union(body, column, dtypes, path, depth)
    described = _described(dtypes[0], path)
    body.field(len(column))
    body.no_validity()
    data = b"".join([value.tobytes() for value in column])
    body.put((data,), len(data))
    return Fixed("scalar", described, ())


def _arrays(body: Body, column: Sequence[Any], path: Path, depth: int) -> Node:
    arrays = [value if type(value) is np.ndarray else _as_array(value, path) for value in column]
    shapes = set(map(attrgetter("shape"), arrays))
    dtypes = set(map(attrgetter("dtype"), arrays))
    if len(dtypes) > 1 or (len(shapes) > 1 and len(set(map(len, shapes))) > 1):
        return _union(body, arrays, [(each.dtype, each.ndim) for each in arrays], path, depth)
    dtype, shape = dtypes.pop(), shapes.pop()
    described = _described(dtype, path)
    ndim, length = len(shape), math.prod(shape)
    same = not shapes and length <= FIXED_SIZE_MAX
    total = length * len(arrays) if same else sum(map(attrgetter("size"), arrays))
    if same:
        if shape:
            body.field(len(arrays))
            body.no_validity()
    else:
        if ndim > 1:
            body.field(len(arrays))
            body.no_validity()
        body.field(len(arrays))
        body.no_validity()
        body.put_array(_offsets([each.size for each in arrays]))
    body.field(total)
    body.no_validity()
    size = total * dtype.itemsize
    body.put(_gather(arrays, size), size)
    if same:
        return Fixed("array", described, shape)
    if ndim > 1:
        body.field(len(arrays))
        body.no_validity()
        body.field(len(arrays) * ndim)
        body.no_validity()
        body.put_array(np.array([each.shape for each in arrays], np.int64))
    return Ragged(described, ndim)


def _as_array(value: Any, path: Path) -> npt.NDArray[Any]:
    """Convert an array-like to an array that shares its memory if it can."""
    if isinstance(value, np.ma.MaskedArray):
        raise CodecError(
            f"{_place(path)} is a masked array, whose mask would be lost; use .filled(...), or send data and mask"
        )
    try:
        return np.asarray(value)
    except Exception as error:
        raise CodecError(
            f"{_place(path)} is of type {_name(type(value))}, which numpy can't read ({error}); "
            "make it a numpy array in .map(...)"
        ) from error


def _described(dtype: np.dtype[Any], path: Path) -> Any:
    try:
        return describe_dtype(dtype)
    except TypeError as error:
        raise CodecError(
            f"{_place(path)} can't become bytes: {error}; in .map(...), give it a dtype of fixed size with "
            ".astype(...) (numbers, 'U' for text, 'S' for bytes), or use .tolist() to send it as a list"
        ) from None


def _gather(arrays: list[npt.NDArray[Any]], size: int) -> list[Piece]:
    """Collect the bytes of all arrays: large ones in place, small ones joined."""
    if size >= GATHER * len(arrays):
        return [_bytes_of(each) for each in arrays]
    try:
        return [b"".join(arrays)]  # type: ignore[arg-type]  # numpy says so from Python 3.12 on
    except (TypeError, ValueError, BufferError):  # not contiguous, or a dtype that Python's buffers don't know
        return [b"".join([each.tobytes() for each in arrays])]


def _bytes_of(values: npt.NDArray[Any]) -> memoryview:
    """Bytes of an array in C order, copied only if they don't lie so."""
    if not values.nbytes:
        return memoryview(b"")
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8).data


def _text(body: Body, column: Sequence[str], path: Path, depth: int) -> Blobs:
    joined = "".join(column)
    if joined.isascii():
        return _blobs(body, "str", [joined.encode()], list(map(len, column)))
    kind: BlobKind = "str"
    try:
        data = [value.encode() for value in column]
    except UnicodeEncodeError:
        kind = "loose_str"
        data = [value.encode("utf-8", "surrogatepass") for value in column]
    return _blobs(body, kind, data, list(map(len, data)))


def _numpy_text(body: Body, column: Sequence[np.str_], path: Path, depth: int) -> Blobs:
    data = [str(value).encode("utf-8", "surrogatepass") for value in column]
    return _blobs(body, "numpy_str", data, list(map(len, data)))


def _strings(
    kind: Literal["bytes", "numpy_bytes"], body: Body, column: Sequence[bytes], path: Path, depth: int
) -> Blobs:
    return _blobs(body, kind, column, list(map(len, column)))


def _blobs(body: Body, kind: BlobKind, data: Sequence[bytes], sizes: list[int]) -> Blobs:
    """Write strings of ``sizes`` bytes; ``data`` is their bytes in pieces of any size."""
    body.field(len(sizes))
    body.no_validity()
    body.put_array(_offsets(sizes))
    size = sum(sizes)
    body.put(map(memoryview, data) if size >= GATHER * len(data) else (b"".join(data),), size)
    return Blobs(kind)


def _offsets(sizes: list[int]) -> npt.NDArray[np.int64]:
    offsets = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets


_ENCODERS: tuple[tuple[type, _Encoder], ...] = (
    # numpy's scalars first: np.float64 is a float, np.str_ a str
    (np.str_, _numpy_text),
    (np.bytes_, partial(_strings, "numpy_bytes")),
    (np.generic, _scalars),
    (np.ndarray, _arrays),
    (dict, _dicts),
    (tuple, partial(_sequences, "tuple")),
    (list, partial(_sequences, "list")),
    (bool, _bools),
    (int, partial(_numbers, "q")),
    (float, partial(_numbers, "d")),
    (complex, _complexes),
    (str, _text),
    (bytes, partial(_strings, "bytes")),
    (type(None), _nothing),
)
