"""Leases: given to workers, ended by them, lost with them, over when nobody needs them."""

from __future__ import annotations

from collections.abc import Callable

from millrace.control.caching import source_chunks
from millrace.control.caching.cache_capacity import tell_blocks, use_of
from millrace.control.journal.epoch_events import EpochCut, EpochSettled
from millrace.control.journal.task_events import (
    EndToldLate,
    TailDealt,
    TaskDone,
    TaskEnded,
    TaskForgone,
    TaskLeased,
    TaskLost,
    TaskReleased,
    TaskSpared,
)
from millrace.control.journal.transaction import Transaction
from millrace.control.state.state import PROBE_EACH, Epoch, Job, State, Worker
from millrace.control.state.task_state import TaskState
from millrace.control.tasks import job_progress
from millrace.control.tasks.epochs import send_ends, settle_epoch, tell_read, tell_void
from millrace.control.tasks.slots import behind, gone, readers_of, round_robin
from millrace.control.tasks.task_queue import Candidate, began_without, first_missing, owes, place_of, walk_of
from millrace.control.tasks.window_tasks import beyond_room, drop_leftovers, tell_gone, tell_skips
from millrace.planning.endless_repeats import has_whole_pass
from millrace.protocol import messages as msg
from millrace.protocol.group_messages import DropLeftovers


def lease(tx: Transaction, job: Job, worker: Worker, slot: int, found: Candidate) -> None:
    """Give what was offered to the worker, and tell the readers where to read it."""
    if found.fresh and job.spec.sharding != "off" and tx.state.plan(job, found.epoch).task(found.task).inputs:
        # Only where a walk starts with a tail; the others are dealt below.
        _deal_tail(tx, job, found.epoch, found.task, slot, found.cursors)
        settle_epoch(tx, job, found.epoch, slot)
        return
    for number, task in in_the_way(job, worker, slot, found):
        if job.epochs[number].live[task].worker:  # else it went with its tail
            revoke(tx, job, number, task, f"task {found.task} of epoch {found.epoch} is read before it")
    lease_id = tx.state.next_lease
    use = use_of(tx, job, found.epoch) if job.points else None
    before = job.epochs[found.epoch].live.get(found.task)
    first = before is None or before.lease == 0
    new_walk = found.fresh and not found.cursors.keys() <= job.epochs[found.epoch].cursors.keys()
    alone = first and job.spec.sharding != "off" and began_without(tx.state, job, found.epoch, found.task)
    if use is not None:
        for place in (use.place, *use.also):
            tell_blocks(tx, worker.id, place)
    tx.emit(
        TaskLeased(
            job.name,
            found.epoch,
            found.task,
            lease_id,
            worker.id,
            slot,
            run=found.run,
            fresh=found.fresh,
            cursors=found.cursors,
            alone=alone,
            place="" if use is None else use.place,
            room=0 if use is None else use.room,
            also=[] if use is None else list(use.also),
            skips=behind(tx.state, job, found.epoch, slot) if found.fresh else [],
        )
    )
    epoch = job.epochs[found.epoch]
    if found.fresh:
        tell_skips(tx, job, found.epoch, found.task)
        if new_walk:
            source_chunks.keep_begun(tx, job, epoch)
    live = epoch.live[found.task]
    planned = tx.state.plan(job, found.epoch).task(found.task if found.run < 0 else found.run)
    tx.to_worker(
        worker.id,
        msg.LeaseTask(
            msg.TaskRef(job.name, found.epoch, found.task),
            lease_id,
            slot,
            received=-1 if live.complete else live.received,
            readers=_readers_lacking(live),
            holders=_holders(tx.state, epoch, planned.inputs),
            run=found.run,
            flush=live.alone or (job.spec.sharding == "off" and planned.parent >= 0),
            again=not found.fresh,
            probe_level=min(live.deaths, PROBE_EACH),
            poison=[*job.poison, *live.poison],
            cache=use,
            measure=job.caching.kind == "profile",
            parts=list(planned.pieces) if epoch.pieces else [],
            **epoch.shape.for_runs(),
        ),
    )
    tell_read(tx, job, found.epoch, slot, found.task)
    if found.fresh and job.spec.sharding != "off":
        _deal_tails(tx, job, found, slot)
    if found.fresh:
        settle_epoch(tx, job, found.epoch, slot)


def _readers_lacking(live: TaskState) -> list[int]:
    """List who lacks something of a task, if others of its readers do not."""
    lacking = [reader for reader, progress in live.readers.items() if not progress.complete]
    return lacking if len(lacking) < len(live.readers) else []


