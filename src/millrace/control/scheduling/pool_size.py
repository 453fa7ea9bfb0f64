"""How many workers the service is to have: with every tick what its jobs are to have together, within its limits.

More are asked for at once; those that are too many leave in good order. What the cluster turns out not to hold is no
longer asked for until it is tried again (:mod:`millrace.policies.scaling.capacity`).
"""

from __future__ import annotations

from millrace.control.actions import ResizeFleet, StopWorkers
from millrace.control.journal.scaling_events import FleetPlanned
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.workers import MISSED_HEARTBEATS, drain
from millrace.control.scaling.job_placement import wanted
from millrace.control.scaling.job_scaling import scales
from millrace.control.state.state import State, Worker
from millrace.policies.scaling import capacity, respawn
from millrace.protocol.messages import Notice

_NAMED = 8
"""Jobs that a reason names, at most."""


def started(tx: Transaction) -> None:
    """Ask for as many workers as are to be there when the dispatcher begins, perhaps anew."""
    state = tx.state
    if scales(state):
        if not state.fleet.at:
            first = max(state.settings.least_workers, min(state.settings.first_workers, state.settings.most_workers))
            tx.emit(FleetPlanned(first, "the service begins", tx.now))
        tx.act(ResizeFleet(state.fleet.workers))


def end_unregistered(tx: Transaction, running: list[str]) -> None:
    """Have processes ended that run and do not register, as they hang; they had room, so that others are asked for."""
    state, observed = tx.state, tx.observed
    known = observed.unregistered
    observed.unregistered = {name: known.get(name, tx.now) for name in running if name not in state.workers}
    if not observed.unregistered:
        observed.unregistered_tries = 0
        return
    patience_s = max(state.settings.patience_s, (MISSED_HEARTBEATS + 0.5) * state.settings.heartbeat_s)
    hung = respawn.not_registered(observed.unregistered, tx.now, patience_s, observed.unregistered_tries)
    if hung.value:
        observed.unregistered_tries += 1
        observed.unregistered.update(dict.fromkeys(hung.value, tx.now))  # once more, if they don't end
        tx.act(StopWorkers(hung.value, hung.reason))
        for job in state.jobs.values():
            tx.to_all(job, Notice(f"a worker of this service {hung.reason}"))


def resize(tx: Transaction) -> None:
    """Ask for as many workers as the jobs are to have together, within the limits."""
    state, settings = tx.state, tx.state.settings
    if not scales(state):
        return
    jobs = {job.name: wanted(state, job) for job in state.jobs.values() if job.failure is None and job.consumers}
    each = {name: settings.first_workers if most is None else most for name, most in jobs.items()}
    if each.keys() != tx.observed.jobs:
        tx.observed.jobs, tx.observed.jobs_changed = set(each), tx.now
    there = len(state.index.serving.workers) + len(tx.observed.unregistered)
    planned, least = state.fleet.workers, max(1, settings.least_workers)
    known, tx.observed.shortage = capacity.watch(
        state.fleet.capacity, tx.observed.shortage, planned, there, settings.patience_s, tx.now, least=least
    )
    limit = capacity.in_force(known, tx.now)
    most = settings.most_workers if limit is None else min(limit.workers, settings.most_workers)
    kept = limit.workers if limit is not None and limit.late else 0
    total = max(settings.least_workers, min(max(sum(each.values()), kept), most))
    if total < state.fleet.workers and not each and tx.now - tx.observed.jobs_changed < settings.shrink_s:
        return  # another job may follow at once
    if total != state.fleet.workers or known != state.fleet.capacity:
        told = ", ".join(f"{name} {count}" for name, count in sorted(each.items())[:_NAMED])
        reason = f"jobs are to have: {told}" if told else "there is no job"
        if limit is not None and sum(each.values()) > total:
            reason = f"{reason}; {limit.reason}"
        tx.emit(FleetPlanned(total, reason, tx.now, known))
        tx.act(ResizeFleet(total))
    _dismiss(tx)


def _dismiss(tx: Transaction) -> None:
    """Workers that are too many leave: first those that nobody needs, then those of jobs that have more than wanted."""
    state = tx.state
    over = len(state.index.serving.workers) - state.fleet.workers
    counts = {name: len(workers) for name, workers in state.index.serving.by_job.items()}
    for worker in sorted(
        state.index.serving.workers, key=lambda each: (each.job in state.jobs, len(each.unfinished), each.id)
    ):
        job = state.jobs.get(worker.job)
        if over <= 0:
            return
        if (job is None or counts[worker.job] > (wanted(state, job) or 0)) and not _owns(state, worker):
            drain(tx, worker.id, state.settings.drain_s)
            counts[worker.job] -= 1
            over -= 1


def _owns(state: State, worker: Worker) -> bool:
    """Whether a share of an epoch is the worker's: who runs what is fixed until its end."""
    sharded = [job for job in state.jobs.values() if job.spec.statically_owned]
    return any(worker.id in epoch.owners for job in sharded for epoch in job.epochs.values())
