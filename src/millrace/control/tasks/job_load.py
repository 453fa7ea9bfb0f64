"""Measures of a job's pipeline from reports, for who asks how it fares and what keeps it from being faster."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Container, Sequence
from typing import Any

import msgspec

from millrace.control.caching.profiling import look_at, measures, summed
from millrace.control.state.observed import Observed
from millrace.control.state.state import Job, State, Worker
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import unpack
from millrace.policies.bottleneck import BottleneckMeasures, Operator
from millrace.protocol.messages import WorkerReport
from millrace.protocol.reports import LaneReport, NodeMeasure

Nodes = dict[int, NodeMeasure]


class Window(msgspec.Struct, frozen=True):
    """Work of a job's workers lately, as far as they have reported.

    Attributes:
        nodes: by node, what its operators did, in all workers together.
        lanes: what the workers did for each consumer.
        computed_s: seconds in which workers computed, all of them together.
        cpu_s: seconds of processor time of their processes, and ``delayed_s`` those in which they had no core.
    """

    nodes: Nodes = {}
    lanes: list[LaneReport] = []
    computed_s: float = 0.0
    cpu_s: float = 0.0
    delayed_s: float = 0.0

    @property
    def seconds(self) -> float:
        """How long it was."""
        return statistics.fmean([lane.lived_s for lane in self.lanes]) if self.lanes else 0.0


def window_of(observed: Observed, job: str) -> Window:
    """Work of a job's workers in the last ``WINDOW_S`` seconds or a little more.

    Of a job that has not been here for so long: since its beginning.
    """
    reports = {
        name: (observation.report, _before(observation.report, observation.then))
        for name, observation in observed.workers.items()
        if observation.report is not None and observation.report.job == job
    }
    before = {name: {each.node: each for each in then.nodes} for name, (_, then) in reports.items()}
    by_worker = [_lanes_since(report, then) for report, then in reports.values()]
    return Window(
        summed(measures(observed, job), before),
        [lane for lanes in by_worker for lane in lanes],
        sum(max((lane.computing_s for lane in lanes), default=0.0) for lanes in by_worker),
        sum(report.cores * max(0.0, report.cpu_s - then.cpu_s) for report, then in reports.values()),
        sum(max(0.0, report.delayed_s - then.delayed_s) for report, then in reports.values()),
    )


def load_of(
    state: State, observed: Observed, job: Job, window: Window, planned: int = 0, requested: int = 0
) -> BottleneckMeasures:
    """Measures of a job, from which its bottleneck follows.

    Args:
        state: of the dispatcher.
        observed: reports of workers and consumers.
        job: one of its jobs.
        window: of that job.
        planned: workers of the whole service that there should be; 0: nobody plans.
        requested: workers that a cluster was asked for and that have not ended.
    """
    serving = [worker for worker in state.workers.values() if worker.job == job.name and worker.lost_at is None]
    look = look_at(observed, job)
    batch_s, wait_s = (look.batch_s, look.wait_s) if look is not None else (0.0, 0.0)
    cpu_s = sum(each.cpu_s for each in window.nodes.values())
    return BottleneckMeasures(
        operators_of(window.nodes, *_kinds(job.spec.structure)),
        batch_s,
        wait_s,
        workers=len(serving),
        planned=job.scaling.scale.workers if job.scaling is not None else planned,
        requested=requested,
        spare=_spare(state, serving),
        cores=min((_cores(state, worker, observed) for worker in serving), default=1),
        used=cpu_s / window.computed_s if window.computed_s > 0 else 0.0,
        delayed=delayed(window.cpu_s, window.delayed_s),
        computing=_mean([lane.computing_s / lane.lived_s for lane in window.lanes], 1.0),
        filled=_mean([lane.filled_s / lane.lived_s for lane in window.lanes], 0.0),
        link_bytes_s=_link(job, window.nodes, batch_s),
    )


def delayed(cpu_s: float, delayed_s: float) -> float:
    """Share of the time in which threads could run that they had no core, at most 95 %."""
    return min(0.95, delayed_s / (cpu_s + delayed_s)) if cpu_s + delayed_s > 0 else 0.0


def operators_of(nodes: Nodes, reads: Container[int], sequential: Container[int]) -> list[Operator]:
    """Work of a graph's operators, from the source to the last; see :func:`kinds`."""
    return [
        Operator(
            each.label,
            each.elements,
            _wall_s(each),
            each.active_s,
            min(each.cpu_s, each.active_s),
            each.threads,
            reads=number in reads,
            sequential=number in sequential,
        )
        for number, each in sorted(nodes.items())
    ]


