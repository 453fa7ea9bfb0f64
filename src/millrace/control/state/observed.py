"""Observations: what peers report about themselves; looked at when deciding, never journalled."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import msgspec

from millrace.control.inputs import JoinRequested
from millrace.control.state.regime import Regime, RegimeObservation
from millrace.control.state.serving_index import ServingIndex
from millrace.planning.progress import TaskSet
from millrace.policies.caching.autocache import BatchTime
from millrace.policies.caching.cache_cost_model import Profile
from millrace.policies.decision import Decision
from millrace.policies.scaling.capacity import Shortage
from millrace.policies.scheduling.fair_share import Accounts, Standing, ahead
from millrace.protocol.cache_messages import StoreCost
from millrace.protocol.cache_server_messages import CacheServersKnown, SourceCounts
from millrace.protocol.messages import ConsumerReport, ProbeReport, StepsReady, WorkerReport
from millrace.protocol.reports import Flow, NodeMeasure, Pace

if TYPE_CHECKING:
    from millrace.control.state.state import Consumer

WINDOW_S = 15.0
"""What a job does now is what its workers did for so long, or for up to twice that."""
DEFAULT_WANT = 2
"""Unfinished leases of a worker that has not reported yet."""


class WorkerObservation(msgspec.Struct):
    """Last seen of a worker.

    Attributes:
        busy_share: part of the time between its last two reports in which it computed.
        at: by lease that it runs with crash isolation, where it is.
        then: a report of the same job some ``WINDOW_S`` ago or more, so that what it does now can be told from what it
            did; None: of its job there is none that old.
        next: the report that comes in its place, of the time ``next_at``.
    """

    last_seen: float
    reported: float = 0.0
    report: WorkerReport | None = None
    busy_share: float = 0.0
    at: dict[int, ProbeReport] = {}
    then: WorkerReport | None = None
    next: WorkerReport | None = None
    next_at: float = 0.0


class ClientObservation(msgspec.Struct):
    """Last seen of a consumer's client."""

    last_seen: float
    report: ConsumerReport | None = None


class CacheServerObservation(msgspec.Struct):
    """Last seen of a cache server.

    Attributes:
        address: ``host:port`` of its data port.
        host: that it runs on.
        pid: of its process there.
        most_bytes: that it may keep.
        zone: that it is in; empty: in none.
    """

    address: str
    host: str
    pid: int
    most_bytes: int
    last_seen: float
    counts: SourceCounts = SourceCounts()
    zone: str = ""


class CacheObservation(msgspec.Struct):
    """Observation of a job for the sake of its caches; begins anew with each of its modes.

    Attributes:
        regime: of what follows; None: nothing was measured yet.
        before: by worker, what its operators had done when the profile began.
        begun: tasks that had ended then.
        ended: the epoch that the profile began in is over, so that it is as long as it can be.
        looks: at the batch time, and ``batches`` of the epoch at the last one or as the regime began, by consumer.
        profile: the last one; ``computing``: its look, None if it was taken with other workers.
        wholes: by node, bytes that all of a point would take, as the profile has it.
        hits: items that were read in this epoch, and ``misses`` those that were made.
        lost: blocks that should have been there and could not be read.
        trouble: why the last run that was to keep something did not; empty if it did.
        full: the job was told that its tenant has its quota of bytes.
    """

    regime: Regime | None = None
    before: dict[str, dict[int, NodeMeasure]] = {}
    begun: int = 0
    ended: bool = False
    looks: list[BatchTime] = []
    batches: dict[int, tuple[int, int]] = {}
    profile: Profile | None = None
    wholes: dict[int, int] = {}
    computing: BatchTime | None = None
    hits: int = 0
    misses: int = 0
    lost: int = 0
    trouble: str = ""
    full: bool = False


