"""Events of consumers: readers, each the one with the number of its consumer."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.state import (
    Consumer,
    State,
    discard,
)
from millrace.protocol.messages import TaskProgress


class ConsumerJoined(Event, frozen=True, tag="ConsumerJoined"):
    """A client took a consumer's place, or came back to it.

    Attributes:
        epoch: the last one begun there, -1 for none.
        anew: whoever had the place has left; what was read then is not part of what this one is to read.
        past: the last epoch that another client had begun there, if this one goes on behind it.
    """

    job: str
    consumer: int
    client: str
    epoch: int
    host: str = ""
    pid: int = 0
    anew: bool = False
    past: int = -1


@reduces(ConsumerJoined)
def _consumer_joined(state: State, event: ConsumerJoined) -> None:
    job = state.jobs[event.job]
    before = job.consumers.get(event.consumer)
    if before is not None:
        state.clients.pop(before.client, None)
    elif event.anew:
        for epoch in job.epochs.values():
            epoch.shares.pop(event.consumer, None)
    past = max(event.past, before.past if before is not None else -1)
    job.consumers[event.consumer] = Consumer(event.client, event.host, event.pid, event.epoch, past=past)
    job.left.discard(event.consumer)
    job.kept_at = None
    state.clients[event.client] = (event.job, event.consumer)


class ConsumerDisconnected(Event, frozen=True, tag="ConsumerDisconnected"):
    """Its session broke; its place is kept for a while."""

    job: str
    consumer: int
    at: float


@reduces(ConsumerDisconnected)
def _consumer_disconnected(state: State, event: ConsumerDisconnected) -> None:
    state.jobs[event.job].consumers[event.consumer].lost_at = event.at


class ConsumerLeft(Event, frozen=True, tag="ConsumerLeft"):
    """A consumer will not come back; its tasks were dropped or moved before."""

    job: str
    consumer: int
    reason: str


@reduces(ConsumerLeft)
def _consumer_left(state: State, event: ConsumerLeft) -> None:
    job = state.jobs[event.job]
    job.left.add(event.consumer)
    consumer = job.consumers.pop(event.consumer, None)
    if consumer is not None:  # else it was never seen
        job.former[event.consumer] = (consumer.host, consumer.pid)
        state.clients.pop(consumer.client, None)


class EpochBegan(Event, frozen=True, tag="EpochBegan"):
    """A consumer reads this epoch from now on."""

    job: str
    consumer: int
    epoch: int


@reduces(EpochBegan)
def _epoch_began(state: State, event: EpochBegan) -> None:
    state.jobs[event.job].consumers[event.consumer].epoch = event.epoch


class Progressed(Event, frozen=True, tag="Progressed"):
    """A reader has so much of its tasks."""

    job: str
    consumer: int
    epoch: int
    tasks: list[TaskProgress]


@reduces(Progressed, Changes.TASKS)
def _progressed(state: State, event: Progressed) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    for progress in event.tasks:
        live = epoch.live.get(progress.task)
        if live is not None and event.consumer in live.readers:
            live.read(event.consumer, progress.received, complete=progress.complete)
            if live.complete:
                discard(epoch.unread, live.slot, progress.task)
