"""Which cache point each job uses, and how: decided before its first task, by its profile, and again as it goes on.

The decisions themselves are in :mod:`millrace.policies.caching.autocache`; here is what they are made of, and what
follows.
"""

from __future__ import annotations

import msgspec

from millrace.control.caching import byte_quotas
from millrace.control.caching.profiling import LOOK_ELEMENTS, look_of, measures, profile_of, tasks_ended, telling
from millrace.control.experiments import regime_in_force
from millrace.control.journal.cache_events import ModeChosen, PointUsed
from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import CachedPoint, CacheMode, is_of, place_of
from millrace.control.state.observed import CacheObservation
from millrace.control.state.state import Job, State
from millrace.planning.cache_point import CachePoint, fixed_notice
from millrace.policies.caching import autocache as policy
from millrace.policies.caching.cache_cost_model import Profile, StoreModel, times
from millrace.protocol.cache_messages import MeasureStore, StoreCost
from millrace.protocol.messages import ConsumerReport, Notice

MESSAGE_BYTES = 64 << 10
"""That a read of a store takes at least."""
_ASKED_FOR = 1.0
"""What a point counts as saving for a job that asks for it unmeasured: more than any measure, as reading takes time."""


def usable(state: State, job: Job) -> list[CachePoint]:
    """List the job's points that can be used in this service."""
    return [point for point in job.points if point.fingerprint and (point.path or state.settings.cache)]


def writer(job: Job, point: CachePoint) -> str:
    """Whose name is on what the job keeps of a point; empty in a folder of its own."""
    return "" if point.path else job.spec.tenant


def place(job: Job, point: CachePoint) -> str:
    """Where the job's blocks of a point lie."""
    return place_of(point.fingerprint, point.path, writer(job, point))


def others(state: State, job: Job, point: CachePoint) -> dict[str, str]:
    """Where blocks of the point lie that the job reads beside its own: their writers, by place."""
    trusted = () if point.path else (*state.settings.trust.get(job.spec.tenant, ()), *job.may_read)
    return {place_of(point.fingerprint, "", name): name for name in trusted if name != job.spec.tenant}


def known(state: State, job: Job, point: CachePoint) -> list[CachedPoint]:
    """List what is kept of the point that the job may read."""
    places = (place(job, point), *others(state, job, point))
    return [state.caches.points[name] for name in places if name in state.caches.points]


def withheld(state: State, job: Job) -> str:
    """Say what other tenants keep of the job's points and it may not read; empty: nothing."""
    said = []
    for point in usable(state, job):
        if point.path or point.mode == "compute" or share_kept(state, job, point) >= 1:
            continue
        readable = {place(job, point), *others(state, job, point)}
        names = sorted(
            cached.writer
            for name, cached in state.caches.points.items()
            if name.startswith(point.fingerprint) and name not in readable and cached.writer and cached.readable
        )
        if names:
            said.append(f"what {' and '.join(map(repr, names))} keep{'' if len(names) > 1 else 's'} of {point.label}")
    if not said:
        return ""
    return (
        f"tenant {job.spec.tenant!r} may not read {', nor '.join(said)}, as it was not told to trust "
        f"{'them' if len(said) > 1 else 'it'} (--trust {job.spec.tenant}=... of the dispatcher)"
    )


def active(job: Job) -> CachePoint | None:
    """Find the point that the job uses now."""
    if job.caching.kind not in {"put", "get"}:
        return None
    return next((point for point in job.points if point.node == job.caching.node), None)


def reused_in(job: Job, number: int) -> int:
    """Node of the point below which an epoch that is opened now is as the first was; -1: none."""
    point = active(job)
    return point.node if point is not None and point.fixed and not point.always and number > 0 else -1


def share_kept(state: State, job: Job, point: CachePoint) -> float:
    """How much of a point is in the store and may be read by the job, from 0 to 1."""
    kept = known(state, job, point)
    items = sum(cached.items for cached in kept)
    if point.items > 0 and items:
        return min(1.0, items / point.items)
    whole = max((cached.whole for cached in kept), default=0)
    return min(1.0, sum(cached.bytes for cached in kept) / whole) if whole else 0.0


