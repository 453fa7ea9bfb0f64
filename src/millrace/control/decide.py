"""The dispatcher's mind: one input in, what became so and what is to be done out.

A function of its arguments alone: no clock, no randomness, no I/O. It changes ``state`` only by applying the
events that it returns, so that applying these to the state before gives the state after.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.control import inputs as inp
from millrace.control.actions import Action
from millrace.control.caching import cache_capacity, cache_mode
from millrace.control.inputs import Input
from millrace.control.journal.event import Event
from millrace.control.journal.state_validation import validate
from millrace.control.journal.transaction import Turn, merged
from millrace.control.membership import jobs, oversized, stalls, task_failures, workers
from millrace.control.observe import observe
from millrace.control.scaling import job_scaling
from millrace.control.scheduling import allocation, pool_size, scheduler
from millrace.control.state.index import SERVICE
from millrace.control.state.observed import Observed
from millrace.control.state.state import State
from millrace.control.tasks import job_progress, leases, usage
from millrace.protocol import messages as msg
from millrace.protocol.cache_messages import CacheUsed, StoreMeasured


def decide(state: State, observed: Observed, item: Input, now: float) -> tuple[list[Event], list[Action]]:
    """What follows from one input.

    Args:
        state: is brought up to date by applying the events returned.
        observed: is brought up to date with what the input tells about its sender.
        item: the input.
        now: seconds, of any clock that doesn't go back.
    """
    turn = Turn(state, observed, now)
    react(turn, item)
    return turn.events, merged(turn.actions)


def react(turn: Turn, item: Input) -> None:
    """As :func:`decide`, into ``turn``: what was decided before an error (a bug) is then not lost."""
    wanted = turn.observed.want(item.worker) if isinstance(item, inp.WorkerSaid) else 0
    observe(turn.observed, item, turn.now)
    _REACTIONS[type(item)](turn, item)
    _follow_up(turn, item, wanted)
    if turn.state.checked and isinstance(item, inp.Tick):
        validate(turn.state)


def _started(turn: Turn, item: inp.Started) -> None:
    workers.started(turn, item.address, item.drawn)
    pool_size.started(turn)


def _worker_ended(turn: Turn, item: inp.WorkerEnded) -> None:
    if item.worker in turn.state.workers:
        workers.lost(turn, turn.state.workers[item.worker], item.reason)


def _client_session_lost(turn: Turn, item: inp.ClientSessionLost) -> None:
    place = turn.state.clients.get(item.client)
    if place is not None:
        jobs.consumer_lost(turn, turn.state.jobs[place[0]], place[1])


def _tick(turn: Turn, item: inp.Tick) -> None:
    cache_capacity.sweep(turn)
    workers.watch(turn)
    workers.adopt_shares(turn)
    oversized.watch(turn)
    jobs.collect(turn)
    stalls.watch(turn)
    allocation.dismiss_idle(turn)
    pool_size.end_unregistered(turn, item.running)
    pool_size.resize(turn)
    usage.account(turn)


def _follow_up(turn: Turn, item: Input, wanted: int) -> None:
    """Follow up what has changed: with every tick all there is, else the jobs that events have named.

    Most reports change nothing. What only time changes, or is left over by that, waits for the next tick.
    """
    if isinstance(item, inp.Tick):
        turn.state.index.touched.update(turn.state.jobs)
    elif isinstance(item, inp.WorkerSaid) and isinstance(item.message, msg.WorkerReport):
        worker = turn.state.workers.get(item.worker)
        if worker is None or turn.observed.want(item.worker) == wanted:
            return
        turn.state.index.invalidate(SERVICE)  # how much may lie unread depends on it
        turn.state.index.invalidate(worker.job)
        turn.state.index.hands_changed(worker)
        turn.state.index.touched.add(worker.job)
    elif not turn.events:
        return
    task_failures.watch(turn)
    scheduler.schedule(turn)


def _hello(turn: Turn, _worker: str, message: msg.WorkerHello) -> None:
    workers.hello(turn, message)
    workers.adopt_shares(turn)


def _reported(turn: Turn, _worker: str, message: msg.WorkerReport) -> None:
    job = turn.state.jobs.get(message.job)
    if job is not None and job.caching.kind == "profile":
        cache_mode.look(turn, job)


def _sources_failed(turn: Turn, worker: str, message: msg.SourcesFailed) -> None:
    job = turn.state.jobs.get(message.job)
    if job is not None and worker in {job.lister, *(epoch.chooser for epoch in job.epochs.values())}:
        jobs.fail_job(turn, job, message.failure)


def _unsendable(turn: Turn, worker: str, message: msg.JobUnsendable) -> None:
    if message.job in turn.state.workers[worker].open:
        _job_unsendable(turn, inp.Unsendable(message.job, message.failure))


def _job_unsendable(turn: Turn, item: inp.Unsendable) -> None:
    job = turn.state.jobs.get(item.job)
    if job is not None and job.failure is None:
        jobs.fail_job(turn, job, item.failure)


_OF_ANYBODY: dict[type, Callable[[Turn, str, Any], None]] = {
    msg.WorkerHello: _hello,
    CacheUsed: cache_capacity.used,  # of whoever was given up, too: what it has kept is right
}
_OF_WORKERS: dict[type, Callable[[Turn, str, Any], None]] = {
    msg.WorkerReport: _reported,
    msg.TaskAt: leases.at,
    msg.TaskFinished: leases.finished,
    msg.TaskReturned: leases.returned,
    msg.LeftoversLost: leases.leftovers_lost,
    msg.TaskFailed: task_failures.failed,
    msg.SourcesListed: jobs.sources_listed,
    msg.SourcesFailed: _sources_failed,
    msg.JobUnsendable: _unsendable,
    msg.ShardingChosen: scheduler.sharding_chosen,
    msg.WorkerLeaving: workers.retiring,
    StoreMeasured: cache_capacity.calibrated,
}


def _worker_said(turn: Turn, item: inp.WorkerSaid) -> None:
    kind = type(item.message)
    if kind in _OF_ANYBODY:
        _OF_ANYBODY[kind](turn, item.worker, item.message)
    elif item.worker in turn.state.workers:  # else refused, or given up: its hello will tell it what is void
        _OF_WORKERS[kind](turn, item.worker, item.message)


def _consumer_said(turn: Turn, item: inp.ConsumerSaid) -> None:
    message = item.message
    place = turn.state.clients.get(item.client)
    if place is None:
        return
    job, consumer = turn.state.jobs[place[0]], place[1]
    if isinstance(message, msg.LeaveJob):
        jobs.consumer_gone(turn, job, consumer, jobs.LEFT, message.unused)
    elif job.failure is not None:
        turn.to_consumer(job, consumer, msg.JobFailed(job.failure))
    elif isinstance(message, msg.BeginEpoch):
        jobs.begin_epoch(turn, job, consumer, message)
    elif isinstance(message, msg.ConsumerReport) and not jobs.refused_report(turn, job, consumer, message):
        jobs.progressed(turn, job, consumer, message)
        job_progress.reported(turn, job, consumer, message)
        if job.points:
            cache_mode.look(turn, job)
        job_scaling.heard(turn, job, consumer, message)


_REACTIONS: dict[type, Callable[[Turn, Any], None]] = {
    inp.Started: _started,
    inp.WorkerSaid: _worker_said,
    inp.WorkerSessionLost: lambda turn, item: workers.session_lost(turn, item.worker),
    inp.WorkerEnded: _worker_ended,
    inp.JoinRequested: jobs.join,
    inp.ConsumerSaid: _consumer_said,
    inp.ClientSessionLost: _client_session_lost,
    inp.StoreListed: cache_capacity.listed,
    inp.BlocksGone: cache_capacity.deleted,
    inp.Unsendable: _job_unsendable,
    inp.RemovalAsked: lambda turn, item: cache_capacity.remove(turn, item.places),
    inp.Tick: _tick,
}
