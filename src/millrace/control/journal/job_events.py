"""Events of jobs."""

from __future__ import annotations

from typing import ClassVar

from millrace.control.journal.event import Changes, Event, JobEvent
from millrace.control.state.ended_jobs import EndedJob, FinishedJob
from millrace.control.state.state import ENDED, FINISHED, UNREAD, Job, State, UnreadShare
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.split_table import TableSummary
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure


class JobCreated(Event, frozen=True, tag="JobCreated"):
    """A job began. ``anonymous``: the service named it; ``owner``: the caller, unknown in journals of before."""

    spec: JobSpec
    seed: int
    digest: str
    anonymous: bool
    at: float
    owner: str = ""
    reads: list[str] = []
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        state.turns += 1
        name = self.spec.name
        job = Job(name, self.spec, self.seed, self.digest, self.anonymous, self.at, state.turns)
        job.generation, job.owner, job.may_read = state.turns, self.owner, list(self.reads)
        state.jobs[name] = job


class StatesLoaded(JobEvent, frozen=True, tag="StatesLoaded"):
    """The job goes on where these consumers were, of which there may have been another number."""

    states: list[Checkpoint]

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.states.update((each.rank, each) for each in self.states)
        known = len(job.states) == self.states[0].ranks
        job.first = min(each.next_epoch for each in job.states.values()) if known else None
        if job.first is not None:
            for place in job.consumers.values():
                place.epoch = max(place.epoch, job.first - 1)


class ListingAsked(JobEvent, frozen=True, tag="ListingAsked"):
    """``worker`` lists the job's sources ("": nobody does), or takes ``tables``, which another job's listing gave."""

    worker: str
    tables: str = ""

    def apply(self, state: State) -> None:
        state.jobs[self.job].lister = self.worker


class TableRecorded(JobEvent, frozen=True, tag="TableRecorded"):
    """The job's sources are known, and with them how many tasks consumers get in an epoch (None: without end).

    Attributes:
        tables: summaries of the split tables, by node id.
        digest: of the blob that holds the tables themselves.
        equal: the tasks give all consumers equally many elements.
    """

    tables: dict[int, TableSummary]
    digest: str
    length: int | None
    prints: list[str] = []
    equal: bool = False
    points: list[CachePoint] = []

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.tables = self.tables
        job.tables_digest = self.digest
        job.length = self.length
        job.prints = self.prints
        job.equal = self.equal
        job.points = self.points
        job.lister = ""


class BufferNeeded(JobEvent, frozen=True, tag="BufferNeeded"):
    """The job has an output of so many bytes, so that only workers whose buffers have as many can run it."""

    needs: int
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        state.jobs[self.job].needs = self.needs


class PlanningDied(JobEvent, frozen=True, tag="PlanningDied"):
    """The worker that listed the job's sources, or asked its sharding function, is gone."""

    def apply(self, state: State) -> None:
        state.jobs[self.job].planning_deaths += 1


class TurnCut(JobEvent, frozen=True, tag="TurnCut"):
    """A job's worker was taken away in the middle of a task; the next cut comes later, so that it gets on."""

    def apply(self, state: State) -> None:
        state.jobs[self.job].cuts += 1


class ShareUnread(JobEvent, frozen=True, tag="ShareUnread"):
    """Nobody will read this, and it is said."""

    share: UnreadShare

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.unread = [*job.unread, self.share][-UNREAD:]


class JobBroke(JobEvent, frozen=True, tag="JobBroke"):
    """The job cannot go on. Everything leased for it is void."""

    failure: Failure
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        job.failure = self.failure
        job.lister = ""
        job.epochs = {}
        _forget_job(state, self.job)


class JobKept(JobEvent, frozen=True, tag="JobKept"):
    """Nobody reads it any more, but expected consumers that were never seen may still come, or others to its window.

    Attributes:
        at: seconds of the dispatcher's clock, from which on it is kept for a while.
    """

    at: float

    def apply(self, state: State) -> None:
        state.jobs[self.job].kept_at = self.at


class JobRemoved(JobEvent, frozen=True, tag="JobRemoved"):
    """Nobody reads it any more.

    Attributes:
        at: seconds of the dispatcher's clock; negative in journals of before, which say nothing of it.
        absent: how many of the expected consumers were never seen.
        summary: what is worth knowing of it; journals of before have none.
    """

    reason: str
    at: float = -1.0
    absent: int = 0
    summary: FinishedJob | None = None
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        job = state.jobs.pop(self.job)
        state.ended.pop(self.job, None)
        if self.at >= 0 and not job.anonymous:
            there = {index: (place.host, place.pid) for index, place in job.consumers.items()}
            readers = {**job.former, **there}
            state.ended[self.job] = EndedJob(self.at, self.reason, job.spec.num_consumers, readers, self.absent)
            if len(state.ended) > ENDED:
                del state.ended[next(iter(state.ended))]
        if self.summary is not None:
            state.finished = [*state.finished, self.summary][-FINISHED:]
        for consumer in job.consumers.values():
            state.clients.pop(consumer.client, None)
        for worker in state.workers.values():
            worker.served.pop(self.job, None)
        _forget_job(state, self.job)


def _forget_job(state: State, name: str) -> None:
    for worker in state.workers.values():
        for held in (worker.unfinished, worker.kept):
            for lease in [lease for lease, key in held.items() if key[0] == name]:
                del held[lease]
                state.caches.lease_ended(lease)
