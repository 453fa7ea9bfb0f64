"""Profile of a job from reports: how fast it is, and what passed its cache points."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable

from millrace.control.state.observed import CacheObservation, Observed
from millrace.control.state.state import Job, State
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import unpack
from millrace.policies.caching.autocache import BatchTime
from millrace.policies.caching.cache_cost_model import Passed, Profile, Stage, least_batch_s
from millrace.protocol.messages import ConsumerReport
from millrace.protocol.reports import NodeMeasure

LOOK_ELEMENTS = 100
"""Elements of a look at the batch time, at least (Cachew 4.3)."""


def tasks_ended(job: Job) -> int:
    """Tasks of all epochs that are open that were computed, as far as the dispatcher knows."""
    return sum(epoch.done + sum(live.finished for live in epoch.live.values()) for epoch in job.epochs.values())


def measures(observed: Observed, job: str) -> dict[str, dict[int, NodeMeasure]]:
    """By worker and node, what a job's operators have done since they were loaded there."""
    found = {}
    for worker, observation in observed.workers.items():
        if observation.report is not None and observation.report.job == job and observation.report.nodes:
            found[worker] = {measure.node: measure for measure in observation.report.nodes}
    return found


def telling(observed: Observed, job: Job) -> dict[int, ConsumerReport]:
    """Choose the reports that say how fast the job is: all consumers', but of a group that of its fastest member."""
    reports = observed.reports(job.consumers)
    timed = [index for index, report in reports.items() if report.batch_time_s > 0]
    if job.spec.sharing and timed:
        fastest = min(timed, key=lambda index: reports[index].batch_time_s)
        return {fastest: reports[fastest]}
    return reports


def look_at(observed: Observed, job: Job, looks: Iterable[BatchTime] = ()) -> BatchTime | None:
    """Batch time as all consumers see it now, or the fastest member; with earlier ``looks`` how much it varies."""
    reports = [report for report in telling(observed, job).values() if report.batch_time_s > 0]
    if not reports:
        return None
    batch_s = statistics.fmean(report.batch_time_s for report in reports)
    wait_s = statistics.fmean(report.wait_s for report in reports)
    times = [*(look.batch_s for look in looks), batch_s][-8:]
    noise = statistics.stdev(times) / statistics.fmean(times) / math.sqrt(len(times)) if len(times) > 1 else 0.0
    return BatchTime(batch_s, min(wait_s, batch_s), noise)


def profile_of(state: State, observed: Observed, job: Job, observation: CacheObservation) -> Profile | None:
    """Profile of what was measured of a job since it began; None if not everything is there yet."""
    sums = summed(measures(observed, job.name), observation.before)
    look = look_of(state, observed, job, observation)
    return profile_with(state, job, sums, look, [point.node for point in job.points])


def look_of(state: State, observed: Observed, job: Job, observation: CacheObservation) -> BatchTime | None:
    """Batch time of :func:`look_at`, but of a group no shorter than what its workers take to make an output.

    A member that has come late reads for a while what lies ready in the window, which says nothing of what follows.
    """
    look = look_at(observed, job, observation.looks)
    if look is None or not job.spec.sharing:
        return look
    profile = profile_with(state, job, summed(measures(observed, job.name), observation.before), look, [])
    least = 0.0 if profile is None else least_batch_s(profile)
    if look.batch_s >= least:
        return look
    return BatchTime(least, look.wait_s + least - look.batch_s, look.noise)


def profile_with(
    state: State, job: Job, sums: dict[int, NodeMeasure], look: BatchTime | None, points: Iterable[int]
) -> Profile | None:
    """Profile of what was measured of a job, for points at these nodes; None if not everything is there yet."""
    graph = unpack(job.spec.structure)
    root = sums.get(graph.id_of(graph.root))
    if look is None or root is None or root.elements <= 0:
        return None
    under: dict[int, tuple[int, ...]] = {}
    points = list(points)
    for point in points:
        for node in Graph(graph.nodes[point]).nodes:
            number = graph.id_of(node)
            under[number] = (*under.get(number, ()), point)
    stages = [
        Stage(each.active_s, min(each.cpu_s, each.active_s), each.threads, under.get(number, ()))
        for number, each in sums.items()
    ]
    passed = {point: _passed(sums.get(point)) for point in points}
    serving = [worker for worker in state.workers.values() if worker.job == job.name]
    beside = max((sum(other.host == worker.host for other in state.workers.values()) for worker in serving), default=1)
    cores = max(1, min((worker.cores for worker in serving), default=1) // max(1, beside))
    workers = len(serving) / (1 if job.spec.sharing else max(1, len(job.consumers)))  # for each that reads its own
    return Profile(root.elements, tuple(stages), passed, look.batch_s, look.wait_s, look.noise, cores, workers)


def _passed(measure: NodeMeasure | None) -> Passed:
    return Passed(0, 0) if measure is None else Passed(measure.elements, measure.bytes)


def summed(now: dict[str, dict[int, NodeMeasure]], before: dict[str, dict[int, NodeMeasure]]) -> dict[int, NodeMeasure]:
    """By node, what operators have done since ``before``, in all workers together."""
    sums: dict[int, NodeMeasure] = {}
    for worker, nodes in now.items():
        for number, each in nodes.items():
            then = before.get(worker, {}).get(number, NodeMeasure(number, "", 0, 0, 0.0))
            total = sums.get(number, NodeMeasure(number, each.label, 0, 0, 0.0))
            sums[number] = NodeMeasure(
                number,
                each.label,
                total.elements + max(0, each.elements - then.elements),
                total.bytes + max(0, each.bytes - then.bytes),
                total.active_s + max(0.0, each.active_s - then.active_s),
                total.cpu_s + max(0.0, each.cpu_s - then.cpu_s),
                max(total.threads, each.threads),
                total.wall_s + max(0.0, each.wall_s - then.wall_s),
                max(total.reads_in_flight, each.reads_in_flight),
                total.requests + max(0, each.requests - then.requests),
                total.stored_bytes + max(0, each.stored_bytes - then.stored_bytes),
                total.retried + max(0, each.retried - then.retried),
                total.hedged + max(0, each.hedged - then.hedged),
                total.store_wait_s + max(0.0, each.store_wait_s - then.store_wait_s),
                total.under_way + each.under_way,
                total.padding + max(0, each.padding - then.padding),
                total.padded + max(0, each.padded - then.padded),
                total.cached_bytes + max(0, each.cached_bytes - then.cached_bytes),
            )
    return sums
