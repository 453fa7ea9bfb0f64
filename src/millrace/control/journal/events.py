"""What happened: the only things that change the dispatcher's state, and what its journal holds.

Each event says what became so, not what was asked; applying one looks nothing up outside the state and cannot fail.
Fields may be added with a default; a field never changes its meaning.
"""

from __future__ import annotations

from millrace.control.journal.cache_events import (
    BlocksDeleted,
    BlocksGivenUp,
    BlocksPublished,
    ModeChosen,
    PointUsed,
    PromisesKept,
    StoreCalibrated,
)
from millrace.control.journal.end_events import EpochCut, EpochHeld, StepsEnded, TaskBroke
from millrace.control.journal.event import Event
from millrace.control.journal.poison_events import BufferNeeded, PlanningDied, PoisonFound, TaskDied
from millrace.control.journal.scale_events import FleetPlanned, HomeChosen, ScaleChosen
from millrace.control.journal.share_events import ShareUnread
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.plan import Piece
from millrace.planning.split_table import TableSummary
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure, TaskProgress


class DispatcherStarted(Event, frozen=True, tag="DispatcherStarted"):
    """It began to listen at ``address``: all sessions of its life before, if there was one, have ended.

    Attributes:
        at: seconds of the dispatcher's clock, which stands still between two lives.
        until: nobody who had a session then is given up before.
        service: drawn in its first life, and the same in all of them; ``life``: drawn in this one.
    """

    address: str
    at: float
    until: float
    service: str = ""
    life: str = ""


# -- workers -----------------------------------------------------------------------------------------------------------


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


class WorkerDisconnected(Event, frozen=True, tag="WorkerDisconnected"):
    """Its session broke at ``at`` (seconds of the dispatcher's clock); it has a moment to come back."""

    worker: str
    at: float


class WorkerRetiring(Event, frozen=True, tag="WorkerRetiring"):
    """It wants to leave and gets no more leases. What it has at ``until`` (0: never) goes to others."""

    worker: str
    until: float = 0.0


class WorkerReleased(Event, frozen=True, tag="WorkerReleased"):
    """A leaving worker was told that nothing of it is needed any more."""

    worker: str


class WorkerLost(Event, frozen=True, tag="WorkerLost"):
    """It is gone; its tasks were released or dropped before."""

    worker: str
    reason: str


class WorkerAssigned(Event, frozen=True, tag="WorkerAssigned"):
    """It serves this job from now on; ``reason`` is the policy's sentence."""

    worker: str
    job: str
    at: float
    reason: str


class WorkerDismissed(Event, frozen=True, tag="WorkerDismissed"):
    """It was told to close the job: nothing of it is needed there any more."""

    worker: str
    job: str


class TurnCut(Event, frozen=True, tag="TurnCut"):
    """A job's worker was taken away in the middle of a task; the next cut comes later, so that it gets on."""

    job: str


# -- jobs and consumers ------------------------------------------------------------------------------------------------


class JobCreated(Event, frozen=True, tag="JobCreated"):
    """A job began. ``anonymous``: the service named it."""

    spec: JobSpec
    seed: int
    digest: str
    anonymous: bool
    at: float


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


class ConsumerDisconnected(Event, frozen=True, tag="ConsumerDisconnected"):
    """Its session broke; its place is kept for a while."""

    job: str
    consumer: int
    at: float


class ConsumerLeft(Event, frozen=True, tag="ConsumerLeft"):
    """It will not come back; its tasks were dropped or moved before."""

    job: str
    consumer: int
    reason: str


class JobBroke(Event, frozen=True, tag="JobBroke"):
    """The job cannot go on. Everything leased for it is void."""

    job: str
    failure: Failure


class JobKept(Event, frozen=True, tag="JobKept"):
    """Nobody reads it any more, but expected consumers that were never seen may still come.

    Attributes:
        at: seconds of the dispatcher's clock, from which on it is kept for a while.
    """

    job: str
    at: float


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


class StatesLoaded(Event, frozen=True, tag="StatesLoaded"):
    """The job goes on where these consumers were, of which there may have been another number."""

    job: str
    states: list[Checkpoint]


class ListingAsked(Event, frozen=True, tag="ListingAsked"):
    """``worker`` lists the job's sources ("": nobody does)."""

    job: str
    worker: str


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


# -- epochs and tasks --------------------------------------------------------------------------------------------------


class EpochBegan(Event, frozen=True, tag="EpochBegan"):
    """A consumer reads this epoch from now on."""

    job: str
    consumer: int
    epoch: int


class EpochOpened(Event, frozen=True, tag="EpochOpened"):
    """Tasks of this epoch may be leased.

    Attributes:
        reused: a cache point below which all is as in the first epoch.
    """

    job: str
    epoch: int
    reused: int = -1


