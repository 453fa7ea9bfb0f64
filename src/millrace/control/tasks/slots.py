"""Slots: which ones tasks are leased for, whether their readers are there, and what these have still to read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from millrace.control.state.state import Consumer, Epoch, Job, State, Worker

ALIKE = 64
"""Slots looked at of those whose readers are expected and for which nothing was leased yet."""


def round_robin(job: Job) -> bool:
    """Task i belongs to slot i mod :attr:`Job.stride`, whoever is faster."""
    return job.spec.deterministic or job.spec.equal_steps


def active(job: Job) -> list[int]:
    """Slots to lease for: those of which a reader is there, and those whose readers are expected and were never seen.

    Of these the ones that nothing was leased for are all alike, unless each has a share of its own: a few will do.
    """
    there = [reader for reader, place in job.consumers.items() if place.lost_at is None]
    if job.spec.sharing or len(job.consumers) + len(job.left) >= (job.spec.num_consumers or 0):
        return sorted(job.slots_of(there))  # none is missing
    if round_robin(job):
        return sorted(job.slots_of([*there, *_missing(job)]))
    begun = {slot for epoch in job.epochs.values() for slot in epoch.unread if is_awaited(job, slot)}
    new = (slot for slot in job.slots_of(_missing(job)) if slot not in begun)
    return sorted({*job.slots_of(there), *begun, *islice(new, ALIKE)})


def missing(job: Job) -> list[int]:
    """Readers that are expected and were never seen."""
    return list(_missing(job))


def _missing(job: Job) -> Iterator[int]:
    return (index for index in range(job.spec.num_consumers or 0) if is_missing(job, index))


def is_missing(job: Job, reader: int) -> bool:
    """Whether a reader is expected and was never seen; of groups nobody is, as members come with all their ranks."""
    if job.spec.sharing:
        return False
    return reader not in job.consumers and reader not in job.left and reader < (job.spec.num_consumers or 0)


def is_awaited(job: Job, slot: int) -> bool:
    """Whether all readers of a slot are expected and were never seen."""
    return all(is_missing(job, reader) for reader in job.audience(slot))


def readers_of(job: Job, slot: int) -> list[Consumer]:
    """Places of those readers of a slot that have come and not left."""
    return [job.consumers[reader] for reader in job.audience(slot) if reader in job.consumers]


def unread_by(job: Job, epoch: Epoch, reader: int) -> list[int]:
    """List the live tasks of all slots of a reader that it has not read to the end, in their order."""
    return sorted(task for slot in job.slots_of([reader]) for task in epoch.unread_by(reader, slot))


def behind(state: State, job: Job, number: int, slot: int) -> list[int]:
    """List the readers that skip what is dealt to a slot now, all ranks of a member alike, as others are further."""
    if not job.skipping:
        return []
    backlogs, count = _backlogs(job, slot, number), job.spec.together
    late = min(backlogs.values(), default=0) + state.settings.window_behind
    return [reader for reader in job.consumers if backlogs.get(reader // count, 0) >= late]


def _backlogs(job: Job, slot: int, number: int | None = None) -> dict[int, int]:
    """Count, for each member (that reads an epoch), the tasks of a slot that some rank of it has still to read."""
    count = job.spec.together
    found = {reader // count: 0 for reader in job.consumers if number is None or job.reads(reader, number)}
    for epoch in job.epochs.values():
        for task in epoch.unread.get(slot, ()):
            readers = epoch.live[task].readers.items()
            for member in found.keys() & {reader // count for reader, progress in readers if not progress.complete}:
                found[member] += 1
    return found


def unread(job: Job, slot: int, number: int | None = None) -> int:
    """Tasks leased for a slot that some reader (of a window: each) has not read to the end, over all epochs.

    Where members skip tasks, those of the member (of which reads an epoch) that has the least to read.
    """
    if job.skipping:
        return min(_backlogs(job, slot, number).values(), default=0)
    count, reached = 0, job.reached
    for each, epoch in job.epochs.items():
        if each >= reached:
            count += len(epoch.unread.get(slot, ()))
            waiting = epoch.pending.get(slot)
            if waiting:
                count -= sum(not epoch.live[task].complete for task in waiting)
    return count


def _read_now(job: Job) -> list[Epoch]:
    """Epochs of which tasks may be computed: all but those that the furthest reader of a window has left."""
    return [epoch for number, epoch in job.epochs.items() if number >= job.reached]


def unread_alike(state: State, job: Job, slot: int, worker: Worker, number: int | None = None) -> int:
    """Count those at workers like this one: what waits behind a link is not to keep local workers from computing."""
    if job.name not in state.index.serving.local:
        return unread(job, slot, number)
    lives = [epoch.live[task] for epoch in _read_now(job) for task in epoch.unread.get(slot, ())]
    holders = [state.workers[live.worker] for live in lives if live.worker in state.workers]
    return sum(bool(holder.pinned_job) == bool(worker.pinned_job) for holder in holders)


def starving(job: Job, slot: int) -> bool:
    """Whether a reader of the slot reads an epoch of which no worker runs or keeps anything for the slot."""
    for reader in job.audience(slot):
        place = job.consumers.get(reader)
        epoch = job.epochs.get(place.epoch) if place is not None else None
        if place is not None and (place.epoch <= place.past or (job.windowed and place.epoch < job.reached)):
            continue  # it waits for an epoch that nobody has begun, or has what is left of one
        if epoch is not None and not any(
            (live := epoch.live[task]).phase.worker and not live.readers[reader].complete
            for task in epoch.unread.get(slot, ())
        ):
            return True
    return False


def gone(job: Job, number: int, slot: int) -> bool:
    """Every reader of the slot has left, or reads a later epoch, or will."""
    return not any(job.reads(reader, number) for reader in job.audience(slot))
