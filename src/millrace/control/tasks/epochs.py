"""Epochs of consumers: begun, settled, left behind."""

from __future__ import annotations

import msgspec

from millrace.control.caching import cache_mode, source_chunks
from millrace.control.journal.epoch_events import EpochClosed, EpochOpened, EpochResumed, EpochSettled, StepsEnded
from millrace.control.journal.transaction import Transaction
from millrace.control.state.plans import PlanLike
from millrace.control.state.state import Job, State
from millrace.control.state.task_state import TaskState
from millrace.control.tasks.slots import missing, round_robin, unread_by
from millrace.control.tasks.task_queue import (
    all_dealt,
    alone_at,
    first_missing,
    held_back,
    settled_without,
    share_dealt,
)
from millrace.control.tasks.unread import record_deserted, told
from millrace.control.tasks.window_tasks import send_gone
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint, Merged, TasksRead, merge, parts_of
from millrace.planning.ranks_progress import ranks_progress, read_by
from millrace.planning.remainder import NOTHING, is_even, left_of, leftover_reruns
from millrace.planning.units import INFINITE, UnitMap
from millrace.protocol import messages as msg


def open_epoch(tx: Transaction, job: Job, number: int) -> None:
    """Let tasks of the epoch be leased. Who reads it is told by :func:`send_epoch`."""
    if number not in job.epochs and not (job.windowed and number < job.reached):
        resumed = job.states and number == job.first
        tx.emit(_resumed(tx.state, job) if resumed else _opened(tx, job, number))
        if all_dealt(job, job.epochs[number]):
            tx.emit(EpochSettled(job.name, number))  # there is nothing in it


def _opened(tx: Transaction, job: Job, number: int) -> EpochOpened:
    reused, chosen = cache_mode.reused_in(job, number), source_chunks.chunks_for(tx, job)
    chunks = chosen.value
    tasks = _length(_plan_in_chunks(tx.state, job, chunks)) if chunks else -1
    return EpochOpened(job.name, number, tasks, chosen.reason, reused=reused, chunks=chunks, reweighted=job.reweighted)


def _plan_in_chunks(state: State, job: Job, chunks: int) -> PlanLike:
    assert job.tables is not None
    return state.make_plan(job.spec, job.seed, job.tables, ranks=None, chunks=chunks)


def _length(plan: PlanLike) -> int:
    """Tasks of a plan of an epoch's own, as its events have it."""
    return -1 if plan.length is None else plan.length


def _resumed(state: State, job: Job) -> EpochResumed:
    """Event that opens the epoch to which the job's states lead, without what was read of it."""
    merged = merge(list(job.states.values()))
    if job.spec.coordinated:
        return _lacked_by_some(state, job, merged)
    there = [each for each in job.states.values() if each.epoch == merged.epoch]
    # Who of equal ranks has seen the end knows that the others have no more either.
    over = job.spec.equal_steps and any(each.ended for each in there)
    if there and (job.equal or merged.shares):
        return _divided(state, job, merged, there[0], over=over)
    alone = merged.tasks_alone()
    plan = _plan_in_chunks(state, job, merged.chunks) if merged.chunks else state.plan(job)
    if over and plan.length is not None:
        merged = msgspec.structs.replace(merged, done=plan.length, later="", begun=[])
    again, freed = leftover_reruns(plan.task, merged.tasks_done(), alone)
    read = merged.done, merged.later, merged.begun, again, freed, list(alone)
    tasks = _length(plan) if merged.chunks else -1
    return EpochResumed(job.name, merged.epoch, *read, tasks=tasks, **merged.for_runs())


def _lacked_by_some(state: State, job: Job, merged: Merged) -> EpochResumed:
    """Event that does so where all ranks read every task: one is over once it is in all of their states."""
    done, begun, own = ranks_progress(job.states.values(), merged.epoch, job.length)
    alone = merged.tasks_alone()
    again, freed = leftover_reruns(state.plan(job).task, done, alone)
    resumed = EpochResumed(job.name, merged.epoch, done.low, done.text(), begun, again, freed, list(alone), own=own)
    return msgspec.structs.replace(resumed, reused=merged.reused, reweighted=merged.reweighted)


