"""Source rooms: how much of each data set cache servers keep, if they can't keep all that is read (Quiver 5.3).

As long as all data that jobs read fit, all are kept, and nothing is measured. One data set that doesn't fit is read in
chunks where its jobs can do that. Where several have to share the room, jobs are measured without the cache (see
:mod:`millrace.control.caching.source_probes`), and :mod:`millrace.policies.caching.cache_budget` decides. Rooms are
journalled, so that a dispatcher that comes back moves nothing; what was measured isn't, and is measured again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import NamedTuple

import msgspec

from millrace.control.actions import SendToCacheServer
from millrace.control.caching.source_probes import awaited, measured, probe, reads_alone, times_of
from millrace.control.journal.cache_events import RoomGiven
from millrace.control.journal.transaction import Transaction
from millrace.control.state.cache_state import Caches, DataSetRoom, Given
from millrace.control.state.state import Job, State
from millrace.graph.nodes import FromFiles, FromTFRecords, FromWebDataset
from millrace.graph.serialize import unpack
from millrace.graph.source_nodes import stored_elsewhere
from millrace.planning import server_zones
from millrace.planning.chunks import most_chunks
from millrace.planning.split_table import TableSummary
from millrace.planning.units import UnitMap
from millrace.policies.caching import cache_budget as policy
from millrace.policies.caching.kept_chunks import FILLED, KEPT, choose_chunks, chunk_bytes
from millrace.policies.decision import Decision
from millrace.policies.figures import data_size
from millrace.protocol.cache_server_messages import KeepChunks
from millrace.protocol.source_cache_messages import chunk_label

AWAY_S = 60.0
"""Seconds for which cache servers, or all workers of a zone, may be away until the room is another."""


class StoredData(NamedTuple):
    """Data set that jobs read from a store.

    Attributes:
        bytes: of all of it.
        jobs: that read it.
    """

    bytes: int
    jobs: list[Job]


def room_there(tx: Transaction) -> int:
    """Bytes of data that cache servers may keep, each zone that has workers and servers a copy of its own.

    When servers go, what was before counts for a while: the others are no fuller for one that is away, and a zone whose
    servers are all away has them back before anybody gets room that they don't have.
    """
    observed = tx.observed
    servers = observed.cache_servers.values()
    now = server_zones.room([(known.zone, known.most_bytes) for known in servers], observed.cache_zones)
    _, of = observed.cache_room
    if len(servers) >= of or tx.now - observed.cache_room_s > AWAY_S:
        observed.cache_room, observed.cache_room_s = (now, len(servers)), tx.now
    return observed.cache_room[0]


def _look_at_zones(tx: Transaction) -> None:
    """Note in which zones there are workers; one that has lost its last one counts for a while."""
    seen = tx.observed.cache_zones
    for worker, zone in tx.observed.cache_clients.items():
        if worker in tx.state.workers:
            seen[zone] = tx.now
    tx.observed.cache_zones = {zone: at for zone, at in seen.items() if tx.now - at <= AWAY_S}


def _room_in_words(tx: Transaction) -> str:
    """Say how much the source cache holds, and of which zone that is where each has a copy of its own."""
    zones = {each.zone for each in tx.observed.cache_servers.values()}
    copies = {server_zones.zone_asked(zones, own) for own in tx.observed.cache_zones}
    return data_size(room_there(tx)) + (" in the zone that holds least" if len(copies) > 1 else "")


def data_read(state: State) -> dict[str, StoredData]:
    """List the data sets that jobs read now and cache servers may keep: those that are a job's only source."""
    found = dict[str, StoredData]()
    for job in state.jobs.values():
        if reads_alone(job) and job.tables and _stored(job.spec.structure):
            (table,) = job.tables.values()
            found.setdefault(job.data_set, StoredData(table.bytes, [])).jobs.append(job)
    return found


@functools.lru_cache(256)
def _stored(structure: bytes) -> bool:
    return all(stored_elsewhere(node) for _, node in unpack(structure).sources())


@functools.lru_cache(256)
def _in_items(structure: bytes) -> bool:
    """Whether a graph reads stored files, or records of stored shards, of which workers can tell the chunk."""
    return all(isinstance(node, _IN_ITEMS) and stored_elsewhere(node) for _, node in unpack(structure).sources())


_IN_ITEMS = (FromFiles, FromTFRecords, FromWebDataset)


def chunks_possible(job: Job) -> int:
    """Count the chunks that the job's data can be cut into, at most; 0: it reads them as a whole.

    Chunks change the order of its elements, so none are made where that is fixed, or where others rely on it.
    """
    spec = job.spec
    fixed = spec.deterministic or spec.equal_steps or spec.coordinated or spec.sharing or spec.sharding != "dynamic"
    if fixed or not job.tables or not job.length or len(job.tables) != 1 or not _in_items(spec.structure):
        return 0
    return _most_chunks(spec.structure, msgspec.msgpack.encode(job.tables))


@functools.lru_cache(256)
def _most_chunks(structure: bytes, tables: bytes) -> int:
    return most_chunks(UnitMap(unpack(structure), msgspec.msgpack.decode(tables, type=dict[int, TableSummary])))


def watch(tx: Transaction) -> None:
    """Decide who gets which room, and have jobs measured where that is needed."""
    _look_at_zones(tx)
    competing = list[tuple[Given, list[Job]]]()
    if tx.observed.cache_servers:
        read, rooms = decide(tx), tx.state.caches.rooms
        if len(read) > 1 and _bytes(read) > _usable(tx):
            competing = [(rooms[data].room, each.jobs) for data, each in read.items() if data in rooms]
    probe(tx, competing)


