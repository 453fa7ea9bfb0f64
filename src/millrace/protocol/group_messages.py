"""Messages about groups of jobs that share one computation; a part of :mod:`millrace.protocol.messages`."""

from __future__ import annotations

from millrace.protocol.message import Message
from millrace.protocol.task_ref import TaskRef


class Audience(Message, frozen=True, tag="Audience"):
    """Members of a group, of which all read all of its tasks: by the index of each, the first epoch that it reads.

    Who is in it no more has left: what it alone lacked is to be let go of. To workers.
    """

    job: str
    members: dict[int, int]


class TasksGone(Message, frozen=True, tag="TasksGone"):
    """Tasks of an epoch of which nothing is kept: by task how many outputs it had, -1 where nobody knows.

    To members that share a window and read the epoch: they have what they have of these tasks, and missed the rest.
    """

    epoch: int
    outputs: dict[int, int]


class DropLeftovers(Message, frozen=True, tag="DropLeftovers"):
    """The tail has what these tasks left over; their outputs stay in the window. To workers."""

    refs: list[TaskRef]