class EpochResumed(Event, frozen=True, tag="EpochResumed"):
    """Tasks of this epoch may be leased, those aside that were read before the states were taken.

    Attributes:
        done: all tasks below were read to their end; ``later``: and those of this ``TaskSet.text()``.
        begun: (task, outputs that were read) of others.
        again: those done that run once more, unread by anybody, as their leftovers are still needed.
        freed: those not done whose leftovers have become outputs that were read.
        alone: those that give what they would leave over themselves, done or not.
        pieces: what the epoch's own plan of ``tasks`` divides, ``anew``: from now on; empty: it has the job's plan.
    """

    job: str
    epoch: int
    done: int = 0
    later: str = ""
    begun: list[tuple[int, int]] = []
    again: list[int] = []
    freed: list[int] = []
    reused: int = -1
    alone: list[int] = []
    pieces: list[Piece] = []
    anew: bool = False
    tasks: int = -1


class OwnersAsked(Event, frozen=True, tag="OwnersAsked"):
    """``worker`` asks the user's function which of ``workers`` runs what ("": nobody does)."""

    job: str
    epoch: int
    worker: str
    workers: list[str] = []


class OwnersFixed(Event, frozen=True, tag="OwnersFixed"):
    """Task i belongs to ``workers[choice[i]]``, or without a choice to ``workers[i % len(workers)]``.

    With ``contiguous``, the number of all tasks, it belongs to ``workers[i * len(workers) // contiguous]``.
    """

    job: str
    epoch: int
    workers: list[str]
    choice: list[int] | None = None
    contiguous: int = 0


class OwnerReplaced(Event, frozen=True, tag="OwnerReplaced"):
    """Share number ``share`` of the epoch has another owner."""

    job: str
    epoch: int
    share: int
    worker: str


class EpochSettled(Event, frozen=True, tag="EpochSettled"):
    """All of its tasks have a consumer."""

    job: str
    epoch: int


class EpochClosed(Event, frozen=True, tag="EpochClosed"):
    """All consumers are past it."""

    job: str
    epoch: int


class TailDealt(Event, frozen=True, tag="TailDealt"):
    """A task has its consumer before it can run: a tail, or one that nobody will read, for what it leaves over."""

    job: str
    epoch: int
    task: int
    consumer: int
    cursors: dict[str, int] = {}


class TaskLeased(Event, frozen=True, tag="TaskLeased"):
    """A worker runs a task for a consumer.

    Attributes:
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


class TaskEnded(Event, frozen=True, tag="TaskEnded"):
    """The worker ran it to its end."""

    job: str
    epoch: int
    task: int
    outputs: int
    skipped: int = 0
    leftovers: bool = False
    nothing: bool = False  # what is repeated without end gave no element in it


class TaskReleased(Event, frozen=True, tag="TaskReleased"):
    """Its lease is void, with whatever its worker kept; it waits to be leased again for the same consumer."""

    job: str
    epoch: int
    task: int
    reason: str = ""


class TaskLost(Event, frozen=True, tag="TaskLost"):
    """What its worker had not sent is not computed again, as the job chose; it is done after this.

    Attributes:
        elements: that its consumer does not have, at most; -1 if the plan cannot tell.
    """

    job: str
    epoch: int
    task: int
    elements: int = -1


class TaskMoved(Event, frozen=True, tag="TaskMoved"):
    """It belongs to another consumer from now on; it was released before.

    If it was read to its end it only runs again for its leftovers, and the other consumer has nothing to read of it.
    """

    job: str
    epoch: int
    task: int
    consumer: int


class TaskSpared(Event, frozen=True, tag="TaskSpared"):
    """Nobody will read it to its end, but its tail has begun with what it left over, and may have to begin again."""

    job: str
    epoch: int
    task: int


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


class Progressed(Event, frozen=True, tag="Progressed"):
    """What a consumer has of its tasks."""

    job: str
    consumer: int
    epoch: int
    tasks: list[TaskProgress]


AnyEvent = (
    DispatcherStarted
    | ScaleChosen
    | HomeChosen
    | FleetPlanned
    | WorkerJoined
    | WorkerDisconnected
    | WorkerRetiring
    | WorkerReleased
    | WorkerLost
    | WorkerAssigned
    | WorkerDismissed
    | TurnCut
    | JobCreated
    | ConsumerJoined
    | ConsumerDisconnected
    | ConsumerLeft
    | JobBroke
    | JobKept
    | ShareUnread
    | JobRemoved
    | StatesLoaded
    | ListingAsked
    | TableRecorded
    | ModeChosen
    | PointUsed
    | BlocksPublished
    | BlocksGivenUp
    | BlocksDeleted
    | PromisesKept
    | StoreCalibrated
    | EpochBegan
    | EpochOpened
    | EpochResumed
    | StepsEnded
    | OwnersAsked
    | OwnersFixed
    | OwnerReplaced
    | EpochHeld
    | EpochCut
    | EpochSettled
    | EpochClosed
    | TailDealt
    | TaskLeased
    | TaskEnded
    | TaskReleased
    | TaskBroke
    | TaskDied
    | TaskLost
    | PoisonFound
    | PlanningDied
    | BufferNeeded
    | TaskMoved
    | TaskSpared
    | TaskDone
    | Progressed
)
"""For decoding a journal."""