def _deal_tails(tx: Transaction, job: Job, found: Candidate, slot: int) -> None:
    """Deal the tails that come next in the walk to the slot of the task before, whose readers read longest anyway.

    They are dealt at once, so that nobody waits for others to finish before it knows what is its.
    """
    while True:
        key, ahead = walk_of(tx.state, job, found.epoch, found.share, slot)
        if ahead is None or not tx.state.plan(job, found.epoch).task(ahead[0]).inputs:
            return
        _deal_tail(tx, job, found.epoch, ahead[0], slot, {key: ahead[1]})


def _deal_tail(tx: Transaction, job: Job, number: int, task: int, slot: int, cursors: dict[str, int]) -> None:
    tx.emit(TailDealt(job.name, number, task, slot, cursors, behind(tx.state, job, number, slot)))
    tell_skips(tx, job, number, task)


def _holders(state: State, epoch: Epoch, inputs: tuple[int, ...]) -> list[tuple[int, str]]:
    lives = ((task, epoch.live.get(task)) for task in inputs)
    return [(task, place_of(live, state.workers)) for task, live in lives if live is not None and live.phase.leftovers]


def in_the_way(job: Job, worker: Worker, slot: int, found: Candidate) -> list[tuple[int, int]]:
    """List (epoch, task) of what the worker has for the slot that is read only after what was offered.

    The slot's lane there may be full of it, and nobody would read it before the task has run.
    """
    readers = readers_of(job, slot)
    if readers and not job.windowed and min(place.epoch for place in readers) > found.epoch:
        return []  # only its leftovers are wanted; the slot is read on, so that the lane moves
    order = (found.epoch, found.task if job.spec.deterministic else 0)
    behind = []
    for name, number, task in [*worker.unfinished.values(), *worker.kept.values()]:
        if name == job.name and (number, task if job.spec.deterministic else 0) > order:
            live = job.epochs[number].live[task]
            if live.slot == slot and not live.complete:
                behind.append((number, task))
    return behind


def revoke(tx: Transaction, job: Job, epoch: int, task: int, reason: str) -> None:
    """Void a lease; the task will run again, skipping what was received."""
    live = job.epochs[epoch].live[task]
    tell_void(tx, job, epoch, task, live)
    release(tx, job, epoch, task, reason)


def release(tx: Transaction, job: Job, number: int, task: int, reason: str) -> None:
    """Let a task be leased again, whose lease is void; if it is a tail of a window that had ended, with what it takes.

    Nothing was kept for such a one any more.
    """
    live = job.epochs[number].live
    inputs = tx.state.plan(job, number).task(task).inputs if job.windowed and live[task].finished else ()
    tx.emit(TaskReleased(job.name, number, task, reason, list(inputs)))
    for each in inputs:
        if each in live and live[each].finished:
            revoke(tx, job, number, each, "its tail runs again")


def stays_over(job: Job, live: TaskState) -> bool:
    """Whether a task of a window gave all that it will: nobody runs it again, whatever becomes of its worker.

    Who has all of it may say so before its worker can say that the run has ended.
    """
    return job.windowed and (live.finished or live.complete)


def paused(state: State, worker: Worker) -> list[tuple[str, int, int]]:
    """List (job, epoch, task) of what a worker runs, or is to run, for members of a window who all have gone.

    What the last of them had all of has ended, though the worker's word of that may still be under way.
    """
    held = [(state.jobs[name], number, task) for name, number, task in worker.unfinished.values()]
    return [
        (job.name, number, task)
        for job, number, task in held
        if job.windowed and not job.consumers and task not in job.epochs[number].outputs
    ]


def revoke_paused(tx: Transaction, worker: Worker, reason: str = "its worker leaves") -> None:
    """Take from a worker what waits there for members of a window to come."""
    for name, number, task in paused(tx.state, worker):
        revoke(tx, tx.state.jobs[name], number, task, f"nobody is there to read it, and {reason}")


def choose_mode(tx: Transaction, job: Job, choose: Callable[[Transaction, Job], None]) -> None:
    """Choose the cache mode of a job; if it is another than before, what waits at workers is leased again in it.

    It would be computed as before, and again in the next epoch or by other jobs.
    """
    before = job.caching.kind, job.caching.node
    choose(tx, job)
    if before != (job.caching.kind, job.caching.node):
        revoke_waiting(tx, job, f"the job's cache mode is {job.caching.kind} now")


