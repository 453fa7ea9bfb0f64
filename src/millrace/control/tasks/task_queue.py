"""Queue of tasks: which one a worker could run next for a slot. Looks only; :mod:`millrace.control.tasks.leases` acts.

A walk is a way through an epoch's tasks that remembers how far it has come (``Epoch.cursors``), so that a plan
without end is never enumerated:

    dynamic                    one walk for all             ""
    dynamic, dealt in turn     one per slot                 "c1"
    static, custom             one per share                "o3" ("o3c1" if dealt in turn)
    dynamic, in chunks         one per chunk that is begun   "h3"
    off                        the epoch's numbers, and      ""
                               each worker's own order       "off:worker"
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np

from millrace.control.caching import source_chunks
from millrace.control.state.plans import PlanLike
from millrace.control.state.state import Consumer, Epoch, Job, State, Worker
from millrace.control.state.task_state import Finished, TaskState
from millrace.control.tasks.slots import gone, readers_of, round_robin, unread_alike
from millrace.planning.orders import FullPermutation
from millrace.planning.random_keys import derive
from millrace.protocol.job_spec import JobSpec

TAILS_AHEAD = 4
"""Tails of a slot that may wait for their inputs, for each worker, before more are dealt."""


class Candidate(msgspec.Struct, frozen=True):
    """A task that could be leased now; fields as in :class:`millrace.control.journal.task_events.TaskLeased`."""

    epoch: int
    task: int
    run: int = -1
    fresh: bool = False
    cursors: dict[str, int] = {}
    share: int = -1


def held_back(job: Job) -> bool:
    """Consumers are to get equally many elements, and only reading them tells how many there are."""
    return job.spec.equal_steps and not job.equal


def suspicious(job: Job) -> bool:
    """Something in the job may be ending workers: then nothing is prepared, in which it is likely to be once more."""
    return any(epoch.suspected for epoch in job.epochs.values())


def candidate_for(state: State, job: Job, worker: Worker, slot: int, *, cap: int, ahead: bool) -> Candidate | None:
    """Find what ``worker`` could run next for a slot.

    A local worker serves readers on its host: others would get its elements through that host's network. Remote ones
    leave tails whose leftovers lie at a local worker to those, as nobody promises that they can connect to it.

    Args:
        state: of the dispatcher.
        job: one whose tables are known.
        worker: who would run it.
        slot: the slot.
        cap: unread tasks beyond which the slot gets no new ones; lost ones are leased again all the same.
        ahead: the epoch after the newest may be offered.
    """
    readers = readers_of(job, slot)
    if worker.pinned_job and not _near(job, worker, readers):
        return None
    reading, first = _read_by(job, readers)
    for number in sorted(job.epochs):
        epoch = job.epochs[number]
        if number > reading + 1:
            return None
        if number > reading and (epoch.held or not ahead or suspicious(job)) and number > _newest(state, job):
            return None
        found = _pending(state, job, number, epoch, worker, slot)
        if number >= first and (found is None or job.spec.deterministic):
            full = unread_alike(state, job, slot, worker, number) >= cap
            # Which chunk comes next is looked up among all jobs, and only where something may be dealt.
            idle = full and epoch.chunks and not round_robin(job)
            fresh = None if idle else _fresh(state, job, number, epoch, worker, slot)
            if fresh is not None and (
                (full and not _next_to_read(job, epoch, slot, fresh.task))
                or _waits_for_others(state, job, epoch, slot, fresh)
            ):
                fresh = None
            if found is None or (fresh is not None and fresh.task < found.task):
                found = fresh  # in a fixed order the lowest is read first
        if found is not None:
            return found
        if number < reading:
            continue  # left behind, but others' tails may need what its tasks left over
        if not epoch.settled or any(must_rerun(state, job, number, t) for t in epoch.pending.get(slot, ())):
            return None
    return None


def _read_by(job: Job, readers: list[Consumer]) -> tuple[int, int]:
    """(epoch that is read, the first one of which something new is to be computed) where these read a slot."""
    if job.windowed:
        return job.reached, job.reached  # the furthest drives
    if not readers:
        before = min(job.epochs, default=0) - 1
        return before, before
    read = [place.epoch for place in readers]
    return (max if job.skipping else min)(read), min([max(place.epoch, place.past + 1) for place in readers])


def _newest(state: State, job: Job) -> int:
    return state.index.memoize(job.name, "newest", lambda: job.newest)


def _near(job: Job, worker: Worker, readers: list[Consumer]) -> bool:
    return job.spec.statically_owned or (bool(readers) and all(place.host == worker.host for place in readers))


def _left_to_local(state: State, job: Job, epoch: Epoch, worker: Worker, slot: int, inputs: tuple[int, ...]) -> bool:
    local = state.index.serving.local.get(job.name)
    if not local or worker.pinned_job:
        return False
    lives = [epoch.live.get(task) for task in inputs]
    holders = [state.workers.get(live.worker) for live in lives if live is not None and live.phase.leftovers]
    if not any(holder is not None and holder.pinned_job for holder in holders):
        return False
    readers = readers_of(job, slot)
    return any(_near(job, other, readers) for other in local)


def some_pending(state: State, job: Job, slot: int) -> bool:
    """Whether some worker could run what the slot has lost, or a tail of its."""
    off = job.spec.sharding == "off"
    return state.index.memoize(
        job.name,
        ("pending", slot),
        lambda: any(
            must_rerun(state, job, number, task)
            and (off or is_ready(job, number, task, state.plan(job, number).task(task).inputs))
            for number, epoch in job.epochs.items()
            for task in epoch.pending.get(slot, ())
        ),
    )


def _next_to_read(job: Job, epoch: Epoch, slot: int, task: int) -> bool:
    """Whoever reads the slot in order waits for this task, however much lies ready behind it."""
    return job.spec.deterministic and all(task < other for other in epoch.unread.get(slot, ()))


def _waits_for_others(state: State, job: Job, epoch: Epoch, slot: int, fresh: Candidate) -> bool:
    """Whether a share goes on with a tail that can be dealt later, as many tails wait for their inputs already.

    Else a share that consists of tails is dealt to its end at once, if it has one. What the lowest tail that waits
    needs is before it, and never behind a tail that is held back.
    """
    pending, most = epoch.pending.get(slot, ()), TAILS_AHEAD * len(epoch.owners)
    if not job.spec.statically_owned or len(pending) < most:
        return False
    planned = state.plan(job, fresh.epoch).task
    # What runs again for its leftovers alone waits until its tail is dealt, and so does not count.
    waiting = [task for task in pending if planned(task).inputs and not epoch.live[task].complete]
    return len(waiting) >= most and bool(planned(fresh.task).inputs) and fresh.task > min(waiting, default=fresh.task)


def must_rerun(state: State, job: Job, number: int, task: int) -> bool:
    """Whether a pending task must run: not if it failed, or only its leftovers are gone and the tail has had them.

    Nor does it before that tail is dealt: what is read comes first.
    """
    epoch = job.epochs[number]
    if task in epoch.failures:
        return False
    if not epoch.live[task].complete or epoch.pieces:
        return not epoch.live[task].complete
    tail = state.plan(job, number).task(task).parent
    parent = epoch.live.get(tail)
    return parent is not None and not parent.finished and must_rerun(state, job, number, tail)


def _pending(state: State, job: Job, number: int, epoch: Epoch, worker: Worker, slot: int) -> Candidate | None:
    tasks = epoch.pending.get(slot)
    if not tasks or not some_pending(state, job, slot):
        return None
    off = job.spec.sharding == "off"
    for task in sorted(tasks):
        if not must_rerun(state, job, number, task):
            continue
        inputs = () if off else state.plan(job, number).task(task).inputs
        if inputs:
            if not is_ready(job, number, task, inputs) or _left_to_local(state, job, epoch, worker, slot, inputs):
                continue
        elif job.spec.statically_owned and not (epoch.owners and owner(epoch, task) == worker.id):
            continue
        return Candidate(number, task, epoch.live[task].run)
    return None


def is_ready(job: Job, number: int, tail: int, inputs: tuple[int, ...]) -> bool:
    """All that the tail takes leftovers from has finished, or will never run."""
    epoch = job.epochs[number]
    absent = epoch.fed.get(tail, 0)  # those that are over are no longer there
    for task in inputs:
        live = epoch.live.get(task)
        if task in epoch.alone or (live.alone if live is not None else _never_dealt(job, number, task)):
            continue
        if live is None or type(live.phase) is not Finished:
            absent -= 1
            if absent < 0:
                return False
    return True


def _never_dealt(job: Job, number: int, task: int) -> bool:
    """Nobody gets another's share, and the readers of the task's slot have gone, or read on, before its turn came."""
    return round_robin(job) and gone(job, number, task % job.stride) and not _was_dealt(job, number, task)


def began_without(state: State, job: Job, number: int, task: int) -> bool:
    """Whether the tail of a task has begun, or is over, though nobody has run the task.

    It did not wait, as the task's readers had gone; then others came in their place. Where that was before the epoch
    was resumed, ``Epoch.alone`` says so.
    """
    parent = state.plan(job, number).task(task).parent
    if parent < 0 or not round_robin(job) or fixed(state, job, number, parent):
        return False
    tail = job.epochs[number].live.get(parent)
    return tail.lease > 0 if tail is not None else _was_dealt(job, number, parent)


def fixed(state: State, job: Job, number: int, tail: int) -> bool:
    """Whether a tail takes what it took before the epoch was resumed.

    It had been read since, in part at least, or what it left over had.
    """
    epoch = job.epochs[number]
    while tail >= 0:
        if epoch.over(tail) or epoch.starts.get(tail):
            return True
        tail = -1 if tail in epoch.alone else state.plan(job, number).task(tail).parent
    return False


def owes(state: State, job: Job, number: int, task: int) -> bool:
    """Whether a tail takes what the task leaves over as before the epoch was resumed, be the task read or not."""
    epoch = job.epochs[number]
    told = task in epoch.alone or task in epoch.freed or epoch.over(task)
    return not told and fixed(state, job, number, state.plan(job, number).task(task).parent)


def owed_by(state: State, job: Job, number: int, slot: int) -> int:
    """Find the last task that a slot owes of those that it has not been dealt; -1: none. In a fixed order."""
    epoch = job.epochs[number]
    end = max(epoch.low + 8 * len(epoch.later), *epoch.starts, 0)
    length = job.tasks_of(epoch)
    for task in reversed(range(slot, end if length is None else min(end, length), job.stride)):
        if not _was_dealt(job, number, task) and owes(state, job, number, task):
            return task
    return -1


def alone_at(state: State, job: Job, number: int, task: int) -> list[int]:
    """List the tasks that leave nothing over, of one that was leased and of those whose leftovers come to it.

    Whoever reads it has to know: where its states are loaded, it must be the same tasks. Some of them left nothing to a
    tail below it, whose reader's state may not be among those.
    """
    epoch = job.epochs[number]
    if job.spec.sharding == "off" or not (round_robin(job) or epoch.alone or epoch.without):
        return []
    return ([task] if epoch.live[task].alone else []) + list(_alone_below(state, job, number, task))


def _alone_below(state: State, job: Job, number: int, tail: int) -> Iterator[int]:
    epoch, plan = job.epochs[number], state.plan(job, number)
    inputs, without = plan.task(tail).inputs, epoch.without.get(tail, ())
    tails = bool(inputs and plan.task(inputs[0]).inputs)  # all are of one level, and most tasks are no tails
    for each in inputs:
        live = epoch.live.get(each)
        # In a fixed order it has begun without those that nobody has been dealt yet.
        late = round_robin(job) and not epoch.over(each) and not _was_dealt(job, number, each)
        if each in epoch.alone or each in without or (live.alone if live is not None else late):
            yield each
        elif tails:
            yield from _alone_below(state, job, number, each)


def _was_dealt(job: Job, number: int, task: int) -> bool:
    epoch, key = job.epochs[number], f"c{task % job.stride}"
    if job.spec.statically_owned:
        if not epoch.owners:
            return False
        key = f"o{_share(epoch, task)}{key}"
    return task < epoch.cursors.get(key, 0)


def owner(epoch: Epoch, task: int) -> str:
    """Find the worker that a task belongs to, once owners are fixed."""
    return epoch.owners[_share(epoch, task)]


def _share(epoch: Epoch, task: int) -> int:
    if epoch.contiguous:
        return task * len(epoch.owners) // epoch.contiguous
    return epoch.choice[task] if epoch.choice is not None else task % len(epoch.owners)


def walk_of(state: State, job: Job, number: int, share: int, slot: int) -> tuple[str, tuple[int, int] | None]:
    """Find what :func:`cursor_of` does, in an epoch that may be dealt in chunks: then of chunk ``share``."""
    epoch = job.epochs[number]
    if epoch.chunks and source_chunks.in_chunks(job, plan := state.plan(job, number)):
        return source_chunks.walk(epoch, plan, share)
    return cursor_of(job, epoch, share, slot)


def cursor_of(job: Job, epoch: Epoch, share: int, slot: int) -> tuple[str, tuple[int, int] | None]:
    """Find a walk's key, and the task it has come to with the cursor behind it; None at its end.

    Args:
        job: which has the walk.
        epoch: which has the walk.
        share: number of the share if the sharding is by worker, else -1.
        slot: the slot; matters if tasks are dealt in turn.
    """
    every, length = job.stride if round_robin(job) else 1, job.tasks_of(epoch)
    mine = slot if round_robin(job) else 0
    key = f"c{slot}" if round_robin(job) else ""
    if share < 0:
        at = epoch.cursors.get(key, mine)
        at += max(0, -(-(epoch.low - at) // every)) * every
        while epoch.over(at):
            at += every
        return key, None if length is not None and at >= length else (at, at + every)
    key = f"o{share}{key}"
    if epoch.contiguous:
        count = 1
        first, end = (-(-each * epoch.contiguous // len(epoch.owners)) for each in (share, share + 1))
        candidates = range(max(first, epoch.cursors.get(key, 0)), end)
    elif epoch.choice is None:
        count = len(epoch.owners)
        start = epoch.cursors.get(key, share)
        start += max(0, -(-(epoch.low - start) // count)) * count
        # Shares and slots fall together within `every` steps, or never; so far are tasks that were read before.
        candidates = range(start, max(start, epoch.low + 8 * len(epoch.later)) + count * every, count)
    else:
        count = 1
        candidates = range(epoch.cursors.get(key, 0), len(epoch.choice))
    for task in candidates:
        if length is not None and task >= length:
            break
        mine_too = task % every == mine % every and not epoch.over(task)
        if mine_too and (epoch.choice is None or epoch.choice[task] == share):
            return key, (task, task + count)
    return key, None


def _fresh(state: State, job: Job, number: int, epoch: Epoch, worker: Worker, slot: int) -> Candidate | None:
    if epoch.settled:
        return None
    if epoch.chunks and source_chunks.in_chunks(job, plan := state.plan(job, number)):
        coming = source_chunks.next_in_chunks(state, job, epoch, plan)
        if coming is None:
            return None
        chunk, key, (task, cursor) = coming
        return Candidate(number, task, fresh=True, cursors={key: cursor}, share=chunk)
    if job.spec.statically_owned:
        # The lowest of its shares, so that a lane computes in the order in which it is read.
        found = None
        for share in epoch.owned.get(worker.id, ()):
            key, ahead = cursor_of(job, epoch, share, slot)
            if ahead is not None and (found is None or ahead[0] < found.task):
                found = Candidate(number, ahead[0], fresh=True, cursors={key: ahead[1]}, share=share)
        return found
    key, ahead = cursor_of(job, epoch, -1, slot)
    if ahead is None:
        return None
    cursors = {key: ahead[1]}
    if job.spec.sharding != "off":
        return Candidate(number, ahead[0], fresh=True, cursors=cursors)
    mine = f"off:{worker.id}"
    walks = [name for name in epoch.cursors if name.startswith("off:")]
    ordinal = walks.index(mine) if mine in walks else len(walks)
    step = epoch.cursors.get(mine, 0)
    plan = state.plan(job)
    if job.length is None:
        while plan.task(step).inputs:
            step += 1
        run = step
    else:
        run = off_task(plan, job.seed, number, ordinal, step % job.length)
    return Candidate(number, ahead[0], run, fresh=True, cursors={**cursors, mine: step + 1})


def epoch_length(spec: JobSpec, plan: PlanLike) -> int | None:
    """Tasks of an epoch as consumers see them: without sharding there are no tails."""
    if plan.length is None or spec.sharding != "off":
        return plan.length
    return plan.mains


def off_task(plan: PlanLike, seed: int, epoch: int, ordinal: int, step: int) -> int:
    """Find the task that the ``ordinal``-th worker comes to after ``step`` others, in an order of its own."""
    (found,) = off_walk(plan, seed, epoch, ordinal, np.array([step]))
    return plan.main(int(found))


def off_walk(plan: PlanLike, seed: int, epoch: int, ordinal: int, steps: np.ndarray) -> np.ndarray:
    """Which of the plan's mains that worker comes to at these steps, int64; computed, as there may be millions."""
    assert plan.mains is not None
    return FullPermutation(plan.mains, derive(seed, epoch, ordinal)).at(steps)


