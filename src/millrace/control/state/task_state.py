"""The state of a task: where it is in its life, what its reader has of it, and whether its tail needs it.

A task that has a consumer and is not over yet is in one of four phases::

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

What the reader has received is beside that: a task may be read to its end in any phase. So is its tail: whether it
can do without the task's leftovers.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from millrace.protocol.crash_sites import Place, Poison


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
    """What the reader of a task has of it.

    Attributes:
        consumer: index of the reader.
        received: number of outputs that it has, as last reported.
        complete: these are all, or it will never read the others.
    """

    consumer: int
    received: int = 0
    complete: bool = False


class TaskState:
    """A task of which something is still needed.

    Attributes:
        phase: where it is in its life.
        delivery: what its reader has of it.
        run: number of the plan's task, if that is another (no sharding); else -1.
        freed: nobody needs its leftovers: its tail is over, or it has none.
        alone: its tail has begun without it, so that it leaves nothing over.
        deaths: number of workers that ended while they had it; from ``CARE`` on it runs with crash isolation.
        at: where the last of these runs with crash isolation ended.
        poison: elements of it that no worker may touch any more.
    """

    __slots__ = ("alone", "at", "deaths", "delivery", "freed", "phase", "poison", "run")

    def __init__(
        self,
        delivery: ReaderProgress,
        phase: Phase = Waiting(),  # noqa: B008  # frozen
        *,
        run: int = -1,
        freed: bool = False,
        alone: bool = False,
        deaths: int = 0,
        at: Place = (),
        poison: list[Poison] | None = None,
    ) -> None:
        self.delivery = delivery
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
    def finished(self) -> bool:
        """It ran to its end, and its worker is still there."""
        return type(self.phase) is Finished


def _values(task: TaskState) -> dict[str, Any]:
    return {name: getattr(task, name) for name in TaskState.__slots__}
