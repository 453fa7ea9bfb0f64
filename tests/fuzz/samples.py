"""Samples: a valid message of each kind, made from its type, so that new kinds come along by themselves."""

from __future__ import annotations

from typing import Any

import msgspec
from msgspec import inspect


def samples(messages: Any) -> list[Any]:
    """List a message of each kind of a union of structs, or of one of them, with all fields, as plain values."""
    found: Any = inspect.type_info(messages)
    kinds = getattr(found, "types", (found,))
    return [_of(kind, 0) for kind in kinds if isinstance(kind, inspect.StructType)]


def _of(kind: Any, depth: int) -> Any:
    match kind:
        case inspect.IntType():
            return 3
        case inspect.FloatType():
            return 1.5
        case inspect.BoolType():
            return True
        case inspect.StrType():
            return "a"
        case inspect.BytesType():
            return b"abc"
        case inspect.NoneType() | inspect.AnyType() | inspect.CustomType():
            return None
        case inspect.LiteralType(values=values):
            return values[0]
        case inspect.EnumType(cls=cls):
            return next(iter(cls)).value
        case inspect.UnionType(types=types):
            return _of(next((each for each in types if not isinstance(each, inspect.NoneType)), types[0]), depth)
        case inspect.TupleType(item_types=items):
            return [_of(each, depth) for each in items]
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            return [] if depth > 4 else [_of(item, depth + 1)]
        case inspect.DictType(key_type=key, value_type=value):
            return {} if depth > 4 else {_of(key, depth + 1): _of(value, depth + 1)}
        case inspect.StructType():
            fields = {field.encode_name: _of(field.type, depth + 1) for field in kind.fields}
            if kind.array_like:
                return ([] if kind.tag is None else [kind.tag]) + list(fields.values())
            return fields if kind.tag is None else {str(kind.tag_field): kind.tag, **fields}
    raise NotImplementedError(f"no sample of {kind}")


def packed(messages: Any) -> list[bytes]:
    """Encode each of the samples in MessagePack."""
    return [msgspec.msgpack.encode(each) for each in samples(messages)]