def begin(tx: Transaction, job: Job) -> None:
    """Choose a mode as the job's points are known."""
    for text in _notices(tx.state, job):
        tx.to_all(job, Notice(text))
    if usable(tx.state, job):
        _choose(tx, job, None)


def _notices(state: State, job: Job) -> list[str]:
    """Sentences that the user should know of points, before anything is decided."""
    found = []
    for point in job.points:
        name = f"{'cache' if point.always else 'autocache'} after {point.label}"
        if point.why and point.mode != "compute":
            found.append(f"{name} is not used: {point.why}")
        elif point.always and not (point.path or state.settings.cache):
            found.append(f"{name} keeps nothing, as the service was started without cache_dir: its input is computed")
        if point.always and point.fixed:
            found.append(fixed_notice(point))
    kept = withheld(state, job)
    if kept and job.spec.untrusted_cache == "recompute":
        found.append(f"{kept}: these elements are made again")
    return found


def epoch_began(tx: Transaction, job: Job) -> None:
    """Decide anew as a consumer begins an epoch that nobody has begun before."""
    points = usable(tx.state, job)
    if not points:
        return
    observation = _sight(tx, job)
    if job.caching.kind == "profile":
        observation.ended = True
        look(tx, job)
    elif observation.profile is not None:
        _choose(tx, job, observation.profile)
    elif job.caching.kind == "get" and not _always(job) and _missing(tx.state, job, observation) > policy.REST:
        _profile(tx, job, "what a cache saves was not measured yet, and not all is kept")
    elif _always(job):
        _choose(tx, job, None)
    observation.hits = observation.misses = 0
    point = active(job)
    if point is not None:
        _use(tx, job, point)
    if job.caching.kind == "put":
        observation.looks = []  # more is kept than in the epoch before, so that it is faster


def _always(job: Job) -> bool:
    point = active(job)
    return point is not None and point.always


def _missing(state: State, job: Job, observation: CacheObservation) -> float:
    """Share of what the job asks of its point that isn't there now: others may have kept what it missed."""
    point = active(job)
    if point is None:
        return 0.0
    if point.items > 0:
        return 1.0 - share_kept(state, job, point)
    asked = observation.hits + observation.misses
    return observation.misses / asked if asked else 1.0 - share_kept(state, job, point)


def look(tx: Transaction, job: Job) -> None:
    """Look at a report of the job's: is the profile long enough, does the decision still hold?"""
    points = usable(tx.state, job)
    if not points or not job.consumers:
        return
    observation = _sight(tx, job)
    if not _of_regime(tx, job, observation):
        return
    new = _new_look(tx, job, observation)
    if job.caching.kind == "profile":
        if "" not in tx.state.caches.costs:
            have_measured(tx)  # whoever was asked before may be gone
            return
        profile = profile_of(tx.state, tx.observed, job, observation)
        if profile is None or not (observation.looks or observation.ended or _read_enough(tx, job, observation)):
            return
        long = policy.profiled(profile.elements, ended=observation.ended)
        if long.value:
            observation.profile = profile
            observation.wholes = {point.node: _whole(job, point, profile, observation) for point in points}
            observation.computing = policy.BatchTime(profile.batch_s, profile.wait_s, profile.noise)
            _choose(tx, job, profile)
        return
    if not new or _always(job):
        return
    mode = policy.Mode(job.caching.kind, job.caching.node if job.caching.node >= 0 else None, job.caching.slower)
    verdict = policy.revisit(mode, observation.computing, observation.looks)
    if verdict.value == "undo":
        undone = {**job.caching.undone, job.caching.node: job.caching.kind}
        _set(tx, job, msgspec.structs.replace(job.caching, undone=undone), "compute", -1, verdict.reason)
        if observation.profile is not None:
            _choose(tx, job, observation.profile)
    elif verdict.value == "decide anew" and (
        job.caching.kind != "get" or _missing(tx.state, job, observation) > policy.REST
    ):
        # Where all is kept, a hit is taken without comparing (Cachew 4.4): to compare, all would have to be computed.
        _profile(tx, job, verdict.reason)


