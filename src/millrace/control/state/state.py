"""State of the dispatcher: what it knows, and what follows from events alone.

Plain structs. Events alone change them (:mod:`millrace.control.journal.replay`); decisions read them freely.
Everything here follows from the events, so that replaying a journal gives an equal state; plans are derived, and cached
beside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from millrace.control.state.cache_state import CacheMode, Caches
from millrace.control.state.ended_jobs import EndedJob, FinishedJob
from millrace.control.state.index import StateIndex
from millrace.control.state.plans import PlanLike, Planner
from millrace.control.state.scaling_state import FleetPlan, Home, Scaling
from millrace.control.state.settings import Settings
from millrace.control.state.task_state import TaskState
from millrace.graph.serialize import unpack
from millrace.planning.cache_point import CachePoint
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.epoch_shape import EpochShape, WeightChange
from millrace.planning.plan import Piece, make_plan
from millrace.planning.split_table import TableSummary
from millrace.protocol.crash_sites import Poison
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import Failure
from millrace.protocol.source_cache_messages import name_of_data

UNREAD = 64
"""Parts of epochs that nobody reads that are remembered of a job."""
ENDED = 256
"""Jobs that are over and remembered, the last ones."""
FINISHED = 20
"""Summaries of jobs that are over, the last ones."""
PROBE_EACH = 2
"""Level of crash isolation of a task that so many workers ended with: it says before each element where it is."""


def discard(index: dict[int, set[int]], slot: int, task: int) -> None:
    """Take a task out of an index of tasks by slot, which has no empty sets."""
    tasks = index.get(slot)
    if tasks is not None:
        tasks.discard(task)
        if not tasks:
            del index[slot]


class Worker(msgspec.Struct):
    """A registered worker.

    Attributes:
        job: the job it serves, since ``turn_began``, with ``turn_leases`` given since; ``reason`` says why that one.
        draining: it wants to leave, until ``until`` at the latest (0: whenever); ``released``: it was told that it can.
        lost_at: when its session broke; None while there is one.
        unfinished: by lease, the (job, epoch, task) that it runs.
        kept: the same of tasks that it has finished and still holds outputs or leftovers of.
        open: jobs that it was told of and not yet told to close; ``closed``: the last ones that it was told to close,
            of whose runs it may still tell.
        served: by job, the number of the turn in which it began or ended to serve it.
        pinned_job: the one job that it may serve: it is local to that, started by a consumer and not the
            service's; empty: it is the service's.
        buffer_bytes: that its outputs may have.
        life: of its process; another one of this name, even with its number, has another; empty: it has not said.
    """

    id: str
    address: str
    host: str
    pid: int
    cores: int
    job: str = ""
    reason: str = ""
    turn_began: float = 0.0
    turn_leases: int = 0
    draining: bool = msgspec.field(default=False, name="retiring")
    until: float = 0.0
    released: bool = False
    lost_at: float | None = None
    unfinished: dict[int, tuple[str, int, int]] = {}
    kept: dict[int, tuple[str, int, int]] = {}
    open: dict[str, None] = {}
    closed: list[str] = []
    served: dict[str, int] = {}
    pinned_job: str = msgspec.field(default="", name="only")
    buffer_bytes: int = 0
    life: str = ""


class Consumer(msgspec.Struct):
    """A place among a job's readers.

    Attributes:
        epoch: the last one begun, -1: none; ``past``: by a process before it.
        lingers: the place is left to another process after each epoch.
        member: where jobs share, the name that this one has; else empty. It joined ``since`` then.
    """

    client: str
    host: str
    pid: int
    epoch: int
    lost_at: float | None = None
    past: int = -1
    lingers: bool = False
    member: str = ""
    since: float = 0.0


class Epoch(msgspec.Struct):
    """One epoch of a job.

    Attributes:
        cursors: how far each walk over the tasks has come; see :mod:`millrace.control.tasks.task_queue`.
        live: tasks that have a slot and aren't done.
        pending: by slot, its live tasks without a worker.
        unread: by slot, its live tasks that not all of its readers have read to the end.
        dealt: by slot, how many tasks became its.
        fed: by tail, how many of its inputs are done and leave it nothing.
        shares: by reader, all tasks it ever got in this epoch (left empty where the plan is endless).
        starts: by task that is not over, how many outputs readers received that had it before and are gone, or were
            read before the epoch was resumed.
        done: tasks that are over, ``dropped`` those of them that nobody read to the end.
        outputs: where a window is shared, by task that has ended its number of outputs; -1: it was lost before that.
        skips: where rounds are shared in a window, by reader the outputs of each task that it skips; -1: not known yet.
        settled: every task has its slot.
        held: preparing it failed: it waits until somebody reads it.
        suspected: live tasks that workers ended with.
        owners: for sharding by worker, share -> worker; ``choice``: task -> share where the user's function says so.
        contiguous: number of all tasks, where shares are runs of tasks that follow one another; else 0.
        owned: by worker, its shares.
        low: of a resumed epoch: all tasks below were read before, and
        later: by task from there on a bit, set if it was.
        own: by reader, and by task, as ``starts`` where readers had read unequally much before the epoch was resumed;
            -1: all of it.
        left_out: by task that ended, elements that filled no round.
        drawn: hashes of what users' own samplers drew for it, as its workers said.
        freed: tasks of which the leftovers are not needed, until they are dealt.
        alone: tasks that leave nothing over, says what the epoch was resumed from: their tails have begun without them.
        why: it is read in so many chunks.
        reused: as in :class:`EpochShape`, and ``chunks``, ``reweighted``, and ``pieces``, if its plan is not the job's;
            ``anew``: since a load.
        asked: by client that has set weights, the number of its last question and the element of its answer.
        ahead: it was prepared, and no consumer has begun it.
        tasks: of its own plan, or up to where it was cut; -1: it has the job's.
        failures: why live tasks failed that wait until their consumers have come to them; they don't run again.
        nothing: the plan's tasks that ended, as long as what is repeated without end gave nothing in any; else None.
        steps: after which all ranks end, that are to get equally many elements; -1: not known yet.
        without: by tail that is not over, inputs that are, and left it nothing as they were dropped or ran alone.
        chooser: the worker that was asked to choose, among ``candidates``.
    """

    cursors: dict[str, int] = {}
    live: dict[int, TaskState] = {}
    pending: dict[int, set[int]] = {}
    unread: dict[int, set[int]] = {}
    dealt: dict[int, int] = {}
    fed: dict[int, int] = {}
    shares: dict[int, list[int]] = {}
    starts: dict[int, int] = {}
    done: int = 0
    dropped: int = 0
    skipped: int = 0
    settled: bool = False
    held: bool = False
    suspected: set[int] = set()
    owners: list[str] = []
    owned: dict[str, list[int]] = {}
    choice: list[int] | None = None
    contiguous: int = 0
    chooser: str = ""
    candidates: list[str] = []
    low: int = 0
    later: bytes = b""
    freed: set[int] = set()
    reused: int = -1
    alone: set[int] = set()
    without: dict[int, list[int]] = {}
    own: dict[int, dict[int, int]] = {}
    left_out: dict[int, int] = {}
    drawn: dict[str, str] = {}
    pieces: list[Piece] = []
    chunks: int = 0
    reweighted: tuple[WeightChange, ...] = ()
    why: str = ""
    anew: bool = False
    asked: dict[str, tuple[int, int]] = {}
    ahead: bool = False
    tasks: int = -1
    steps: int = -1
    failures: dict[int, Failure] = {}
    nothing: set[int] | None = set()
    outputs: dict[int, int] = {}
    skips: dict[int, dict[int, int]] = {}

    @classmethod
    def shaped(cls, shape: EpochShape) -> Epoch:
        """Make an epoch of this shape, of which nothing was dealt."""
        return cls(**{name: getattr(shape, name) for name in _SHAPE})

    @property
    def shape(self) -> EpochShape:
        """Shape of the epoch, but for what follows from its job."""
        return EpochShape(**{name: getattr(self, name) for name in _SHAPE})

    def unread_by(self, reader: int, slot: int) -> list[int]:
        """Live tasks of a slot that one of its readers has not read to the end, in no order."""
        unread: Iterable[int] = self.unread.get(slot, ())
        if (some := next(iter(self.live.values()), None)) is not None and some.by_any:
            unread = (task for task, live in self.live.items() if live.slot == slot)
        progress = ((task, self.live[task].readers.get(reader)) for task in unread)
        return [task for task, each in progress if each is not None and not each.complete]

    def note_unread(self, task: int) -> None:
        """Keep the index of unread tasks right, as what readers have of a task has changed."""
        live = self.live[task]
        if live.complete:
            discard(self.unread, live.slot, task)
        else:
            self.unread.setdefault(live.slot, set()).add(task)

    @property
    def over_before(self) -> int:
        """Number of tasks that were read before the epoch was resumed."""
        return self.low + int.from_bytes(self.later, "little").bit_count()

    def over(self, task: int) -> bool:
        """Whether the task was read before the epoch was resumed."""
        at = task - self.low
        return at < 0 or (at >> 3 < len(self.later) and bool(self.later[at >> 3] >> (at & 7) & 1))


_SHAPE = [name for name in EpochShape.__struct_fields__ if name != "shares"]


class UnreadShare(msgspec.Struct, frozen=True, array_like=True):
    """A part of an epoch that nobody reads.

    Attributes:
        epoch: of which.
        consumer: whose it was.
        tasks: how many, of which parts may have been read.
        elements: how many at most; -1 if the plan cannot tell.
        why: what the consumer did, or what was done; goes on behind its name.
    """

    epoch: int
    consumer: int
    tasks: int
    elements: int
    why: str


class Job(msgspec.Struct):
    """A job.

    Attributes:
        served: number of the turn in which it last got or lost a worker: the lower, the longer it has waited.
        tables: summaries of its split tables, by node id; None until its sources are listed. The tables themselves are
            a blob, ``tables_digest``, that workers fetch.
        length: tasks of an epoch as consumers see them; None without end, or not known yet.
        equal: the plan gives all consumers equally many elements, if they are dealt its tasks in turn.
        lister: the worker that lists its sources.
        left: consumers that were there and won't be waited for.
        cuts: how often its task was too long for a turn.
        poison: elements that no worker may touch any more, in any epoch; ``poisoned``: how many were found in all.
        planning_deaths: workers that ended while they listed its sources or chose its shares.
        lost: tasks that went with their workers and were not run again; ``lost_elements`` of them, at most, as far as
            the plan can tell.
        generation: tells it from others of its name.
        states: what consumers have loaded, by their ranks then.
        first: its first epoch; None until all have said where they were.
        prints: what identifies its data.
        points: its cache points; ``caching``: what it does about them.
        scaling: how many workers it is to have; None: whatever there are.
        home: why it uses its local workers alone although it could have others; None: it does not.
        needs: bytes that a worker's buffer must have, as far as is known.
        kept_at: when its last consumer left while others had never been seen; None: somebody reads it.
        former: by consumer that left, the host and process id of who read as it last.
        unread: what nobody reads, as somebody has gone; the last :data:`UNREAD` of it.
        left_out: elements that filled no round, of epochs that are over.
        reached: where a window is shared, the last epoch that a member has begun, be it there or gone.
        owner: name of the caller that has begun it; empty: unknown, as in journals of before.
        may_read: tenants whose blocks it may read, beside those that its tenant trusts.
        reweighted: weights of mixtures that the next epoch begins with, as its training has set them.
    """

    name: str
    spec: JobSpec
    seed: int
    digest: str
    anonymous: bool
    created: float
    served: int
    tables: dict[int, TableSummary] | None = None
    tables_digest: str = ""
    length: int | None = None
    equal: bool = False
    lister: str = ""
    failure: Failure | None = None
    consumers: dict[int, Consumer] = {}
    left: set[int] = set()
    epochs: dict[int, Epoch] = {}
    cuts: int = 0
    skipped: int = 0
    poison: list[Poison] = []
    poisoned: int = 0
    planning_deaths: int = 0
    lost: int = 0
    lost_elements: int = 0
    generation: int = 0
    states: dict[int, Checkpoint] = {}
    first: int | None = 0
    prints: list[str] = []
    points: list[CachePoint] = []
    caching: CacheMode = CacheMode()
    scaling: Scaling | None = None
    home: Home | None = None
    needs: int = 0
    kept_at: float | None = None
    former: dict[int, tuple[str, int]] = {}
    unread: list[UnreadShare] = []
    left_out: int = 0
    reached: int = -1
    owner: str = ""
    may_read: list[str] = []
    reweighted: tuple[WeightChange, ...] = ()

    @property
    def data_set(self) -> str:
        """Name of the data that it reads: the same for all jobs that list the same files; empty: they aren't listed."""
        return name_of_data(self.prints[0]).hex() if self.prints else ""

    @property
    def windowed(self) -> bool:
        """Whether its readers share windows of outputs, so that the furthest of them drives and others skip."""
        return self.spec.sharing == "window" and not self.spec.coordinated

    @property
    def skipping(self) -> bool:
        """Whether its members share rounds, and skip whole tasks if they fall behind."""
        return self.spec.sharing == "window" and bool(self.spec.coordinated)

    def audience(self, slot: int) -> Sequence[int]:
        """Readers of what is leased for a slot: each connects, receives, acknowledges and resumes for itself.

        Where reads are coordinated these are all ranks for ever; :meth:`reads` tells who of them still is one. Where
        jobs share, they are those that are there.
        """
        if self.spec.sharing:
            return tuple(self.consumers)
        return range(self.spec.num_consumers or 1) if self.spec.coordinated else (slot,)

    def mates(self, reader: int) -> list[int]:
        """Other readers that are ranks of the same member of a group."""
        count = self.spec.together if self.spec.sharing else 1
        return [each for each in self.consumers if each != reader and each // count == reader // count]

    def slots_of(self, readers: Iterable[int]) -> Iterable[int]:
        """Slots whose tasks these readers read, each slot once."""
        if self.spec.coordinated or self.spec.sharing:
            return range(self.spec.cycle_length if any(True for _ in readers) else 0)
        return readers

    @property
    def stride(self) -> int:
        """Number of slots that tasks are dealt to, where they are dealt in turn."""
        return self.spec.cycle_length if self.spec.coordinated else self.spec.num_consumers or 1

    def reads(self, reader: int, number: int) -> bool:
        """Whether a reader reads an epoch, or has still to come to it: what becomes its there is not in vain."""
        place = self.consumers.get(reader)
        return reader not in self.left if place is None else place.epoch <= number > place.past

    def tasks_of(self, epoch: Epoch) -> int | None:
        """Tasks of an epoch as consumers see them; None without end, or not known yet."""
        return self.length if epoch.tasks < 0 else epoch.tasks

    @property
    def newest(self) -> int:
        """The highest epoch that a consumer has begun, -1 for none."""
        if self.windowed:
            return self.reached
        return max([consumer.epoch for consumer in self.consumers.values()], default=-1)

    @property
    def kind(self) -> str:
        """Key that makes two jobs alike: the pipeline, and the name, if the user gave one."""
        return f"{self.digest} {'' if self.anonymous else self.name}"


class Life(msgspec.Struct, frozen=True):
    """One life of the dispatcher, and the first lease that could be given in it."""

    name: str = ""
    first_lease: int = 0


class State:
    """The dispatcher's journalled state, and what is derived from it.

    Args:
        settings: of the running dispatcher, not journalled.
        planner: makes plans; :func:`millrace.planning.plan.make_plan` unless a test has its own.
        checked: each event is followed by a check of what it has changed; for tests and simulation.

    Attributes:
        address: where the dispatcher listens, since ``started``; ``returning``: until when nobody who had a session
            with its life before is given up.
        sizes: by kind of job, how many workers the last of them was to have.
        ended: jobs that are over, by name, the last :data:`ENDED` of them.
        finished: summaries of jobs that are over, the last :data:`FINISHED` of them.
        index: all that is derived and remembered.
    """

    def __init__(
        self, settings: Settings | None = None, planner: Planner | None = None, *, checked: bool = False
    ) -> None:
        self.checked = checked
        self.settings = settings or Settings()
        self.jobs: dict[str, Job] = {}
        self.workers: dict[str, Worker] = {}
        self.clients: dict[str, tuple[str, int]] = {}
        self.next_lease = 1
        self.service = ""
        self.life = Life()
        self.turns = 0
        self.address = ""
        self.started = 0.0
        self.returning = 0.0
        self.caches = Caches()
        self.fleet = FleetPlan()
        self.sizes: dict[str, int] = {}
        self.ended: dict[str, EndedJob] = {}
        self.finished: list[FinishedJob] = []
        self._planner = planner
        self._plans: dict[tuple[str, float, int | None, int], PlanLike] = {}
        self.index = StateIndex(self, checked=checked)

    def let_go(self, task: TaskState) -> None:
        """Take a task from the worker that has it, if any; its lease is over."""
        worker = self.workers.get(task.worker)
        if worker is not None:
            worker.unfinished.pop(task.lease, None)
            worker.kept.pop(task.lease, None)
            self.index.hands_changed(worker)
        self.caches.lease_ended(task.lease)

    def may_return(self, lost_at: float, now: float) -> bool:
        """Whoever lost its session at ``lost_at`` did so with the dispatcher, and has not had the time to find it."""
        return lost_at <= self.started and now < self.returning

    def make_plan(
        self,
        spec: JobSpec,
        seed: int,
        tables: Mapping[int, TableSummary],
        *,
        ranks: int | None,
        pieces: Sequence[Piece] = (),
        chunks: int = 0,
    ) -> PlanLike:
        """Make a plan of a job, for so many ranks, of these pieces of an epoch (empty: all of it), or in chunks.

        Raises:
            PipelineError: if it can't be planned.
        """
        planner = self._planner or make_plan
        graph = unpack(spec.structure)
        return planner(graph, tables, tasks=spec.tasks, seed=seed, ranks=ranks, pieces=pieces, chunks=chunks)

    def plan(self, job: Job, number: int | None = None) -> PlanLike:
        """Plan of a job whose tables are known: that of an epoch; None: of those that were not resumed."""
        epoch = job.epochs.get(number) if number is not None else None
        own = number if epoch is not None and epoch.pieces else None
        chunks = epoch.chunks if epoch is not None and own is None else 0
        key = (job.name, job.created, own, chunks)
        if key not in self._plans:
            assert job.tables is not None
            there = {(each.name, each.created) for each in self.jobs.values()}
            self._plans = {known: plan for known, plan in self._plans.items() if known[:2] in there}
            ranks = job.spec.ranks
            if epoch is not None and own is not None:
                made = self.make_plan(job.spec, job.seed, job.tables, ranks=ranks or 1, pieces=epoch.pieces)
            else:
                made = self.make_plan(job.spec, job.seed, job.tables, ranks=ranks, chunks=chunks)
            self._plans[key] = made
        return self._plans[key]
