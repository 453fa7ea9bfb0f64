"""Events of consumers: readers, each the one with the number of its consumer."""

from __future__ import annotations

from typing import ClassVar

from millrace.control.journal.event import Changes, JobEvent
from millrace.control.state.state import Consumer, Epoch, Job, State, discard
from millrace.control.state.task_state import ReaderProgress
from millrace.protocol.messages import TaskProgress


class ConsumerJoined(JobEvent, frozen=True, tag="ConsumerJoined"):
    """A client took a consumer's place, or came back to it.

    Attributes:
        epoch: the last one begun there, -1 for none.
        anew: whoever had the place has left; what was read then is not part of what this one is to read.
        past: the last epoch that another client had begun there, if this one goes on behind it.
        lingers: the place is left to another process after each epoch, as the workers of a DataLoader do.
        member: where jobs share, the name that this one has; else empty. It joined ``since`` then, and reads the epochs
            after ``past``.
    """

    consumer: int
    client: str
    epoch: int
    host: str = ""
    pid: int = 0
    anew: bool = False
    past: int = -1
    lingers: bool = False
    member: str = ""
    since: float = 0.0

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        before = job.consumers.get(self.consumer)
        if before is not None:
            state.clients.pop(before.client, None)
        elif self.anew and not job.spec.coordinated:
            for epoch in job.epochs.values():
                epoch.shares.pop(self.consumer, None)
        past = max(self.past, before.past if before is not None else -1)
        job.consumers[self.consumer] = Consumer(
            self.client,
            self.host,
            self.pid,
            self.epoch,
            past=past,
            lingers=self.lingers,
            member=self.member,
            since=self.since,
        )
        if job.spec.sharing and before is None:
            _add_reader(job, self.consumer)
        job.left.discard(self.consumer)
        job.kept_at = None
        state.clients[self.client] = (self.job, self.consumer)


class ConsumerDisconnected(JobEvent, frozen=True, tag="ConsumerDisconnected"):
    """Its session broke; its place is kept for a while."""

    consumer: int
    at: float

    def apply(self, state: State) -> None:
        state.jobs[self.job].consumers[self.consumer].lost_at = self.at


class ConsumerLeft(JobEvent, frozen=True, tag="ConsumerLeft"):
    """A consumer will not come back; its tasks were dropped or moved before."""

    consumer: int
    reason: str

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.left.add(self.consumer)
        consumer = job.consumers.pop(self.consumer, None)
        if consumer is not None:  # else it was never seen
            job.former[self.consumer] = (consumer.host, consumer.pid)
            state.clients.pop(consumer.client, None)
        if job.spec.sharing and (job.consumers or job.windowed):
            for epoch in job.epochs.values():
                epoch.shares.pop(self.consumer, None)
                epoch.skips.pop(self.consumer, None)
                for task, live in epoch.live.items():
                    if job.windowed and job.tasks_of(epoch) is not None and live.outputs >= 0:
                        epoch.outputs.setdefault(task, live.outputs)  # this one may be all that knows it
                    live.leave(self.consumer)
                    epoch.note_unread(task)


class EpochBegan(JobEvent, frozen=True, tag="EpochBegan"):
    """A consumer reads this epoch from now on."""

    consumer: int
    epoch: int

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.consumers[self.consumer].epoch = self.epoch
        if self.epoch in job.epochs:
            job.epochs[self.epoch].ahead = False
        if job.windowed:
            job.reached = max(job.reached, self.epoch)


class Progressed(JobEvent, frozen=True, tag="Progressed"):
    """A reader has so much of its tasks."""

    consumer: int
    epoch: int
    tasks: list[TaskProgress]
    changes: ClassVar = Changes.TASKS

    def apply(self, state: State) -> None:
        epoch = state.jobs[self.job].epochs[self.epoch]
        for progress in self.tasks:
            live = epoch.live.get(progress.task)
            if live is not None and self.consumer in live.readers:
                live.read(self.consumer, progress.received, complete=progress.complete)
                if live.complete:
                    discard(epoch.unread, live.slot, progress.task)


def _read_in_turn(job: Job, epoch: Epoch, task: int) -> None:
    """Give a task that all had read, and that another slot ran again for its leftovers, to the slot that reads it."""
    live, slot = epoch.live[task], task % job.stride
    if epoch.starts.pop(task, None) is not None:
        for progress in live.readers.values():
            progress.start = 0
    if job.spec.coordinated and slot != live.slot:
        if task in epoch.pending.get(live.slot, ()):
            discard(epoch.pending, live.slot, task)
            epoch.pending.setdefault(slot, set()).add(task)
        live.slot = slot


def _add_reader(job: Job, reader: int) -> None:
    """Have a member that has come read what is live of its epochs, and of others nothing."""
    for number, epoch in job.epochs.items():
        reads = job.reads(reader, number)
        if reads and job.skipping and epoch.done:
            _skip_begun(epoch, reader)
            continue
        for task, live in epoch.live.items():
            if reads or not job.windowed:
                had = 0 if reads else epoch.starts.get(task, 0)
                live.join(reader, ReaderProgress(had, had, complete=not reads))
                if reads:
                    _read_in_turn(job, epoch, task)
                epoch.note_unread(task)
        if reads and job.tasks_of(epoch) is not None:
            epoch.shares[reader] = list(epoch.live)


def _skip_begun(epoch: Epoch, reader: int) -> None:
    """Have a member that shares rounds skip what workers had as it came, and read the rest of the epoch."""
    for task, live in epoch.live.items():
        begun = live.lease > 0 or live.complete
        live.join(reader, ReaderProgress(complete=begun))
        if begun:
            epoch.skips.setdefault(reader, {})[task] = epoch.outputs.get(task, -1)
        else:
            epoch.shares.setdefault(reader, []).append(task)
        epoch.note_unread(task)