def _of_regime(tx: Transaction, job: Job, observation: CacheObservation) -> bool:
    """Whether what is reported now is of one regime; what was seen in another is forgotten."""
    regime, then = regime_in_force(tx, job), observation.regime
    if regime is None:
        return False
    if regime != then:
        observation.regime, observation.looks = regime, []
        reports = tx.observed.reports(job.consumers).items()
        observation.batches = {index: (report.epoch, report.batches) for index, report in reports if report.batches}
        if then is None or then.workers != regime.workers:
            observation.computing = None
        if then is None or then.cache != regime.cache:
            observation.before, observation.begun, observation.ended = (
                measures(tx.observed, job.name),
                tasks_ended(job),
                False,
            )
    return True


def _new_look(tx: Transaction, job: Job, observation: CacheObservation) -> bool:
    """Take a look if all consumers that read have got on far enough, or the fastest member of a group has."""
    moved = {}
    for index, report in telling(tx.observed, job).items():
        if report.batches:
            if _since(observation, index, report) < LOOK_ELEMENTS:
                return False
            moved[index] = (report.epoch, report.batches)
    taken = look_of(tx.state, tx.observed, job, observation)
    if not moved or taken is None:
        return False
    observation.batches.update(moved)
    observation.looks = [*observation.looks, taken][-100:]
    return True


def _since(observation: CacheObservation, consumer: int, report: ConsumerReport) -> int:
    """Elements that a consumer has read since the last look, or since the regime began."""
    epoch, batches = observation.batches.get(consumer, (-1, 0))
    return report.batches - (batches if report.epoch == epoch else 0)


def _read_enough(tx: Transaction, job: Job, observation: CacheObservation) -> bool:
    """Whether no consumer's batch time, of its last hundred elements, has any that it read before the regime began."""
    reports = telling(tx.observed, job).items()
    return all(
        _since(observation, index, report) >= LOOK_ELEMENTS for index, report in reports if index in observation.batches
    )


def _sight(tx: Transaction, job: Job) -> CacheObservation:
    return tx.observed.caching.setdefault(job.name, CacheObservation())


def _profile(tx: Transaction, job: Job, reason: str) -> None:
    tx.observed.caching[job.name] = CacheObservation()
    _set(tx, job, CacheMode(), "profile", -1, reason)
    have_measured(tx)


def _choose(tx: Transaction, job: Job, profile: Profile | None) -> None:
    """Decides, and lets it be so if it is another mode than before."""
    state, now = tx.state, job.caching
    points = usable(state, job)
    first = job.newest if job.first is None else job.newest - job.first
    later = policy.later_epochs(max(0, first), job.spec.epochs)
    cost = tx.observed.cost or state.caches.costs.get("")
    store = _store(state, job, points, cost) if cost is not None else None
    observation = _sight(tx, job)
    wholes = {point.node: observation.wholes.get(point.node) or _known_whole(state, job, point) for point in points}
    candidates = [
        policy.CandidatePoint(
            point.node,
            point.label,
            point.mode,
            1.0
            if point.node == now.node and observation.hits and not observation.misses
            else share_kept(state, job, point),
            max(1, wholes[point.node]),
            now.undone.get(point.node),
            _measured_saving(state, job, point),
        )
        for point in points
        if point.mode in policy.MODES
    ]
    decision = policy.choose_mode(candidates, store, later, profile)
    saves = now.saves
    if profile is not None and store is not None:
        saves = {p.node: times(profile, store, p.node, 1.0, max(1, wholes[p.node])).saves for p in points}
    mode = decision.value
    if mode.kind == "profile":
        _profile(tx, job, decision.reason)
        return
    node = -1 if mode.point is None else mode.point
    kept = CacheMode(slower=mode.slower, undone=now.undone, saves=saves)
    if (mode.kind, node) != (now.kind, now.node) or not now.reason:
        before = {point.node for point in points if point.node == now.node and now.kind in {"put", "get"}}
        observation.looks = []
        _set(tx, job, kept, mode.kind, node, decision.reason)
        chosen = active(job)
        if chosen is not None and chosen.fixed and not chosen.always and chosen.node not in before:
            tx.to_all(job, Notice(fixed_notice(chosen)))
    for point in points:
        if point.node == node:
            _use(tx, job, point, wholes[point.node])