class SourceObservation(msgspec.Struct):
    """Observation of a job for the sake of the source cache.

    Attributes:
        waiting_s: since when its data compete for room; None: they don't.
        regime: of what is measured now, and ``since`` when; None: nothing is.
        marked: when this look began, as workers had reported in the regime; None: they haven't yet.
        read: by consumer, its epoch and its elements of that as it said last, and those since the look began, without
            what lay ready for it then.
        before: by worker, what its operators had done when the look began.
        share: of its bytes that came from the cache in the last look.
        past: it reads past the source cache, to be measured; see :mod:`millrace.policies.caching.cache_probe`.
            ``past_s``: since when.
        probed_s: when it was last measured without; None: it never was. ``probes``: how often that was a probe.
        miss_s: seconds of a batch if nothing came from the cache; None: not measured yet.
        hit_s: seconds of a batch if all of it did. ``estimated``: it was worked out from a look without, not measured.
        two_chunks_s: seconds of a batch with two chunks, as long as so many jobs as ``sharers`` read the data.
        batch_bytes: stored bytes that a batch takes.
    """

    waiting_s: float | None = None
    regime: Regime | None = None
    since: float = 0.0
    marked: float | None = None
    read: dict[int, tuple[int, int, int]] = {}
    before: dict[str, dict[int, NodeMeasure]] = {}
    share: float | None = None
    past: bool = False
    past_s: float = 0.0
    probed_s: float | None = None
    probes: int = 0
    miss_s: float | None = None
    hit_s: float | None = None
    estimated: bool = False
    two_chunks_s: float | None = None
    sharers: int = 0
    batch_bytes: float = 0.0


class Reading(msgspec.Struct, frozen=True):
    """Progress of a consumer: ``pace`` of an epoch as it said last, and ``lots`` of it, since a mark.

    Attributes:
        arrived: elements of the epoch that it had, by then; ``came``: those of all epochs since the mark.
    """

    epoch: int = -1
    pace: Pace = Pace()
    lots: list[Pace] = []
    arrived: int = 0
    came: int = 0

    @property
    def elements(self) -> int:
        """Elements since the mark."""
        return sum([lot.elements for lot in self.lots])

    @property
    def read_s(self) -> float:
        """Seconds since the mark."""
        return sum([lot.read_s for lot in self.lots])

    @property
    def waited_s(self) -> float:
        """Seconds of these that the consumer waited."""
        return sum([lot.waited_s for lot in self.lots])


class ScalingObservation(msgspec.Struct):
    """Observation of a job for the sake of its number of workers.

    Attributes:
        regime: of what was read since the mark; None: nothing was.
        settling: it has just changed: what is read says nothing yet.
        readings: by consumer.
        marked: when that was.
        used: by worker, seconds in which it had computed at the mark, those of its processor, and when it had said so.
        came: by consumer, what had come from local workers and from others, at the mark.
    """

    regime: Regime | None = None
    settling: bool = True
    readings: dict[int, Reading] = {}
    marked: float = 0.0
    used: dict[str, tuple[float, float, float]] = {}
    came: dict[int, tuple[Flow, Flow]] = {}


class ResourceUsage(msgspec.Struct):
    """Resources that an epoch took.

    Attributes:
        worker_s: seconds of workers that served the job; ``consumer_s``: of its consumers.
        core_s: seconds of processor time that these workers' processes used, of all cores together.
        gib_s: memory that they held, in GiB times seconds.
    """

    worker_s: float = 0.0
    consumer_s: float = 0.0
    core_s: float = 0.0
    gib_s: float = 0.0

    def add(self, other: ResourceUsage) -> None:
        """Both together."""
        self.worker_s += other.worker_s
        self.consumer_s += other.consumer_s
        self.core_s += other.core_s
        self.gib_s += other.gib_s


USED_EPOCHS = 100
"""Epochs of which it is told apart what they took; those before are added up."""


def add_usage(epochs: dict[int, ResourceUsage], number: int, used: ResourceUsage) -> None:
    """Add what one of these epochs took."""
    epochs.setdefault(number, ResourceUsage()).add(used)
    if len(epochs) > USED_EPOCHS:
        first, second = sorted(epochs)[:2]
        epochs[second].add(epochs.pop(first))


class EpochObservation(msgspec.Struct):
    """Observation of an epoch of a job.

    Attributes:
        began: when a consumer first said that it reads it, and ``share`` the part of it that had been read then.
        read: by consumer, elements that were handed out, and how fast.
        counted: tasks whose ends were seen, and ``passed`` by node the elements that these gave.
    """

    began: float = 0.0
    share: float = 0.0
    read: dict[int, tuple[int, Pace]] = {}
    counted: TaskSet = msgspec.field(default_factory=TaskSet)
    passed: list[int] = []

    @property
    def elements(self) -> int:
        """Elements that were handed out, to all consumers together."""
        return sum(count for count, _ in self.read.values())

    @property
    def pace(self) -> Pace:
        """Pace of all consumers together."""
        paces = [pace for _, pace in self.read.values()]
        return Pace(
            sum(pace.elements for pace in paces),
            sum(pace.read_s for pace in paces),
            sum(pace.waited_s for pace in paces),
        )


