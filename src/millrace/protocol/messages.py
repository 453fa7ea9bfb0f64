"""Messages of workers and consumers to the dispatcher, and its messages to them.

Every message is a tagged struct; new fields are optional, unknown ones ignored: an older peer can be understood.
A session (one bidirectional stream) carries them; when it breaks, the peer says hello again with what it holds.

    worker                                   dispatcher                                  consumer
      | WorkerHello ------------------------->  |                                            |
      | <------------------------ WorkerWelcome |  <--------------------------------- JoinJob |
      | <------------- OpenJob, ListSources     |  JobJoined ------------------------------> |
      | SourcesListed ----------------------->  |  <------------------------------ BeginEpoch |
      | <--------------- LeaseTask (per task)   |  EpochBegun, ReadTasks ------------------> |
      | TaskFinished ------------------------>  |  <-------------------------- ConsumerReport |
      | <------------ ForgetTasks, RevokeTask   |  EpochEnds ------------------------------> |

Elements go from workers to consumers directly, see :mod:`millrace.protocol.data_messages`.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint, Part, TasksRead
from millrace.planning.epoch_shape import EpochShape, RunShape
from millrace.planning.plan import Piece
from millrace.planning.split_table import TableSummary
from millrace.protocol.cache_messages import CacheUse, CacheUsed, StoreMeasured
from millrace.protocol.cache_server_messages import OfCaches
from millrace.protocol.crash_sites import CrashSite, Poison
from millrace.protocol.group_messages import Audience, DropLeftovers, TasksGone
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.message import Message
from millrace.protocol.reports import Flow, LaneReport, NodeMeasure, Pace, Told
from millrace.protocol.sampler_messages import SamplersDrew
from millrace.protocol.task_ref import TaskRef as TaskRef  # noqa: PLC0414  # it is a part of this module
from millrace.protocol.weight_messages import SetWeights, WeightsSet

PROTOCOL = 8
"""Raised when a message changes in a way that an older peer would misread, or a task's output would be another one:
processes of one service have equal protocols, whatever versions of millrace they are."""


class Failure(msgspec.Struct, frozen=True, omit_defaults=True):
    """An error on its way to a consumer: class name in :mod:`millrace.errors`, and what that class holds.

    Attributes:
        needs: bytes of buffer of a worker where it would not happen; 0: it would anywhere.
    """

    kind: str
    message: str
    operator: str = ""
    where: str = ""
    user_traceback: str = ""
    needs: int = 0


# -- worker to dispatcher ----------------------------------------------------------------------------------------------


class HeldTask(msgspec.Struct, frozen=True, array_like=True):
    """A lease that a worker holds when it says hello (again); of its end as in :class:`TaskFinished`."""

    ref: TaskRef
    lease: int
    consumer: int
    finished: bool = False
    outputs: int = 0
    leftovers: bool = False
    nothing: bool = False
    left_out: int = 0


class WorkerHello(Message, frozen=True, tag="WorkerHello"):
    """First message of a worker's session. ``worker`` is chosen by the worker once per process life."""

    worker: str
    address: str  # host:port of its delivery server
    host: str = ""
    pid: int = 0
    cores: int = 1
    version: str = ""
    python: str = ""
    held: list[HeldTask] = []
    only: str = ""  # the one job that it serves, on the host of a consumer of it, which started it; empty: any
    buffer_bytes: int = 0  # for outputs that wait to be read: no output may be larger
    told: Told = Told()
    asks_caches: bool = False  # it asks cache servers, if it hears of any (:class:`CacheServersKnown`)
    zone: str = ""  # that it is in: it asks the cache servers there, if there are any; empty: in none
    life: str = ""  # drawn as its process began: containers begin anew with the same host and number of the process


class WorkerReport(Message, frozen=True, tag="WorkerReport"):
    """Heartbeat. An observation: never journalled."""

    want: int = 2
    """Leases that the worker wants to hold that are not finished (about two seconds of work, at least two)."""
    job: str = ""
    lanes: list[LaneReport] = []
    nodes: list[NodeMeasure] = []
    busy_s: float = 0.0
    """Seconds since the worker started in which at least one lane computed."""
    cpu_s: float = 0.0
    """Seconds of processor time of its process so far, of each core that it may keep busy."""
    cores: int = 0  # that it may keep busy; 0: it has not said
    cpu_quota: float = 0.0  # cores' worth of processor time that its control groups allow; 0: as many as there are
    delayed_s: float = 0.0  # seconds for which its threads, those that live, could have run and had no core
    listing: str = ""
    """The job whose sources it lists, of which it has looked at ``listed`` files so far; empty: none."""
    listed: int = 0
    memory_bytes: int = 0  # that its process holds; 0: it has not said