def _divided(state: State, job: Job, merged: Merged, saved: Checkpoint, *, over: bool) -> EpochResumed:
    """Event that does so where counts are known: on as many ranks each reads on; else what is left is divided."""
    former, ranks = plan_of_state(state, job, saved), job.spec.ranks
    done, begun = merged.tasks_done(), dict(merged.begun)
    if ranks is not None and saved.shares == ranks and not over and is_even(former, done, begun, ranks):
        tasks = former.length if saved.pieces else None
        resumed = EpochResumed(job.name, merged.epoch, merged.done, merged.later, merged.begun, pieces=saved.pieces)
    else:
        pieces = [NOTHING] if over else left_of(former, done, begun)
        assert job.tables is not None
        tasks = state.make_plan(job.spec, job.seed, job.tables, ranks=ranks or 1, pieces=pieces).length
        resumed = EpochResumed(job.name, merged.epoch, pieces=pieces, anew=True)
    return msgspec.structs.replace(resumed, tasks=-1 if tasks is None else tasks, **merged.for_runs())


def plan_of_state(state: State, job: Job, saved: Checkpoint) -> PlanLike:
    """Plan that the tasks in a state are numbered by."""
    if saved.chunks or saved.pieces or saved.shares != (job.spec.ranks or 0 if job.equal else 0):
        assert job.tables is not None
        ranks, chunks = saved.shares or None, saved.chunks
        return state.make_plan(job.spec, job.seed, job.tables, ranks=ranks, pieces=saved.pieces, chunks=chunks)
    return state.plan(job)


def send_resumed(tx: Transaction, job: Job, consumer: int) -> None:
    """Tell a consumer which epoch the states of all lead to, if they are known."""
    if job.first is not None:
        tx.to_consumer(job, consumer, msg.Resumed(job.first))


def open_next(tx: Transaction, job: Job) -> None:
    """Prepare the epoch after the newest, once all of that one is leased and if it will be read."""
    last = job.newest
    epoch = job.epochs.get(last)
    if epoch is None or not epoch.settled or last + 1 in job.epochs or not job.length:
        return
    if any(epoch.pending.values()) or (job.spec.epochs is not None and last + 1 >= job.spec.epochs):
        return
    if job.caching.kind == "put" and not all(live.finished for live in epoch.live.values()):
        return  # what is being kept would be made a second time
    open_epoch(tx, job, last + 1)


def settle_epoch(tx: Transaction, job: Job, number: int, slot: int | None = None) -> None:
    """After a task was dealt to a slot (None: after a reader left), tell those whose tasks are all known."""
    epoch = job.epochs[number]
    if not epoch.settled and all_dealt(job, epoch):
        tx.emit(EpochSettled(job.name, number))
        slot = None
    if epoch.settled or round_robin(job):
        unread: dict[int, str] = {}
        for reader in job.consumers if slot is None else job.audience(slot):
            send_ends(tx, job, number, reader, unread)


def unsettle(tx: Transaction, job: Job, reader: int) -> None:
    """Let one that takes the place of a reader that had left have the rest of its share, though others had all theirs.

    With equal steps it has none, as the others' steps are counted without it.
    """
    if held_back(job):
        return
    for number, epoch in job.epochs.items():
        if job.reads(reader, number) and any(settled_without(job, epoch, slot) for slot in job.slots_of([reader])):
            tx.emit(EpochSettled(job.name, number, undone=True))
    tell_absence(tx, job, reader)