def decide(tx: Transaction) -> dict[str, StoredData]:
    """Decide who gets which room, if anything that this depends on has changed; return all data that are read."""
    read = data_read(tx.state)
    known = ((data, tuple(measured(tx, job) for job in each.jobs)) for data, each in read.items())
    asked = (room_there(tx), *known)
    back = tx.observed.all_back or not tx.state.caches.rooms
    if asked == tx.observed.rooms_for or not back:  # after a restart servers come back one by one
        return read
    tx.observed.rooms_for = asked
    rooms = _rooms(tx, read)
    changed = False
    for data, (size, decision) in {**_kept_on(tx, rooms), **rooms}.items():
        before, given = tx.state.caches.rooms.get(data), DataSetRoom(size, decision.value, decision.reason)
        if given != before:
            tx.emit(RoomGiven(data, size, decision.value, decision.reason))
            changed |= before is None or (before.bytes, before.room) != (size, decision.value)
    for server in tx.observed.cache_servers if changed else ():
        tell(tx, server)
    return read


def _usable(tx: Transaction) -> int:
    return int(room_there(tx) * FILLED)


def _bytes(read: Mapping[str, StoredData]) -> int:
    return sum(each.bytes for each in read.values())


_Found = Mapping[str, tuple[int, Decision[Given]]]


def _in_chunks(job: Job, size: int, room: int) -> bool:
    """Whether the job can read its data in chunks of which two fit into the room."""
    return bool(choose_chunks(size, room, chunks_possible(job)).value)


def _rooms(tx: Transaction, read: Mapping[str, StoredData]) -> _Found:
    """Rooms of what is read."""
    room, usable, together = room_there(tx), _usable(tx), _bytes(read)
    if together <= usable:
        why = f"all that is read ({data_size(together)}) fits into the source cache ({_room_in_words(tx)})"
        return {data: (each.bytes, Decision[Given]("full", why)) for data, each in read.items()}
    if len(read) == 1:
        ((data, only),) = read.items()
        why = (
            f"it is more ({data_size(only.bytes)}) than the source cache ({_room_in_words(tx)}), and nobody else reads"
        )
        alone: Given = "two chunks" if any(_in_chunks(job, only.bytes, room) for job in only.jobs) else "free"
        if alone == "free" and (most := max(map(chunks_possible, only.jobs))):
            why += f"; {choose_chunks(only.bytes, room, most).reason}"
        return {data: (only.bytes, Decision[Given](alone, why))}
    found = dict(_held(tx, read))
    usable -= sum(_taken(size, decision.value, room) for size, decision in found.values())
    uses = [
        policy.DataSetUse(
            data,
            each.bytes,
            tuple(times_of(tx, job, len(each.jobs), in_chunks=_in_chunks(job, each.bytes, room)) for job in each.jobs),
            chunk_bytes=chunk_bytes(each.bytes, room),
        )
        for data, each in read.items()
        if data not in found
    ]
    before: dict[str, policy.Room] = {
        data: given.room for data, given in tx.state.caches.rooms.items() if data in read and given.room != "free"
    }
    for data, placed in policy.place(uses, usable, before).items():
        found[data] = read[data].bytes, Decision[Given](placed.value, placed.reason)
    return found


def _held(tx: Transaction, read: Mapping[str, StoredData]) -> Iterator[tuple[str, tuple[int, Decision[Given]]]]:
    """Find the data sets that have room and keep it until their jobs are measured: who misses is measured sooner."""
    left = _usable(tx)
    for data, each in read.items():
        given = tx.state.caches.rooms.get(data)
        if given is not None and given.room in {"full", "two chunks"} and any(awaited(tx, job) for job in each.jobs):
            left -= _taken(each.bytes, given.room, room_there(tx))
            if left >= 0:
                yield data, (each.bytes, Decision[Given](given.room, "its jobs are being measured without the cache"))


def _kept_on(tx: Transaction, rooms: _Found) -> _Found:
    """Rooms of what nobody reads now: what there is stays as far as it fits beside what is kept of all that is read."""
    room, left = room_there(tx), _usable(tx)
    left -= sum(_taken(size, decision.value, room) for size, decision in rooms.values())
    found = dict[str, tuple[int, Decision[Given]]]()
    for data, given in reversed(list(tx.state.caches.rooms.items())):
        if data in rooms or given.room in {"none", "free"}:
            continue
        if (size := _taken(given.bytes, given.room, room)) <= left:
            left -= size
        else:
            found[data] = given.bytes, Decision[Given]("none", "nobody reads it now, and others need the room")
    return found


def _taken(size: int, given: Given, room: int) -> int:
    """Bytes of a data set of so many bytes that are kept, with this room."""
    return {"full": size, "two chunks": KEPT * chunk_bytes(size, room), "none": 0, "free": min(size, room)}[given]


def tell(tx: Transaction, server: str) -> None:
    """Tell a cache server what of which data it is to keep."""
    sets = to_keep(tx.state.caches)
    if sets or tx.state.caches.rooms:
        tx.act(SendToCacheServer(server, KeepChunks(sets)))


def to_keep(caches: Caches) -> list[tuple[bytes, list[bytes]]]:
    """List the data of which it is decided what cache servers keep: labels, or the name alone if it is all of them."""
    sets = {
        data: [chunk_label(bytes.fromhex(data), known.chunks, chunk) for chunk in known.kept]
        for data, known in caches.source_chunks.items()
    }
    for data, given in caches.rooms.items():
        if given.room == "full":
            sets[data] = [bytes.fromhex(data)]
        elif given.room == "none":
            sets[data] = []
        elif given.room == "free":
            sets.pop(data, None)
    return [(bytes.fromhex(data), labels) for data, labels in sets.items()]