class JobObservation(msgspec.Struct):
    """Observation of a job.

    Attributes:
        lease: no lease below is of this job, but of another one that had its name.
        epochs: the last ones.
        elements: that were handed out in those before, and ``pace`` how fast.
        passed: by node the elements that tasks of those before gave.
    """

    lease: int = 0
    epochs: dict[int, EpochObservation] = {}
    elements: int = 0
    pace: Pace = Pace()
    passed: list[int] = []


class MemberObservation(msgspec.Struct):
    """Observation of a member of a group.

    Attributes:
        epoch: that it reported about last, with ``batches`` and ``missed`` of it: elements handed out, and skipped.
        read: elements that were handed out in epochs before that one, and ``skipped`` those that it missed in them.
        unseen: elements that it had been handed out before this dispatcher lived.
        at: when it reported last; 0: never.
        rate: elements of a second that it was handed out since the report before.
    """

    epoch: int = -1
    batches: int = 0
    missed: int = 0
    read: int = 0
    skipped: int = 0
    unseen: int = 0
    at: float = 0.0
    rate: float = 0.0


class DetachedMember(msgspec.Struct, frozen=True):
    """A member that was detached at a time, for a reason."""

    member: str
    at: float
    why: str


class GroupObservation(msgspec.Struct):
    """Observation of a group.

    Attributes:
        members: by index, those that are there.
        given: elements that were handed out to members that have left.
        spent: by member's name and epoch, what falls to each, also of those that have left; all that fell to members
            of whom nobody remembers the name is under the empty one.
        detached: the last ones.
    """

    members: dict[int, MemberObservation] = {}
    given: int = 0
    spent: dict[str, dict[int, ResourceUsage]] = {}
    detached: list[DetachedMember] = []


class GatheringRanks(msgspec.Struct):
    """Ranks of a member that is to join a group, by rank, ``since`` the first of them has come."""

    ranks: dict[int, JoinRequested]
    since: float


class KeptPlace(msgspec.Struct, frozen=True):
    """Place of a detached member among its tenant's jobs, kept ``until`` then for the job in which it goes on alone."""

    tenant: str
    until: float


class Division(msgspec.Struct, frozen=True):
    """How the workers are divided among the jobs, from a moment on.

    Not journalled: what jobs had beyond their shares is forgotten with the dispatcher's life, as it is with time.

    Attributes:
        serving: who serves what.
        at: the moment.
        shares: by job that has use for workers, how many it is to have.
        counts: by job that there is, how many it has.
        before: by job, worker-seconds that it had had beyond its share, at that moment.
        waiting: by job that has use for workers and none, since when.
        unserved: jobs that have no worker.
        idle: those of them that are left out, as they had no work for one either.
        givers: jobs that have more workers than they are to have.
        accounts: how those of ``shares`` stand.
    """

    serving: ServingIndex
    at: float
    shares: dict[str, Decision[float]] = {}
    counts: dict[str, int] = {}
    before: dict[str, float] = {}
    waiting: dict[str, float] = {}
    unserved: frozenset[str] = frozenset()
    idle: frozenset[str] = frozenset()
    givers: list[str] = []
    accounts: Accounts = Accounts({})

    def standing(self, job: str, now: float) -> Standing:
        """How the job stands."""
        decision, count = self.shares.get(job), self.counts.get(job, 0)
        if decision is None:
            return Standing(count, 0.0, self.before.get(job, 0.0))
        return Standing(count, decision.value, ahead(self.before.get(job, 0.0), count - decision.value, now - self.at))