def _set(tx: Transaction, job: Job, kept: CacheMode, kind: policy.Kind, node: int, reason: str) -> None:
    tx.emit(
        ModeChosen(job.name, kind, node, reason, max(0, job.newest), kept.slower, dict(kept.undone), dict(kept.saves))
    )
    _of_regime(tx, job, _sight(tx, job))


def _measured_saving(state: State, job: Job, point: CachePoint) -> float | None:
    """Share of the computing time that jobs have measured the point to save; None: none has."""
    uses = [use.saves for cached in known(state, job, point) for use in cached.uses.values()]
    return max((saves for saves in uses if saves < _ASKED_FOR), default=None)


def _use(tx: Transaction, job: Job, point: CachePoint, whole: int = 0) -> None:
    theirs = _measured_saving(tx.state, job, point)
    saves = _ASKED_FOR if point.always else job.caching.saves.get(point.node, 0.5 if theirs is None else theirs)
    tx.emit(PointUsed(job.name, place(job, point), tx.now, saves, point.label, whole, writer(job, point)))
    for name, other in others(tx.state, job, point).items():
        if name in tx.state.caches.points:
            tx.emit(PointUsed(job.name, name, tx.now, saves, point.label, writer=other))


def have_measured(tx: Transaction) -> None:
    """Have a worker measure the store, once: as the service starts, for the first job to know in its first epoch."""
    state = tx.state
    if not state.settings.cache or "" in state.caches.costs or tx.observed.measuring in state.workers:
        return
    if tx.observed.listing is not None:
        return  # how much room there is will be known then
    for worker in sorted(state.workers.values(), key=lambda worker: (len(worker.unfinished), worker.id)):
        if worker.lost_at is None and not worker.draining:
            room = max(1, (state.settings.cache_bytes - state.caches.taken) // 4)
            tx.observed.measuring, tx.observed.measuring_room = worker.id, room
            tx.to_worker(worker.id, MeasureStore("", room))
            return


def _known_whole(state: State, job: Job, point: CachePoint) -> int:
    kept = known(state, job, point)
    items = sum(cached.items for cached in kept)
    if not items or point.items < 0:
        return max((cached.whole for cached in kept), default=0)
    return sum(block.bytes for cached in kept for block in cached.readable) * point.items // items


def _whole(job: Job, point: CachePoint, profile: Profile, observation: CacheObservation) -> int:
    """Bytes that all of a point would take: by what passed it, in the tasks that were run or for its items."""
    passed = profile.passed[point.node]
    if not passed.elements:
        return 0
    found = []
    tasks = tasks_ended(job) - observation.begun
    if job.length and tasks > 0:
        found.append(passed.bytes * job.length // tasks)
    if point.items > 0:
        found.append(passed.bytes * point.items // passed.elements)
    return min(found, default=passed.bytes)


def _store(state: State, job: Job, points: list[CachePoint], cost: StoreCost) -> StoreModel:
    own = {name for point in points for name in (place(job, point), *others(state, job, point))}
    used = mine = 0
    for name, cached in state.caches.points.items():
        # What nobody uses any more makes room.
        if not cached.path and (name in own or any(each in state.jobs for each in cached.uses)):
            used += cached.bytes
            mine += cached.bytes if is_of(name, job.spec.tenant) else 0
    jobs, known_points = state.jobs.keys(), state.caches.points.values()
    whole = sum(each.whole for each in known_points if each.blocks or not jobs.isdisjoint(each.uses))
    large = whole > cost.memory / 2 > 0
    room = max(0, min(state.settings.cache_bytes - used, byte_quotas.limit_of(state, job.spec.tenant) - mine))
    read = cost.cold if large else cost.read
    return StoreModel(read, cost.write, room, cost.threads, MESSAGE_BYTES, cost.cpu_s)
