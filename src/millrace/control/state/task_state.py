"""State of a task: where it is in its life, what its readers have of it, and whether its tail needs it.

A task that has a slot and is not over yet is in one of four phases::

                        TaskLeased              TaskEnded
    TailDealt --> Waiting --------> Running ---------------> Finished
                  ^  ^ |  ^            |                        |
                  |  | |  +------------+------TaskReleased------+
     TaskReleased |  | | TaskBroke
                  |  | v
                  +-Failed            from any phase: TaskDone --> over, and forgotten

A task of which nothing was dealt before comes to life as ``Running`` by a fresh ``TaskLeased``. A resumed epoch begins
with the tasks that run again for their leftovers as ``Waiting``. ``TRANSITIONS`` of
:mod:`millrace.control.journal.state_validation` is the same table, which is held against each event where states are
checked.

A task belongs to a slot, which leases and fair dealing look at, and is read by the slot's audience. What each reader
has received is beside the phase: a task may be read to its end in any. So is whether its tail can do without its
leftovers.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import msgspec

from millrace.protocol.crash_sites import CrashSite, Poison


class Waiting(msgspec.Struct, frozen=True):
    """No worker has the task; one of them is to run it.

    Attributes:
        lease: the last one under which a worker had it; 0: none ever had.
    """

    lease: int = 0
    worker: ClassVar[str] = ""
    leftovers: ClassVar[bool] = False


class Failed(msgspec.Struct, frozen=True):
    """No worker has the task, and none runs it again: ``Epoch.failures`` says why.

    Attributes:
        lease: the one under which it failed.
    """

    lease: int
    worker: ClassVar[str] = ""
    leftovers: ClassVar[bool] = False


class Running(msgspec.Struct, frozen=True):
    """A worker holds the lease of the task, and has not ended it.

    Attributes:
        worker: its id.
        lease: number of the lease.
    """

    worker: str
    lease: int
    leftovers: ClassVar[bool] = False


class Finished(msgspec.Struct, frozen=True):
    """The task ran to its end; its worker keeps outputs for the reader, or leftovers for the tail.

    Attributes:
        worker: its id.
        lease: number of the lease under which it ran.
        leftovers: the tail is to get something of the task.
    """

    worker: str
    lease: int
    leftovers: bool


Phase = Waiting | Failed | Running | Finished


class ReaderProgress(msgspec.Struct):
    """Progress of one reader of a task.

    Attributes:
        start: number of its first output: others had those before and are gone, or a state says that they were read.
        received: number of outputs that it has, as last reported, those before ``start`` included.
        complete: these are all, or it will never read the others.
    """

    start: int = 0
    received: int = 0
    complete: bool = False


class TaskState:
    """A task of which something is still needed.

    Attributes:
        slot: what it is leased for.
        readers: what each reader of the slot's audience has of it, by the reader's index.
        by_any: one reader that has all of it is enough, as in windows.
        complete: every reader has all that it will ever read, or one has if that is enough.
        phase: where it is in its life.
        run: number of the plan's task, if that is another (no sharding); else -1.
        freed: nobody needs its leftovers: its tail is over, or it has none.
        alone: its tail has begun without it, so that it leaves nothing over.
        deaths: number of workers that ended while they had it; from ``PROBE_EACH`` on it runs with crash isolation.
        at: where the last of these runs with crash isolation ended.
        poison: elements of it that no worker may touch any more.
    """

    __slots__ = ("alone", "at", "by_any", "complete", "deaths", "freed", "phase", "poison", "readers", "run", "slot")

    def __init__(
        self,
        slot: int,
        readers: dict[int, ReaderProgress],
        phase: Phase = Waiting(),  # noqa: B008  # frozen
        *,
        run: int = -1,
        freed: bool = False,
        alone: bool = False,
        deaths: int = 0,
        at: CrashSite = (),
        poison: list[Poison] | None = None,
        by_any: bool = False,
    ) -> None:
        self.slot = slot
        self.readers = readers
        self.by_any = by_any
        self.complete = self.is_read()
        self.phase = phase
        self.run = run
        self.freed = freed
        self.alone = alone
        self.deaths = deaths
        self.at = at
        self.poison = [] if poison is None else poison

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskState) and _values(self) == _values(other)

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"TaskState({', '.join(f'{name}={value!r}' for name, value in _values(self).items())})"

    @property
    def worker(self) -> str:
        """Id of the worker that runs or keeps it; empty if none does."""
        return self.phase.worker

    @property
    def lease(self) -> int:
        """Number of its last lease; 0: it never had one."""
        return self.phase.lease

    @property
    def received(self) -> int:
        """Number of outputs that every reader has that is to have them, so that nobody needs them again."""
        lacking = [progress.received for progress in self.readers.values() if not progress.complete]
        return min(lacking or [progress.received for progress in self.readers.values()], default=0)

    @property
    def outputs(self) -> int:
        """Number of all its outputs in a window, as a reader says that has them; -1: none has."""
        return max((progress.received for progress in self.readers.values() if progress.complete), default=-1)

    def is_read(self) -> bool:
        """Work out whether it is complete."""
        return (any if self.by_any else all)(progress.complete for progress in self.readers.values())

    def read(self, reader: int, received: int, *, complete: bool) -> None:
        """Note what one of the readers has."""
        progress = self.readers[reader]
        progress.received = max(progress.received, received)
        if complete:
            progress.complete = True
            self.complete = self.is_read()

    def join(self, reader: int, progress: ReaderProgress) -> None:
        """Add a reader, which has so much of it."""
        self.readers[reader] = progress
        self.complete = self.is_read()

    def leave(self, reader: int) -> None:
        """Remove a reader that has gone."""
        self.readers.pop(reader, None)
        self.complete = self.is_read()

    def read_by(self, slot: int, audience: Iterable[int]) -> None:
        """Give it to another slot, whose readers begin behind what every reader so far has."""
        received, complete = self.received, self.complete
        self.slot = slot
        self.readers = {reader: ReaderProgress(received, received, complete) for reader in audience}

    @property
    def finished(self) -> bool:
        """Whether it ran to its end, and its worker is still there."""
        return type(self.phase) is Finished


def _values(task: TaskState) -> dict[str, Any]:
    return {name: getattr(task, name) for name in TaskState.__slots__}
