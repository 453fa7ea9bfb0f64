"""Namedtuple classes rebuilt from a name and fields, for processes that don't have the original class."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from typing import Any


def fields_of(kind: type) -> tuple[str, ...] | None:
    """Fields of a namedtuple's class; None if it is none, or cannot be rebuilt from them."""
    fields = getattr(kind, "_fields", None)
    if not issubclass(kind, tuple) or not isinstance(fields, tuple):
        return None
    try:
        named(kind.__name__, fields)
    except (TypeError, ValueError):
        return None
    return fields


@lru_cache(maxsize=1024)
def named(name: str, fields: tuple[str, ...]) -> type[tuple[Any, ...]]:
    """Namedtuple class, always the same one for a name and fields; making it runs no code but Python's own.

    Raises:
        ValueError: if one of them is no identifier.
    """
    # No literals, which is what mypy and typing.NamedTuple want.
    kind: type[tuple[Any, ...]] = namedtuple(name, fields, module=__name__)  # type: ignore[misc]  # noqa: PYI024
    setattr(kind, "__reduce__", _reduce)  # noqa: B010  # pickle would look for the class in this module
    return kind


def named_by(keys: Sequence[str | int], count: int) -> Callable[..., tuple[Any, ...]]:
    """Return the class of the namedtuple that a message describes as (name, fields) and that has ``count`` values.

    Raises:
        ValueError: if there is none.
    """
    name, *fields = map(str, keys)
    if len(fields) != count:
        raise ValueError(f"{len(fields)} fields for {count} columns")
    return named(name, tuple(fields))


def rebuild(name: str, fields: tuple[str, ...], values: Iterable[Any]) -> tuple[Any, ...]:
    """Build such a namedtuple; pickle can refer to this function by its name."""
    return named(name, fields)(*values)


def _reduce(self: Any) -> tuple[Any, ...]:
    return rebuild, (type(self).__name__, self._fields, tuple(self))
