"""Events of jobs."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.state import (
    ENDED,
    UNREAD,
    EndedJob,
    Job,
    State,
    UnreadShare,
)
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.split_table import TableSummary
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure


class JobCreated(Event, frozen=True, tag="JobCreated"):
    """A job began. ``anonymous``: the service named it."""

    spec: JobSpec
    seed: int
    digest: str
    anonymous: bool
    at: float


@reduces(JobCreated, Changes.SERVING)
def _job_created(state: State, event: JobCreated) -> None:
    state.turns += 1
    name = event.spec.name
    state.jobs[name] = Job(
        name, event.spec, event.seed, event.digest, event.anonymous, event.at, state.turns, generation=state.turns
    )


class StatesLoaded(Event, frozen=True, tag="StatesLoaded"):
    """The job goes on where these consumers were, of which there may have been another number."""

    job: str
    states: list[Checkpoint]


@reduces(StatesLoaded)
def _states_loaded(state: State, event: StatesLoaded) -> None:
    job = state.jobs[event.job]
    job.states.update((each.rank, each) for each in event.states)
    known = len(job.states) == event.states[0].ranks
    job.first = min(each.next_epoch for each in job.states.values()) if known else None
    if job.first is not None:
        for place in job.consumers.values():
            place.epoch = max(place.epoch, job.first - 1)


class ListingAsked(Event, frozen=True, tag="ListingAsked"):
    """``worker`` lists the job's sources ("": nobody does)."""

    job: str
    worker: str


@reduces(ListingAsked)
def _listing_asked(state: State, event: ListingAsked) -> None:
    state.jobs[event.job].lister = event.worker


class TableRecorded(Event, frozen=True, tag="TableRecorded"):
    """The job's sources are known, and with them how many tasks consumers get in an epoch (None: without end).

    Attributes:
        tables: summaries of the split tables, by node id.
        digest: of the blob that holds the tables themselves.
        equal: the tasks give all consumers equally many elements.
    """

    job: str
    tables: dict[int, TableSummary]
    digest: str
    length: int | None
    prints: list[str] = []
    equal: bool = False
    points: list[CachePoint] = []


@reduces(TableRecorded)
def _table_recorded(state: State, event: TableRecorded) -> None:
    job = state.jobs[event.job]
    job.tables = event.tables
    job.tables_digest = event.digest
    job.length = event.length
    job.prints = event.prints
    job.equal = event.equal
    job.points = event.points
    job.lister = ""


class BufferNeeded(Event, frozen=True, tag="BufferNeeded"):
    """The job has an output of so many bytes, so that only workers whose buffers have as many can run it."""

    job: str
    needs: int


@reduces(BufferNeeded, Changes.SERVING)
def _buffer_needed(state: State, event: BufferNeeded) -> None:
    state.jobs[event.job].needs = event.needs


class PlanningDied(Event, frozen=True, tag="PlanningDied"):
    """The worker that listed the job's sources, or asked its sharding function, is gone."""

    job: str


@reduces(PlanningDied)
def _planning_died(state: State, event: PlanningDied) -> None:
    state.jobs[event.job].planning_deaths += 1


class TurnCut(Event, frozen=True, tag="TurnCut"):
    """A job's worker was taken away in the middle of a task; the next cut comes later, so that it gets on."""

    job: str


@reduces(TurnCut)
def _turn_cut(state: State, event: TurnCut) -> None:
    state.jobs[event.job].cuts += 1


class ShareUnread(Event, frozen=True, tag="ShareUnread"):
    """Nobody will read this, and it is said."""

    job: str
    share: UnreadShare


@reduces(ShareUnread)
def _share_unread(state: State, event: ShareUnread) -> None:
    job = state.jobs[event.job]
    job.unread = [*job.unread, event.share][-UNREAD:]


class JobBroke(Event, frozen=True, tag="JobBroke"):
    """The job cannot go on. Everything leased for it is void."""

    job: str
    failure: Failure


@reduces(JobBroke, Changes.SERVING)
def _job_broke(state: State, event: JobBroke) -> None:
    job = state.jobs[event.job]
    job.failure = event.failure
    job.lister = ""
    job.epochs = {}
    _forget_job(state, event.job)


class JobKept(Event, frozen=True, tag="JobKept"):
    """Nobody reads it any more, but expected consumers that were never seen may still come.

    Attributes:
        at: seconds of the dispatcher's clock, from which on it is kept for a while.
    """

    job: str
    at: float


@reduces(JobKept)
def _job_kept(state: State, event: JobKept) -> None:
    state.jobs[event.job].kept_at = event.at


class JobRemoved(Event, frozen=True, tag="JobRemoved"):
    """Nobody reads it any more.

    Attributes:
        at: seconds of the dispatcher's clock; negative in journals of before, which say nothing of it.
        absent: how many of the expected consumers were never seen.
    """

    job: str
    reason: str
    at: float = -1.0
    absent: int = 0


@reduces(JobRemoved, Changes.SERVING)
def _job_removed(state: State, event: JobRemoved) -> None:
    job = state.jobs.pop(event.job)
    state.ended.pop(event.job, None)
    if event.at >= 0 and not job.anonymous:
        there = {index: (place.host, place.pid) for index, place in job.consumers.items()}
        readers = {**job.former, **there}
        state.ended[event.job] = EndedJob(event.at, event.reason, job.spec.num_consumers, readers, event.absent)
        if len(state.ended) > ENDED:
            del state.ended[next(iter(state.ended))]
    for consumer in job.consumers.values():
        state.clients.pop(consumer.client, None)
    for worker in state.workers.values():
        worker.served.pop(event.job, None)
    _forget_job(state, event.job)


def _forget_job(state: State, name: str) -> None:
    for worker in state.workers.values():
        for held in (worker.unfinished, worker.kept):
            for lease in [lease for lease, key in held.items() if key[0] == name]:
                del held[lease]
                state.caches.lease_ended(lease)
