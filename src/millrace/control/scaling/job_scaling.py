"""How many workers each job is to have: looked at as reports come in, decided by a pure policy.

A look at a job begins when its workers have been the same for a while, and is over when each of its consumers has read
some more elements; :mod:`millrace.policies.scaling.autoscale` says what follows from it, or another policy of
:mod:`millrace.policies.scaling.scaling_policies`.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection

from millrace.control.experiments import cache_regime, regime_in_force
from millrace.control.journal.scaling_events import ScaleChosen
from millrace.control.journal.transaction import Transaction
from millrace.control.scaling import job_placement
from millrace.control.state.observed import Reading, ScalingObservation
from millrace.control.state.state import Job, State
from millrace.policies.prices import USUAL
from millrace.policies.scaling import scaling_policies
from millrace.policies.scaling.autoscale import Limits, Look, Scale
from millrace.policies.scaling.capacity import in_force
from millrace.policies.scaling.scaling_policies import Kind, Observation, Other
from millrace.protocol.messages import ConsumerReport, WorkerReport
from millrace.protocol.reports import Pace

_FEW = 4
"""Reports; of fewer nobody can tell how much they vary."""


def scales(state: State) -> bool:
    """Whether the number of workers is decided here."""
    return state.settings.most_workers > state.settings.least_workers


def begin(tx: Transaction, job: Job) -> None:
    """Begin with what a job of its kind had in the end, once the job's sources are known."""
    if (
        job.scaling is not None
        or job.tables is None
        or not (scales(tx.state) or job_placement.local_first(tx.state, job))
    ):
        return
    known = tx.state.sizes.get(job.kind)
    first = known or tx.state.settings.first_workers
    decision = scaling_policies.begin(_kind(tx.state, job), first, _limits(tx, job))
    _chosen(tx, job, decision.value, f"{decision.reason}, as it had before" if known else decision.reason)


def heard(tx: Transaction, job: Job, consumer: int, report: ConsumerReport) -> None:
    """Note how a consumer reads, and decide when a look is over."""
    begin(tx, job)  # local workers may have come since
    if job.scaling is None or job.failure is not None:
        return
    kind, cache = _kind(tx.state, job), cache_regime(job)
    if cache != job.scaling.regime or kind != scaling_policies.kind_of(job.scaling.search):
        again = scaling_policies.begin(kind, job.scaling.scale.workers, _limits(tx, job))
        what = "the mode of its cache" if cache != job.scaling.regime else "the scaling policy of the service"
        _chosen(tx, job, again.value, f"looks anew, as {what} has changed")
    observation = tx.observed.scaling.setdefault(job.name, ScalingObservation())
    regime = regime_in_force(tx, job)
    if regime != observation.regime:  # what was seen in another says nothing
        observation.regime, observation.settling = regime, True
        _mark(tx, job, observation)
    _read(observation, consumer, report)
    readings = [index for index, place in job.consumers.items() if place.lost_at is None]
    by_consumer = {index: observation.readings[index] for index in readings if index in observation.readings}
    seen = counted(job, list(by_consumer.values()), len(readings))
    if regime is None or regime.experiment != "scaling" or not regime.workers or not seen:
        return
    waits, fewest, used = _waits(seen), min(reading.elements for reading in seen), _used(tx, observation)
    seconds = tx.now - observation.marked
    if observation.settling:
        begun = used is not None and min(used[0]) > 0 and _gives(tx, job, regime.workers)
        if scaling_policies.pause_over(kind, fewest, waits if begun else 0.0, seconds, begun=begun):
            observation.settling = False
            _mark(tx, job, observation)
        return
    if used is None or not scaling_policies.look_over(kind, fewest, waits, seconds):
        return
    elements, came = sum(reading.elements for reading in seen), sum(reading.came for reading in seen)
    if not scaling_policies.look_counts(kind, elements, came, waits, fewest=fewest):
        _mark(tx, job, observation)
        return
    cpu = statistics.fmean(used[1])
    # Who may use a fifth of a core has all of it in use when it computes for a fifth of the time.
    busy = statistics.fmean(map(max, *used))
    batch_s = statistics.fmean(reading.read_s / max(1, reading.elements) for reading in seen)
    # What was computed beyond what was read is for later, and buffers may have much room for it.
    look = Look(len(regime.workers), batch_s, waits * batch_s, busy * min(1.0, elements / max(1, came)), _noise(seen))
    moved = job_placement.look(tx, job, observation, by_consumer, waits)
    _mark(tx, job, observation)
    if moved:
        anew = scaling_policies.begin(kind, tx.state.index.serving.locals[job.name], _limits(tx, job))
        _chosen(tx, job, anew.value, "begins anew with its local workers")
        return
    queue = _queue(tx, job, [index for index, reading in by_consumer.items() if any(reading is each for each in seen)])
    rates = (tx.state.settings.prices or USUAL).rates(
        len(by_consumer), job.spec.accelerators, tx.state.index.serving.locals[job.name]
    )
    before = job.scaling.search
    decision = scaling_policies.step(before, Observation(look, queue, cpu, tx.now, rates), _limits(tx, job))
    news = decision.reason != job.scaling.reason and look.workers <= before.workers
    if decision.value != before or news:
        _chosen(tx, job, decision.value, decision.reason)


def _kind(state: State, job: Job) -> Kind:
    return "cheapest" if job.spec.cheapest else state.settings.scaling_policy


