"""Workers: registered, silent, back again, leaving, lost."""

from __future__ import annotations

import msgspec

from millrace.control.actions import CloseWorker, EndService, StopWorkers
from millrace.control.caching import cache_capacity, cache_mode
from millrace.control.journal.dispatcher_events import DispatcherStarted
from millrace.control.journal.epoch_events import OwnerReplaced, OwnersAsked
from millrace.control.journal.job_events import ListingAsked
from millrace.control.journal.transaction import Transaction
from millrace.control.journal.worker_events import (
    WorkerDisconnected,
    WorkerJoined,
    WorkerLost,
    WorkerReleased,
    WorkerRetiring,
)
from millrace.control.membership import access, testimony
from millrace.control.membership.admission import Refused, python_differs
from millrace.control.membership.jobs import open_at
from millrace.control.membership.quarantine import planning_died, suspect
from millrace.control.scaling.job_placement import may_serve
from millrace.control.state.serving_index import fits
from millrace.control.state.state import Job, Worker
from millrace.control.tasks.leases import (
    discard_outputs,
    finished,
    leased_by,
    on_lease_unknown,
    on_worker_lost,
    revoke_paused,
)
from millrace.control.tasks.window_tasks import lies_in_window
from millrace.protocol import messages as msg
from millrace.protocol.caller import ADMINISTRATOR, Caller

MISSED_HEARTBEATS = 2
"""A worker is lost when so many reports in a row did not come."""


def hello(tx: Transaction, message: msg.WorkerHello, caller: Caller = ADMINISTRATOR) -> None:
    """Register a worker, or compare what one that is back holds with what it should."""
    try:
        access.check_worker(caller, tx.state, message)
    except Refused as refused:
        tx.act(CloseWorker(message.worker, refused.failure))
        return
    settings = tx.state.settings
    who = f"worker {message.worker} (process {message.pid} on {message.host or 'an unnamed host'})"
    differ = python_differs(settings, who, message.version, message.python)
    if differ:
        tx.act(CloseWorker(message.worker, msg.Failure("VersionMismatchError", differ)))
        return
    older = testimony.of_worker(tx.state, message)
    if older:
        tx.act(EndService(older))
        return
    known = tx.state.workers.get(message.worker)
    if known is not None and _is_succeeded(known, message):
        lost(tx, known, f"has ended, and process {message.pid} has its name now")
        known = None
    cache_capacity.greeted(tx, message.worker)
    cores = max(1, message.cores)
    who_joins = message.worker, message.address, message.host, message.pid
    tx.emit(WorkerJoined(*who_joins, cores, message.only, message.buffer_bytes, message.life))
    worker = tx.state.workers[message.worker]
    held = {entry.lease: entry for entry in message.held}
    stale = [lease for lease, entry in held.items() if leased_by(tx.state, message.worker, entry.ref, lease) is None]
    welcome = msg.WorkerWelcome(
        settings.heartbeat_s, sorted(stale), settings.cache, settings.compression, testimony.told(tx.state)
    )
    tx.to_worker(worker.id, welcome)
    for name in sorted({entry.ref.job for entry in message.held} - set(worker.open)):
        tx.to_worker(worker.id, msg.CloseJob(name))
    if known is None:
        cache_mode.have_measured(tx)
        return
    for name in worker.open:
        open_at(tx, worker.id, tx.state.jobs[name])
    for lease, (name, number, task) in [*worker.unfinished.items(), *worker.kept.items()]:
        if leased_by(tx.state, worker.id, msg.TaskRef(name, number, task), lease) is None:
            continue  # it is over, with a tail that is not run again
        entry_or_none = held.get(lease)
        job = tx.state.jobs[name]
        if entry_or_none is None:
            # The lease or its revocation crossed with the break; nothing of it is there any more.
            on_lease_unknown(tx, job, number, task, f"worker {worker.id} came back without it")
        elif entry_or_none.finished:
            entry = entry_or_none
            ended = msg.TaskFinished(entry.ref, lease, entry.outputs, leftovers=entry.leftovers, nothing=entry.nothing)
            finished(tx, worker.id, msgspec.structs.replace(ended, left_out=entry.left_out))
        discard_outputs(tx, job, number, task)
    _ask_again(tx, worker)


def _is_succeeded(known: Worker, message: msg.WorkerHello) -> bool:
    """Whether another process says hello under the name of a worker that has gone, e.g. as it was started anew."""
    gone = known.lost_at is not None or known.released
    return gone and (known.host, known.pid, known.life) != (message.host, message.pid, message.life)


def _ask_again(tx: Transaction, worker: Worker) -> None:
    """Repeat what a worker was told before its session broke, and may not have heard."""
    if worker.released:
        tx.to_worker(worker.id, msg.StopWorker("nothing of it is needed any more"))
    for job in tx.state.jobs.values():
        if job.lister == worker.id:
            tx.to_worker(worker.id, msg.ListSources(job.name))
        for number, epoch in job.epochs.items():
            length = job.tasks_of(epoch)
            if epoch.chooser == worker.id and length is not None:
                tx.to_worker(worker.id, msg.ChooseSharding(job.name, number, length, epoch.candidates))


def started(tx: Transaction, address: str, drawn: str) -> None:
    """Begin to listen (again). Whoever had a session before looks for the dispatcher where it was then."""
    state = tx.state
    patience = state.settings.return_s if address == state.address else 0.0
    tx.emit(DispatcherStarted(address, tx.now, tx.now + patience, state.service or drawn, drawn))
    tx.observed.all_back = tx.now >= tx.state.returning
    cache_capacity.started(tx)