def all_dealt(job: Job, epoch: Epoch) -> bool:
    """Every task of the epoch has its slot, those aside that are of slots whose readers have all left."""
    length = job.tasks_of(epoch)
    if length is None:
        return False
    if not round_robin(job):
        return sum(epoch.dealt.values()) >= length
    return all(
        share_dealt(job, epoch, slot) for slot in range(job.stride) if not job.left.issuperset(job.audience(slot))
    )


def share_dealt(job: Job, epoch: Epoch, slot: int) -> bool:
    """Whether the slot will get no further task of the epoch. In a fixed order others' reading does not matter.

    With equal steps, who takes the place of one that left has nothing of epochs that were settled without it.
    """
    length = job.tasks_of(epoch)
    if round_robin(job) and length is not None and not epoch.settled:
        return epoch.dealt.get(slot, 0) >= len(range(slot, length, job.stride))
    return epoch.settled


def settled_without(job: Job, epoch: Epoch, slot: int) -> bool:
    """Whether the slot lacks some of its share of the epoch, as its readers were away when that was dealt."""
    length = job.tasks_of(epoch)
    if not (round_robin(job) and epoch.settled) or length is None:
        return False
    return epoch.dealt.get(slot, 0) < len(range(slot, length, job.stride))


def first_missing(job: Job, epoch: Epoch, slot: int, reader: int | None = None) -> int | None:
    """Find the first task of the slot that no worker has and that some reader, or this one, is to read; None: none.

    In a fixed order only.
    """
    absent = [task for task in epoch.pending.get(slot, ()) if not epoch.live[task].complete]
    if reader is not None:
        absent = [task for task in absent if not epoch.live[task].readers[reader].complete]
    if not share_dealt(job, epoch, slot):
        shares = range(len(epoch.owners)) if job.spec.statically_owned else (-1,)
        walks = [cursor_of(job, epoch, share, slot)[1] for share in shares]
        absent += [ahead[0] for ahead in walks if ahead is not None]
    return min(absent, default=None)


def next_to_read(job: Job, epoch: Epoch, slot: int) -> int | None:
    """Find the first task of the slot that not all have read to its end, dealt or not. In a fixed order only."""
    absent = first_missing(job, epoch, slot)
    return min([*epoch.unread.get(slot, ()), *([] if absent is None else [absent])], default=None)


def place_of(live: TaskState, workers: dict[str, Worker]) -> str:
    """Address of the worker that has the task, empty if it is gone."""
    worker = workers.get(live.worker)
    return worker.address if worker is not None else ""
