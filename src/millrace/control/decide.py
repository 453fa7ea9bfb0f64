"""The dispatcher's core: one input in, what became so and what is to be done out.

A function of its arguments alone: no clock, no randomness, no I/O. It changes ``state`` only by applying the
events that it returns, so that applying these to the state before gives the state after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.control import inputs as inp
from millrace.control.actions import Action, EndService
from millrace.control.caching import cache_capacity, cache_mode, source_chunks, source_probes, source_rooms
from millrace.control.inputs import Input
from millrace.control.journal.event import Event
from millrace.control.journal.state_validation import validate
from millrace.control.journal.transaction import Transaction, merged
from millrace.control.membership import (
    cache_servers,
    detaching,
    gathering,
    groups,
    jobs,
    oversized,
    sampler_agreement,
    stalls,
    task_failures,
    testimony,
    workers,
)
from millrace.control.observe import observe
from millrace.control.scaling import job_scaling
from millrace.control.scheduling import allocation, pool_size, scheduler
from millrace.control.state.index import SERVICE
from millrace.control.state.observed import Observed
from millrace.control.state.state import State
from millrace.control.tasks import group_progress, job_progress, leases, reweighting, usage
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import CacheUsed, StoreMeasured
from millrace.protocol.sampler_messages import SamplersDrew
from millrace.protocol.weight_messages import SetWeights


def decide(state: State, observed: Observed, item: Input, now: float) -> tuple[list[Event], list[Action]]:
    """Decide what follows from one input.

    Args:
        state: is brought up to date by applying the events returned.
        observed: is brought up to date with what the input tells about its sender.
        item: the input.
        now: seconds, of any clock that doesn't go back.
    """
    tx = Transaction(state, observed, now)
    react(tx, item)
    return tx.events, merged(tx.actions)


def react(tx: Transaction, item: Input) -> None:
    """Decide into ``tx``, so that what was decided before an error (a bug) is not lost."""
    wanted = tx.observed.want(item.worker) if isinstance(item, inp.WorkerSaid) else 0
    observe(tx.observed, item, tx.now)
    _REACTIONS[type(item)](tx, item)
    _follow_up(tx, item, wanted)
    if tx.state.checked and isinstance(item, inp.Tick):
        validate(tx.state)


def _started(tx: Transaction, item: inp.Started) -> None:
    workers.started(tx, item.address, item.drawn)
    pool_size.started(tx)


def _worker_ended(tx: Transaction, item: inp.WorkerEnded) -> None:
    if item.worker in tx.state.workers:
        workers.lost(tx, tx.state.workers[item.worker], item.reason)


def _join_requested(tx: Transaction, item: inp.JoinRequested) -> None:
    older = testimony.of_consumer(tx.state, item.message)
    if older:
        tx.act(EndService(older))
        return
    (groups if item.message.spec.sharing else jobs).join(tx, item)


def _client_session_lost(tx: Transaction, item: inp.ClientSessionLost) -> None:
    place = tx.state.clients.get(item.client)
    gathering.lost(tx, item.client)
    if place is not None:
        jobs.consumer_lost(tx, tx.state.jobs[place[0]], place[1])


def _removal_asked(tx: Transaction, item: inp.RemovalAsked) -> None:
    points = tx.state.caches.points
    allowed = [name for name in item.places if name in points and item.caller.removes(points[name].writer)]
    cache_capacity.remove(tx, allowed)


def _tick(tx: Transaction, item: inp.Tick) -> None:
    cache_capacity.sweep(tx)
    workers.watch(tx)
    cache_servers.watch(tx)
    source_rooms.watch(tx)
    source_chunks.watch(tx)
    workers.adopt_shares(tx)
    oversized.watch(tx)
    jobs.collect(tx)
    source_probes.tell_workers(tx)  # a job that read past cache servers may be over
    stalls.watch(tx)
    detaching.watch(tx)
    gathering.watch(tx)
    allocation.dismiss_idle(tx)
    pool_size.end_unregistered(tx, item.running)
    pool_size.resize(tx)
    usage.account(tx)


def _follow_up(tx: Transaction, item: Input, wanted: int) -> None:
    """Follow up what has changed: with every tick all there is, else the jobs that events have named.

    Most reports change nothing. What only time changes, or is left over by that, waits for the next tick.
    """
    if isinstance(item, inp.Tick):
        tx.state.index.touched.update(tx.state.jobs)
    elif isinstance(item, inp.WorkerSaid) and isinstance(item.message, msg.WorkerReport):
        worker = tx.state.workers.get(item.worker)
        if worker is None or tx.observed.want(item.worker) == wanted:
            return
        tx.state.index.invalidate(SERVICE)  # how much may lie unread depends on it
        tx.state.index.invalidate(worker.job)
        tx.state.index.hands_changed(worker)
        tx.state.index.touched.add(worker.job)
    elif not tx.events:
        return
    task_failures.watch(tx)
    scheduler.schedule(tx)


def _hello(tx: Transaction, item: inp.WorkerSaid, message: msg.WorkerHello) -> None:
    workers.hello(tx, message, item.caller)
    cache_servers.tell(tx, message)
    workers.adopt_shares(tx)


def _reported(tx: Transaction, _worker: str, message: msg.WorkerReport) -> None:
    job = tx.state.jobs.get(message.job)
    if job is not None and job.caching.kind == "profile":
        leases.choose_mode(tx, job, cache_mode.look)


def _sources_failed(tx: Transaction, worker: str, message: msg.SourcesFailed) -> None:
    job = tx.state.jobs.get(message.job)
    if job is not None and message.generation not in {-1, job.generation}:
        return  # of one that was begun anew meanwhile, and whose functions are gone
    if job is not None and worker in {job.lister, *(epoch.chooser for epoch in job.epochs.values())}:
        jobs.fail_job(tx, job, message.failure)


def _unsendable(tx: Transaction, worker: str, message: msg.JobUnsendable) -> None:
    if message.job in tx.state.workers[worker].open:
        _job_unsendable(tx, inp.Unsendable(message.job, message.failure))


def _job_unsendable(tx: Transaction, item: inp.Unsendable) -> None:
    job = tx.state.jobs.get(item.job)
    if job is not None and job.failure is None:
        jobs.fail_job(tx, job, item.failure)


_OF_ANYBODY: dict[type, Callable[[Transaction, str, Any], None]] = {
    CacheUsed: cache_capacity.used,  # of whoever was given up, too: what it has kept is right
}
_OF_WORKERS: dict[type, Callable[[Transaction, str, Any], None]] = {
    msg.WorkerReport: _reported,
    msg.ProbeReport: leases.answer_probe,
    msg.TaskFinished: leases.finished,
    msg.TaskReturned: leases.returned,
    msg.LeftoversLost: leases.leftovers_lost,
    msg.TaskFailed: task_failures.failed,
    SamplersDrew: sampler_agreement.heard,
    msg.SourcesListed: jobs.sources_listed,
    msg.SourcesFailed: _sources_failed,
    msg.JobUnsendable: _unsendable,
    msg.ShardingChosen: scheduler.sharding_chosen,
    msg.WorkerLeaving: workers.leaving,
    StoreMeasured: cache_capacity.calibrated,
}


def _worker_said(tx: Transaction, item: inp.WorkerSaid) -> None:
    kind = type(item.message)
    if isinstance(item.message, msg.WorkerHello):
        _hello(tx, item, item.message)
    elif kind in _OF_ANYBODY:
        _OF_ANYBODY[kind](tx, item.worker, item.message)
    elif item.worker in tx.state.workers:  # else refused, or given up: its hello will tell it what is void
        _OF_WORKERS[kind](tx, item.worker, item.message)


def _consumer_said(tx: Transaction, item: inp.ConsumerSaid) -> None:
    message = item.message
    place = tx.state.clients.get(item.client)
    if place is None:
        return
    job, consumer = tx.state.jobs[place[0]], place[1]
    if isinstance(message, msg.LeaveJob):
        jobs.consumer_gone(tx, job, consumer, jobs.LEFT, message.unused)
    elif job.failure is not None:
        tx.to_consumer(job, consumer, msg.JobFailed(job.failure))
    elif isinstance(message, msg.BeginEpoch):
        jobs.begin_epoch(tx, job, consumer, message)
    elif isinstance(message, SetWeights):
        reweighting.reweight(tx, job, consumer, message)
    elif isinstance(message, msg.ConsumerReport) and not jobs.refused_report(tx, job, consumer, message):
        jobs.progressed(tx, job, consumer, message)
        job_progress.reported(tx, job, consumer, message)
        if job.spec.sharing:
            group_progress.reported(tx, job, consumer, message)
        if job.points:
            leases.choose_mode(tx, job, cache_mode.look)
        source_probes.look(tx, job, consumer, message)
        job_scaling.heard(tx, job, consumer, message)


_REACTIONS: dict[type, Callable[[Transaction, Any], None]] = {
    inp.Started: _started,
    inp.WorkerSaid: _worker_said,
    inp.WorkerSessionLost: lambda tx, item: workers.session_lost(tx, item.worker),
    inp.WorkerEnded: _worker_ended,
    inp.CacheServerSaid: cache_servers.said,
    inp.CacheServerSessionLost: lambda tx, item: cache_servers.gone(tx, item.server),
    inp.JoinRequested: _join_requested,
    inp.ConsumerSaid: _consumer_said,
    inp.ClientSessionLost: _client_session_lost,
    inp.StoreListed: cache_capacity.listed,
    inp.BlocksGone: cache_capacity.deleted,
    inp.Unsendable: _job_unsendable,
    inp.RemovalAsked: _removal_asked,
    inp.Tick: _tick,
}