def operator_rows(nodes: Nodes, lately: Nodes, seconds: float) -> list[dict[str, Any]]:
    """Work of a graph's operators in all, from the source to the last, and how they fare.

    Args:
        nodes: what they did in all.
        lately: what they did in the last ``seconds``, of which ``share`` (of the time of all operators) and
            ``elements_s`` (elements of a second) are.
        seconds: 0: nobody knows.
    """
    all_s = sum(_wall_s(each) for each in lately.values())
    found = []
    for number, each in sorted(nodes.items()):
        now = lately.get(number, NodeMeasure(number, each.label, 0, 0, 0.0))
        found.append(
            {
                "operator": each.label,
                "elements": each.elements,
                "bytes": each.bytes,
                "active_s": each.active_s,
                "cpu_s": each.cpu_s,
                "threads": each.threads,
                "reads_in_flight": each.reads_in_flight,
                "requests": each.requests,
                "stored_bytes": each.stored_bytes,
                "cached_bytes": each.cached_bytes,
                "retried": each.retried,
                "hedged": each.hedged,
                "store_wait_s": each.store_wait_s,
                "under_way": each.under_way,
                "padding_share": each.padding / each.padded if each.padded else None,
                "share": _wall_s(now) / all_s if all_s > 0 else None,
                "elements_s": now.elements / seconds if seconds > 0 else None,
            }
        )
    return found


@functools.lru_cache(maxsize=128)
def _kinds(structure: bytes) -> tuple[frozenset[int], frozenset[int]]:
    return kinds(unpack(structure))


def kinds(graph: Graph) -> tuple[frozenset[int], frozenset[int]]:
    """Node ids of the sources, and of operators that the user did not let have threads."""
    sources = frozenset(number for number, _ in graph.sources())
    calls = {number: getattr(node, "num_parallel_calls", None) for number, node in enumerate(graph.nodes)}
    return sources, frozenset(number for number, parallel in calls.items() if parallel == 1)


def _wall_s(measure: NodeMeasure) -> float:
    return measure.wall_s or measure.active_s / max(1, measure.threads)


def _before(report: WorkerReport, then: WorkerReport | None) -> WorkerReport:
    """Choose the report to begin at: ``then``, or an empty one if the pipeline was loaded anew since."""
    nodes = {each.node: each.elements for each in then.nodes} if then is not None else {}
    anew = any(each.elements < nodes.get(each.node, 0) for each in report.nodes)
    return WorkerReport() if then is None or anew else then


def _lanes_since(report: WorkerReport, then: WorkerReport) -> list[LaneReport]:
    before = {lane.consumer: lane for lane in then.lanes}
    return [_lane_since(lane, before.get(lane.consumer)) for lane in report.lanes if lane.lived_s > 0]


def _lane_since(now: LaneReport, then: LaneReport | None) -> LaneReport:
    if then is None or now.lived_s <= then.lived_s:
        return now
    return LaneReport(
        now.consumer,
        now.running,
        now.blocked_s,
        now.buffered_bytes,
        now.lived_s - then.lived_s,
        max(0.0, now.computing_s - then.computing_s),
        max(0.0, now.filled_s - then.filled_s),
    )


def _cores(state: State, worker: Worker, observed: Observed) -> int:
    """Count cores that a worker may keep busy: its own choice, and of its host's no more than what falls to it."""
    beside = sum(other.host == worker.host and other.lost_at is None for other in state.workers.values())
    report = observed.worker_report(worker.id)
    chosen = 0 if report is None else report.cores
    fair = max(1, worker.cores // max(1, beside))
    return min(chosen, fair) if chosen else fair


def _spare(state: State, serving: Sequence[Worker]) -> bool:
    """Whether a host of these workers has more cores than workers."""
    hosts = {worker.host: worker.cores for worker in serving}
    there = [worker.host for worker in state.workers.values() if worker.lost_at is None]
    return any(there.count(host) < cores for host, cores in hosts.items()) or not hosts


def _link(job: Job, nodes: Nodes, batch_s: float) -> float:
    """Bytes of a second that come to the job's consumers."""
    root = nodes[max(nodes)] if nodes else None
    if root is None or not root.elements or batch_s <= 0:
        return 0.0
    consumers = sum(place.lost_at is None for place in job.consumers.values())
    return root.bytes / root.elements / batch_s * consumers


def _mean(values: Sequence[float], default: float) -> float:
    return statistics.fmean(values) if values else default