def revoke_waiting(tx: Transaction, job: Job, reason: str) -> None:
    """Take from workers the tasks of a job that wait behind others in their lanes, and of which nobody has anything."""
    for worker in tx.state.workers.values():
        begun = set[int]()
        held = [
            (n, t if job.spec.deterministic else 0, lease, t)
            for lease, (name, n, t) in worker.unfinished.items()
            if name == job.name
        ]  # as its lanes order them
        for number, _, _, task in sorted(held):
            live = job.epochs[number].live[task]
            if live.slot not in begun:
                begun.add(live.slot)
            elif not live.complete and not any(each.received or each.complete for each in live.readers.values()):
                revoke(tx, job, number, task, reason)


def on_lease_unknown(tx: Transaction, job: Job, epoch: int, task: int, reason: str) -> None:
    """Handle a worker that has not got the task: it never heard of it, or has forgotten what was read."""
    live = job.epochs[epoch].live[task]
    again = job.spec.runs_again or not tx.state.plan(job, epoch).task(task).inputs
    if again and not stays_over(job, live):
        revoke(tx, job, epoch, task, reason)
    else:  # or a tail, whose inputs may be lost meanwhile: with others it would give again what it gave before
        tell_void(tx, job, epoch, task, live)
        on_worker_lost(tx, job, epoch, task, reason)


def discard_outputs(tx: Transaction, job: Job, epoch: int, task: int, *, unread: bool = False) -> None:
    """Have a worker's buffer not wait for those who lack nothing of a task; it may be kept for what it leaves over.

    Who will not read it to its end, be it that all do not as it is ``unread``, is named: who was given up may not know
    of it, and is not to be sent the mark of an end that it has not come to.
    """
    live = job.epochs[epoch].live.get(task)
    if live is None or not live.worker:
        return
    complete = [reader for reader, progress in live.readers.items() if progress.complete]
    if live.complete and not job.windowed and not unread and any(job.reads(reader, epoch) for reader in complete):
        complete = []  # of all
    if live.complete or complete:
        tx.to_worker(live.worker, msg.OutputsReceived([msg.TaskRef(job.name, epoch, task)], complete))


def forgo(tx: Transaction, job: Job, number: int, task: int, reader: int, *, leaves: bool = False) -> None:
    """Have a reader read a task no further: nobody then will who has not, unless others read the epoch.

    Where it ``leaves`` a group, workers hear of that by :class:`~millrace.protocol.messages.Audience`, and of no task:
    a lease that has not begun is for all members that there are then. What lies in a window stays there.
    """
    if job.windowed:
        return
    if not any(job.reads(other, number) for other in job.epochs[number].live[task].readers if other != reader):
        drop(tx, job, number, task)
        return
    tx.emit(TaskForgone(job.name, number, task, reader))
    settle(tx, job, number, task)
    if not leaves:
        discard_outputs(tx, job, number, task)


def drop(tx: Transaction, job: Job, epoch: int, task: int) -> None:
    """Nobody will read the task to its end; its tail goes without its leftovers, unless it has begun with them."""
    owed = job.spec.sharding != "off" and owes(tx.state, job, epoch, task)
    if owed or _tail_began(tx.state, job, epoch, task):
        tx.emit(TaskSpared(job.name, epoch, task))
        settle(tx, job, epoch, task)
        discard_outputs(tx, job, epoch, task, unread=True)
        return
    tell_void(tx, job, epoch, task, job.epochs[epoch].live[task])
    _over(tx, job, epoch, task, dropped=True)


def leave_behind(tx: Transaction, job: Job) -> None:
    """End what a window's readers have of epochs before the furthest one: no more of them is computed for anybody."""
    for number in [each for each in sorted(job.epochs) if each < job.reached]:
        epoch = job.epochs[number]
        unfinished = [task for task, live in epoch.live.items() if not (live.worker and stays_over(job, live))]
        if epoch.settled and not unfinished:
            continue
        slots = range(job.stride) if job.spec.deterministic else ()
        awaited = [(slot, first_missing(job, epoch, slot)) for slot in slots]
        for task in unfinished:
            if task not in epoch.live:
                continue  # it was kept for a tail alone that is over now
            tell_void(tx, job, number, task, epoch.live[task])
            _over(tx, job, number, task, dropped=True)
        if not epoch.settled:
            tx.emit(EpochSettled(job.name, number))
        for slot, first in awaited:
            if first is not None:
                tell_read(tx, job, number, slot, first)  # what is behind it is next, as it will not come
        for reader in job.consumers:
            send_ends(tx, job, number, reader)
    _make_room(tx, job)


