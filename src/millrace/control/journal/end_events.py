"""What fails, and what ends before its plan does; more of :mod:`millrace.control.journal.events`."""

from __future__ import annotations

from millrace.control.journal.event import Event
from millrace.protocol.messages import Failure


class TaskBroke(Event, frozen=True, tag="TaskBroke"):
    """It failed, and was released; it does not run again, and its job fails once what comes before it was read."""

    job: str
    epoch: int
    task: int
    failure: Failure


class EpochHeld(Event, frozen=True, tag="EpochHeld"):
    """A task of it failed as it was prepared; no more of it is leased until a consumer begins it."""

    job: str
    epoch: int


class StepsEnded(Event, frozen=True, tag="StepsEnded"):
    """Of ranks that are to get equally many elements of the epoch one has no more than ``steps``: all end there."""

    job: str
    epoch: int
    steps: int


class EpochCut(Event, frozen=True, tag="EpochCut"):
    """A whole pass of what is repeated without end gave nothing: the epoch has no more than its first ``tasks``."""

    job: str
    epoch: int
    tasks: int