def _chosen(tx: Transaction, job: Job, found: Scale | Other, reason: str) -> None:
    scale, other = (found, None) if isinstance(found, Scale) else (Scale(found.workers), found)
    if other is not None and scaling_policies.settled(None if job.scaling is None else job.scaling.search, other):
        scale = Scale(other.workers, "settled")
    tx.emit(ScaleChosen(job.name, scale, cache_regime(job), reason, tx.now, other))


def _limits(tx: Transaction, job: Job) -> Limits:
    """Limits of all workers: its local ones, which it has in any case, and those of the service."""
    state = tx.state
    local = state.index.serving.locals[job.name]
    others = state.settings.most_workers if scales(state) else len(state.index.serving.workers)
    held = in_force(state.fleet.capacity, tx.now)
    why = ""
    if held is not None and held.workers < others:
        others, why = held.workers, held.reason
    room = local if job_placement.at_home(state, job) else local + others
    least, most = job.spec.workers or (1, room)
    if len(state.jobs) == 1 and job.spec.workers is None and not local:
        least = max(least, state.settings.least_workers)  # they are there, and nobody else's
    most = max(1, local, min(most, room))
    return Limits(max(1, min(max(least, job_placement.at_least(state, job)), most)), most, why if most == room else "")


def counted(job: Job, seen: list[Reading], consumers: int) -> list[Reading]:
    """Choose the readings that say what a job wants of its workers; none, as long as too few have read something.

    These are all consumers', as each reads something else. Members of a group read the same, so that what is computed
    is what the fastest one reads, whatever the others have read by then.
    """
    if job.spec.sharing:
        return [max(seen, key=lambda reading: reading.elements)] if seen else []
    return seen if len(seen) >= consumers else []


# -- looks -------------------------------------------------------------------------------------------------------------


def _mark(tx: Transaction, job: Job, observation: ScalingObservation) -> None:
    """Begin a look: what comes from here on counts."""
    observation.came = job_placement.came(tx, job)
    observation.readings = {
        consumer: Reading(reading.epoch, reading.pace, [], reading.arrived)
        for consumer, reading in observation.readings.items()
    }
    observation.marked, observation.used = tx.now, {}
    for worker in observation.regime.workers if observation.regime is not None else ():
        seen = tx.observed.workers.get(worker)
        if seen is None or seen.report is None:
            observation.used[worker] = (0.0, 0.0, tx.now)
        else:
            observation.used[worker] = (seen.report.busy_s, seen.report.cpu_s, seen.reported)


def _read(observation: ScalingObservation, consumer: int, report: ConsumerReport) -> None:
    """Add what the consumer has read since its last report."""
    reading = observation.readings.get(consumer, Reading())
    pace, then = report.pace, reading.pace
    if report.epoch != reading.epoch or pace.elements < then.elements:
        then = Pace()
    if pace.elements > then.elements:
        lot = Pace(pace.elements - then.elements, pace.read_s - then.read_s, pace.waited_s - then.waited_s)
        before = reading.arrived if report.epoch == reading.epoch else 0
        arrived = reading.came + max(0, report.arrived - before)
        observation.readings[consumer] = Reading(report.epoch, pace, [*reading.lots, lot], report.arrived, arrived)


def _waits(readings: list[Reading]) -> float:
    """Share of the time that consumers wait, from 0 to 1."""
    shares = [each.waited_s / each.read_s for each in readings if each.read_s > 0]
    return min(1.0, max(0.0, statistics.fmean(shares))) if shares else 0.0


def _noise(readings: list[Reading]) -> float:
    """Relative standard error of the batch time, by how much reports of one look differ (Cachew assumes 3 %)."""
    found = []
    for reading in readings:
        times = [lot.read_s / lot.elements for lot in reading.lots]
        if len(times) >= _FEW and reading.read_s > 0:
            found.append(statistics.stdev(times) / statistics.fmean(times) / math.sqrt(len(times)))
    return statistics.fmean(found) / math.sqrt(len(found)) if found else 0.0


def _used(tx: Transaction, observation: ScalingObservation) -> tuple[list[float], list[float]] | None:
    """Shares of the time since the mark in which workers computed, and of their cores, or of what these are bounded to.

    None: one of them has not said yet.
    """
    busy, cpu = [], []
    for worker, (busy_s, cpu_s, at) in observation.used.items():
        seen = tx.observed.workers.get(worker)
        if seen is None or seen.report is None or seen.reported <= at:
            return None
        busy.append(_share(seen.report.busy_s - busy_s, seen.reported - at))
        allowed = min(1.0, seen.report.cpu_quota / seen.report.cores) if seen.report.cpu_quota else 1.0
        cpu.append(_share(seen.report.cpu_s - cpu_s, (seen.reported - at) * allowed))
    return busy, cpu


def _gives(tx: Transaction, job: Job, workers: Collection[str]) -> bool:
    """Whether each of these workers has given elements of the job: some may still load what its functions need."""
    for worker in workers:
        seen = tx.observed.workers.get(worker)
        if seen is None or seen.report is None or (seen.report.job == job.name and not _has_given(seen.report)):
            return False
    return True


def _has_given(report: WorkerReport) -> bool:
    return any(measure.elements for measure in report.nodes)


def _share(part_s: float, seconds: float) -> float:
    return min(1.0, max(0.0, part_s / seconds))


def _queue(tx: Transaction, job: Job, consumers: Collection[int]) -> float:
    """Elements that lie ready for one of these consumers, on average."""
    reports = tx.observed.reports({index: job.consumers[index] for index in consumers})
    return statistics.fmean([report.queue_elements for report in reports.values()]) if reports else 0.0
