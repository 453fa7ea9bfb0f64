"""Events of tasks."""

from __future__ import annotations

from collections.abc import Collection
from typing import ClassVar

from millrace.control.journal.event import Changes, TaskEvent
from millrace.control.state.cache_state import Reservation
from millrace.control.state.state import PROBE_EACH, Epoch, Job, State, discard
from millrace.control.state.task_state import Failed, Finished, ReaderProgress, Running, TaskState, Waiting
from millrace.protocol.crash_sites import CrashSite, Poison
from millrace.protocol.messages import Failure


class TailDealt(TaskEvent, frozen=True, tag="TailDealt"):
    """A task has its slot before it can run: a tail, or one that nobody will read, for what it leaves over.

    Attributes:
        consumer: the slot.
        skips: readers that skip it, as their members are behind.
    """

    consumer: int
    cursors: dict[str, int] = {}
    skips: list[int] = []
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        epoch.cursors.update(self.cursors)
        _deal(job, self.epoch, self.task, self.consumer, skips=self.skips)
        epoch.pending.setdefault(self.consumer, set()).add(self.task)


class TaskLeased(TaskEvent, frozen=True, tag="TaskLeased"):
    """A worker runs a task for a slot.

    Attributes:
        consumer: the slot.
        run: the plan's task, where that differs from ``task``; else -1.
        fresh: leased for the first time in this epoch.
        cursors: positions reached by this in the epoch's walks, by walk.
        place: of the cache point that it uses, if any; it may add ``room`` bytes there, and read what is ``also`` kept
            of the point elsewhere.
        alone: its tail has begun without it: what it would leave over it gives itself.
        skips: as in :class:`TailDealt`, if it is ``fresh``.
    """

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
    skips: list[int] = []
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        if self.place:
            state.caches.reservations[self.lease] = Reservation(self.place, self.room, also=self.also)
        epoch = job.epochs[self.epoch]
        state.next_lease = max(state.next_lease, self.lease + 1)
        epoch.cursors.update(self.cursors)
        if self.fresh:
            _deal(job, self.epoch, self.task, self.consumer, self.run, self.skips)
        else:
            discard(epoch.pending, self.consumer, self.task)
        live = epoch.live[self.task]
        live.phase = Running(self.worker, self.lease)
        live.alone = live.alone or self.alone
        worker = state.workers[self.worker]
        worker.unfinished[self.lease] = (self.job, self.epoch, self.task)
        worker.turn_leases += 1
        state.index.hands_changed(worker)


class TaskEnded(TaskEvent, frozen=True, tag="TaskEnded"):
    """The worker ran it to its end.

    Attributes:
        outputs: that it has.
        skipped: elements that ``on_error`` left out.
        leftovers: the worker keeps something for its tail.
        nothing: what is repeated without end gave no element in it.
        left_out: elements that filled no round.
        freed: tasks of which it took what they left over, which nobody needs any more.
    """

    outputs: int
    skipped: int = 0
    leftovers: bool = False
    nothing: bool = False
    left_out: int = 0
    freed: list[int] = []
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        live = epoch.live[self.task]
        live.phase = Finished(live.worker, live.lease, self.leftovers)
        if not self.nothing:
            epoch.nothing = None
        elif epoch.nothing is not None:
            epoch.nothing.add(self.task if live.run < 0 else live.run)
        epoch.skipped += self.skipped
        job.skipped += self.skipped
        if self.left_out:
            epoch.left_out[self.task] = self.left_out
        if (job.windowed or job.skipping) and job.tasks_of(epoch) is not None:
            epoch.outputs[self.task] = self.outputs
        for skipped in epoch.skips.values():
            if self.task in skipped:
                skipped[self.task] = self.outputs
        for task in self.freed:
            epoch.live[task].freed = True
        worker = state.workers[live.worker]
        worker.kept[live.lease] = worker.unfinished.pop(live.lease)
        state.index.hands_changed(worker)
        state.caches.lease_ended(live.lease)


