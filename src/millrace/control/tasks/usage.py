"""Usage of jobs so far, epoch by epoch: time of workers, and of whoever trains. Observed, never journalled."""

from __future__ import annotations

from millrace.control.journal.transaction import Transaction
from millrace.control.state.observed import ResourceUsage, add_usage
from millrace.control.tasks import group_progress
from millrace.protocol.messages import WorkerReport


def account(tx: Transaction) -> None:
    """Time has passed since this was last called: it goes to the job that each worker serves, in the epoch it reads."""
    observed, state = tx.observed, tx.state
    since, observed.accounted = observed.accounted, tx.now
    if not since or tx.now <= since:
        return
    passed = tx.now - since
    for name in observed.usage.keys() - state.jobs.keys():
        del observed.usage[name]
    reports = {worker: report for worker in state.workers if (report := observed.worker_report(worker)) is not None}
    used = {worker: _used(report, observed.core_s.get(worker), passed) for worker, report in reports.items()}
    observed.core_s = {
        worker: max(_core_s(report), observed.core_s.get(worker, 0.0)) for worker, report in reports.items()
    }
    for job in state.jobs.values():
        serving = state.index.serving.by_job.get(job.name, ())
        workers = len(serving)
        consumers = sum(place.lost_at is None for place in job.consumers.values())
        if workers or consumers:
            core_s, gib_s = (sum(used[worker.id][part] for worker in serving if worker.id in used) for part in (0, 1))
            spent = ResourceUsage(workers * passed, consumers * passed, core_s, gib_s)
            add_usage(observed.usage.setdefault(job.name, {}), job.newest, spent)
            if job.spec.sharing:
                group_progress.divide(tx, job, spent, passed)


def _core_s(report: WorkerReport) -> float:
    """Processor time that a worker has used since it began, of all cores together."""
    return report.cpu_s * report.cores


def _used(report: WorkerReport, accounted: float | None, passed: float) -> tuple[float, float]:
    """Processor time that a worker has reported beyond what was accounted for, and its memory in GiB seconds.

    What it used before its first report (``accounted`` is None) was accounted for by the dispatcher before this one, if
    it is older.
    """
    core_s = _core_s(report)
    return max(0.0, core_s - (core_s if accounted is None else accounted)), report.memory_bytes / (1 << 30) * passed
