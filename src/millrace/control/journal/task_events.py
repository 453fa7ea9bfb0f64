"""Events of tasks."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.cache_state import Reservation
from millrace.control.state.state import (
    PROBE_EACH,
    Epoch,
    Job,
    State,
    discard,
)
from millrace.control.state.task_state import Failed, Finished, ReaderProgress, Running, TaskState, Waiting
from millrace.protocol.crash_sites import CrashSite, Poison
from millrace.protocol.messages import Failure


class TailDealt(Event, frozen=True, tag="TailDealt"):
    """A task has its slot before it can run: a tail, or one that nobody will read, for what it leaves over.

    Attributes:
        consumer: the slot.
    """

    job: str
    epoch: int
    task: int
    consumer: int
    cursors: dict[str, int] = {}


@reduces(TailDealt, Changes.TASKS)
def _tail_dealt(state: State, event: TailDealt) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    epoch.cursors.update(event.cursors)
    _deal(job, epoch, event.task, event.consumer)
    epoch.pending.setdefault(event.consumer, set()).add(event.task)


class TaskLeased(Event, frozen=True, tag="TaskLeased"):
    """A worker runs a task for a slot.

    Attributes:
        consumer: the slot.
        run: the plan's task, where that differs from ``task``; else -1.
        fresh: leased for the first time in this epoch.
        cursors: positions reached by this in the epoch's walks, by walk.
        place: of the cache point that it uses, if any; it may add ``room`` bytes there, and read what is ``also`` kept
            of the point elsewhere.
        alone: its tail has begun without it: what it would leave over it gives itself.
    """

    job: str
    epoch: int
    task: int
    lease: int
    worker: str
    consumer: int
    run: int = -1
    fresh: bool = False
    cursors: dict[str, int] = {}
    place: str = ""
    room: int = 0
    alone: bool = False
    also: list[str] = []


@reduces(TaskLeased, Changes.TASKS)
def _task_leased(state: State, event: TaskLeased) -> None:
    job = state.jobs[event.job]
    if event.place:
        state.caches.reservations[event.lease] = Reservation(event.place, event.room, also=event.also)
    epoch = job.epochs[event.epoch]
    state.next_lease = max(state.next_lease, event.lease + 1)
    epoch.cursors.update(event.cursors)
    if event.fresh:
        _deal(job, epoch, event.task, event.consumer, event.run)
    else:
        discard(epoch.pending, event.consumer, event.task)
    live = epoch.live[event.task]
    live.phase = Running(event.worker, event.lease)
    live.alone = live.alone or event.alone
    worker = state.workers[event.worker]
    worker.unfinished[event.lease] = (event.job, event.epoch, event.task)
    worker.turn_leases += 1
    state.index.hands_changed(worker)


class TaskEnded(Event, frozen=True, tag="TaskEnded"):
    """The worker ran it to its end."""

    job: str
    epoch: int
    task: int
    outputs: int
    skipped: int = 0
    leftovers: bool = False
    nothing: bool = False  # what is repeated without end gave no element in it


@reduces(TaskEnded, Changes.TASKS)
def _task_ended(state: State, event: TaskEnded) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live[event.task]
    live.phase = Finished(live.worker, live.lease, event.leftovers)
    if not event.nothing:
        epoch.nothing = None
    elif epoch.nothing is not None:
        epoch.nothing.add(event.task if live.run < 0 else live.run)
    epoch.skipped += event.skipped
    job.skipped += event.skipped
    worker = state.workers[live.worker]
    worker.kept[live.lease] = worker.unfinished.pop(live.lease)
    state.index.hands_changed(worker)
    state.caches.lease_ended(live.lease)


class TaskReleased(Event, frozen=True, tag="TaskReleased"):
    """Its lease is void, with whatever its worker kept; it waits to be leased again for the same slot."""

    job: str
    epoch: int
    task: int
    reason: str = ""


@reduces(TaskReleased, Changes.TASKS)
def _task_released(state: State, event: TaskReleased) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    live = epoch.live[event.task]
    state.let_go(live)
    live.phase = Waiting(live.lease)
    epoch.failures.pop(event.task, None)
    epoch.pending.setdefault(live.slot, set()).add(event.task)


class TaskBroke(Event, frozen=True, tag="TaskBroke"):
    """A task failed, and was released; it does not run again, and its job fails once what comes before it was read."""

    job: str
    epoch: int
    task: int
    failure: Failure


@reduces(TaskBroke)
def _task_broke(state: State, event: TaskBroke) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    live = epoch.live[event.task]
    live.phase = Failed(live.lease)
    epoch.failures[event.task] = event.failure


class TaskDied(Event, frozen=True, tag="TaskDied"):
    """The worker that ran it is gone, perhaps because of it; the task was or will be released.

    Attributes:
        place: where the run was, if it ran with care.
        where: in words.
    """

    job: str
    epoch: int
    task: int
    place: CrashSite = ()
    where: str = ""


@reduces(TaskDied)
def _task_died(state: State, event: TaskDied) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.suspected.add(event.task)
    live = epoch.live[event.task]
    live.deaths += 1
    live.at = event.place


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


@reduces(PoisonFound)
def _poison_found(state: State, event: PoisonFound) -> None:
    job = state.jobs[event.job]
    live = job.epochs[event.epoch].live[event.task]
    live.at = ()
    live.deaths = PROBE_EACH  # the others were not this element's, or are explained by it
    job.poisoned += 1
    (job.poison if event.everywhere else live.poison).append(event.poison)


class TaskLost(Event, frozen=True, tag="TaskLost"):
    """The rest of a task is not computed again, as the job chose, since its worker is gone; it is done after this.

    Attributes:
        elements: that its readers do not have, at most; -1 if the plan cannot tell.
    """

    job: str
    epoch: int
    task: int
    elements: int = -1


@reduces(TaskLost)
def _task_lost(state: State, event: TaskLost) -> None:
    job = state.jobs[event.job]
    job.lost += 1
    job.lost_elements += max(event.elements, 0)


class TaskMoved(Event, frozen=True, tag="TaskMoved"):
    """A task belongs to another slot from now on; it was released before.

    If it was read to its end it only runs again for its leftovers, and the other slot has nothing to read of it.

    Attributes:
        consumer: the other slot.
    """

    job: str
    epoch: int
    task: int
    consumer: int


@reduces(TaskMoved)
def _task_moved(state: State, event: TaskMoved) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live[event.task]
    for index in (epoch.pending,) if live.complete else (epoch.pending, epoch.unread):
        discard(index, live.slot, event.task)
        index.setdefault(event.consumer, set()).add(event.task)
    audience = job.audience(event.consumer)
    _take_from_shares(job, epoch, event.task)
    live.read_by(event.consumer, audience)
    if not live.complete:
        _add_to_shares(job, epoch, event.task)
    if live.received:
        epoch.starts[event.task] = live.received


class TaskSpared(Event, frozen=True, tag="TaskSpared"):
    """Nobody will read it to its end, but its tail has begun with what it left over, and may have to begin again."""

    job: str
    epoch: int
    task: int


@reduces(TaskSpared)
def _task_spared(state: State, event: TaskSpared) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live[event.task]
    _take_from_shares(job, epoch, event.task)
    for reader in live.readers:
        live.read(reader, 0, complete=True)
    discard(epoch.unread, live.slot, event.task)
    epoch.dropped += 1


class TaskDone(Event, frozen=True, tag="TaskDone"):
    """Nobody needs anything of it any more.

    Attributes:
        dropped: it wasn't read to its end.
        parent: the tail that can do without it now, -1 for none.
        inputs: what it took leftovers from, if it was a tail; these aren't needed any more either.
    """

    job: str
    epoch: int
    task: int
    dropped: bool = False
    parent: int = -1
    inputs: list[int] = []


@reduces(TaskDone, Changes.TASKS)
def _task_done(state: State, event: TaskDone) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    if event.dropped:
        epoch.dropped += 1
        _take_from_shares(job, epoch, event.task)
    live = epoch.live.pop(event.task)
    state.let_go(live)
    discard(epoch.pending, live.slot, event.task)
    discard(epoch.unread, live.slot, event.task)
    epoch.suspected.discard(event.task)
    epoch.done += 1
    epoch.fed.pop(event.task, None)
    epoch.without.pop(event.task, None)
    epoch.starts.pop(event.task, None)
    epoch.failures.pop(event.task, None)
    if event.parent >= 0:
        epoch.fed[event.parent] = epoch.fed.get(event.parent, 0) + 1
        tail = epoch.live.get(event.parent)
        if live.alone or (event.dropped and (tail is None or not tail.lease)):
            epoch.without.setdefault(event.parent, []).append(event.task)
    for task in event.inputs:
        if task in epoch.live:
            epoch.live[task].freed = True


def _deal(job: Job, epoch: Epoch, task: int, slot: int, run: int = -1) -> None:
    start = epoch.starts.get(task, 0)
    epoch.live[task] = TaskState(
        slot,
        {reader: ReaderProgress(start, start) for reader in job.audience(slot)},
        run=run,
        freed=task in epoch.freed,
        alone=task in epoch.alone,
    )
    epoch.freed.discard(task)
    epoch.dealt[slot] = epoch.dealt.get(slot, 0) + 1
    epoch.unread.setdefault(slot, set()).add(task)
    _add_to_shares(job, epoch, task)


def _add_to_shares(job: Job, epoch: Epoch, task: int) -> None:
    if job.tasks_of(epoch) is not None:
        for reader in epoch.live[task].readers:
            epoch.shares.setdefault(reader, []).append(task)


def _take_from_shares(job: Job, epoch: Epoch, task: int) -> None:
    """Take a task out of the shares of those readers that have not read it to its end."""
    if job.tasks_of(epoch) is not None:
        for reader, progress in epoch.live[task].readers.items():
            if not progress.complete:
                epoch.shares[reader].remove(task)
