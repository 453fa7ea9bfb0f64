"""Events of workers."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.state import (
    State,
    Worker,
)


class WorkerJoined(Event, frozen=True, tag="WorkerJoined"):
    """A worker registered, or came back after its session broke (then only its address may have changed).

    ``only``: the one job that it is local to; ``buffer_bytes``: its outputs may have.
    """

    worker: str
    address: str
    host: str = ""
    pid: int = 0
    cores: int = 1
    only: str = ""
    buffer_bytes: int = 0


@reduces(WorkerJoined, Changes.SERVING)
def _worker_joined(state: State, event: WorkerJoined) -> None:
    worker = state.workers.get(event.worker)
    if worker is None:
        worker = Worker(event.worker, event.address, event.host, event.pid, event.cores, pinned_job=event.only)
        state.workers[event.worker] = worker
        state.index.invalidate(event.only)  # its job has local workers from now on, perhaps
    worker.address = event.address
    worker.buffer_bytes = event.buffer_bytes
    worker.lost_at = None


class WorkerDisconnected(Event, frozen=True, tag="WorkerDisconnected"):
    """Its session broke at ``at`` (seconds of the dispatcher's clock); it has a moment to come back."""

    worker: str
    at: float


@reduces(WorkerDisconnected, Changes.SERVING)
def _worker_disconnected(state: State, event: WorkerDisconnected) -> None:
    state.workers[event.worker].lost_at = event.at


class WorkerRetiring(Event, frozen=True, tag="WorkerRetiring"):
    """A worker wants to leave and gets no more leases. Its tasks at ``until`` (0: never) go to others."""

    worker: str
    until: float = 0.0


@reduces(WorkerRetiring, Changes.SERVING)
def _worker_retiring(state: State, event: WorkerRetiring) -> None:
    worker = state.workers[event.worker]
    worker.draining = True
    worker.until = event.until


class WorkerReleased(Event, frozen=True, tag="WorkerReleased"):
    """A leaving worker was told that nothing of it is needed any more."""

    worker: str


@reduces(WorkerReleased, Changes.SERVING)
def _worker_released(state: State, event: WorkerReleased) -> None:
    state.workers[event.worker].released = True


class WorkerLost(Event, frozen=True, tag="WorkerLost"):
    """A worker is gone; its tasks were released or dropped before."""

    worker: str
    reason: str


@reduces(WorkerLost, Changes.SERVING)
def _worker_lost(state: State, event: WorkerLost) -> None:
    del state.workers[event.worker]


class WorkerAssigned(Event, frozen=True, tag="WorkerAssigned"):
    """A worker serves this job from now on; ``reason`` is the policy's sentence."""

    worker: str
    job: str
    at: float
    reason: str


@reduces(WorkerAssigned, Changes.SERVING)
def _worker_assigned(state: State, event: WorkerAssigned) -> None:
    worker = state.workers[event.worker]
    state.turns += 1
    for name in (worker.job, event.job):
        if name in state.jobs:
            state.jobs[name].served = state.turns
            worker.served[name] = state.turns
    worker.job = event.job
    worker.reason = event.reason
    worker.turn_began = event.at
    worker.turn_leases = 0
    if event.job:
        worker.open[event.job] = None


class WorkerDismissed(Event, frozen=True, tag="WorkerDismissed"):
    """A worker was told to close the job: nothing of it is needed there any more."""

    worker: str
    job: str


@reduces(WorkerDismissed, Changes.SERVING)
def _worker_dismissed(state: State, event: WorkerDismissed) -> None:
    worker = state.workers[event.worker]
    worker.open.pop(event.job, None)
    if worker.job == event.job:
        worker.job = ""
