"""Tasks of which outputs may lie in a shared window: how many are remembered, and what becomes of the others.

A task stays until its epoch is over, so that who comes late can be told where to read what is left of it. Of a long
epoch the oldest go before that. Whoever lacked something of a task that goes is told how much it had.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.control.journal.transaction import Transaction
from millrace.control.state.state import Job, State
from millrace.control.state.task_state import TaskState
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import DropLeftovers, TasksGone


def beyond_room(state: State, job: Job) -> tuple[int, int] | None:
    """Find the oldest task (by epoch) that a member has read, if more of them than :class:`Settings` says are kept."""
    ahead = sum(len(tasks) for n, epoch in job.epochs.items() if n >= job.reached for tasks in epoch.unread.values())
    if sum(len(epoch.live) for epoch in job.epochs.values()) - ahead <= state.settings.window_tasks:
        return None
    for number in sorted(job.epochs):
        for task, live in job.epochs[number].live.items():
            if live.finished and (number < job.reached or (live.complete and _is_free(state, job, number, task, live))):
                return number, task
    return None


def _is_free(state: State, job: Job, number: int, task: int, live: TaskState) -> bool:
    """Whether no tail needs what a task has left over."""
    return live.freed or not live.phase.leftovers or state.plan(job, number).task(task).parent < 0


def lies_in_window(state: State, name: str, number: int, task: int) -> bool:
    """Whether nobody waits for what a worker keeps of a task: it is there for members that are slower, or come late."""
    job = state.jobs[name]
    live = job.epochs[number].live[task]
    read = job.windowed and (live.complete or number < job.reached)
    return read and (live.freed or not live.phase.leftovers)


def drop_leftovers(tx: Transaction, job: Job, number: int, tasks: Iterable[int]) -> None:
    """Have workers let go of what these tasks left over and keep their outputs, as the tail is over."""
    for task in tasks:
        live = job.epochs[number].live.get(task)
        if live is not None and live.phase.leftovers and not live.freed:
            tx.to_worker(live.worker, DropLeftovers([msg.TaskRef(job.name, number, task)]))


def tell_gone(tx: Transaction, job: Job, number: int, task: int, live: TaskState) -> None:
    """Tell members of a task of which nothing is kept any more, if they lack something of it."""
    outputs = job.epochs[number].outputs.get(task, live.outputs)
    for reader, progress in live.readers.items():
        place = job.consumers.get(reader)
        if not progress.complete and place is not None and place.epoch == number:
            tx.to_consumer(job, reader, TasksGone(number, {task: outputs}))


def tell_skips(tx: Transaction, job: Job, number: int, task: int) -> None:
    """Tell members that skip a task so, and once it has ended how much it had."""
    for reader, skipped in job.epochs[number].skips.items():
        if task in skipped and job.consumers[reader].epoch == number:
            tx.to_consumer(job, reader, TasksGone(number, {task: skipped[task]}))


def send_gone(tx: Transaction, job: Job, number: int, reader: int) -> None:
    """Tell a member all tasks of its epoch of which nothing is kept any more, or that it skips."""
    epoch = job.epochs[number]
    gone = {task: outputs for task, outputs in epoch.outputs.items() if task not in epoch.live}
    gone |= epoch.skips.get(reader, {})
    if gone:
        tx.to_consumer(job, reader, TasksGone(number, gone))
