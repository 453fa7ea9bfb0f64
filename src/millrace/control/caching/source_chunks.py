"""Source chunks: data that are larger than the source cache are read in chunks, by all jobs in about the same order.

Which chunks a job has begun in an epoch lies in the walks of that (``Epoch.cursors``, "h3"); which ones cache servers
keep is state of its own, by data set. Both are journalled, so that a dispatcher that comes back goes on with them.
"""

from __future__ import annotations

import bisect
from collections import Counter
from collections.abc import Iterator

from millrace.control.caching import source_rooms
from millrace.control.journal.cache_events import ChunksKept
from millrace.control.journal.transaction import Transaction
from millrace.control.state.plans import PlanLike
from millrace.control.state.state import Epoch, Job, State
from millrace.control.state.task_state import Running, Waiting
from millrace.policies.caching import kept_chunks as policy
from millrace.policies.decision import Decision

_AS_A_WHOLE = Decision(0, "")


def chunks_for(tx: Transaction, job: Job) -> Decision[int]:
    """Choose the chunks of an epoch that the job begins; 0: it is read as a whole, for a reason or as ever."""
    if not tx.observed.cache_servers or not job.prints or not job.tables:
        return _AS_A_WHOLE
    source_rooms.decide(tx)
    given, most = tx.state.caches.rooms.get(job.data_set), source_rooms.chunks_possible(job)
    if given is None or given.room != "two chunks" or not most:
        return _AS_A_WHOLE if given is None else Decision(0, given.reason)
    known = tx.state.caches.source_chunks.get(job.data_set)
    before = known.chunks if known is not None and any(_read_alike(tx.state, job, known.chunks)) else 0
    return policy.choose_chunks(given.bytes, source_rooms.room_there(tx), most, before)


def in_chunks(job: Job, plan: PlanLike) -> bool:
    """Whether tasks of the plan are dealt chunk by chunk."""
    spec = job.spec
    return bool(plan.chunks) and spec.sharding == "dynamic" and not (spec.deterministic or spec.equal_steps)


def walk(epoch: Epoch, plan: PlanLike, chunk: int) -> tuple[str, tuple[int, int] | None]:
    """Find a chunk's walk: its key, and the task it has come to with the cursor behind it; None at its end."""
    key = f"h{chunk}"
    first, stop = plan.chunk(chunk)
    for task in range(max(first, epoch.cursors.get(key, first)), stop):
        if not epoch.over(task):
            return key, (task, task + 1)
    return key, None


def has_begun(epoch: Epoch, chunk: int) -> bool:
    """Whether a task of the chunk was dealt in an epoch since that was opened."""
    return f"h{chunk}" in epoch.cursors


def begun(epoch: Epoch) -> list[int]:
    """List the chunks that have been begun in an epoch, in that order."""
    return [int(key[1:]) for key in epoch.cursors if key.startswith("h")]


def next_in_chunks(state: State, job: Job, epoch: Epoch, plan: PlanLike) -> tuple[int, str, tuple[int, int]] | None:
    """Find the task that is dealt next: its chunk, and what :func:`walk` gives; None: all are dealt."""
    last = begun(epoch)[-1:]
    for chunk in last:  # those before were all dealt when it was begun
        key, ahead = walk(epoch, plan, chunk)
        if ahead is not None:
            return chunk, key, ahead
    fresh = {chunk for chunk in range(plan.chunks) if walk(epoch, plan, chunk)[1] is not None}
    if not fresh:
        return None
    known = state.caches.source_chunks.get(job.data_set)
    kept = known.kept if known is not None and known.chunks == plan.chunks else []
    alike = [each for each in _read_alike(state, job, plan.chunks) if each[0] is not epoch]
    others = [chunk for other, its in alike for chunk in begun(other)[-1:] if walk(other, its, chunk)[1] is not None]
    chunk = policy.next_chunk(plan.chunks, last, fresh, kept, others)
    key, ahead = walk(epoch, plan, chunk)
    assert ahead is not None
    return chunk, key, ahead