class TaskFinished(Message, frozen=True, tag="TaskFinished"):
    """The task ran to its end: all outputs are in the worker's buffer or were received."""

    ref: TaskRef
    lease: int
    outputs: int
    skipped: int = 0  # elements that ``on_error`` left out
    leftovers: bool = False
    """The worker keeps elements for the task's parent until it is told to forget them."""
    passed: list[int] = []
    """By node, elements that each operator gave in this run."""
    nothing: bool = False  # what is repeated without end gave no element in this run
    left_out: int = 0  # elements at the end of the epoch that filled no round of a coordinated job


class ProbeReport(Message, frozen=True, tag="TaskAt"):
    """Site of a run that is to say where it is, also in words. It goes on once ProbeAck, of the same number, came.

    No ``place``: it waits, and does nothing that could end the process.
    """

    ref: TaskRef
    lease: int
    number: int
    place: CrashSite = ()
    where: str = ""


class TaskFailed(Message, frozen=True, tag="TaskFailed"):
    """The task can't run, here or elsewhere; but for a worker whose buffer is as large as the failure says."""

    ref: TaskRef
    lease: int
    failure: Failure


class LeftoversLost(Message, frozen=True, tag="LeftoversLost"):
    """A tail could not get the leftovers of ``missing`` from the worker that held them; the tail goes back too."""

    ref: TaskRef
    lease: int
    missing: list[int]


class TaskReturned(Message, frozen=True, tag="TaskReturned"):
    """The worker gave a lease back: as asked, because it leaves, or because what a reader asks for is gone."""

    ref: TaskRef
    lease: int


class SourcesListed(Message, frozen=True, tag="SourcesListed"):
    """Answer to ListSources: a summary of the split table of every source, by node id."""

    job: str
    tables: dict[int, TableSummary]
    prints: list[str] = []
    """What identifies them, from :func:`millrace.planning.checkpoint.prints`."""
    points: list[CachePoint] = []
    digest: str = ""
    """Of the tables themselves, packed, which the dispatcher was given before as a blob."""
    generation: int | None = None
    """Of the job that was listed, as another may have got its name meanwhile."""


class SourcesFailed(Message, frozen=True, tag="SourcesFailed"):
    """Answer to ListSources or ChooseSharding: the data can't be listed, or the user's code can't be opened or run."""

    job: str
    failure: Failure
    generation: int = -1  # of the job: another one of its name may have begun; -1: an older worker does not say


class JobUnsendable(Message, frozen=True, tag="JobUnsendable"):
    """A message of the worker about the job cannot be sent, as it is too large, say: the job cannot go on."""

    job: str
    failure: Failure


class ShardingChosen(Message, frozen=True, tag="ShardingChosen"):
    """Answer to ChooseSharding: for each task the index of a worker in the list that was sent."""

    job: str
    epoch: int
    owners: list[int]


class WorkerLeaving(Message, frozen=True, tag="WorkerLeaving"):
    """The worker wants to go: no more leases, please. It ends its session when nothing of it is needed any more."""

    within_s: float = 0.0
    """Seconds after which it goes in any case; 0: it has not said."""


# -- dispatcher to worker ----------------------------------------------------------------------------------------------


class WorkerWelcome(Message, frozen=True, tag="WorkerWelcome"):
    """Registered. ``stale``: held leases that have become somebody else's or nobody's; to be dropped."""

    heartbeat_s: float
    stale: list[int] = []
    cache: str = ""
    """Where the service keeps its blocks, compressed in this way; empty: nowhere."""
    compression: Literal["lz4", "zstd"] | None = None
    told: Told = Told()


class OpenJob(Message, frozen=True, tag="OpenJob"):
    """All that is needed to run tasks of a job; comes before its first lease, and again with ``tables`` once known."""

    job: str
    spec: JobSpec
    seed: int
    tables: str = ""  # digest of the encoded split tables, to be fetched like a bundle; empty until listed
    generation: int = 0
    """Tells jobs of one name apart; consumers of another are not served."""
    key: bytes = b""
    """Of the job: whoever connects has to know it, or one that follows from it. The dispatcher's shell puts it in."""
    source_key: bytes = b""  # of the job's tenant, for cache servers; likewise


class ListSources(Message, frozen=True, tag="ListSources"):
    """Planning task: list the job's sources; ``tables``: digest of those of a job that has just listed the same."""

    job: str
    tables: str = ""


class ChooseSharding(Message, frozen=True, tag="ChooseSharding"):
    """Planning task: ask the user's sharding function who runs what."""

    job: str
    epoch: int
    tasks: int
    workers: list[str]


