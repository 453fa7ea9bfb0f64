"""Base of all events, each of which knows how it changes the state.

An event says what became so, not what was asked. Applying it looks nothing up outside the state, decides nothing and
cannot fail. Fields may be added with a default; a field never changes its meaning.
"""

from __future__ import annotations

import enum
from typing import ClassVar

import msgspec

from millrace.control.state.state import State


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


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all events; :mod:`millrace.control.journal.replay` knows the modules that have them.

    Attributes:
        changes: what applying it may change.
    """

    changes: ClassVar = Changes.JOBS

    def apply(self, state: State) -> None:
        """Change the state, of which the index is told by :func:`millrace.control.journal.replay.apply` alone."""
        raise NotImplementedError


class JobEvent(Event, frozen=True):
    """Base of events of a job, by its name."""

    job: str


class EpochEvent(JobEvent, frozen=True):
    """Base of events of an epoch of a job, by its number."""

    epoch: int


class TaskEvent(EpochEvent, frozen=True):
    """Base of events of a task of an epoch, by its number."""

    task: int
