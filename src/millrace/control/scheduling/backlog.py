"""Whether a job has anything for a worker to do now, and how much may lie ready for its consumers."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

from millrace.control.journal.transaction import Transaction
from millrace.control.state.index import SERVICE
from millrace.control.state.serving_index import fits
from millrace.control.state.state import Job, Worker
from millrace.control.tasks.slots import active
from millrace.control.tasks.task_queue import candidate_for

SPARE_CAP = 4
LEAST_OF_SLOT = 2
"""Tasks of each slot that may lie unread, where a consumer reads several slots."""


def serving(tx: Transaction, job: Job) -> list[Worker]:
    """Workers that serve the job and can be given something."""
    return tx.state.index.serving.serving(job.name)


def unread_cap(tx: Transaction, job: Job, worker: Worker) -> int:
    """Tasks of a slot that may lie unread at workers like this one: for a consumer twice what these compute at a time.

    All are alike but for those that are local.
    """
    local = bool(worker.pinned_job)
    most = tx.state.index.memoize(
        SERVICE,
        ("cap", job.name, local),
        lambda: max(
            SPARE_CAP,
            2 * sum(tx.observed.want(other.id) for other in serving(tx, job) if bool(other.pinned_job) == local),
        ),
    )
    return max(LEAST_OF_SLOT, most // job.spec.cycle_length) if job.spec.coordinated else most


def planning(job: Job, worker: Worker) -> bool:
    """Whether the worker lists the job's sources or chooses its shares."""
    return job.lister == worker.id or any(epoch.chooser == worker.id for epoch in job.epochs.values())


def runnable(tx: Transaction, job: Job, worker: Worker) -> bool:
    """Whether the job has something for this worker to do now, the next epoch's preparation aside."""
    return fits(job, worker) and _has_work(tx, job, worker, serves=worker.job == job.name)


def having_work(tx: Transaction, worker: Worker, names: AbstractSet[str]) -> set[str]:
    """Subset of these jobs with something to do for a worker of another job that wants to have as much in hand.

    Left out are those whose sharding fixes which worker runs what: they have to be asked about each worker. Jobs of
    which nothing has changed since they were looked at are not looked at again.
    """

    def has(name: str) -> bool:
        job = tx.state.jobs[name]
        return not job.spec.statically_owned and _has_work(tx, job, worker, serves=False)

    return tx.state.index.having(("work", tx.observed.want(worker.id)), names, has)


def able_to_take(tx: Transaction, names: list[str]) -> list[str]:
    """Subset of these jobs with something for some worker of other jobs; left out are the same."""
    index = tx.state.index.serving
    if not names or not index.workers:
        return []
    keenest = tx.state.index.memoize(
        SERVICE, "keenest", lambda: max(index.workers, key=lambda w: tx.observed.want(w.id))
    )
    able = having_work(tx, keenest, set(names))  # what there is for others there is for one that wants more, too
    return [name for name in names if name in able]


def _has_work(tx: Transaction, job: Job, worker: Worker, *, serves: bool) -> bool:
    if job.failure is not None or not job.consumers:
        return False
    if job.tables is None:
        return not job.lister or (serves and job.lister == worker.id)
    if job.spec.statically_owned and unowned(job):
        return True
    cap = unread_cap(tx, job, worker)
    if not serves:
        cap += 2 * tx.observed.want(worker.id)
    apart = worker.id if job.spec.statically_owned or worker.pinned_job else ""  # else one is as good as another
    return tx.state.index.memoize(
        job.name,
        (cap, apart),
        lambda: any(candidate_for(tx.state, job, worker, c, cap=cap, ahead=False) is not None for c in active(job)),
    )


def unowned(job: Job) -> bool:
    """Whether an epoch that is read waits for its shares to be fixed."""
    last = job.newest
    return any(n <= last and not epoch.owners and not epoch.settled for n, epoch in job.epochs.items())