class EndToldLate(TaskEvent, frozen=True, tag="EndToldLate"):
    """A worker has said what it left out of a task when its readers had read all of it, and it was over.

    Attributes:
        skipped: elements that ``on_error`` left out.
        left_out: elements that filled no round.
    """

    skipped: int = 0
    left_out: int = 0
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs.get(self.epoch)
        job.skipped += self.skipped
        if epoch is None:
            job.left_out += self.left_out
            return
        epoch.skipped += self.skipped
        if self.left_out:
            epoch.left_out[self.task] = self.left_out


class TaskReleased(TaskEvent, frozen=True, tag="TaskReleased"):
    """Its lease is void, with whatever its worker kept; it waits to be leased again for the same slot.

    Attributes:
        needs: if it is a tail of a window that had ended, the tasks whose leftovers it takes once more.
    """

    reason: str = ""
    needs: list[int] = []
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        live = epoch.live[self.task]
        for task in self.needs:
            if task in epoch.live:
                epoch.live[task].freed = False
        state.let_go(live)
        live.phase = Waiting(live.lease)
        epoch.failures.pop(self.task, None)
        epoch.pending.setdefault(live.slot, set()).add(self.task)


class TaskBroke(TaskEvent, frozen=True, tag="TaskBroke"):
    """A task failed, and was released; it does not run again, and its job fails once what comes before it was read."""

    failure: Failure

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        live = epoch.live[self.task]
        live.phase = Failed(live.lease)
        epoch.failures[self.task] = self.failure


class TaskDied(TaskEvent, frozen=True, tag="TaskDied"):
    """The worker that ran it is gone, perhaps because of it; the task was or will be released.

    Attributes:
        place: where the run was, if it ran with crash isolation.
        where: in words.
    """

    place: CrashSite = ()
    where: str = ""

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        epoch.suspected.add(self.task)
        live = epoch.live[self.task]
        live.deaths += 1
        live.at = self.place


class PoisonFound(TaskEvent, frozen=True, tag="PoisonFound"):
    """Two workers that isolated a task's crashes ended at the same place: no other is to come to it.

    Attributes:
        everywhere: it is the same element in every epoch; else it is one of this task.
    """

    poison: Poison
    everywhere: bool

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        live = job.epochs[self.epoch].live[self.task]
        live.at = ()
        live.deaths = PROBE_EACH  # the others were not this element's, or are explained by it
        job.poisoned += 1
        (job.poison if self.everywhere else live.poison).append(self.poison)


class TaskLost(TaskEvent, frozen=True, tag="TaskLost"):
    """The rest of a task is not computed again, as the job chose, since its worker is gone; it is done after this.

    Attributes:
        elements: that its readers do not have, at most; -1 if the plan cannot tell.
    """

    elements: int = -1

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.lost += 1
        job.lost_elements += max(self.elements, 0)


class TaskMoved(TaskEvent, frozen=True, tag="TaskMoved"):
    """A task belongs to another slot from now on; it was released before.

    If it was read to its end it only runs again for its leftovers, and the other slot has nothing to read of it.

    Attributes:
        consumer: the other slot.
    """

    consumer: int

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        live = epoch.live[self.task]
        for index in (epoch.pending,) if live.complete else (epoch.pending, epoch.unread):
            discard(index, live.slot, self.task)
            index.setdefault(self.consumer, set()).add(self.task)
        audience = job.audience(self.consumer)
        _take_from_shares(job, epoch, self.task)
        live.read_by(self.consumer, audience)
        if not live.complete:
            _add_to_shares(job, epoch, self.task)
        if live.received:
            epoch.starts[self.task] = live.received


class TaskSpared(TaskEvent, frozen=True, tag="TaskSpared"):
    """Nobody will read it to its end, but its tail has begun with what it left over, and may have to begin again."""

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        live = epoch.live[self.task]
        _take_from_shares(job, epoch, self.task)
        for reader in live.readers:
            live.read(reader, 0, complete=True)
        discard(epoch.unread, live.slot, self.task)
        epoch.dropped += 1


