"""What happened to workers because of what they ran; more of :mod:`millrace.control.journal.events`."""

from __future__ import annotations

from millrace.control.journal.event import Event
from millrace.protocol.crash_sites import Place, Poison


class TaskDied(Event, frozen=True, tag="TaskDied"):
    """The worker that ran it is gone, perhaps because of it; the task was or will be released.

    Attributes:
        place: where the run was, if it ran with care.
        where: in words.
    """

    job: str
    epoch: int
    task: int
    place: Place = ()
    where: str = ""


class PoisonFound(Event, frozen=True, tag="PoisonFound"):
    """Two workers that ran a task with care ended at the same place: no other is to come to it.

    Attributes:
        everywhere: it is the same element in every epoch; else it is one of this task.
    """

    job: str
    epoch: int
    task: int
    poison: Poison
    everywhere: bool


class PlanningDied(Event, frozen=True, tag="PlanningDied"):
    """The worker that listed the job's sources, or asked its sharding function, is gone."""

    job: str


class BufferNeeded(Event, frozen=True, tag="BufferNeeded"):
    """The job has an output of so many bytes, so that only workers whose buffers have as many can run it."""

    job: str
    needs: int