def session_lost(tx: Transaction, name: str) -> None:
    """Its session broke; it has one heartbeat to come back."""
    worker = tx.state.workers.get(name)
    if worker is not None and worker.lost_at is None:
        tx.emit(WorkerDisconnected(name, tx.now))


def lost(tx: Transaction, worker: Worker, reason: str) -> None:
    """Give others all that a worker had which is gone."""
    held = [*worker.unfinished.values(), *worker.kept.values()]
    accused = set()
    tx.emit(WorkerDisconnected(worker.id, tx.now))
    for name, number, task in held:
        job = tx.state.jobs[name]
        live = job.epochs[number].live.get(task) if job.failure is None else None
        if live is not None and live.worker == worker.id:
            # What is not run again cannot be found out about, and does no harm a second time.
            if not (live.finished or worker.draining) and (not job.spec.runs_again or suspect(tx, job, number, task)):
                accused.add(name)
            if job.failure is None:
                on_worker_lost(tx, job, number, task, f"worker {worker.id} {reason}")
    tx.emit(WorkerLost(worker.id, reason))
    cache_capacity.greeted(tx, worker.id)
    planning_died(tx, worker.id, reason, accused)
    _hand_over(tx, worker.id)


def leaving(tx: Transaction, name: str, message: msg.WorkerLeaving) -> None:
    """Let a worker leave in good order that wants to."""
    worker = tx.state.workers[name]
    if not worker.draining:  # who comes back says so again, and has no more time for that
        tx.emit(WorkerRetiring(name, tx.now + message.within_s if message.within_s else 0.0))
        revoke_paused(tx, worker)
        _hand_over(tx, name)


def drain(tx: Transaction, name: str, within_s: float) -> None:
    """Have a worker leave in good order that is not needed any more."""
    tx.emit(WorkerRetiring(name, tx.now + within_s))
    revoke_paused(tx, tx.state.workers[name])
    _hand_over(tx, name)


def _hand_over(tx: Transaction, name: str) -> None:
    """Others do what it was asked or fixed to do."""
    for job in tx.state.jobs.values():
        if job.lister == name and name not in tx.state.workers:
            tx.emit(ListingAsked(job.name, ""))
        for number, epoch in job.epochs.items():
            if epoch.chooser == name and name not in tx.state.workers:
                tx.emit(OwnersAsked(job.name, number, ""))
        hand_over_shares(tx, job, name)


def hand_over_shares(tx: Transaction, job: Job, name: str) -> None:
    """Other workers get what was fixed to be this one's of the job."""
    if not job.spec.statically_owned:
        return
    there = [w for w in tx.state.workers.values() if w.lost_at is None and not w.draining]
    heirs = [worker.id for worker in there if worker.id != name and may_serve(job, worker) and fits(job, worker)]
    for number, epoch in job.epochs.items():
        for share, owner in enumerate(list(epoch.owners)):
            if owner == name and heirs:
                heir = min(heirs, key=lambda w: (tx.state.workers[w].job != job.name, epoch.owners.count(w), w))
                tx.emit(OwnerReplaced(job.name, number, share, heir))


def adopt_shares(tx: Transaction) -> None:
    """Give shares of who has gone, or may not keep what the job gives, to others, as soon as there are any.

    Nobody else may have been there then, or a sharding function that was asked before fixed shares since.
    """
    for job in [tx.state.jobs[name] for name in tx.state.index.serving.sharded]:
        owners = {owner for epoch in job.epochs.values() for owner in epoch.owned}
        for owner in sorted(owners):
            worker = tx.state.workers.get(owner)
            if worker is None or worker.draining or not fits(job, worker):
                hand_over_shares(tx, job, owner)


def watch(tx: Transaction) -> None:
    """Give up on workers that are silent or have been away for too long."""
    for name in tx.observed.workers.keys() - tx.state.workers.keys():
        del tx.observed.workers[name]
    heartbeat = tx.state.settings.heartbeat_s
    limit = (MISSED_HEARTBEATS + 0.5) * heartbeat
    for worker in list(tx.state.workers.values()):
        observation = tx.observed.workers.get(worker.id)
        if worker.lost_at is not None:
            if tx.now - worker.lost_at > heartbeat and not tx.state.may_return(worker.lost_at, tx.now):
                _give_up(tx, worker, f"did not come back within {heartbeat:g} s")
        elif worker.draining and not worker.released and 0 < worker.until < tx.now:
            _give_up(tx, worker, "was leaving and did not get done in the time that it had")
        elif observation is not None and tx.now - observation.last_seen > limit:
            _give_up(tx, worker, f"was silent for {limit:g} s")


def _give_up(tx: Transaction, worker: Worker, reason: str) -> None:
    """Give what the worker holds to others, and have its process ended, which may hang.

    A session that broke says nothing about the process: one that hangs answers no pings, and whichever is noticed
    first, that or its silence, must not leave it running in somebody's place. One that lives hears of it, if nobody can
    end it, by the end of its session, or when it comes back.
    """
    tx.act(CloseWorker(worker.id, msg.Failure("ServiceUnreachableError", f"worker {worker.id} {reason}")))
    tx.act(StopWorkers([worker.id], reason))
    lost(tx, worker, reason)


def release_drained(tx: Transaction) -> None:
    """Tell workers that want to leave when nothing of them is needed any more."""
    for worker in tx.state.index.serving.draining:
        awaited = any(not lies_in_window(tx.state, *key) for key in worker.kept.values())
        if not (worker.unfinished or awaited or worker.lost_at is not None):
            tx.emit(WorkerReleased(worker.id))
            tx.to_worker(worker.id, msg.StopWorker("nothing of it is needed any more"))
