"""One small function per event: what it changes in the state. Nothing here decides, and nothing can fail."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.control.journal import events as ev
from millrace.control.journal import poison_events as pev
from millrace.control.journal.cache_apply import CACHE_APPLY, lease_ended, promise
from millrace.control.journal.end_apply import END_APPLY
from millrace.control.journal.scale_apply import SCALE_APPLY
from millrace.control.journal.share_apply import SHARE_APPLY
from millrace.control.state.state import CARE, ENDED, Consumer, EndedJob, Epoch, Job, Life, LiveTask, State, Worker
from millrace.planning.progress import TaskSet


def _dispatcher_started(state: State, event: ev.DispatcherStarted) -> None:
    state.address = event.address
    state.started = event.at
    state.returning = event.until
    state.service, state.life = event.service, Life(event.life, state.next_lease)
    peers: list[Worker | Consumer] = [*state.workers.values()]
    peers += [place for job in state.jobs.values() for place in job.consumers.values()]
    for peer in peers:
        if peer.lost_at is None:
            peer.lost_at = event.at


def _worker_joined(state: State, event: ev.WorkerJoined) -> None:
    worker = state.workers.get(event.worker)
    if worker is None:
        worker = Worker(event.worker, event.address, event.host, event.pid, event.cores, only=event.only)
        state.workers[event.worker] = worker
    worker.address = event.address
    worker.buffer_bytes = event.buffer_bytes
    worker.lost_at = None


def _worker_disconnected(state: State, event: ev.WorkerDisconnected) -> None:
    state.workers[event.worker].lost_at = event.at


def _worker_retiring(state: State, event: ev.WorkerRetiring) -> None:
    worker = state.workers[event.worker]
    worker.retiring = True
    worker.until = event.until


def _worker_released(state: State, event: ev.WorkerReleased) -> None:
    state.workers[event.worker].released = True


def _worker_lost(state: State, event: ev.WorkerLost) -> None:
    del state.workers[event.worker]


def _worker_assigned(state: State, event: ev.WorkerAssigned) -> None:
    worker = state.workers[event.worker]
    state.turns += 1
    for name in (worker.job, event.job):
        if name in state.jobs:
            state.jobs[name].served = state.turns
            worker.served[name] = state.turns
    worker.job = event.job
    worker.reason = event.reason
    worker.turn_began = event.at
    worker.turn_leases = 0
    if event.job:
        worker.open[event.job] = None


def _worker_dismissed(state: State, event: ev.WorkerDismissed) -> None:
    worker = state.workers[event.worker]
    worker.open.pop(event.job, None)
    if worker.job == event.job:
        worker.job = ""


def _turn_cut(state: State, event: ev.TurnCut) -> None:
    state.jobs[event.job].cuts += 1


def _job_created(state: State, event: ev.JobCreated) -> None:
    state.turns += 1
    name = event.spec.name
    state.jobs[name] = Job(
        name, event.spec, event.seed, event.digest, event.anonymous, event.at, state.turns, generation=state.turns
    )


def _consumer_joined(state: State, event: ev.ConsumerJoined) -> None:
    job = state.jobs[event.job]
    before = job.consumers.get(event.consumer)
    if before is not None:
        state.clients.pop(before.client, None)
    elif event.anew:
        for epoch in job.epochs.values():
            epoch.shares.pop(event.consumer, None)
    past = max(event.past, before.past if before is not None else -1)
    job.consumers[event.consumer] = Consumer(event.client, event.host, event.pid, event.epoch, past=past)
    job.left.discard(event.consumer)
    job.kept_at = None
    state.clients[event.client] = (event.job, event.consumer)


def _consumer_disconnected(state: State, event: ev.ConsumerDisconnected) -> None:
    state.jobs[event.job].consumers[event.consumer].lost_at = event.at


def _consumer_left(state: State, event: ev.ConsumerLeft) -> None:
    job = state.jobs[event.job]
    job.left.add(event.consumer)
    consumer = job.consumers.pop(event.consumer, None)
    if consumer is not None:  # else it was never seen
        job.former[event.consumer] = (consumer.host, consumer.pid)
        state.clients.pop(consumer.client, None)


def _job_broke(state: State, event: ev.JobBroke) -> None:
    job = state.jobs[event.job]
    job.failure = event.failure
    job.lister = ""
    job.epochs = {}
    _forget_job(state, event.job)


def _job_kept(state: State, event: ev.JobKept) -> None:
    state.jobs[event.job].kept_at = event.at


def _job_removed(state: State, event: ev.JobRemoved) -> None:
    job = state.jobs.pop(event.job)
    state.ended.pop(event.job, None)
    if event.at >= 0 and not job.anonymous:
        there = {index: (place.host, place.pid) for index, place in job.consumers.items()}
        readers = {**job.former, **there}
        state.ended[event.job] = EndedJob(event.at, event.reason, job.spec.num_consumers, readers, event.absent)
        if len(state.ended) > ENDED:
            del state.ended[next(iter(state.ended))]
    for consumer in job.consumers.values():
        state.clients.pop(consumer.client, None)
    for worker in state.workers.values():
        worker.served.pop(event.job, None)
    _forget_job(state, event.job)


def _forget_job(state: State, name: str) -> None:
    for worker in state.workers.values():
        for held in (worker.unfinished, worker.kept):
            for lease in [lease for lease, key in held.items() if key[0] == name]:
                del held[lease]
                lease_ended(state, lease)


def _states_loaded(state: State, event: ev.StatesLoaded) -> None:
    job = state.jobs[event.job]
    job.states.update((each.rank, each) for each in event.states)
    known = len(job.states) == event.states[0].ranks
    job.first = min(each.next_epoch for each in job.states.values()) if known else None
    if job.first is not None:
        for place in job.consumers.values():
            place.epoch = max(place.epoch, job.first - 1)


def _listing_asked(state: State, event: ev.ListingAsked) -> None:
    state.jobs[event.job].lister = event.worker


def _table_recorded(state: State, event: ev.TableRecorded) -> None:
    job = state.jobs[event.job]
    job.tables = event.tables
    job.tables_digest = event.digest
    job.length = event.length
    job.prints = event.prints
    job.equal = event.equal
    job.points = event.points
    job.lister = ""


def _epoch_began(state: State, event: ev.EpochBegan) -> None:
    state.jobs[event.job].consumers[event.consumer].epoch = event.epoch


def _epoch_opened(state: State, event: ev.EpochOpened) -> None:
    state.jobs[event.job].epochs[event.epoch] = Epoch(reused=event.reused)


def _epoch_resumed(state: State, event: ev.EpochResumed) -> None:
    job = state.jobs[event.job]
    done = TaskSet.parse(event.done, event.later)
    epoch = job.epochs[event.epoch] = Epoch(low=done.low, later=done.bitmap(), done=len(done) - len(event.again))
    epoch.starts = dict(event.begun)
    epoch.freed = set(event.freed)
    epoch.alone = set(event.alone)
    epoch.reused = event.reused
    epoch.pieces, epoch.anew, epoch.tasks = event.pieces, event.anew, event.tasks
    if job.spec.deterministic or job.spec.equal_steps:
        epoch.dealt = dict(enumerate(done.counts(job.spec.num_consumers or 1)))
    else:
        epoch.dealt[-1] = len(done)
    heir = min(job.consumers, default=0)
    for task in event.again:
        epoch.live[task] = LiveTask(heir, complete=True)
        epoch.pending.setdefault(heir, set()).add(task)


def _owners_asked(state: State, event: ev.OwnersAsked) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.chooser = event.worker
    epoch.candidates = event.workers


def _owners_fixed(state: State, event: ev.OwnersFixed) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.owners = list(event.workers)
    epoch.owned = {}
    for share, owner in enumerate(event.workers):
        epoch.owned.setdefault(owner, []).append(share)
    epoch.choice = event.choice
    epoch.contiguous = event.contiguous
    epoch.chooser = ""
    epoch.candidates = []


def _owner_replaced(state: State, event: ev.OwnerReplaced) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    former = epoch.owned[epoch.owners[event.share]]
    former.remove(event.share)
    if not former:
        del epoch.owned[epoch.owners[event.share]]
    epoch.owners[event.share] = event.worker
    epoch.owned.setdefault(event.worker, []).append(event.share)


def _epoch_settled(state: State, event: ev.EpochSettled) -> None:
    state.jobs[event.job].epochs[event.epoch].settled = True


def _epoch_closed(state: State, event: ev.EpochClosed) -> None:
    epoch = state.jobs[event.job].epochs.pop(event.epoch)
    for live in epoch.live.values():
        _free(state, live)


def _deal(job: Job, epoch: Epoch, task: int, live: LiveTask) -> None:
    epoch.live[task] = live
    live.received = epoch.starts.get(task, 0)
    live.freed = task in epoch.freed
    epoch.freed.discard(task)
    live.alone = task in epoch.alone
    epoch.dealt[live.consumer] = epoch.dealt.get(live.consumer, 0) + 1
    epoch.unread.setdefault(live.consumer, set()).add(task)
    if job.tasks_of(epoch) is not None:
        epoch.shares.setdefault(live.consumer, []).append(task)


def _tail_dealt(state: State, event: ev.TailDealt) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    epoch.cursors.update(event.cursors)
    _deal(job, epoch, event.task, LiveTask(event.consumer))
    epoch.pending.setdefault(event.consumer, set()).add(event.task)


def _task_leased(state: State, event: ev.TaskLeased) -> None:
    job = state.jobs[event.job]
    promise(state, event)
    epoch = job.epochs[event.epoch]
    state.next_lease = max(state.next_lease, event.lease + 1)
    epoch.cursors.update(event.cursors)
    if event.fresh:
        _deal(job, epoch, event.task, LiveTask(event.consumer, event.run))
    else:
        _discard(epoch.pending, event.consumer, event.task)
    live = epoch.live[event.task]
    live.worker = event.worker
    live.lease = event.lease
    live.alone = live.alone or event.alone
    worker = state.workers[event.worker]
    worker.unfinished[event.lease] = (event.job, event.epoch, event.task)
    worker.turn_leases += 1
    state.hands_changed(worker)


def _task_ended(state: State, event: ev.TaskEnded) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live[event.task]
    live.finished = True
    live.leftovers = event.leftovers
    if not event.nothing:
        epoch.nothing = None
    elif epoch.nothing is not None:
        epoch.nothing.add(event.task if live.run < 0 else live.run)
    epoch.skipped += event.skipped
    job.skipped += event.skipped
    worker = state.workers[live.worker]
    worker.kept[live.lease] = worker.unfinished.pop(live.lease)
    state.hands_changed(worker)
    lease_ended(state, live.lease)


def _task_released(state: State, event: ev.TaskReleased) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    live = epoch.live[event.task]
    _free(state, live)
    live.worker = ""
    live.finished = False
    live.leftovers = False
    epoch.failures.pop(event.task, None)
    epoch.pending.setdefault(live.consumer, set()).add(event.task)


def _task_died(state: State, event: pev.TaskDied) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.suspected.add(event.task)
    live = epoch.live[event.task]
    live.deaths += 1
    live.at = event.place


def _task_lost(state: State, event: ev.TaskLost) -> None:
    job = state.jobs[event.job]
    job.lost += 1
    job.lost_elements += max(event.elements, 0)


def _poison_found(state: State, event: pev.PoisonFound) -> None:
    job = state.jobs[event.job]
    live = job.epochs[event.epoch].live[event.task]
    live.at = ()
    live.deaths = CARE  # the others were not this element's, or are explained by it
    job.poisoned += 1
    (job.poison if event.everywhere else live.poison).append(event.poison)


def _buffer_needed(state: State, event: pev.BufferNeeded) -> None:
    state.jobs[event.job].needs = event.needs


def _planning_died(state: State, event: pev.PlanningDied) -> None:
    state.jobs[event.job].planning_deaths += 1


def _task_moved(state: State, event: ev.TaskMoved) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live[event.task]
    for index in (epoch.pending,) if live.complete else (epoch.pending, epoch.unread):
        _discard(index, live.consumer, event.task)
        index.setdefault(event.consumer, set()).add(event.task)
    if job.tasks_of(epoch) is not None and not live.complete:
        epoch.shares[live.consumer].remove(event.task)
        epoch.shares.setdefault(event.consumer, []).append(event.task)
    live.consumer = event.consumer
    if live.received:
        epoch.starts[event.task] = live.received


def _task_spared(state: State, event: ev.TaskSpared) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live[event.task]
    live.complete = True
    _discard(epoch.unread, live.consumer, event.task)
    epoch.dropped += 1
    if job.tasks_of(epoch) is not None:
        epoch.shares[live.consumer].remove(event.task)


def _task_done(state: State, event: ev.TaskDone) -> None:
    job = state.jobs[event.job]
    epoch = job.epochs[event.epoch]
    live = epoch.live.pop(event.task)
    _free(state, live)
    _discard(epoch.pending, live.consumer, event.task)
    _discard(epoch.unread, live.consumer, event.task)
    epoch.suspected.discard(event.task)
    epoch.done += 1
    epoch.fed.pop(event.task, None)
    epoch.without.pop(event.task, None)
    epoch.starts.pop(event.task, None)
    epoch.failures.pop(event.task, None)
    if event.parent >= 0:
        epoch.fed[event.parent] = epoch.fed.get(event.parent, 0) + 1
        tail = epoch.live.get(event.parent)
        if live.alone or (event.dropped and (tail is None or not tail.lease)):
            epoch.without.setdefault(event.parent, []).append(event.task)
    for task in event.inputs:
        if task in epoch.live:
            epoch.live[task].freed = True
    if event.dropped:
        epoch.dropped += 1
        if job.tasks_of(epoch) is not None and not live.complete:
            epoch.shares[live.consumer].remove(event.task)


def _progressed(state: State, event: ev.Progressed) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    for progress in event.tasks:
        live = epoch.live.get(progress.task)
        if live is not None and live.consumer == event.consumer:
            live.received = max(live.received, progress.received)
            if progress.complete:
                live.complete = True
                _discard(epoch.unread, event.consumer, progress.task)


def _free(state: State, live: LiveTask) -> None:
    worker = state.workers.get(live.worker)
    if worker is not None:
        worker.unfinished.pop(live.lease, None)
        worker.kept.pop(live.lease, None)
        state.hands_changed(worker)
    lease_ended(state, live.lease)


def _discard(index: dict[int, set[int]], consumer: int, task: int) -> None:
    tasks = index.get(consumer)
    if tasks is not None:
        tasks.discard(task)
        if not tasks:
            del index[consumer]


APPLY: dict[type[msgspec.Struct], Callable[[State, Any], None]] = {
    ev.DispatcherStarted: _dispatcher_started,
    ev.WorkerJoined: _worker_joined,
    ev.WorkerDisconnected: _worker_disconnected,
    ev.WorkerRetiring: _worker_retiring,
    ev.WorkerReleased: _worker_released,
    ev.WorkerLost: _worker_lost,
    ev.WorkerAssigned: _worker_assigned,
    ev.WorkerDismissed: _worker_dismissed,
    ev.TurnCut: _turn_cut,
    ev.JobCreated: _job_created,
    ev.ConsumerJoined: _consumer_joined,
    ev.ConsumerDisconnected: _consumer_disconnected,
    ev.ConsumerLeft: _consumer_left,
    ev.JobBroke: _job_broke,
    ev.JobKept: _job_kept,
    ev.JobRemoved: _job_removed,
    ev.StatesLoaded: _states_loaded,
    ev.ListingAsked: _listing_asked,
    ev.TableRecorded: _table_recorded,
    ev.EpochBegan: _epoch_began,
    ev.EpochOpened: _epoch_opened,
    ev.EpochResumed: _epoch_resumed,
    ev.OwnersAsked: _owners_asked,
    ev.OwnersFixed: _owners_fixed,
    ev.OwnerReplaced: _owner_replaced,
    ev.EpochSettled: _epoch_settled,
    ev.EpochClosed: _epoch_closed,
    ev.TailDealt: _tail_dealt,
    ev.TaskLeased: _task_leased,
    ev.TaskEnded: _task_ended,
    ev.TaskReleased: _task_released,
    pev.TaskDied: _task_died,
    ev.TaskLost: _task_lost,
    pev.PoisonFound: _poison_found,
    pev.PlanningDied: _planning_died,
    pev.BufferNeeded: _buffer_needed,
    ev.TaskMoved: _task_moved,
    ev.TaskSpared: _task_spared,
    ev.TaskDone: _task_done,
    ev.Progressed: _progressed,
    **CACHE_APPLY,
    **SCALE_APPLY,
    **END_APPLY,
    **SHARE_APPLY,
}