def _tail_began(state: State, job: Job, epoch: int, task: int) -> bool:
    """Whether the tail has been leased: should it run again, it must give, and so take, what it did before."""
    parent = -1 if job.spec.sharding == "off" else state.plan(job, epoch).task(task).parent
    tail = job.epochs[epoch].live.get(parent)
    return tail is not None and tail.lease > 0


def on_worker_lost(tx: Transaction, job: Job, epoch: int, task: int, reason: str) -> None:
    """Release a task whose worker is gone, or give it up, as the job chose."""
    if job.spec.runs_again or (job.windowed and epoch > job.reached):  # of which nobody has anything yet
        release(tx, job, epoch, task, reason)
        settle(tx, job, epoch, task)
        return
    live = job.epochs[epoch].live[task]
    plan = tx.state.plan(job, epoch)
    planned = plan.task(task)
    if not live.complete:
        known = plan.exact and planned.stop > planned.start
        elements = planned.stop - planned.start - live.received if known else -1
        tx.emit(TaskLost(job.name, epoch, task, elements))
    began = _tail_began(tx.state, job, epoch, task)
    _over(tx, job, epoch, task, dropped=not (job.windowed and live.complete))
    if began and not job.epochs[epoch].live[planned.parent].worker:
        on_worker_lost(tx, job, epoch, planned.parent, reason)  # it waits to run again, and would give something else
    if job.epochs[epoch].settled:
        for reader in live.readers:
            send_ends(tx, job, epoch, reader)


def settle(tx: Transaction, job: Job, number: int, task: int) -> None:
    """See whether the task is over: read to the end, and its leftovers, if any, have become output that was read."""
    epoch = job.epochs[number]
    live = epoch.live.get(task)
    if job.windowed:  # it stays, for who comes late
        _make_room(tx, job)
        _end_unkept(tx, job, number, task)
        return
    if live is None or not live.complete:
        return
    parent = -1 if job.spec.sharding == "off" or live.alone else tx.state.plan(job, number).task(task).parent
    if parent >= 0 and not live.freed and (not live.finished or live.phase.leftovers):
        return
    if live.worker:
        tx.to_worker(live.worker, msg.ForgetTasks([msg.TaskRef(job.name, number, task)]))
    _over(tx, job, number, task, dropped=False)


def _make_room(tx: Transaction, job: Job) -> None:
    """Forget the oldest tasks of a window, of which members have read more than are remembered."""
    while (oldest := beyond_room(tx.state, job)) is not None:
        number, task = oldest
        live = job.epochs[number].live[task]
        tell_void(tx, job, number, task, live)
        _over(tx, job, number, task, dropped=not live.complete)


def _end_unkept(tx: Transaction, job: Job, number: int, task: int) -> None:
    """Let go of a task of a window that a member has all of, and that nobody has or will run any more.

    Its lease was taken back, or its worker lost, while the member's word of that was under way.
    """
    live = job.epochs[number].live.get(task)
    if not job.windowed or live is None or not live.complete or live.worker:
        return
    if live.freed or live.alone or job.spec.sharding == "off" or tx.state.plan(job, number).task(task).parent < 0:
        _over(tx, job, number, task, dropped=False)
    else:  # it runs again for its tail, and for nobody else
        tell_gone(tx, job, number, task, live)


def _over(tx: Transaction, job: Job, number: int, task: int, *, dropped: bool) -> None:
    planned = None if job.spec.sharding == "off" else tx.state.plan(job, number).task(task)
    inputs = [] if planned is None else list(planned.inputs)
    epoch = job.epochs[number]
    live = epoch.live[task]
    alone = task in epoch.alone or (live.alone and planned is not None and planned.parent not in epoch.live)
    freed = live.freed and not (job.windowed and planned is not None and planned.parent in epoch.live)
    parent = -1 if planned is None or freed or alone else planned.parent
    if job.windowed:
        drop_leftovers(tx, job, number, inputs)
        tell_gone(tx, job, number, task, live)
    tx.emit(TaskDone(job.name, number, task, dropped, parent, inputs))
    for below in inputs:
        settle(tx, job, number, below)


# -- what workers say about leases -------------------------------------------------------------------------------------


def leased_by(state: State, worker: str, ref: msg.TaskRef, number: int) -> tuple[Job, TaskState] | None:
    """Find the job and the task of a lease that is in force; None if it has become void."""
    job = state.jobs.get(ref.job)
    epoch = job.epochs.get(ref.epoch) if job is not None else None
    live = epoch.live.get(ref.task) if epoch is not None else None
    if job is None or live is None or live.worker != worker or live.lease != number:
        return None
    return job, live