class LeaseTask(Message, RunShape, frozen=True, tag="LeaseTask"):
    """Run this task, of an epoch of this shape, for this consumer. ``lease`` tells attempts apart."""

    ref: TaskRef
    lease: int
    consumer: int
    received: int = 0
    """Outputs that the consumer has; the run skips them. -1: all of them, only the leftovers are wanted."""
    holders: list[tuple[int, str]] = []
    """For a tail: (task, address of the worker that keeps its leftovers)."""
    run: int = -1
    """The plan's task to run, which an epoch without sharding (OFF) delivers any number of times; -1: ``ref.task``."""
    flush: bool = False  # what is left at the end although the task has a parent: no tail will run (OFF)
    again: bool = False  # it was leased before; the last output that the consumer has is kept too, to be compared
    probe_level: int = msgspec.field(default=0, name="care")
    """Workers that ended with it, up to 2. 1: say when it begins; 2: before each element, and run it alone."""
    poison: list[Poison] = []  # not to be touched, and to count as what a function failed on
    cache: CacheUse | None = None
    measure: bool = False  # report what operators did as soon as it has ended
    parts: list[Piece] = []  # what to run instead of the plan's task: the epoch was dealt anew
    readers: list[int] = []  # who lacks something of it; empty: all that read the slot, or as ``received`` says


class RevokeTask(Message, frozen=True, tag="RevokeTask"):
    """Give the lease back (TaskReturned) at once, whatever has been computed; outputs not received are dropped."""

    ref: TaskRef
    lease: int


class ProbeAck(Message, frozen=True, tag="TaskGoOn"):
    """Answer to ProbeReport: it is known where the run is."""

    ref: TaskRef
    lease: int
    number: int


class ForgetTasks(Message, frozen=True, tag="ForgetTasks"):
    """Buffers and leftovers of these tasks are no longer needed."""

    refs: list[TaskRef]


class OutputsReceived(Message, frozen=True, tag="OutputsReceived"):
    """Nobody lacks outputs of these tasks, which another run gave perhaps; what they leave over is still wanted."""

    refs: list[TaskRef]
    readers: list[int] = []  # only these consumers lack none, others of those that read the tasks still may; empty: all


class CloseJob(Message, frozen=True, tag="CloseJob"):
    """The job is over, or the worker no longer serves it: drop all that belongs to it."""

    job: str


class StopWorker(Message, frozen=True, tag="StopWorker"):
    """Leave in good order and end the process."""

    reason: str


# -- consumer to dispatcher --------------------------------------------------------------------------------------------


class JoinJob(Message, frozen=True, tag="JoinJob"):
    """First message of a consumer's session: creates the job or joins it. ``client`` is unique per iterator."""

    spec: JobSpec
    client: str
    consumer: int | None = None  # None: the lowest index that is free
    version: str = ""
    host: str = ""
    pid: int = 0
    resume: bool = False  # the session broke and this is the same iterator again
    generation: int = 0  # if so, that of the job it had joined
    states: list[Checkpoint] = []  # where to go on: its own, or those of all ranks; the job begins anew with them
    age_s: float = -1.0  # seconds since its process was started, or refused by this job; negative: unknown
    lingers: bool = False  # who read in its place before left it to this one, and had read what it wanted
    told: Told = Told()  # if it resumes


class BeginEpoch(Message, frozen=True, tag="BeginEpoch"):
    """The consumer starts an epoch (None: the one after its last); what it had not read of others is dropped."""

    epoch: int | None = None


class TaskProgress(msgspec.Struct, frozen=True, array_like=True):
    """Outputs of a task that a consumer holds or has used."""

    task: int
    received: int
    complete: bool = False


class ConsumerReport(Message, frozen=True, tag="ConsumerReport"):
    """Heartbeat, and progress. ``tasks`` lists those that moved since the last report."""

    epoch: int
    tasks: list[TaskProgress] = []
    batches: int = 0
    """Elements handed to the user since the epoch began."""
    batch_time_s: float = 0.0
    """Mean over the last 100 elements of the time from one to the next, the user's work included."""
    wait_s: float = 0.0
    """Of which waiting for this service."""
    queue_elements: float = 0.0  # mean number of elements lying ready over the last 100 elements
    reruns: int = 0
    """Tasks, over all epochs, that were run again after a part was here, and compared with that part."""
    differed: int = 0  # of which gave something else
    impure: str = ""  # what is to be said about the first of these
    arrived: int = 0
    """Elements of the epoch that are here or were handed out; with ``all_here`` there will be no others."""
    all_here: bool = False
    left_out: int = 0  # elements, over all epochs, that were not used as other consumers had no more
    pace: Pace = Pace()
    """How the epoch was read so far."""
    came: tuple[Flow, Flow] = (Flow(), Flow())
    """From local workers, and from those of the service, since the session began."""
    waits: bool = False  # its user has come for elements, and there are none
    ended: bool = False  # the reader of the epoch was told that there is no more: it reads nothing that comes later
    missed: int = 0  # elements of the epoch that a shared window did not keep until they could be sent here


