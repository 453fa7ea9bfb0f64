"""Events and their reducers: what all of them have in common.

An event says what became so, not what was asked. Its reducer, the function beside it, changes the state accordingly: it
looks nothing up outside the state, decides nothing and cannot fail. Fields may be added with a default; a field never
changes its meaning.
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any, NamedTuple, TypeVar

import msgspec

from millrace.control.state.state import State


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all events."""


class Changes(enum.Enum):
    """Extent of what an event may change, so that the index knows which of its answers it ends.

    Attributes:
        TASKS: tasks of its job, and what workers have in hand: what every task brings.
        JOBS: anything but who serves what.
        SERVING: anything.
    """

    TASKS = enum.auto()
    JOBS = enum.auto()
    SERVING = enum.auto()


class Reducer(NamedTuple):
    """A function that applies events of one kind to a state, and what it may change."""

    apply: Callable[[State, Any], None]
    changes: Changes


REDUCERS: dict[type[Event], Reducer] = {}
"""By event; :mod:`millrace.control.journal.replay` knows the modules that fill it."""

E = TypeVar("E", bound=Event)
Apply = Callable[[State, E], None]


def reduces(kind: type[E], changes: Changes = Changes.JOBS) -> Callable[[Apply[E]], Apply[E]]:
    """Register a function as the reducer of a kind of events."""

    def register(apply: Apply[E]) -> Apply[E]:
        REDUCERS[kind] = Reducer(apply, changes)
        return apply

    return register