def finished(tx: Transaction, worker: str, message: msg.TaskFinished) -> None:
    """Note that a task ran to its end."""
    first = job_progress.computed(tx, message)  # also if its readers had all before, so that nobody waits for this
    found = leased_by(tx.state, worker, message.ref, message.lease)
    if found is None or found[1].finished:
        if first and (message.skipped or message.left_out) and not _lives(tx.state, message.ref):
            job_name, number, task = message.ref.job, message.ref.epoch, message.ref.task
            tx.emit(EndToldLate(job_name, number, task, message.skipped, message.left_out))
        return
    job, live = found
    ref = message.ref
    told = message.outputs, message.skipped, message.leftovers, message.nothing, message.left_out
    inputs = tx.state.plan(job, ref.epoch).task(ref.task).inputs if job.windowed else ()
    freed = [task for task in inputs if task in job.epochs[ref.epoch].live]  # a tail of a window does not run again
    drop_leftovers(tx, job, ref.epoch, freed)
    tx.emit(TaskEnded(job.name, ref.epoch, ref.task, *told, freed=freed))
    tell_skips(tx, job, ref.epoch, ref.task)
    if job.windowed and live.freed and message.leftovers:  # its tail was given up before this was said
        tx.to_worker(worker, DropLeftovers([ref]))
    settle(tx, job, ref.epoch, ref.task)
    if message.nothing:
        _end_if_empty(tx, job, ref.epoch)


def _lives(state: State, ref: msg.TaskRef) -> bool:
    epoch = state.jobs[ref.job].epochs.get(ref.epoch)
    return epoch is not None and ref.task in epoch.live


def _end_if_empty(tx: Transaction, job: Job, number: int) -> None:
    """Cut an epoch without end that has given nothing in a whole pass: what was dealt is all of it.

    Where each rank reads its own part, that of one that has gone is nobody's, and counts for nothing.
    """
    epoch, plan = job.epochs[number], tx.state.plan(job, number)
    if not epoch.nothing or not plan.cycle or job.tasks_of(epoch) is not None:
        return
    ended = sorted(epoch.nothing)
    if round_robin(job) and any(gone(job, number, slot) for slot in range(job.stride)):
        span = range(ended[0], ended[-1] + 1)
        ended = [task for task in span if task in epoch.nothing or gone(job, number, task % job.stride)]
    mains = [task for task in map(plan.task, ended) if not task.is_tail]
    if has_whole_pass([(task.start, task.stop) for task in mains], plan.cycle):
        dealt = [at for key, at in epoch.cursors.items() if not key.startswith("off:")]
        tx.emit(EpochCut(job.name, number, max([epoch.low, *dealt])))
        settle_epoch(tx, job, number)


def answer_probe(tx: Transaction, worker: str, message: msg.ProbeReport) -> None:
    """Let a run with crash isolation go on, as its place was noted before anything is decided."""
    if leased_by(tx.state, worker, message.ref, message.lease) is not None:
        tx.to_worker(worker, msg.ProbeAck(message.ref, message.lease, message.number))


def returned(tx: Transaction, worker: str, message: msg.TaskReturned) -> None:
    """Release a task whose worker gave its lease back."""
    found = leased_by(tx.state, worker, message.ref, message.lease)
    if found is None:
        return
    job, live = found
    reason = "its worker gave it back"
    if live.finished or stays_over(job, live):
        on_lease_unknown(tx, job, message.ref.epoch, message.ref.task, reason)
    else:
        release(tx, job, message.ref.epoch, message.ref.task, reason)


def leftovers_lost(tx: Transaction, worker: str, message: msg.LeftoversLost) -> None:
    """Have tasks run again whose leftovers a tail could not get; the tail runs after them."""
    found = leased_by(tx.state, worker, message.ref, message.lease)
    if found is None:
        return
    job, _ = found
    number = message.ref.epoch
    reason = "a tail could not get its leftovers"
    release(tx, job, number, message.ref.task, "leftovers it needs are lost")
    inputs = tx.state.plan(job, number).task(message.ref.task).inputs
    for task in message.missing:
        live = job.epochs[number].live.get(task)
        if task in inputs and live is not None and live.phase.leftovers:
            (on_lease_unknown if job.windowed else revoke)(tx, job, number, task, reason)