def send_ends(tx: Transaction, job: Job, number: int, consumer: int, unread: dict[int, str] | None = None) -> None:
    """Tell a consumer that reads this epoch all its tasks, if they are settled.

    Args:
        tx: what follows goes there.
        job: whose epoch it is.
        number: of the epoch.
        consumer: who is told.
        unread: what is not read, by epoch, as far as it was worked out: it is the same for all who are told at a time.
    """
    unread = {} if unread is None else unread
    epoch = job.epochs.get(number)
    place = job.consumers.get(consumer)
    if epoch is None or place is None or place.epoch != number:
        return
    if all(share_dealt(job, epoch, slot) for slot in job.slots_of([consumer])):
        if number not in unread:
            unread[number] = told(tx.state, tx.observed, job, number)
        tasks, members = sorted(epoch.shares.get(consumer, ())), len(job.consumers) if job.spec.sharing else 0
        tx.to_consumer(job, consumer, msg.EpochEnds(number, tasks, unread[number], members))


def tell_absence(tx: Transaction, job: Job, whose: int | None = None) -> None:
    """Tell the others what of their epochs is not read, as one has gone or is back."""
    unread: dict[int, str] = {}
    for consumer, place in job.consumers.items():
        if consumer != whose:
            send_ends(tx, job, place.epoch, consumer, unread)
    for number in sorted({place.epoch for place in job.consumers.values()}):
        if number in job.epochs and job.epochs[number].steps >= 0:
            tell_steps(tx, job, number, anew=True)


def send_epoch(tx: Transaction, job: Job, consumer: int) -> None:
    """Tell a consumer all about the epoch it reads: after it began it, once sources are listed, when it comes back."""
    number = job.consumers[consumer].epoch
    epoch = job.epochs.get(number)
    if epoch is None and job.tables is not None and job.windowed and number < job.reached:
        _send_past(tx, job, number, consumer)
    if epoch is None or job.tables is None:
        return
    shares = 0 if job.length is None or not tx.state.plan(job, number).equal else job.spec.ranks or 1
    tasks = None if job.length is None else job.tasks_of(epoch)  # states of an epoch that was cut are as those before
    shape = msgspec.structs.replace(epoch.shape, shares=shares).fields()
    states = [each for rank, each in job.states.items() if rank == consumer or not job.spec.coordinated]
    parts = parts_of(states, number) if number == job.first else []
    own = job.states.get(consumer) if number == job.first and job.spec.coordinated else None
    turn, read = (own.turn, read_by(own, job.length)) if own is not None and own.epoch == number else (0, TasksRead())
    length = UnitMap(unpack(job.spec.structure), job.tables).length()
    elements = -1 if length is None or length >= INFINITE else length
    begun = msg.EpochBegun(number, tasks, job.prints, held_back(job), epoch.anew, parts, elements, turn, read, **shape)
    tx.to_consumer(job, consumer, begun)
    tell_steps(tx, job, number, consumer)
    if job.windowed or job.skipping:
        send_gone(tx, job, number, consumer)
    _tell_reads(tx, job, number, consumer, unread_by(job, epoch, consumer))
    send_ends(tx, job, number, consumer)


def _send_past(tx: Transaction, job: Job, number: int, member: int) -> None:
    """Tell a member that nothing is left of an epoch which the furthest have read before it."""
    reused = cache_mode.reused_in(job, number)
    tx.to_consumer(job, member, msg.EpochBegun(number, job.length, job.prints, reused=reused))
    lacks = f"Epoch {number} was over for this job before it came to it, as others that share its window are further"
    lacks = "" if job.spec.visitation == "zero_once_or_more" else lacks  # the next one makes up for it
    tx.to_consumer(job, member, msg.EpochEnds(number, [], lacks, past=True))


def tell_read(tx: Transaction, job: Job, number: int, slot: int, task: int) -> None:
    """Tell a slot's readers that a worker has the task, or none needs to: in a fixed order others waited behind it."""
    epoch = job.epochs[number]
    live = epoch.live.get(task)
    for reader in job.audience(slot):
        place = job.consumers.get(reader)
        if place is not None and place.epoch == number:
            progress = live.readers.get(reader) if live is not None else None
            tasks = [task] if progress is not None and not progress.complete else []
            if job.spec.deterministic:
                tasks += sorted(other for other in epoch.unread_by(reader, slot) if other > task)
            _tell_reads(tx, job, number, reader, tasks)


