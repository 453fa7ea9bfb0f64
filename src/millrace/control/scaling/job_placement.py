"""Where a job's work runs: on local workers, which its consumers start inside their hosts, and on the service's.

target_workers    local workers                      the service's
"auto"            first, where a consumer has any    for the rest, unless the link brings next to nothing
"local"           alone                              none
"any"             like the others                    at least one
"remote"          none                               all
"""

from __future__ import annotations

from collections.abc import Mapping

from millrace.control.journal.scaling_events import HomeChosen
from millrace.control.journal.transaction import Transaction
from millrace.control.state.observed import Reading, ScalingObservation
from millrace.control.state.state import Job, State, Worker
from millrace.control.tasks.leases import revoke
from millrace.policies.scaling import placement as policy
from millrace.protocol.messages import Notice
from millrace.protocol.reports import Flow


def may_serve(job: Job, worker: Worker) -> bool:
    """Whether the worker may have anything of the job."""
    return worker.pinned_job == job.name if worker.pinned_job else job.spec.target_workers != "local"


def wanted(state: State, job: Job) -> int | None:
    """How many of the service's workers the job is to have; None: as many as there are; 0 while nobody reads it."""
    if at_home(state, job) or not job.consumers:
        return 0
    if job.scaling is None:
        return None
    return max(at_least(state, job), job.scaling.scale.workers) - state.index.serving.locals[job.name]


def at_home(state: State, job: Job) -> bool:
    """Whether the job uses its local workers alone; by its own choice only while they serve all its consumers."""
    return job.spec.target_workers == "local" or (job.home is not None and local_first(state, job))


def local_first(state: State, job: Job) -> bool:
    """Whether the job uses the service's workers only for what its local ones cannot do."""
    return job.spec.target_workers == "auto" and state.index.serving.locals[job.name] > 0 and _all_near(state, job)


def _all_near(state: State, job: Job) -> bool:
    """Each consumer that is there has local workers on its host."""
    hosts = {worker.host for worker in state.index.serving.local.get(job.name, ())}
    return all(place.lost_at is not None or place.host in hosts for place in job.consumers.values())


def at_least(state: State, job: Job) -> int:
    """How many workers the job has in any case, the local ones included."""
    local, target = state.index.serving.locals[job.name], job.spec.target_workers
    both = local and (target == "any" or (target == "auto" and not _all_near(state, job)))
    return local + 1 if both else local


def told(state: State, job: Job) -> str:
    """Where the job runs and why, in words."""
    target, local = job.spec.target_workers, state.index.serving.locals[job.name]
    if job.home is not None and at_home(state, job):
        return job.home.reason
    if target == "local":
        return "runs on local workers alone, as its user says"
    if not local:
        return "has no local workers, and runs on those of the service"
    if target == "any":
        return "runs on local workers and on those of the service alike, as its user says"
    return "runs on local workers, and on those of the service for what these cannot do"


def came(tx: Transaction, job: Job) -> dict[int, tuple[Flow, Flow]]:
    """By consumer, what had come to it from local workers and from others when it reported last."""
    return {index: report.came for index, report in tx.observed.reports(job.consumers).items()}


def look(
    tx: Transaction, job: Job, observation: ScalingObservation, readings: Mapping[int, Reading], waits: float
) -> bool:
    """Decide after a look at the job where it runs; whether that has changed."""
    if not local_first(tx.state, job):
        return False
    if job.home is not None:
        if waits < policy.WAITS or tx.now - job.home.at < policy.AGAIN_S:
            return False
        reason = "the consumers still wait: looks whether the link from remote workers has become better"
        tx.emit(HomeChosen(job.name, False, reason, tx.now))
        return True
    remote = _others(tx.state, job)
    now = came(tx, job)
    sides = [
        policy.WorkerSide(
            workers,
            _rate(observation, now, readings, side, "elements"),
            _rate(observation, now, readings, side, "bytes"),
        )
        for side, workers in enumerate((tx.state.index.serving.locals[job.name], len(remote)))
    ]
    decision = policy.stay_home(sides[0], sides[1], _ready(tx, job, remote), waits)
    if decision.value:
        _go_home(tx, job, remote, decision.reason)
    return decision.value


def _others(state: State, job: Job) -> list[Worker]:
    """Workers of the service that have to do with the job, also if they only wait for what they have to be read."""

    def holds(worker: Worker) -> bool:
        return any(key[0] == job.name for held in (worker.unfinished, worker.kept) for key in held.values())

    return [each for each in state.workers.values() if not each.pinned_job and (each.job == job.name or holds(each))]


def _rate(
    observation: ScalingObservation,
    now: Mapping[int, tuple[Flow, Flow]],
    readings: Mapping[int, Reading],
    side: int,
    what: str,
) -> float:
    """Elements or bytes of a second that came from one side since the mark, all consumers together."""
    total = 0.0
    for consumer, reading in readings.items():
        if reading.read_s > 0 and consumer in now:
            then = observation.came.get(consumer, (Flow(), Flow()))[side]
            total += max(0, getattr(now[consumer][side], what) - getattr(then, what)) / reading.read_s
    return total


def _ready(tx: Transaction, job: Job, workers: list[Worker]) -> int:
    """Bytes that these have computed and nobody has."""
    reports = [tx.observed.worker_report(worker.id) for worker in workers]
    mine = [report for report in reports if report is not None and report.job == job.name]
    return sum(lane.buffered_bytes for report in mine for lane in report.lanes)


def _go_home(tx: Transaction, job: Job, remote: list[Worker], reason: str) -> None:
    """Compute here again what lies at the other end of the link: it would be waited for longer."""
    tx.emit(HomeChosen(job.name, True, reason, tx.now))
    for worker in remote:
        for name, number, task in [*worker.unfinished.values(), *worker.kept.values()]:
            if name == job.name and not job.epochs[number].live[task].complete:
                revoke(tx, job, number, task, "the link to its worker is too slow")
    tx.to_all(job, Notice(f"job {job.name}: {reason}"))
