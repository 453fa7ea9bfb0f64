"""Tasks that failed: the job fails of one once its consumer has everything that comes before it.

A failure waits in the state, so that it survives the dispatcher; its task is not run again. It goes with the task, if
the consumer leaves.
"""

from __future__ import annotations

from millrace.control.journal.epoch_events import EpochHeld
from millrace.control.journal.task_events import TaskBroke, TaskReleased
from millrace.control.journal.transaction import Turn
from millrace.control.membership import oversized
from millrace.control.membership.jobs import fail_job
from millrace.control.state.state import Job
from millrace.control.tasks.leases import leased_by
from millrace.control.tasks.slots import readers_of
from millrace.control.tasks.task_queue import held_back, next_to_read
from millrace.protocol.messages import TaskFailed


def failed(turn: Turn, worker: str, message: TaskFailed) -> None:
    """A task can't run, at this worker or at any."""
    if message.needs and oversized.passed_on(turn, worker, message):
        return
    found = leased_by(turn.state, worker, message.ref, message.lease)
    if found is None:
        return
    job, (_, number, task) = found[0], (message.ref.job, message.ref.epoch, message.ref.task)
    if number > job.newest:
        # Perhaps nobody ever reads its epoch; who does has the task run again.
        turn.emit(TaskReleased(job.name, number, task, "it failed before anybody read its epoch"))
        turn.emit(EpochHeld(job.name, number))
        return
    failure = oversized.explained(turn, job, message) if message.needs else message.failure
    turn.emit(TaskReleased(job.name, number, task, "it failed, and what comes before it is read first"))
    turn.emit(TaskBroke(job.name, number, task, failure))
    watch(turn)


def watch(turn: Turn) -> None:
    """Fail those of the touched jobs that have come to a task that failed; of several to the first one."""
    for name in sorted(turn.state.index.touched & turn.state.jobs.keys()):
        job = turn.state.jobs[name]
        due = [(number, min(tasks)) for number, epoch in job.epochs.items() if (tasks := _due(job, number))]
        if due:
            number, task = min(due)
            fail_job(turn, job, job.epochs[number].failures[task])


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