def _read_alike(state: State, job: Job, chunks: int) -> Iterator[tuple[Epoch, PlanLike]]:
    """List the epochs in so many chunks of the same data that have begun, and of which something is still to run."""
    for other in state.jobs.values():
        if other.prints[:1] != job.prints[:1] or other.failure is not None:
            continue
        for number, epoch in other.epochs.items():
            alike = epoch.chunks == chunks and not epoch.pieces and any(key.startswith("h") for key in epoch.cursors)
            over = epoch.settled and not any(type(live.phase) in {Running, Waiting} for live in epoch.live.values())
            if alike and not over and in_chunks(other, plan := state.plan(other, number)):
                yield epoch, plan


def _running(epoch: Epoch, plan: PlanLike) -> Counter[int]:
    """Count the tasks of each chunk that were dealt and are still to run, tails aside: they read nothing."""
    found = Counter[int]()
    for task, live in epoch.live.items():
        if not live.complete and isinstance(live.phase, Running | Waiting) and not plan.task(task).inputs:
            found[bisect.bisect_right(range(plan.chunks), task, key=lambda chunk: plan.chunk(chunk)[0]) - 1] += 1
    return found


def _left(epoch: Epoch, plan: PlanLike, running: Counter[int], chunk: int) -> float:
    """Share of a chunk's tasks that are still to run."""
    first, stop = plan.chunk(chunk)
    ahead = walk(epoch, plan, chunk)[1]
    to_deal = 0 if ahead is None else stop - ahead[0]
    return min(1.0, (to_deal + running[chunk]) / (stop - first))


def readers(state: State, data: str) -> dict[str, int]:
    """List the jobs that read a data set in chunks, with the chunk that each has begun last."""
    return {
        job.name: begun(epoch)[-1]
        for job in state.jobs.values()
        if job.data_set == data
        for epoch in job.epochs.values()
        if epoch.chunks and begun(epoch)
    }


def why(state: State, data: str) -> str:
    """Say why a data set is read in chunks, as it was said for the first job that does; empty: a state says so."""
    of_data = (epoch for job in state.jobs.values() if job.data_set == data for epoch in job.epochs.values())
    return next((epoch.why for epoch in of_data if epoch.chunks and epoch.why), "")


def keep_begun(tx: Transaction, job: Job, epoch: Epoch) -> None:
    """Have a chunk kept of which the first task was dealt."""
    if epoch.chunks:
        _keep(tx, job, epoch.chunks)


def watch(tx: Transaction) -> None:
    """Have cache servers keep the chunks that are read, as far as there is room, and no others."""
    seen = set[tuple[str, int]]()
    for job in tx.state.jobs.values():
        for epoch in job.epochs.values():
            if epoch.chunks and job.prints and (job.prints[0], epoch.chunks) not in seen:
                seen.add((job.prints[0], epoch.chunks))
                _keep(tx, job, epoch.chunks)


def _keep(tx: Transaction, job: Job, chunks: int) -> None:
    data, alike = job.data_set, list(_read_alike(tx.state, job, chunks))
    known = tx.state.caches.source_chunks.get(data)
    if not alike or (known is not None and known.chunks != chunks and any(_read_alike(tx.state, job, known.chunks))):
        return  # what others read in other chunks stays; where a cache has grown or shrunk, they do so for an epoch
    kept = known.kept if known is not None and known.chunks == chunks else []
    each = [(epoch, plan, _running(epoch, plan)) for epoch, plan in alike]
    # Of those that were begun before the last one, all was dealt.
    read = {chunk for of_epoch in each for chunk in (*of_epoch[2], *begun(of_epoch[0])[-1:]) if _left(*of_epoch, chunk)}
    left = {chunk: [_left(*of_epoch, chunk) for of_epoch in each] for chunk in {*kept, *read}}
    midst = {chunk: [_left(*of_epoch, chunk) for of_epoch in each if has_begun(of_epoch[0], chunk)] for chunk in kept}
    decision = policy.choose_kept(kept, left, read, midst)
    if decision.value != kept:
        tx.emit(ChunksKept(data, chunks, decision.value, decision.reason))
        for server in tx.observed.cache_servers:
            source_rooms.tell(tx, server)