class LeaveJob(Message, frozen=True, tag="LeaveJob"):
    """The consumer will not come back: its iterator was closed."""

    unused: int = 0  # elements of the epoch that it has begun last that it had received, and not handed out


# -- dispatcher to consumer --------------------------------------------------------------------------------------------


class JobJoined(Message, frozen=True, tag="JobJoined"):
    """The job's name (drawn by the service if none was given), this consumer's index, the seed in force."""

    job: str
    consumer: int
    seed: int
    heartbeat_s: float
    epoch: int = -1  # the last that was begun at this place; -1 for none
    generation: int = 0
    waits: bool = False  # the states of other ranks are awaited; Resumed will say which epoch comes next
    states: str = ""  # name of those that the job goes on from, for the first at its place: they are loaded already
    told: Told = Told()
    newest: int = -1  # of a group, the last epoch that a member has begun
    late: bool = False  # who comes now is too late for that one, which others still read
    key: bytes = b""  # by which workers know this consumer; the dispatcher's shell puts it in


class Resumed(Message, frozen=True, tag="Resumed"):
    """All ranks have said their states; ``epoch`` is the one that their job goes on with."""

    epoch: int


class EpochBegun(Message, EpochShape, frozen=True, tag="EpochBegun"):
    """The epoch's number, its shape and how many tasks the whole job has in it (None: without end).

    ``held``: no element is to be used before StepsReady allows it. ``elements``: of a whole epoch; -1: unknown.
    """

    epoch: int
    tasks: int | None
    sources: list[str] = []  # what identifies the data, for states
    held: bool = False
    anew: bool = False
    """It is dealt anew what states left: nothing of these tasks was read."""
    parts: list[Part] = []  # outputs of which a part was handed out before, behind distribute(): for who gets them
    elements: int = -1
    turn: int = 0  # of coordinated jobs: the slot whose round comes next, as the reader's own state says
    read: TasksRead = TasksRead()  # likewise: what the reader has read before, that it will not be told of


class StepsReady(Message, frozen=True, tag="StepsReady"):
    """Every consumer has so many elements of the epoch; with ``last`` one of them gets no more than these.

    ``unread``, with ``last``: as in :class:`EpochEnds`, which comes only to those whose share is settled.
    ``awaited``: others wait for what a task of the reader's leaves over; of this one it is to take in a message more.
    """

    epoch: int
    steps: int
    last: bool = False
    unread: str = ""
    awaited: int = -1


class TaskRead(msgspec.Struct, frozen=True, array_like=True):
    """Where a task can be read, ``local``: at a local worker. A later one for the same task replaces it.

    Outputs before ``start`` are not this consumer's: another one had them and is gone, or a state says that they were
    read.
    """

    task: int
    lease: int
    worker: str
    address: str
    start: int = 0
    local: bool = False


class ReadTasks(Message, frozen=True, tag="ReadTasks"):
    """Tasks that are now leased for this consumer."""

    epoch: int
    reads: list[TaskRead]
    alone: list[int] = []
    """Of these, and of those that leave something to these, the ones that give it themselves instead; for states."""


class EpochEnds(Message, frozen=True, tag="EpochEnds"):
    """The consumer's share of the epoch is settled: these tasks and no others (some may still be computed)."""

    epoch: int
    tasks: list[int]
    unread: str = ""  # what of the whole epoch nobody reads, in sentences; for the user, at the epoch's end
    members: int = 0  # jobs that share the computation; 0: it is not to be shared
    past: bool = False  # others were further as the consumer came to the epoch: nobody says how much it had


class JobFailed(Message, frozen=True, tag="JobFailed"):
    """The job is over because of this; or for this consumer alone, if it was ``detached`` from those that share it."""

    failure: Failure
    detached: bool = False


class Notice(Message, frozen=True, tag="Notice"):
    """Something the user should know; shown once as a warning."""

    text: str


_OfTasks = TaskFinished | ProbeReport | TaskFailed | LeftoversLost | TaskReturned | SamplersDrew
_OfPlanning = SourcesListed | SourcesFailed | ShardingChosen | JobUnsendable
FromWorker = WorkerHello | WorkerReport | _OfTasks | _OfPlanning | CacheUsed | StoreMeasured | WorkerLeaving
_ToPlan = OpenJob | Audience | CloseJob | ListSources | ChooseSharding
_ToRun = LeaseTask | RevokeTask | ProbeAck | ForgetTasks | OutputsReceived | DropLeftovers
ToWorker = WorkerWelcome | _ToPlan | _ToRun | OfCaches | StopWorker | JobFailed
FromConsumer = JoinJob | BeginEpoch | ConsumerReport | SetWeights | LeaveJob
_OfEpochs = Resumed | EpochBegun | StepsReady | ReadTasks | TasksGone | WeightsSet | EpochEnds
ToConsumer = JobJoined | _OfEpochs | JobFailed | Notice
