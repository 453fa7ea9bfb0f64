"""Records of ``tf.train.Example``, read without TensorFlow: the features of a schema as numpy values.

An example is a message of protocol buffers: a map from names to lists of bytes, of float32 or of int64 (tensorflow,
``core/example/example.proto`` and ``feature.proto``). Of a record only the features of the schema are looked at.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError

_BYTES, _FLOAT, _INT64 = 1, 2, 3
"""Numbers of the fields of a feature, by what its list holds."""
_KINDS = {_BYTES: "bytes", _FLOAT: "float32", _INT64: "int64"}
_FEW = 32
"""Bytes of whole numbers up to which a loop is faster than numpy."""


@dataclass(frozen=True)
class FixedLenFeature:
    """Feature with equally many values in each example.

    Attributes:
        shape: of the values; ``()``: one.
        dtype: ``np.int64``, ``np.float32`` or ``bytes``.
        default_value: of examples that lack the feature, a value or an array of ``shape``; None: these are an error.
    """

    shape: tuple[int, ...]
    dtype: Any
    default_value: Any = None


@dataclass(frozen=True)
class VarLenFeature:
    """Feature with any number of values: an array of one dimension, or a list of ``bytes``; empty where it lacks.

    Attributes:
        dtype: ``np.int64``, ``np.float32`` or ``bytes``.
    """

    dtype: Any


class ExampleParser:
    """Function that makes a dict of the features of a serialized example.

    Args:
        features: a mapping with a :class:`FixedLenFeature` or :class:`VarLenFeature` by name; TensorFlow's will do.

    Raises:
        PipelineError: something is neither.
    """

    def __init__(self, features: Any) -> None:
        if not isinstance(features, Mapping) or not features:
            raise PipelineError(
                "parse_example takes a FixedLenFeature or VarLenFeature of millrace.tf_example for each name of a "
                f"feature, in a dict, not {features!r}"
            )
        self._features = {str(name): _Wanted(str(name), feature) for name, feature in features.items()}
        self._names = {name.encode(): name for name in self._features}

    def __repr__(self) -> str:
        return f"parse_example({', '.join(map(repr, self._features.values()))})"

    def __call__(self, record: bytes) -> dict[str, Any]:
        """Parse an example.

        Raises:
            ValueError: the record is no example, or has not what the schema says.
        """
        found: dict[str, bytes | memoryview] = {}
        for features in _fields(record, 1):
            for entry in _fields(features, 1):
                name = next(_fields(entry, 1, last=True), b"")
                known = self._names.get(bytes(name))
                if known is not None:
                    found[known] = next(_fields(entry, 2, last=True), b"")
        return {name: wanted.value(found.get(name)) for name, wanted in self._features.items()}


class _Wanted:
    """Feature of a schema."""

    def __init__(self, name: str, feature: Any) -> None:
        self._name = name
        dtype = getattr(feature, "dtype", None)
        dtype = getattr(dtype, "as_numpy_dtype", dtype)
        fixed = hasattr(feature, "shape")
        kinds: dict[Any, int] = {np.int64: _INT64, np.float32: _FLOAT, bytes: _BYTES, np.object_: _BYTES}
        try:
            known = kinds.get(dtype) or kinds.get(np.dtype(dtype).type)
        except TypeError:
            known = None
        if known is None or type(feature).__name__ not in {"FixedLenFeature", "VarLenFeature"}:
            raise PipelineError(
                f"parse_example: {name!r} is a FixedLenFeature or a VarLenFeature of np.int64, np.float32 or bytes, "
                f"not {feature!r}"
            )
        self._kind = known
        try:
            self._shape = tuple(map(int, feature.shape)) if fixed else None
        except TypeError:
            raise PipelineError(
                f"parse_example: the shape of {name!r} is a tuple of whole numbers, () for one value, not "
                f"{feature.shape!r}"
            ) from None
        self._count = math.prod(self._shape or ())
        self._default = self._defaults(feature.default_value) if fixed else None

    def __repr__(self) -> str:
        default = self._default.tolist() if isinstance(self._default, np.ndarray) else self._default
        return f"{self._name!r}: {_KINDS[self._kind]} {self._shape} {default!r}"

    def _defaults(self, value: Any) -> Any:
        """Values of an example that lacks the feature; None: that is an error."""
        if value is None:
            return None
        dtype: Any = {_BYTES: object, _FLOAT: np.float32, _INT64: np.int64}[self._kind]
        array = np.asarray(value, dtype)
        if self._kind == _BYTES:
            array = np.array([self._bytes(each) for each in array.ravel()], object)
        if array.size not in (1, self._count):
            raise PipelineError(
                f"parse_example: the default of {self._name!r} has {array.size} values, and the feature {self._count}"
            )
        values = np.resize(array, self._count) if array.size else array
        return values.tolist() if self._kind == _BYTES else values

    def _bytes(self, value: Any) -> bytes:
        if not isinstance(value, (bytes, str)):
            raise PipelineError(f"parse_example: the default of {self._name!r} is bytes, not {value!r}")
        return value.encode() if isinstance(value, str) else value

    def value(self, feature: bytes | memoryview | None) -> Any:
        """Value in an element of the message of a feature; None: the example lacks it."""
        values = None
        for kind, held in _KINDS.items():
            for listed in _fields(feature or b"", kind):
                if kind != self._kind:
                    raise ValueError(f"feature {self._name!r} holds {held}, not {_KINDS[self._kind]}")
                values = _values(listed, kind)
        if values is None or (self._shape is None and not len(values)):
            # A copy, as whoever gets it may write to it.
            values = copy.copy(self._default) if self._shape is not None else _values(b"", self._kind)
        if values is None:
            raise ValueError(f"the example has no feature {self._name!r}, which has no default_value")
        if self._shape is None:
            return values
        if len(values) != self._count:
            raise ValueError(f"feature {self._name!r} has {len(values)} values, not {self._count}")
        if isinstance(values, list):
            return _nested(values, self._shape)
        return values.reshape(self._shape)[()]


def _nested(values: list[bytes], shape: tuple[int, ...]) -> Any:
    if not shape:
        return values[0]
    if len(shape) == 1:
        return values
    size = len(values) // shape[0] if shape[0] else 0
    return [_nested(values[at * size : (at + 1) * size], shape[1:]) for at in range(shape[0])]


def _values(listed: bytes | memoryview, kind: int) -> Any:
    """Values of a list of one kind."""
    if kind == _BYTES:
        return [bytes(value) for value in _fields(listed, 1)]
    parts = list(_packed(listed, kind))
    dtype = np.float32 if kind == _FLOAT else np.int64
    return parts[0] if len(parts) == 1 else np.concatenate([np.zeros(0, dtype), *parts])


def _packed(listed: bytes | memoryview, kind: int) -> Iterator[npt.NDArray[Any]]:
    """Values of a list of numbers, which are packed or stand for themselves."""
    for wire, content in _raw(listed, 1):
        if kind == _FLOAT:
            if wire not in (2, 5) or len(content) % 4:
                raise ValueError("a list of float32 is damaged")
            yield np.frombuffer(content, "<f4").astype(np.float32)
        else:
            if wire not in (0, 2):
                raise ValueError("a list of int64 is damaged")
            yield _varints(content)


def _varints(data: bytes | memoryview) -> npt.NDArray[np.int64]:
    """Decode whole numbers of 64 bits in groups of 7, the least significant first."""
    if len(data) <= _FEW:
        found, at = [], 0
        while at < len(data):
            number, at = _varint(data, at)
            found.append(number)
        return np.array(found, np.uint64).view(np.int64)
    groups = np.frombuffer(data, np.uint8)
    ends = np.flatnonzero(groups < 128)
    if not len(ends) or ends[-1] != len(groups) - 1:
        raise ValueError("a whole number is cut off")
    starts = np.concatenate([[0], ends[:-1] + 1])
    lengths = ends - starts + 1
    if lengths.max() > 10:
        raise ValueError("a whole number has more than 64 bits")
    shifts = (np.arange(len(groups)) - np.repeat(starts, lengths)).astype(np.uint64) * np.uint64(7)
    parts = (groups.astype(np.uint64) & np.uint64(127)) << shifts
    return np.add.reduceat(parts, starts).view(np.int64)


def _fields(message: bytes | memoryview, number: int, *, last: bool = False) -> Iterator[bytes | memoryview]:
    """Contents of the fields of a message with this number that have a length; ``last``: of the last of them alone."""
    found: bytes | memoryview | None = None
    for wire, content in _raw(message, number):
        if wire != 2:
            raise ValueError(_NONE)
        if last:
            found = content
        else:
            yield content
    if found is not None:
        yield found


_NONE = "the record is no tf.train.Example"


def _raw(message: bytes | memoryview, number: int) -> Iterator[tuple[int, memoryview]]:
    """Wire types and contents of the fields of a message with this number.

    Raises:
        ValueError: the bytes are no message.
    """
    view, at, size = memoryview(message), 0, len(message)
    while at < size:
        tag, at = _varint(view, at)
        wire, start = tag & 7, at
        if wire == 2:
            length, start = _varint(view, at)
            at = start + length
        elif wire == 0:
            _, at = _varint(view, at)
        elif wire in (1, 5):
            at += 8 if wire == 1 else 4
        else:
            raise ValueError(_NONE)
        if at > size:
            raise ValueError(f"{_NONE}, or is cut off")
        if tag >> 3 == number:
            yield wire, view[start:at]


def _varint(data: bytes | memoryview, at: int) -> tuple[int, int]:
    """Decode one whole number: it, and where the next byte is."""
    number = shift = 0
    while at < len(data) and shift < 70:
        byte = data[at]
        at += 1
        number |= (byte & 127) << shift
        if byte < 128:
            return number & (1 << 64) - 1, at
        shift += 7
    raise ValueError(f"{_NONE}, or is cut off")
