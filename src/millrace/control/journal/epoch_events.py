"""Events of epochs."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.state import (
    Epoch,
    State,
)
from millrace.control.state.task_state import ReaderProgress, TaskState
from millrace.planning.epoch_shape import EpochShape
from millrace.planning.progress import TaskSet


class EpochOpened(Event, EpochShape, frozen=True, tag="EpochOpened"):
    """Tasks of an epoch of this shape may be leased."""

    job: str
    epoch: int


@reduces(EpochOpened)
def _epoch_opened(state: State, event: EpochOpened) -> None:
    state.jobs[event.job].epochs[event.epoch] = Epoch.shaped(event)


class EpochResumed(Event, EpochShape, frozen=True, tag="EpochResumed"):
    """Tasks of an epoch of this shape may be leased, those aside that were read before the states were taken.

    Attributes:
        done: all tasks below were read to their end; ``later``: and those of this ``TaskSet.text()``.
        begun: (task, outputs that were read) of others.
        again: those done that run once more, unread by anybody, as their leftovers are still needed.
        freed: those not done whose leftovers have become outputs that were read.
        alone: those that give what they would leave over themselves, done or not.
        anew: a plan of its own, which divides ``pieces`` into ``tasks``, holds from now on, and not since before.
    """

    job: str
    epoch: int
    done: int = 0
    later: str = ""
    begun: list[tuple[int, int]] = []
    again: list[int] = []
    freed: list[int] = []
    alone: list[int] = []
    anew: bool = False
    tasks: int = -1


@reduces(EpochResumed)
def _epoch_resumed(state: State, event: EpochResumed) -> None:
    job = state.jobs[event.job]
    done = TaskSet.parse(event.done, event.later)
    epoch = job.epochs[event.epoch] = Epoch.shaped(event)
    epoch.low, epoch.later, epoch.done = done.low, done.bitmap(), len(done) - len(event.again)
    epoch.starts = dict(event.begun)
    epoch.freed = set(event.freed)
    epoch.alone = set(event.alone)
    epoch.anew, epoch.tasks = event.anew, event.tasks
    if job.spec.deterministic or job.spec.equal_steps:
        epoch.dealt = dict(enumerate(done.counts(job.spec.num_consumers or 1)))
    else:
        epoch.dealt[-1] = len(done)
    heir = job.slot_of(min(job.consumers, default=0))
    for task in event.again:
        epoch.live[task] = TaskState(heir, {reader: ReaderProgress(complete=True) for reader in job.audience(heir)})
        epoch.pending.setdefault(heir, set()).add(task)


class OwnersAsked(Event, frozen=True, tag="OwnersAsked"):
    """``worker`` asks the user's function which of ``workers`` runs what ("": nobody does)."""

    job: str
    epoch: int
    worker: str
    workers: list[str] = []


@reduces(OwnersAsked)
def _owners_asked(state: State, event: OwnersAsked) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.chooser = event.worker
    epoch.candidates = event.workers


class OwnersFixed(Event, frozen=True, tag="OwnersFixed"):
    """Task i belongs to ``workers[choice[i]]``, or without a choice to ``workers[i % len(workers)]``.

    With ``contiguous``, the number of all tasks, it belongs to ``workers[i * len(workers) // contiguous]``.
    """

    job: str
    epoch: int
    workers: list[str]
    choice: list[int] | None = None
    contiguous: int = 0


@reduces(OwnersFixed)
def _owners_fixed(state: State, event: OwnersFixed) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.owners = list(event.workers)
    epoch.owned = {}
    for share, owner in enumerate(event.workers):
        epoch.owned.setdefault(owner, []).append(share)
    epoch.choice = event.choice
    epoch.contiguous = event.contiguous
    epoch.chooser = ""
    epoch.candidates = []


class OwnerReplaced(Event, frozen=True, tag="OwnerReplaced"):
    """Share number ``share`` of the epoch has another owner."""

    job: str
    epoch: int
    share: int
    worker: str


@reduces(OwnerReplaced)
def _owner_replaced(state: State, event: OwnerReplaced) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    former = epoch.owned[epoch.owners[event.share]]
    former.remove(event.share)
    if not former:
        del epoch.owned[epoch.owners[event.share]]
    epoch.owners[event.share] = event.worker
    epoch.owned.setdefault(event.worker, []).append(event.share)


class EpochHeld(Event, frozen=True, tag="EpochHeld"):
    """A task of it failed as it was prepared; no more of it is leased until a consumer begins it."""

    job: str
    epoch: int


@reduces(EpochHeld)
def _epoch_held(state: State, event: EpochHeld) -> None:
    state.jobs[event.job].epochs[event.epoch].held = True


class EpochSettled(Event, frozen=True, tag="EpochSettled"):
    """All of its tasks have a slot."""

    job: str
    epoch: int


@reduces(EpochSettled, Changes.TASKS)
def _epoch_settled(state: State, event: EpochSettled) -> None:
    state.jobs[event.job].epochs[event.epoch].settled = True


class StepsEnded(Event, frozen=True, tag="StepsEnded"):
    """One of the ranks that get equally many elements of the epoch has no more than ``steps``: all end there."""

    job: str
    epoch: int
    steps: int


@reduces(StepsEnded)
def _steps_ended(state: State, event: StepsEnded) -> None:
    state.jobs[event.job].epochs[event.epoch].steps = event.steps


class EpochCut(Event, frozen=True, tag="EpochCut"):
    """A whole pass of what is repeated without end gave nothing: the epoch has no more than its first ``tasks``."""

    job: str
    epoch: int
    tasks: int


@reduces(EpochCut)
def _epoch_cut(state: State, event: EpochCut) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    epoch.tasks = event.tasks
    epoch.nothing = None
    # Where there is no end nobody counts what consumers have read; from now on they have to have what is listed here.
    epoch.shares = {
        reader: sorted(epoch.unread_by(reader, slot)) for slot in epoch.unread for reader in job.audience(slot)
    }


class EpochClosed(Event, frozen=True, tag="EpochClosed"):
    """All consumers are past it."""

    job: str
    epoch: int


@reduces(EpochClosed)
def _epoch_closed(state: State, event: EpochClosed) -> None:
    epoch = state.jobs[event.job].epochs.pop(event.epoch)
    for live in epoch.live.values():
        state.let_go(live)