class TaskForgone(TaskEvent, frozen=True, tag="TaskForgone"):
    """One of several readers of a task will not read it to its end; the others do, or have.

    Attributes:
        consumer: the reader.
    """

    consumer: int
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        live = epoch.live[self.task]
        if job.tasks_of(epoch) is not None:
            epoch.shares[self.consumer].remove(self.task)
        live.read(self.consumer, 0, complete=True)
        if live.complete:
            discard(epoch.unread, live.slot, self.task)


class TaskDone(TaskEvent, frozen=True, tag="TaskDone"):
    """Nobody needs anything of it any more.

    Attributes:
        dropped: it wasn't read to its end.
        parent: the tail that can do without it now, -1 for none.
        inputs: what it took leftovers from, if it was a tail; these aren't needed any more either.
    """

    dropped: bool = False
    parent: int = -1
    inputs: list[int] = []
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        epoch = job.epochs[self.epoch]
        if self.dropped:
            epoch.dropped += 1
        if self.dropped or job.windowed:
            _take_from_shares(job, epoch, self.task)
        live = epoch.live.pop(self.task)
        if job.windowed and job.tasks_of(epoch) is not None:
            epoch.outputs.setdefault(self.task, live.outputs)
        elif job.skipping and job.tasks_of(epoch) is not None:
            epoch.outputs.setdefault(self.task, -1)
        state.let_go(live)
        discard(epoch.pending, live.slot, self.task)
        discard(epoch.unread, live.slot, self.task)
        epoch.suspected.discard(self.task)
        epoch.done += 1
        epoch.fed.pop(self.task, None)
        epoch.without.pop(self.task, None)
        epoch.starts.pop(self.task, None)
        epoch.failures.pop(self.task, None)
        if self.parent >= 0:
            epoch.fed[self.parent] = epoch.fed.get(self.parent, 0) + 1
            tail = epoch.live.get(self.parent)
            if live.alone or (self.dropped and (tail is None or not tail.lease)):
                epoch.without.setdefault(self.parent, []).append(self.task)
        for task in self.inputs:
            if task in epoch.live:
                epoch.live[task].freed = True


def _deal(job: Job, number: int, task: int, slot: int, run: int = -1, skips: Collection[int] = ()) -> None:
    epoch = job.epochs[number]
    start = epoch.starts.get(task, 0)
    readers = {reader: ReaderProgress(start, start) for reader in job.audience(slot)}
    if job.windowed:
        readers = {reader: each for reader, each in readers.items() if job.reads(reader, number)}
    if job.spec.coordinated or job.spec.sharing:
        for reader, progress in readers.items():
            own = epoch.own.get(reader, {}).get(task, start)
            progress.complete = own < 0 or not job.reads(reader, number)
            progress.start = progress.received = max(own, start)
            if reader in skips and not progress.complete:
                progress.complete = True
                epoch.skips.setdefault(reader, {})[task] = -1
    epoch.live[task] = TaskState(
        slot,
        readers,
        run=run,
        freed=task in epoch.freed,
        alone=task in epoch.alone,
        by_any=job.windowed,
    )
    epoch.freed.discard(task)
    epoch.dealt[slot] = epoch.dealt.get(slot, 0) + 1
    epoch.note_unread(task)
    _add_to_shares(job, epoch, task)


def _add_to_shares(job: Job, epoch: Epoch, task: int) -> None:
    if job.tasks_of(epoch) is not None:
        for reader, progress in epoch.live[task].readers.items():
            if not progress.complete:
                epoch.shares.setdefault(reader, []).append(task)


def _take_from_shares(job: Job, epoch: Epoch, task: int) -> None:
    """Take a task out of the shares of those readers that have not read it to its end."""
    if job.tasks_of(epoch) is not None:
        for reader, progress in epoch.live[task].readers.items():
            if not progress.complete:
                epoch.shares[reader].remove(task)
