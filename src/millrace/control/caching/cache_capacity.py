"""The room of caches: promised to leases, taken by blocks, given back by eviction; and who knows of which blocks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from millrace.control.actions import DeleteBlocks, ListStore
from millrace.control.caching import byte_quotas
from millrace.control.caching.cache_mode import active, have_measured, others, place, share_kept, usable, writer
from millrace.control.inputs import BlocksGone, StoreListed
from millrace.control.journal.cache_events import (
    BlocksDeleted,
    BlocksGivenUp,
    BlocksPublished,
    ModeChosen,
    PointsForgotten,
    PromisesKept,
    StoreCalibrated,
)
from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import CachedPoint, is_of
from millrace.control.state.state import Job, State
from millrace.planning.cache_point import CachePoint
from millrace.policies.caching import eviction
from millrace.protocol.cache_messages import BlocksKnown, CacheUse, CacheUsed, KeptBlock, StoreMeasured

if TYPE_CHECKING:
    from collections.abc import Iterable

FIRST_ROOM = 64 << 20
"""Bytes for a task of which it is not known how much it adds, or an eighth of all if that is less."""
ROOM_SPARE = 1.3
"""A task gets so many times the room that others needed at most,"""
ROOM_LEAST = 64 << 10
"""or so much, or a 64th of all if that is less: while a block is written its size is known to some kilobytes only."""
NO_ROOM_S = 1.0
"""A point that got no room is not considered again for so long: the answer takes a look at all blocks."""
UNBOUNDED = 1 << 62


# -- leases ------------------------------------------------------------------------------------------------------------


def use_of(tx: Transaction, job: Job, number: int) -> CacheUse | None:
    """Use of the cache by a task of an epoch that is leased now."""
    point = active(job)
    if point is None:
        return None
    if point.fixed and not point.always and number > 0 and job.epochs[number].reused != point.node:
        return None  # this epoch began with random values of its own
    room = _room(tx, job, point) if _keeps(tx.state, job, point) else 0
    also = others(tx.state, job, point)
    return CacheUse(point.node, place(job, point), point.random, room, writer(job, point), also)


def _keeps(state: State, job: Job, point: CachePoint) -> bool:
    """Whether the job adds to its point, or another one does and this one helps."""
    if job.caching.kind == "put":
        return True
    if share_kept(state, job, point) >= 1.0:
        return False
    cached = state.caches.points.get(place(job, point), CachedPoint())
    users = (state.jobs[name] for name in cached.uses if name in state.jobs and name != job.name)
    return any(user.caching.kind == "put" and _place_now(user) == place(job, point) for user in users)


def _place_now(job: Job) -> str:
    """Where the job adds what it keeps."""
    point = active(job)
    return "" if point is None else place(job, point)


def _reads_now(state: State, job: Job, name: str) -> bool:
    point = active(job)
    return point is not None and (name == place(job, point) or name in others(state, job, point))


def _room(tx: Transaction, job: Job, point: CachePoint) -> int:
    """Bytes that one more task may add; 0 if that isn't worth what would have to go."""
    state, name = tx.state, place(job, point)
    if point.path:
        return UNBOUNDED  # of the user's own folder
    cached = state.caches.points.get(name, CachedPoint())
    tenant = job.spec.tenant
    limit = byte_quotas.limit_of(state, tenant)
    by_task = cached.whole // job.length if job.length and cached.whole else 0
    known = max(cached.largest, by_task)
    least = min(ROOM_LEAST, limit // 64)
    wanted = min(limit, max(least, int(ROOM_SPARE * known))) if known else min(FIRST_ROOM, limit // 8)
    free = state.settings.cache_bytes - state.caches.taken - tx.observed.measuring_room
    own = byte_quotas.own_room(state, tenant)
    full = own is not None and own < wanted
    if wanted <= free and not full:
        return wanted
    if tx.now - tx.observed.no_room.get(name, -NO_ROOM_S) < NO_ROOM_S:
        return 0
    tx.observed.no_room[name] = tx.now
    lacking = max(wanted, cached.whole - cached.bytes)
    if own is not None and full:
        lacking, free = min(lacking, limit), own  # first among its own: there may be room for all then
    going = _blocks(state, tenant if full else None)
    decision = eviction.admit(name, wanted, max(wanted, lacking), free, going, benefits(state, tx.now))
    if decision.value:
        _give_up(tx, decision.value, decision.reason)
    elif full:
        byte_quotas.tell_full(tx, job)
    return 0  # there will be room when they are gone


def benefits(state: State, now: float) -> dict[str, float]:
    """By place what a byte of it is worth; a job that is there uses its point now."""
    found = {}
    for name, cached in state.caches.points.items():
        uses = []
        for job, use in cached.uses.items():
            there = job in state.jobs and _reads_now(state, state.jobs[job], name)
            uses.append(eviction.PointUse(use.saves, now if there else use.last))
        found[name] = eviction.benefit(uses, max(1, cached.whole, cached.bytes), now)
    return found


def _blocks(state: State, tenant: str | None = None) -> dict[str, list[eviction.KeptBlockSize]]:
    """List what may go by place: of all, or of a tenant."""
    return {
        name: [eviction.KeptBlockSize(f"{name}/{block.name}", block.bytes) for block in cached.readable]
        for name, cached in state.caches.points.items()
        if not cached.path and (tenant is None or is_of(name, tenant))
    }


def _give_up(tx: Transaction, names: Iterable[str], reason: str) -> None:
    by_place: dict[str, list[str]] = {}
    for name in names:
        point, _, block = name.partition("/")
        by_place.setdefault(point, []).append(block)
    for point, blocks in by_place.items():
        tx.emit(BlocksGivenUp(point, blocks, reason))
        _announce(tx, point, gone=blocks)
    sweep(tx)


def sweep(tx: Transaction) -> None:
    """Delete what was given up and nobody reads any more; list the store if somebody may have added to it."""
    state = tx.state
    unused = state.caches.unused(state.jobs)
    if unused:
        tx.emit(PointsForgotten(unused))
    for name, cached in list(state.caches.points.items()):
        if cached.path:  # of the user's own folder, which is theirs to clear; who makes such a block replaces it
            if cached.evicting:
                tx.emit(BlocksDeleted(name, list(cached.evicting)))
            continue
        free = [
            block
            for block, leases in cached.evicting.items()
            if not any(
                lease in state.caches.reservations and not state.caches.reservations[lease].over for lease in leases
            )
        ]
        _delete(tx, name, [block for block in free if (name, block) not in tx.observed.deleting])
    over = [lease for lease, held in state.caches.reservations.items() if held.over]
    if over:
        _list(tx, over)


def _delete(tx: Transaction, name: str, blocks: list[str]) -> None:
    if blocks:
        for block in blocks:
            tx.observed.deleting[name, block] = tx.observed.deleting.get((name, block), 0) + 1
        tx.act(DeleteBlocks(name, blocks))


def _list(tx: Transaction, leases: list[int]) -> None:
    if tx.state.settings.cache and tx.observed.listing is None:
        tx.observed.listing = set()
        points = tx.state.caches.points.items()
        known = {name: {b.name: b.bytes for b in cached.blocks.values()} for name, cached in points if not cached.path}
        tx.act(ListStore(leases, known))


# -- what is told ------------------------------------------------------------------------------------------------------


def tell_blocks(tx: Transaction, worker: str, name: str) -> None:
    """Tell a worker that gets a lease what is kept of its point, instead of what it knew before."""
    told = tx.observed.told.setdefault(worker, set())
    if name in told:
        return
    told.add(name)
    cached = tx.state.caches.points.get(name, CachedPoint())
    names = [block.name for block in cached.readable]
    tx.to_worker(worker, BlocksKnown(name, names, whole="@" not in name))  # what a user's folder has it sees itself


def _announce(tx: Transaction, name: str, names: Iterable[str] = (), gone: Iterable[str] = ()) -> None:
    for worker, told in tx.observed.told.items():
        if name in told:
            tx.to_worker(worker, BlocksKnown(name, list(names), list(gone)))


def greeted(tx: Transaction, worker: str) -> None:
    """Note that a worker's session begins: it knows nothing yet."""
    tx.observed.told.pop(worker, None)
    if tx.observed.measuring == worker:
        tx.observed.measuring, tx.observed.measuring_room = "", 0


# -- what is heard -----------------------------------------------------------------------------------------------------


def started(tx: Transaction) -> None:
    """Find out what is in the store, whatever the journal says."""
    _list(tx, [lease for lease, held in tx.state.caches.reservations.items() if held.over])


def used(tx: Transaction, worker: str, message: CacheUsed) -> None:
    """Note what a run did with a point. What it kept is right whether or not the run counted."""
    if not _may_tell(tx.state, worker, message):
        return
    observation = tx.observed.caching.get(message.job)
    if observation is not None:
        observation.hits += message.hits
        observation.misses += message.misses
        observation.lost += len(message.lost)
        if message.blocks or (message.error and not message.wanted):
            observation.trouble = message.error
    _learn(tx, message)
    held = tx.state.caches.reservations.get(message.lease)
    cached = tx.state.caches.points.get(message.place)
    known = cached.blocks if cached is not None else {}
    if message.blocks or (held is not None and held.room and held.place == message.place):
        _published(tx, message.place, message.blocks, message.lease, message.wanted)
    if message.blocks and held is None:
        _fit(tx)  # it has written for longer than anybody waited for it
    made = {block.name for block in message.blocks}
    lost = [name for name in message.lost if name in known and name not in made]
    if lost and cached is not None:
        tx.emit(BlocksGivenUp(message.place, lost, "they could not be read"))
        _announce(tx, message.place, gone=lost)
        sweep(tx)


def _may_tell(state: State, worker: str, message: CacheUsed) -> bool:
    """Whether a worker can know what it says: the run may be its own, and the point one of the run's job.

    Who has not been told of the job, or was given up, may add blocks and have none deleted. What is in the store and
    was not told of is found when the store is listed. A job may be over before its last run is heard of.
    """
    if any(message.lease in other.unfinished for name, other in state.workers.items() if name != worker):
        return False
    teller = state.workers.get(worker)
    if message.lost and (teller is None or message.job not in {*teller.open, *teller.closed}):
        return False
    written, read = set[str](), set[str]()
    held, job = state.caches.reservations.get(message.lease), state.jobs.get(message.job)
    if held is not None:
        written.add(held.place)
        read.update(held.also)
    if job is not None:
        for point in usable(state, job):
            written.add(place(job, point))
            read.update(others(state, job, point))
    cached = state.caches.points.get(message.place)
    used_by_it = cached is not None and message.job in cached.uses
    return used_by_it or message.place in written or (message.place in read and not message.blocks)


def _published(
    tx: Transaction, name: str, blocks: list[KeptBlock], lease: int = -1, wanted: int = 0, by: str = ""
) -> None:
    tx.emit(BlocksPublished(name, blocks, lease, wanted, by))
    if tx.observed.listing is not None:
        tx.observed.listing.update((name, block.name) for block in blocks)
    # Those that go are there again, perhaps after they were deleted: they are deleted once more.
    _delete(tx, name, [block.name for block in blocks if (name, block.name) in tx.observed.deleting])
    readable = {block.name for block in tx.state.caches.points[name].readable}
    told = [block.name for block in blocks if block.name in readable]
    if told:
        _announce(tx, name, told)


def listed(tx: Transaction, message: StoreListed) -> None:
    """Hold the state against the store, which was listed."""
    since, tx.observed.listing = tx.observed.listing or set(), None
    if message.blocks is not None:
        _found(tx, message.blocks, message, since)
    have_measured(tx)


def _found(
    tx: Transaction, blocks: dict[str, list[KeptBlock]], message: StoreListed, since: set[tuple[str, str]]
) -> None:
    points = tx.state.caches.points
    for name in sorted(blocks.keys() | {name for name, cached in points.items() if not cached.path}):
        there = {block.name: block for block in blocks.get(name, ())}
        known = points[name].blocks if name in points else {}
        new = [
            block
            for block in there.values()
            if block.items and (name, block.name) not in since and known.get(block.name) != block
        ]
        if new:
            _published(tx, name, new, by=message.writers.get(name, ""))
        # Of those that are to be deleted the answer tells: until then one that comes again is deleted once more.
        sure = since | tx.observed.deleting.keys()
        missing = [block for block in known if block not in there and (name, block) not in sure]
        if missing:
            tx.emit(BlocksDeleted(name, missing))
            _announce(tx, name, gone=missing)
    if message.leases:
        tx.emit(PromisesKept(message.leases))
    _fit(tx)


def _fit(tx: Transaction) -> None:
    """Give up what is more than there may be, of each tenant and of all, beside what is evicted anyway."""
    for tenant in tx.state.settings.byte_quotas:
        over = byte_quotas.too_much(tx.state, tenant)
        if over > 0:
            decision = eviction.evict(_blocks(tx.state, tenant), benefits(tx.state, tx.now), over)
            _give_up(tx, decision.value, decision.reason)
    points = tx.state.caches.points.values()
    going = sum(cached.blocks[block].bytes for cached in points if not cached.path for block in cached.evicting)
    over = tx.state.caches.taken - going - tx.state.settings.cache_bytes
    if over > 0:
        decision = eviction.evict(_blocks(tx.state), benefits(tx.state, tx.now), over)
        _give_up(tx, decision.value, decision.reason)


def remove(tx: Transaction, places: list[str]) -> None:
    """Somebody wants all blocks of these points to be deleted."""
    points = tx.state.caches.points
    mine = [name for name in places if name in points and not points[name].path]
    names = [f"{name}/{block}" for name in mine for block in points[name].blocks]
    _give_up(tx, names, "somebody asked for it")


def deleted(tx: Transaction, message: BlocksGone) -> None:
    """Blocks are gone from the store, but for those that stay, or were published again: these are deleted once more."""
    name, gone = message.place, []
    for block in [*message.names, *message.stay]:
        due = tx.observed.deleting.pop((name, block), 1) - 1
        if due:
            tx.observed.deleting[name, block] = due
        elif block not in message.stay:
            gone.append(block)
    if gone and name in tx.state.caches.points:
        tx.emit(BlocksDeleted(name, gone))
    tx.observed.no_room.clear()


def calibrated(tx: Transaction, _worker: str, message: StoreMeasured) -> None:
    """Note what a worker measured of the store, or that it could not."""
    tx.observed.measuring, tx.observed.measuring_room = "", 0
    if message.cost is not None:
        tx.emit(StoreCalibrated(message.path, message.cost))
        return
    for job in tx.state.jobs.values():
        if job.caching.kind == "profile":
            tx.emit(ModeChosen(job.name, "compute", -1, f"the cache cannot be used: {message.why}", job.newest))


def _learn(tx: Transaction, message: CacheUsed) -> None:
    """Refresh the measured cost by what reads really take; not journalled, as it is never far from it for long."""
    cost = tx.observed.cost or tx.state.caches.costs.get("")
    if cost is not None and message.read_bytes and "@" not in message.place:
        # What one read takes while as many others run as were measured: however many there were, so many of them would
        # have shared what the store gave meanwhile.
        each_s = message.read_s * cost.threads / message.reads
        read = cost.read.learn(message.read_bytes // message.reads, each_s)
        tx.observed.cost = msgspec.structs.replace(cost, read=read)
