"""Invariants of a state: checked after each event in tests and in simulation, not in production."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from millrace.control.journal.event import Event
from millrace.control.journal.task_events import TailDealt, TaskBroke, TaskDone, TaskEnded, TaskLeased, TaskReleased
from millrace.control.state.state import Epoch, Job, State
from millrace.control.state.task_state import Failed, Finished, Running, TaskState, Waiting

OVER = type(None)
"""In the place of a phase: the task was not dealt yet, or is over."""

TRANSITIONS: Mapping[type[Event], Mapping[type, type]] = {
    TailDealt: {OVER: Waiting},
    TaskLeased: {OVER: Running, Waiting: Running},
    TaskEnded: {Running: Finished},
    TaskReleased: {Running: Waiting, Finished: Waiting, Failed: Waiting},
    TaskBroke: {Waiting: Failed},
    TaskDone: {Waiting: OVER, Failed: OVER, Running: OVER, Finished: OVER},
}
"""By event and phase before it, the phase after it. Other events leave a task in its phase."""


class InvalidStateError(Exception):
    """A bug: an event has led to a state that makes no sense."""


def phase_of(state: State, event: Event) -> type:
    """Find the phase of the task that an event names; :data:`OVER` if it names none, or one that is not there."""
    job = state.jobs.get(getattr(event, "job", ""))
    epoch = None if job is None else job.epochs.get(getattr(event, "epoch", -1))
    task = None if epoch is None else epoch.live.get(getattr(event, "task", -1))
    return OVER if task is None else type(task.phase)


def validate_event(state: State, event: Event, before: type) -> None:
    """Check what an event has just changed.

    Args:
        state: after the event.
        event: just applied.
        before: :func:`phase_of` its task then.

    Raises:
        InvalidStateError: it is a bug.
    """
    after = phase_of(state, event)
    allowed = TRANSITIONS.get(type(event))
    if (before is not after) if allowed is None else (allowed.get(before) is not after):
        raise InvalidStateError(f"{event} took a task from {before.__name__} to {after.__name__}")
    state.index.check()
    job, number = state.jobs.get(getattr(event, "job", "")), getattr(event, "epoch", None)
    if job is not None and number in job.epochs:
        validate_epoch(state, job, number)


def validate(state: State) -> None:
    """Check the whole state: every lease is held by one task and one worker, and all indexes agree with the tasks.

    Raises:
        InvalidStateError: it is a bug.
    """
    for job in state.jobs.values():
        for number in job.epochs:
            validate_epoch(state, job, number)
    leases = {
        (task.worker, task.lease, task.finished): (job.name, number, index)
        for job in state.jobs.values()
        for number, epoch in job.epochs.items()
        for index, task in epoch.live.items()
        if task.worker
    }
    held = {
        (worker.id, lease, finished): key
        for worker in state.workers.values()
        for finished, leased in ((False, worker.unfinished), (True, worker.kept))
        for lease, key in leased.items()
    }
    _same("leases of workers", held, leases)
    clients = {place.client: (job.name, index) for job in state.jobs.values() for index, place in job.consumers.items()}
    _same("clients", state.clients, clients)


def validate_epoch(state: State, job: Job, number: int) -> None:
    """Check the tasks of an epoch, and that its indexes agree with them.

    Raises:
        InvalidStateError: it is a bug.
    """
    epoch, where = job.epochs[number], f"epoch {number} of job {job.name}"
    tasks = epoch.live
    for index, task in tasks.items():
        _validate_task(state, (job.name, number, index), task)
    unread = _by_slot(epoch, (index for index, task in tasks.items() if not task.complete))
    _same(f"pending tasks of {where}", epoch.pending, _by_slot(epoch, (i for i in tasks if not tasks[i].worker)))
    _same(f"unread tasks of {where}", epoch.unread, unread)
    failed = {index for index, task in tasks.items() if type(task.phase) is Failed}
    _same(f"failed tasks of {where}", set(epoch.failures), failed)
    if not epoch.suspected <= tasks.keys():
        raise InvalidStateError(f"{where} suspects tasks that are over: {epoch.suspected - tasks.keys()}")
    if job.tasks_of(epoch) is not None:
        for slot in unread:
            for reader in {reader for task in unread[slot] for reader in tasks[task].readers}:
                if not set(epoch.unread_by(reader, slot)) <= set(epoch.shares.get(reader, ())):
                    raise InvalidStateError(f"reader {reader} has tasks of {where} that are not in its share")


def _validate_task(state: State, key: tuple[str, int, int], task: TaskState) -> None:
    phase, readers = task.phase, task.readers.values()
    if isinstance(phase, Running | Finished):
        worker = state.workers.get(phase.worker)
        held = {} if worker is None else worker.unfinished if isinstance(phase, Running) else worker.kept
        if held.get(phase.lease) != key:
            raise InvalidStateError(f"task {key} is {phase}, and its worker does not have that lease")
        if not 0 < phase.lease < state.next_lease:
            raise InvalidStateError(f"task {key} is {phase}, and no such lease was given")
    if not (readers or task.by_any) or task.complete != task.is_read():
        raise InvalidStateError(f"task {key} is {task}, and its readers say otherwise")
    if task.deaths < 0 or any(not 0 <= reader.start <= reader.received for reader in readers):
        raise InvalidStateError(f"task {key} is {task}")


def _by_slot(epoch: Epoch, tasks: Iterable[int]) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for task in tasks:
        found.setdefault(epoch.live[task].slot, set()).add(task)
    return found


def _same(what: str, found: object, expected: object) -> None:
    if found != expected:
        raise InvalidStateError(f"{what} are {found}, and tasks say {expected}")
