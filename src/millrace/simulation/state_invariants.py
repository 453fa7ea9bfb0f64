"""Invariants of the dispatcher's state by itself."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millrace.control import inputs as inp
from millrace.control.actions import Action, SendToClient
from millrace.control.journal.snapshot import Snapshot, plain
from millrace.control.scaling.job_placement import may_serve
from millrace.control.state.state import State
from millrace.control.tasks.slots import missing
from millrace.protocol import messages as msg
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_dispatcher import SimulatedDispatcher


def in_force(state: State, worker: str, ref: msg.TaskRef, lease: int) -> bool:
    """Whether the worker holds the task under this lease."""
    job = state.jobs.get(ref.job)
    epoch = job.epochs.get(ref.epoch) if job is not None else None
    live = epoch.live.get(ref.task) if epoch is not None else None
    return live is not None and live.worker == worker and live.lease == lease


def check_leases(state: State) -> None:
    """All tasks run where they may."""
    for worker in state.workers.values():
        for name, _, _ in [*worker.unfinished.values(), *worker.kept.values()]:
            if not may_serve(state.jobs[name], worker):
                raise Violation(f"{worker.id} has a task of job {name}, which is not to run there")


def check_quota(state: State, name: str) -> None:
    """Check that a job which was given a worker is of a tenant that may have it; workers that own shares aside."""
    given = state.jobs.get(name)
    quota = None if given is None or given.spec.statically_owned else state.settings.quotas.get(given.spec.tenant)
    if given is None or quota is None:
        return
    jobs = [job for job in state.jobs.values() if job.spec.tenant == given.spec.tenant]
    jobs = [job for job in jobs if not job.spec.statically_owned]
    has = sum(len(state.index.serving.by_job.get(job.name, ())) for job in jobs)
    if has > quota:
        raise Violation(f"job {name} was given a worker: tenant {given.spec.tenant} has {has} and may have {quota}")


def check_jobs(state: State, name: str) -> None:
    """Check that a job which somebody begins or joins is of a tenant that may have so many, failed ones aside."""
    came = state.jobs.get(name)
    quota = None if came is None else state.settings.job_quotas.get(came.spec.tenant)
    if came is None or quota is None or came.failure is not None:
        return
    jobs = [job for job in state.jobs.values() if job.spec.tenant == came.spec.tenant and job.failure is None]
    has = sum(len({place.member for place in job.consumers.values()}) if job.spec.sharing else 1 for job in jobs)
    if has > quota:
        raise Violation(f"job {name} has come: tenant {came.spec.tenant} has {has} jobs and may have {quota}")


def check_refusals(dispatcher: SimulatedDispatcher, item: inp.Input, actions: Iterable[Action]) -> None:
    """Check that whoever is refused because of a quota of jobs asked for one more than its tenant may have."""
    said = [each.message for each in actions if isinstance(each, SendToClient)]
    refused = any(isinstance(each, msg.JobFailed) and "--quota-jobs" in each.failure.message for each in said)
    if refused and isinstance(item, inp.JoinRequested):
        spec, state = item.message.spec, dispatcher.state
        there = {
            name
            for (_, name), waiting in dispatcher.observed.gathering.items()
            if all(rank.message.spec.tenant == spec.tenant for rank in waiting.ranks.values())
        }
        for job in state.jobs.values():
            if job.spec.tenant == spec.tenant and job.failure is None:
                there |= {place.member for place in job.consumers.values()} if job.spec.sharing else {job.name}
        there |= {name for (_, name), kept in dispatcher.observed.kept_places.items() if kept.tenant == spec.tenant}
        others, quota = sorted(there - {spec.name}), state.settings.job_quotas[spec.tenant]
        if len(others) < quota:
            raise Violation(f"{spec.name} was refused, and tenant {spec.tenant} has {others} of {quota} jobs besides")


def check_bounds(state: State, dispatcher: SimulatedDispatcher) -> None:
    """Check that what is over is forgotten."""
    for name, job in state.jobs.items():
        if job.consumers and not missing(job):
            reading = [place.epoch for place in job.consumers.values()]
            if min(job.epochs, default=1 << 60) < min(reading):
                raise Violation(f"job {name} keeps epochs {sorted(job.epochs)}, and {reading} are read")
    waiting = sum(len(each.ranks) for each in dispatcher.observed.gathering.values())
    for kind, known, observations in (
        ("workers", len(state.workers), dispatcher.observed.workers),
        ("clients", len(state.clients) + waiting, dispatcher.observed.clients),
    ):
        if len(observations) > known + 8:
            raise Violation(f"{len(observations)} {kind} are remembered, of which {known} are there")


def difference(one: State, other: State) -> str:
    """Where two states differ first, empty if they don't."""
    if all(getattr(one, name) == getattr(other, name) for name in Snapshot.__struct_fields__):
        return ""
    return _difference(plain(one), plain(other), "state")


def _difference(one: Any, other: Any, where: str) -> str:
    if isinstance(one, dict) and isinstance(other, dict):
        for key in [*one, *(key for key in other if key not in one)]:
            found = _difference(one.get(key, "nothing"), other.get(key, "nothing"), f"{where}.{key}")
            if found:
                return found
        return ""
    return "" if one == other else f"{where} is {one} and {other}"
