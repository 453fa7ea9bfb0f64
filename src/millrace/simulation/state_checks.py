"""What must hold of the dispatcher's state by itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from millrace.control.journal.snapshot import Snapshot
from millrace.control.scaling.job_placement import may_serve
from millrace.control.state.state import State
from millrace.control.tasks.task_queue import by_worker, missing
from millrace.protocol import messages as msg
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_dispatcher import Dispatcher


def in_force(state: State, worker: str, ref: msg.TaskRef, lease: int) -> bool:
    """Whether the worker holds the task under this lease."""
    job = state.jobs.get(ref.job)
    epoch = job.epochs.get(ref.epoch) if job is not None else None
    live = epoch.live.get(ref.task) if epoch is not None else None
    return live is not None and live.worker == worker and live.lease == lease


def check_task(state: State, name: str, number: int, task: int) -> None:
    """A task is run by one worker that knows of it, or waits, or is over."""
    job = state.jobs.get(name)
    epoch = job.epochs.get(number) if job is not None else None
    live = epoch.live.get(task) if epoch is not None else None
    if epoch is None or live is None:
        return
    where = f"task {task} of epoch {number} of job {name}"
    if live.worker:
        worker = state.workers.get(live.worker)
        if worker is None:
            raise Violation(f"{where} is leased to {live.worker}, which is gone")
        held = worker.kept if live.finished else worker.unfinished
        if held.get(live.lease) != (name, number, task):
            raise Violation(f"{where} is leased to {live.worker}, which does not have lease {live.lease}")
    if (not live.worker) != (task in epoch.pending.get(live.consumer, ())):
        raise Violation(f"{where} has worker {live.worker!r} and waits for one at the same time, or neither")
    if (not live.complete) != (task in epoch.unread.get(live.consumer, ())):
        raise Violation(f"{where} is complete and unread, or neither")


def check_leases(state: State) -> None:
    """All leases that workers have are in force, and all tasks are well."""
    for worker in state.workers.values():
        for lease, (name, number, task) in [*worker.unfinished.items(), *worker.kept.items()]:
            if not in_force(state, worker.id, msg.TaskRef(name, number, task), lease):
                raise Violation(f"lease {lease} of {worker.id} is not in force")
            if not may_serve(state.jobs[name], worker):
                raise Violation(f"{worker.id} has a task of job {name}, which is not to run there")
    for name, job in state.jobs.items():
        for number, epoch in job.epochs.items():
            for task in epoch.live:
                check_task(state, name, number, task)


def check_quota(state: State, name: str) -> None:
    """Who was given a worker belongs to a tenant that may have it; workers that own shares aside."""
    given = state.jobs.get(name)
    quota = None if given is None or by_worker(given) else state.settings.quotas.get(given.spec.tenant)
    if given is None or quota is None:
        return
    jobs = [job for job in state.jobs.values() if job.spec.tenant == given.spec.tenant and not by_worker(job)]
    has = sum(len(state.crew.by_job.get(job.name, ())) for job in jobs)
    if has > quota:
        raise Violation(f"job {name} was given a worker: tenant {given.spec.tenant} has {has} and may have {quota}")


def check_bounds(state: State, dispatcher: Dispatcher) -> None:
    """What is over is forgotten."""
    for name, job in state.jobs.items():
        if job.consumers and not missing(job):
            reading = [place.epoch for place in job.consumers.values()]
            if min(job.epochs, default=1 << 60) < min(reading):
                raise Violation(f"job {name} keeps epochs {sorted(job.epochs)}, and {reading} are read")
    for kind, known, sights in (
        ("workers", state.workers, dispatcher.observed.workers),
        ("clients", state.clients, dispatcher.observed.clients),
    ):
        if len(sights) > len(known) + 8:
            raise Violation(f"{len(sights)} {kind} are remembered, of which {len(known)} are there")


def difference(one: State, other: State) -> str:
    """Where two states differ first, empty if they don't."""
    if all(getattr(one, name) == getattr(other, name) for name in Snapshot.__struct_fields__):
        return ""
    return _difference(one.snapshot(), other.snapshot(), "state")


def _difference(one: Any, other: Any, where: str) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            found = _difference(one.get(key, "nothing"), other.get(key, "nothing"), f"{where}.{key}")
            if found:
                return found
        return ""
    return "" if one == other else f"{where} is {one} and {other}"
