"""Bounds of the numbers that peers say, so that none of them can hold up or stop the service.

A number is checked once, where a message is decoded, whichever field it is in: fields that are added later are bounded
without a word. What a number means is checked where it is used.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable
from typing import Any

from msgspec import inspect

from millrace.errors import ProtocolError
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.split_table import TableSummary
from millrace.protocol.job_spec import JobSpec

MOST = 1 << 53
"""No number has a larger magnitude: sums of thousands still fit into 64 bits, which is what the journal can hold."""
LEAST = -MOST

UNBOUNDED = {(JobSpec, "seed"), (Checkpoint, "seed"), (CachePoint, "items")}
"""Any 64 bits will do: nobody counts with them, or they stand for data without end."""
UNCHECKED = (TableSummary,)
"""Sizes and counts of whole data sets, of which the planner refuses what it can't count."""

Check = Callable[[Any], None]


class _Beyond(Exception):  # noqa: N818 - turned into a ProtocolError where the message is known
    """A number is out of bounds; ``where`` is put together on the way out, as it is needed only then."""

    def __init__(self, value: float, where: str = "") -> None:
        self.value = value
        self.where = where


def checker(messages: Any) -> Callable[[Any], None]:
    """Make a function that raises ProtocolError if a number in a message is out of bounds.

    Args:
        messages: a union of message types, or one of them.
    """
    known: dict[type, Check | None] = {}
    found: Any = inspect.type_info(messages)
    kinds = [each.cls for each in getattr(found, "types", (found,))]
    by_type = {kind: _of_struct(kind, known) for kind in kinds}

    def check(message: Any) -> None:
        found = by_type[type(message)]
        if found is not None:
            try:
                found(message)
            except _Beyond as beyond:
                where = f"{type(message).__name__}{beyond.where}"
                raise ProtocolError(f"{where} is {beyond.value}; numbers in messages are within ±2**53") from None

    return check


def _of_struct(kind: type, known: dict[type, Check | None]) -> Check | None:
    if kind not in known:
        info: Any = inspect.type_info(kind)
        fields = [
            (field.encode_name, check)
            for field in info.fields
            if (kind, field.name) not in UNBOUNDED and (check := _of(field.type, known)) is not None
        ]
        known[kind] = _all_fields(fields) if fields and kind not in UNCHECKED else None
    return known[kind]


def _of(kind: inspect.Type, known: dict[type, Check | None]) -> Check | None:
    """Make the check of values of a type; None if there is no number in them."""
    match kind:
        case inspect.IntType():
            return _whole
        case inspect.FloatType():
            return _number
        case inspect.StructType(cls=struct):
            return _of_struct(struct, known)
        case inspect.ListType(item_type=item) | inspect.VarTupleType(item_type=item) | inspect.SetType(item_type=item):
            return _each(_of(item, known))
        case inspect.TupleType(item_types=items):
            return _places([_of(item, known) for item in items])
        case inspect.DictType(key_type=key, value_type=item):
            keys, values = _each(_of(key, known)), _each(_of(item, known))
            return _all([(keys, lambda entries: entries), (values, lambda entries: entries.values())])
        case inspect.UnionType(types=types):
            (check,) = [_of(each, known) for each in types if not isinstance(each, inspect.NoneType)]
            return _unless_none(check)
    return None


def _number(value: Any) -> None:
    if not LEAST <= value <= MOST:  # NaN is neither
        raise _Beyond(value)


def _whole(value: int) -> None:
    _number(value)


def _all_fields(fields: list[tuple[str, Check]]) -> Check:
    numbers = [name for name, of_field in fields if of_field in {_whole, _number}]
    others = [(name, of_field) for name, of_field in fields if name not in numbers]

    def check(value: Any) -> None:
        for name in numbers:  # without a call for each: reports, which come all the time, are made of these
            if not LEAST <= (number := getattr(value, name)) <= MOST:
                raise _Beyond(number, f".{name}")
        name = ""
        try:
            for name, of_field in others:
                of_field(getattr(value, name))
        except _Beyond as beyond:
            beyond.where = f".{name}{beyond.where}"
            raise

    return check


def _each(item: Check | None) -> Check | None:
    if item is None:
        return None

    def check(values: Iterable[Any]) -> None:
        try:
            for value in values:
                item(value)
        except _Beyond as beyond:
            beyond.where = f"[]{beyond.where}"
            raise

    def numbers(values: Iterable[Any]) -> None:  # there may be a million of them
        check(() if not values else (min(values), max(values)))

    return numbers if item is _whole else check


def _places(items: list[Check | None]) -> Check | None:
    return _all([(item, operator.itemgetter(at)) for at, item in enumerate(items)])


def _all(parts: list[tuple[Check | None, Callable[[Any], Any]]]) -> Check | None:
    checks = [(check, part) for check, part in parts if check is not None]

    def check(value: Any) -> None:
        for each, part in checks:
            each(part(value))

    return check if checks else None


def _unless_none(check: Check | None) -> Check | None:
    def optional(value: Any) -> None:
        if value is not None and check is not None:
            check(value)

    return optional if check is not None else None
