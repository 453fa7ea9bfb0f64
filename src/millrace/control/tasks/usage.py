"""Usage of jobs so far, epoch by epoch: time of workers, and of whoever trains. Observed, never journalled."""

from __future__ import annotations

from millrace.control.journal.transaction import Transaction
from millrace.control.state.observed import ResourceUsage

_REMEMBERED = 100
"""Epochs of a job; those before are added up."""


def account(tx: Transaction) -> None:
    """Time has passed since this was last called: it goes to the job that each worker serves, in the epoch it reads."""
    observed, state = tx.observed, tx.state
    since, observed.accounted = observed.accounted, tx.now
    if not since or tx.now <= since:
        return
    passed = tx.now - since
    for name in observed.usage.keys() - state.jobs.keys():
        del observed.usage[name]
    used = {worker: _used(tx, worker, passed) for worker in state.workers}
    reported = {worker: core_s for worker in state.workers if (core_s := _core_s(tx, worker)) is not None}
    observed.core_s = {worker: max(core_s, observed.core_s.get(worker, 0.0)) for worker, core_s in reported.items()}
    for job in state.jobs.values():
        serving = state.index.serving.by_job.get(job.name, ())
        workers = len(serving)
        consumers = sum(place.lost_at is None for place in job.consumers.values())
        if workers or consumers:
            epochs = observed.usage.setdefault(job.name, {})
            core_s, gib_s = (sum(used[worker.id][part] for worker in serving) for part in (0, 1))
            epochs.setdefault(job.newest, ResourceUsage()).add(
                ResourceUsage(workers * passed, consumers * passed, core_s, gib_s)
            )
            if len(epochs) > _REMEMBERED:
                first, second = sorted(epochs)[:2]
                epochs[second].add(epochs.pop(first))


def _core_s(tx: Transaction, worker: str) -> float | None:
    """Processor time that a worker has used since it began, of all cores together; None: it has not reported any."""
    report = tx.observed.worker_report(worker)
    return None if report is None else report.cpu_s * report.cores


def _used(tx: Transaction, worker: str, passed: float) -> tuple[float, float]:
    """Processor time that a worker has reported and that was not accounted for yet, and its memory in GiB seconds.

    What it used before its first report was accounted for by the dispatcher before this one, if it is older.
    """
    report, core_s = tx.observed.worker_report(worker), _core_s(tx, worker)
    if report is None or core_s is None:
        return 0.0, 0.0
    since = tx.observed.core_s.get(worker, core_s)
    return max(0.0, core_s - since), report.memory_bytes / (1 << 30) * passed
