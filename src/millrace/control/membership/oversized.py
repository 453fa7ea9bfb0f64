"""Outputs that are larger than what a worker may keep: the job goes on at workers that may keep more.

The first output that is too large for its worker tells how large a buffer the job needs. From then on only workers that
have as much serve the job, so that no further task has to be begun in vain; the others serve other jobs.
"""

from __future__ import annotations

import msgspec

from millrace.control.journal.job_events import BufferNeeded
from millrace.control.journal.transaction import Transaction
from millrace.control.journal.worker_events import WorkerAssigned
from millrace.control.membership.jobs import fail_job
from millrace.control.membership.workers import hand_over_shares
from millrace.control.scaling.job_placement import may_serve
from millrace.control.state.serving_index import fits
from millrace.control.state.state import Job, State, Worker
from millrace.control.tasks.leases import revoke
from millrace.protocol.messages import Failure, Notice


def passed_on(tx: Transaction, job: Job, failure: Failure) -> bool:
    """Whether other workers have a large enough buffer for what a task gives; then the job is theirs from now on."""
    needs = failure.needs
    if not needs or not _able(tx.state, job, needs):
        return False
    tx.emit(BufferNeeded(job.name, max(needs, job.needs)))
    small = [each for each in tx.state.workers.values() if not fits(job, each)]
    for each in small:
        reason = f"may keep {each.buffer_bytes:,} bytes, and an output of job {job.name} has {needs:,}"
        for name, number, task in list(each.unfinished.values()):
            if name == job.name:
                revoke(tx, job, number, task, f"worker {each.id} {reason}")
        if each.job == job.name and not each.pinned_job:
            tx.emit(WorkerAssigned(each.id, "", tx.now, reason))
        hand_over_shares(tx, job, each.id)
    text = f"an output of job {job.name} has {needs:,} bytes: workers that may keep fewer don't serve it any more"
    tx.to_all(job, Notice(f"{text} (--buffer-bytes of millrace worker)"))
    return True


def explained(tx: Transaction, job: Job, failure: Failure) -> Failure:
    """Why the job fails: if that is too large an output, no worker may keep as much."""
    if not failure.needs:
        return failure
    return msgspec.structs.replace(failure, message=f"{failure.message}. {_nobody(tx.state, job, failure.needs)}")


def watch(tx: Transaction) -> None:
    """Fail jobs whose outputs are too large for all workers that are left, unless another one comes in time."""
    known, tx.observed.oversized = tx.observed.oversized, {}
    for job in list(tx.state.jobs.values()):
        if not job.needs or job.failure is not None or not job.consumers or _able(tx.state, job, job.needs):
            continue
        since = known.get(job.name, tx.now)
        if tx.now - since < tx.state.settings.patience_s:
            tx.observed.oversized[job.name] = since
            continue
        text = (
            f"an output of job {job.name!r} has {job.needs:,} bytes, and the workers that may keep as much have been "
            f"gone for {tx.state.settings.patience_s:g} s. {_nobody(tx.state, job, job.needs)}"
        )
        fail_job(tx, job, Failure("ElementTooLargeError", text))


def _able(state: State, job: Job, needs: int) -> list[Worker]:
    """Workers that may keep so many bytes and serve the job; also those whose sessions broke a moment ago."""
    workers = state.workers.values()
    return [each for each in workers if each.buffer_bytes >= needs and not each.draining and may_serve(job, each)]


def _nobody(state: State, job: Job, needs: int) -> str:
    there = [each for each in state.workers.values() if may_serve(job, each)]
    largest = max((each.buffer_bytes for each in there), default=0)
    count = "The worker" if len(there) == 1 else f"The largest of {len(there)} workers"
    return (
        f"{count} may keep {largest:,} bytes. One that may keep more, should it still come, does not bring the job "
        f"back: start it first, with --buffer-bytes {2 * needs}, and then the training again"
    )
