"""Tasks that failed: the job fails of one once its consumer has everything that comes before it.

A failure waits in the state, so that it survives the dispatcher; its task is not run again. It goes with the task, if
the consumer leaves.
"""

from __future__ import annotations

from millrace.control.journal.epoch_events import EpochHeld
from millrace.control.journal.task_events import TaskBroke
from millrace.control.journal.transaction import Transaction
from millrace.control.membership import oversized
from millrace.control.membership.jobs import fail_job
from millrace.control.state.state import Job
from millrace.control.tasks.leases import leased_by, release
from millrace.control.tasks.slots import readers_of
from millrace.control.tasks.task_queue import held_back, next_to_read
from millrace.protocol.messages import TaskFailed


def failed(tx: Transaction, worker: str, message: TaskFailed) -> None:
    """Keep a failure that ends its job when its turn comes, or let another worker try."""
    found = leased_by(tx.state, worker, message.ref, message.lease)
    if found is None or oversized.passed_on(tx, found[0], message.failure):
        return
    job, (_, number, task) = found[0], (message.ref.job, message.ref.epoch, message.ref.task)
    if number > job.newest:
        # Perhaps nobody ever reads its epoch; who does has the task run again.
        release(tx, job, number, task, "it failed before anybody read its epoch")
        tx.emit(EpochHeld(job.name, number))
        return
    release(tx, job, number, task, "it failed, and what comes before it is read first")
    tx.emit(TaskBroke(job.name, number, task, message.failure))
    watch(tx)


def watch(tx: Transaction) -> None:
    """Fail those of the touched jobs that have come to a task that failed; of several to the first one.

    What was too large for all workers there were runs again if one has come meanwhile that may keep as much.
    """
    for name in sorted(tx.state.index.touched & tx.state.jobs.keys()):
        job = tx.state.jobs[name]
        due = [(number, task) for number in job.epochs for task in _due(job, number)]
        for number, task in sorted(due):
            failure = job.epochs[number].failures[task]
            if not oversized.passed_on(tx, job, failure):
                fail_job(tx, job, oversized.explained(tx, job, failure))
                break
            release(tx, job, number, task, "a worker has come that may keep what it gives")


def _due(job: Job, number: int) -> list[int]:
    """Tasks of an epoch that failed and that are what their readers, or tails, wait for."""
    return [task for task in job.epochs[number].failures if _is_due(job, number, task)]


def _is_due(job: Job, number: int, task: int) -> bool:
    epoch = job.epochs[number]
    live = epoch.live[task]
    if live.complete:
        return True  # it ran again for what it leaves over, which somebody waits for
    if all(place.epoch < number for place in readers_of(job, live.slot)):
        return False  # nobody is there, or they read what comes before
    if not job.spec.deterministic or held_back(
        job
    ):  # where ranks wait for one another, who waits for this may be first
        return True
    return next_to_read(job, epoch, live.slot) == task