class Observed(msgspec.Struct):
    """By worker and by client."""

    workers: dict[str, WorkerObservation] = {}
    clients: dict[str, ClientObservation] = {}
    cache_servers: dict[str, CacheServerObservation] = {}
    """By name, those that are there."""
    cache_clients: dict[str, str] = {}
    """By worker that asks cache servers, as those of older versions don't know how, the zone that it is in."""
    cache_zones: dict[str, float] = {}
    """By zone of these workers, when one of them was last there; of late."""
    steps: dict[tuple[str, int], StepsReady] = {}
    """By job and epoch, what consumers were told that they may use."""
    regimes: dict[str, RegimeObservation] = {}
    """By job."""
    caching: dict[str, CacheObservation] = {}
    """By job."""
    scaling: dict[str, ScalingObservation] = {}
    """By job."""
    sources: dict[str, SourceObservation] = {}
    """By job whose data cache servers may keep."""
    cache_told: CacheServersKnown | None = None
    """What workers were told last of cache servers, and of jobs that read past them."""
    rooms_for: tuple[object, ...] = ()
    """What rooms in the source cache were last decided for."""
    cache_room: tuple[int, int] = (0, 0)
    """Bytes that so many cache servers may keep together, of late: one that is away for a moment changes nothing."""
    cache_room_s: float = 0.0
    """When it was last so much."""
    progress: dict[str, JobObservation] = {}
    """By job."""
    usage: dict[str, dict[int, ResourceUsage]] = {}
    """By job and epoch, as long as this dispatcher lives; it was last added to at ``accounted``."""
    core_s: dict[str, float] = {}
    """By worker, the processor time that was accounted for, of all its cores."""
    accounted: float = 0.0
    jobs: set[str] = set()
    """Jobs that have consumers, since ``jobs_changed``."""
    jobs_changed: float = 0.0
    shortage: Shortage | None = None
    """None: as many workers are there as planned."""
    unregistered: dict[str, float] = {}
    """By worker that the cluster runs and that has not registered, since when."""
    unregistered_tries: int = 0
    """In a row that were ended for that."""
    told: dict[str, set[str]] = {}
    """By worker, places of points of which it knows all blocks, and hears of others."""
    no_room: dict[str, float] = {}
    """By place, when it last got no more room."""
    oversized: dict[str, float] = {}
    """By job whose outputs are too large for all workers that are left, since when."""
    listings: dict[str, float] = {}
    """By job whose sources other jobs may have, too, when their listing began, the first one first."""
    awaited_listings: dict[str, str] = {}
    """By job that waits for the listing of another one's sources, as its own are the same, the other one."""
    listing: set[tuple[str, str]] | None = None
    """While the store is being listed, places and names of blocks that were published since that was asked for."""
    measuring: str = ""
    """The worker that measures the store."""
    measuring_room: int = 0
    """Bytes that it may take for that."""
    cost: StoreCost | None = None
    """What the store was measured to take, and what reads really took since."""
    division: Division | None = None
    all_back: bool = True
    """Who had a session with the dispatcher's life before has had the time to come back."""
    held_up: dict[str, float] = {}
    """By job of which somebody waits for a consumer that was never seen, since when."""
    waited_for: dict[str, dict[int, float]] = {}
    """By group in lockstep, and by member, seconds in which others waited for it, as counted at ``waited_at``."""
    waited_at: float = 0.0
    groups: dict[str, GroupObservation] = {}
    """By name of its job."""
    gathering: dict[tuple[str, str], GatheringRanks] = {}
    """By group, and by member that is to join it, those of its ranks that have come."""
    kept_places: dict[tuple[str, str], KeptPlace] = {}
    """By group, and by member that was detached and has not gone on yet."""
    awaited: set[str] = set()
    """Jobs of which a rank was never seen, and whose other ranks were told that they wait for it."""
    leaving: dict[str, float] = {}
    """By worker that is to leave its job at its task's end, since when."""
    deleting: dict[tuple[str, str], int] = {}
    """By place and name of a block, how many answers are due to the order to delete it."""

    def want(self, worker: str) -> int:
        """Unfinished leases that the worker wants to hold, at least one."""
        observation = self.workers.get(worker)
        return DEFAULT_WANT if observation is None or observation.report is None else max(1, observation.report.want)

    def worker_report(self, worker: str) -> WorkerReport | None:
        """Find what a worker reported last."""
        observation = self.workers.get(worker)
        return None if observation is None else observation.report

    def report(self, client: str) -> ConsumerReport | None:
        """Find what a consumer's client reported last."""
        observation = self.clients.get(client)
        return None if observation is None else observation.report

    def reports(self, consumers: Mapping[int, Consumer]) -> dict[int, ConsumerReport]:
        """Find what these consumers reported last, those aside that have not reported."""
        found = {index: self.report(place.client) for index, place in consumers.items()}
        return {index: report for index, report in found.items() if report is not None}
