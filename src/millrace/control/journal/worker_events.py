"""Events of workers."""

from __future__ import annotations

from typing import ClassVar

from millrace.control.journal.event import Changes, Event
from millrace.control.state.state import State, Worker

_CLOSED = 16
"""So many of the jobs that a worker was told to close are remembered."""


class WorkerJoined(Event, frozen=True, tag="WorkerJoined"):
    """A worker registered, or came back after its session broke (then only its address may have changed).

    ``only``: the one job that it is local to; ``buffer_bytes``: its outputs may have; ``life``: of its process.
    """

    worker: str
    address: str
    host: str = ""
    pid: int = 0
    cores: int = 1
    only: str = ""
    buffer_bytes: int = 0
    life: str = ""
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        worker = state.workers.get(self.worker)
        if worker is None:
            worker = Worker(self.worker, self.address, self.host, self.pid, self.cores, pinned_job=self.only)
            state.workers[self.worker] = worker
            state.index.invalidate(self.only)  # its job has local workers from now on, perhaps
        worker.address = self.address
        worker.buffer_bytes, worker.life = self.buffer_bytes, self.life
        worker.lost_at = None


class WorkerDisconnected(Event, frozen=True, tag="WorkerDisconnected"):
    """Its session broke at ``at`` (seconds of the dispatcher's clock); it has a moment to come back."""

    worker: str
    at: float
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        state.workers[self.worker].lost_at = self.at


class WorkerRetiring(Event, frozen=True, tag="WorkerRetiring"):
    """A worker wants to leave and gets no more leases. Its tasks at ``until`` (0: never) go to others."""

    worker: str
    until: float = 0.0
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        worker = state.workers[self.worker]
        worker.draining = True
        worker.until = self.until


class WorkerReleased(Event, frozen=True, tag="WorkerReleased"):
    """A leaving worker was told that nothing of it is needed any more."""

    worker: str
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        state.workers[self.worker].released = True


class WorkerLost(Event, frozen=True, tag="WorkerLost"):
    """A worker is gone; its tasks were released or dropped before."""

    worker: str
    reason: str
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        del state.workers[self.worker]


class WorkerAssigned(Event, frozen=True, tag="WorkerAssigned"):
    """A worker serves this job from now on; ``reason`` is the policy's sentence."""

    worker: str
    job: str
    at: float
    reason: str
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        worker = state.workers[self.worker]
        state.turns += 1
        for name in (worker.job, self.job):
            if name in state.jobs:
                state.jobs[name].served = state.turns
                worker.served[name] = state.turns
        worker.job = self.job
        worker.reason = self.reason
        worker.turn_began = self.at
        worker.turn_leases = 0
        if self.job:
            worker.open[self.job] = None


class WorkerDismissed(Event, frozen=True, tag="WorkerDismissed"):
    """A worker was told to close the job: nothing of it is needed there any more."""

    worker: str
    job: str
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        worker = state.workers[self.worker]
        worker.open.pop(self.job, None)
        worker.closed = [*worker.closed, self.job][-_CLOSED:]
        if worker.job == self.job:
            worker.job = ""