def _tell_reads(tx: Transaction, job: Job, number: int, consumer: int, tasks: list[int]) -> None:
    """Tell where to read these tasks, those that no worker has aside.

    In a fixed order a consumer hears of a task once workers have all before it: it reads the lowest it has heard of.
    """
    epoch = job.epochs[number]
    ends: dict[int, int | None] = {}
    reads, alone = [], []
    for task in tasks:
        live = epoch.live[task]
        worker = tx.state.workers.get(live.worker)
        if live.slot not in ends:
            ends[live.slot] = first_missing(job, epoch, live.slot, consumer) if job.spec.deterministic else None
        end = ends[live.slot]
        if worker is not None and (end is None or task < end):
            start = live.readers[consumer].start
            reads.append(msg.TaskRead(task, live.lease, worker.id, worker.address, start, bool(worker.pinned_job)))
            alone += alone_at(tx.state, job, number, task)
    if reads:
        tx.to_consumer(job, consumer, msg.ReadTasks(number, reads, alone))


def tell_steps(tx: Transaction, job: Job, number: int, consumer: int | None = None, *, anew: bool = False) -> None:
    """Tell a consumer (None: all that read the epoch, if it is news or ``anew``) how many elements all have by now.

    Whoever has left, is past the epoch, or came when others had its part of it, holds nobody up.
    """
    if not held_back(job) or number not in job.epochs:
        return
    have = []
    for index in {*job.consumers, *missing(job)}:
        place = job.consumers.get(index)
        report = tx.observed.report(place.client) if place is not None else None
        without = (settled_without(job, job.epochs[number], slot) for slot in job.slots_of([index]))
        if place is None or (place.epoch <= number > place.past and not any(without)):
            known = report is not None and report.epoch == number
            have.append((report.arrived, not report.all_here) if report is not None and known else (0, True))
    steps, more = min(have, default=(0, True))
    before = tx.observed.steps.get((job.name, number), msg.StepsReady(number, 0))
    if not more and job.epochs[number].steps < 0:  # who ends there may be gone when others hear of it
        tx.emit(StepsEnded(job.name, number, steps))
    ended = job.epochs[number].steps
    ready = msg.StepsReady(number, steps) if ended < 0 else msg.StepsReady(number, ended, last=True)
    if consumer is None and ready == before and not anew:
        return
    if consumer is None:
        tx.observed.steps[job.name, number] = ready
    if ready.last:  # who stops there may hear of no other end, as its share is not settled
        lacks = told(tx.state, tx.observed, job, number)
        ready = msgspec.structs.replace(ready, unread=lacks)
    for index, place in job.consumers.items():
        if index == consumer or (consumer is None and place.epoch == number):
            tx.to_consumer(job, index, ready)


def close_epochs(tx: Transaction, job: Job) -> None:
    """Forget the epochs that all consumers have left behind."""
    if job.consumers and not missing(job):  # who was never seen starts at the beginning
        oldest = min(consumer.epoch for consumer in job.consumers.values())
        empty = [n for n, epoch in job.epochs.items() if job.windowed and n < job.reached and not epoch.live]
        for number in [n for n in job.epochs if n < oldest or n in empty]:
            for task, live in job.epochs[number].live.items():
                tell_void(tx, job, number, task, live)
            record_deserted(tx, job, number)
            tx.emit(EpochClosed(job.name, number))
            tx.observed.steps.pop((job.name, number), None)


def tell_void(tx: Transaction, job: Job, epoch: int, task: int, live: TaskState) -> None:
    """Have the worker of a task, if it has one, drop what it has of it."""
    if live.worker:
        ref = msg.TaskRef(job.name, epoch, task)
        tx.to_worker(live.worker, msg.ForgetTasks([ref]) if live.finished else msg.RevokeTask(ref, live.lease))
