"""Invariants of the source cache, which hold at any moment, whatever fails.

Claims are looked at beside a record of their own: who asks what, who was told to fetch, and who has an answer.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from millrace.cache_server.item_exchange import Insert
from millrace.cache_server.item_store import StoredItem
from millrace.control.caching import source_chunks, source_probes, source_rooms
from millrace.control.journal.cache_events import ChunksKept, RoomGiven
from millrace.control.journal.epoch_events import EpochOpened
from millrace.control.journal.event import Event
from millrace.control.journal.task_events import TaskLeased
from millrace.planning.plan import Task
from millrace.policies.caching.cache_probe import PROBE_LIMIT_S
from millrace.policies.caching.kept_chunks import FILLED, KEPT, chunk_bytes
from millrace.protocol import source_cache_messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import LeaseTask
from millrace.protocol.source_cache_messages import NAME, chunk_label
from millrace.simulation.virtual_network import Connection, Violation
from millrace.sources.store_requests import Entry
from millrace.worker.chunk_labels import Label

if TYPE_CHECKING:
    from millrace.simulation.item_reads import Wanted
    from millrace.simulation.pipelines import SimulatedPipeline
    from millrace.simulation.simulated_cache_server import SimulatedCacheServer
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_dispatcher import SimulatedDispatcher
    from millrace.simulation.simulated_worker import SimulatedWorker

MOST_CHUNKS = 2
"""Chunks of a data set that are kept at a time (Quiver, section 5.1)."""
CLAIM_S = 6.0
"""Seconds that the owner of a claim has."""
_SLACK_S = 1e-6
_LATE_S = 0.2
"""Seconds by which a claim passes on late at most."""
_LONGEST_PROBE_S = PROBE_LIMIT_S + 30.0
"""Seconds after which a probe must have ended, of a dispatcher that may have stood still for a while."""


class Key(NamedTuple):
    """Key as it has to be told from others: a name is its tenant's, a content everybody's."""

    tenant: str
    key: bytes


class Question(NamedTuple):
    """Question on a connection."""

    peer: Connection
    number: int


@dataclass
class ServerRecord:
    """Record of one life of a cache server: what it was asked, and what it has said.

    Attributes:
        asked: keys of questions that have no answer, and when they came.
        waiting: by key, those who asked and have none.
        orders: by key, who was told last to fetch it and has not come to an end with that, and when.
        kept: what was inserted under a key and kept, with its content.
        ordered: keys of which somebody was told to fetch them since they were last refused, or had gone.
    """

    asked: dict[Question, tuple[Key, float]] = field(default_factory=dict)
    waiting: dict[Key, dict[Question, None]] = field(default_factory=dict)
    orders: dict[Key, tuple[Question, float]] = field(default_factory=dict)
    kept: dict[Key, tuple[bytes, StoredItem]] = field(default_factory=dict)
    ordered: set[Key] = field(default_factory=set)


class SourceCacheInvariants:
    """Hears of what workers and cache servers do, and raises :class:`Violation`.

    Args:
        cluster: finds processes.

    Attributes:
        items: how many items were read, by how they came.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.items: Counter[str] = Counter()
        self._cluster = cluster
        self._records: dict[SimulatedCacheServer, ServerRecord] = {}
        self._inserted: set[Key] = set()
        self._owners: dict[tuple[frozenset[str], Key], str] = {}
        self._probes: dict[tuple[SimulatedDispatcher, str], int] = {}

    # -- claims --------------------------------------------------------------------------------------------------------

    def asked(self, server: SimulatedCacheServer, peer: Connection, message: msg.AskItems) -> None:
        """Note questions."""
        record = self._records.setdefault(server, ServerRecord())
        for number, raw in zip(message.numbers, message.keys, strict=True):
            key, asker = _key(peer, raw), Question(peer, number)
            record.asked[asker] = key, self._cluster.network.now
            record.waiting.setdefault(key, {})[asker] = None

    def answered(self, server: SimulatedCacheServer, peer: Any, number: int, *, fetch: bool) -> None:
        """Check an answer: an order to fetch is one person's, and of what is not there."""
        record = self._records[server]
        asker = Question(peer, number)
        if asker not in record.asked:
            raise Violation(f"{server.name} answers question {number} of {peer.ends[0].name}, which nobody has asked")
        key, since = record.asked.pop(asker)
        del record.waiting[key][asker]
        if not record.waiting[key]:
            del record.waiting[key]
        if fetch:
            self._check_order(server, record, key, asker)
        elif since < self._cluster.network.now:
            self.items["waited for"] += 1

    def _check_order(self, server: SimulatedCacheServer, record: ServerRecord, key: Key, asker: Question) -> None:
        now, who = self._cluster.network.now, asker.peer.ends[0].name
        before = record.orders.get(key)
        if before is not None and now - before[1] < CLAIM_S - _SLACK_S:
            other = before[0].peer.ends[0].name
            raise Violation(f"{server.name} has {who} fetch what {other} fetches since {before[1]:.3f}")
        kept = record.kept.pop(key, None)
        if kept is not None and _is_there(server, *kept):
            raise Violation(f"{server.name} has {who} fetch what it has")
        if kept is None and key in record.ordered and self._cluster.sources.undisturbed:
            raise Violation(f"{server.name} has {who} fetch once more what fits, and nobody has gone")
        record.ordered.add(key)
        record.orders[key] = asker, now
        self.items["ordered"] += 1
        self.items["ordered before anything failed"] += self._cluster.sources.undisturbed

    def inserted(
        self, server: SimulatedCacheServer, peer: Connection, raw: bytes, insert: Insert, kept: StoredItem | None
    ) -> None:
        """Note what a peer has inserted: if it is right, nobody waits for it any more."""
        record, key = self._records.setdefault(server, ServerRecord()), _key(peer, raw)
        if not insert.right:
            self.released(server, peer, raw)
            return
        record.orders.pop(key, None)
        if kept is not None:
            record.kept[key] = insert.content, kept
        else:
            record.ordered.discard(key)
        self._check_disk(server)

    def released(self, server: SimulatedCacheServer, peer: Connection, raw: bytes) -> None:
        """Note that a peer does not fetch what it was to."""
        record, key = self._records.setdefault(server, ServerRecord()), _key(peer, raw)
        if key in record.orders and record.orders[key][0].peer is peer:
            del record.orders[key]
            record.ordered.discard(key)

    def left(self, server: SimulatedCacheServer, peer: Connection) -> None:
        """Note that a peer has gone, with what it asked and was to fetch."""
        record = self._records.setdefault(server, ServerRecord())
        for asker in [asker for asker in record.asked if asker.peer is peer]:
            key, _ = record.asked.pop(asker)
            del record.waiting[key][asker]
            if not record.waiting[key]:
                del record.waiting[key]
        for key in [key for key, order in record.orders.items() if order[0].peer is peer]:
            del record.orders[key]
            record.ordered.discard(key)

    def died(self, server: SimulatedCacheServer) -> None:
        """Forget a process that has ended."""
        self._records.pop(server, None)

    def looked(self, server: SimulatedCacheServer, *, late: bool = False) -> None:
        """Check that somebody fetches whatever others wait for, and not for too long (``late``)."""
        record, now = self._records.get(server, ServerRecord()), self._cluster.network.now
        for key, askers in record.waiting.items():
            order = record.orders.get(key)
            if order is None:
                names = sorted(asker.peer.ends[0].name for asker in askers)
                raise Violation(f"{', '.join(names)} wait at {server.name} for what nobody fetches")
            if late and now - order[1] > CLAIM_S + _LATE_S:
                raise Violation(f"{order[0].peer.ends[0].name} fetches for {server.name} since {order[1]:.3f}")

    def waited_for(self, server: SimulatedCacheServer, wanted: Wanted) -> bool:
        """Whether others wait at a server for what a job fetches."""
        tenant = self._cluster.tenants[wanted.read.job]
        key = Key(tenant if wanted.key.startswith(NAME) else "", wanted.key)
        return key in self._records.get(server, ServerRecord()).waiting

    # -- what is kept --------------------------------------------------------------------------------------------------

    def told(self, server: SimulatedCacheServer) -> None:
        """Note that a server was told which chunks are kept."""
        for data, labels in (server.told or {}).items():
            if len(labels) > MOST_CHUNKS:
                raise Violation(f"{server.name} is told to keep {len(labels)} chunks of {data.hex()}")
        self._forget_gone(server)
        self._check_disk(server)
        self.items["words of chunks"] += 1

    def _forget_gone(self, server: SimulatedCacheServer) -> None:
        record = self._records.setdefault(server, ServerRecord())
        for key, kept in list(record.kept.items()):
            if not _is_there(server, *kept):
                del record.kept[key]
                record.ordered.discard(key)

    def _check_disk(self, server: SimulatedCacheServer) -> None:
        """Check that what lies on the disk is no more than it may hold, and of chunks that it was told to keep."""
        items = server.items
        if items.held > items.most_bytes:
            raise Violation(f"{server.name} holds {items.held} bytes, and may hold {items.most_bytes}")
        labels = items.labels
        for data, kept in (server.told or {}).items():
            others = set() if data in kept else {label for label in labels if label.startswith(data)} - {*kept}
            if others:
                numbers = sorted(int.from_bytes(label[-4:], "big") for label in others)
                raise Violation(f"{server.name} holds chunks {numbers} of {data.hex()}, and was told to keep others")

    # -- workers -------------------------------------------------------------------------------------------------------

    def reads(
        self,
        pipeline: SimulatedPipeline,
        spec: JobSpec,
        lease: LeaseTask,
        task: Task,
        entries: Sequence[Entry],
        label: Label | None,
    ) -> None:
        """Check that what a task reads is of its chunk, and labelled so."""
        if label is None or not lease.chunks or task.parts:
            return
        plan, data = pipeline.plan_for(spec, lease.chunks), msg.name_of_data(pipeline.prints[0])
        chunk = next(each for each in range(plan.chunks) if task.index < plan.chunk(each)[1])
        least = chunk - 1 if pipeline.at_edges and chunk else chunk  # its first batch may begin in the chunk before
        right = {chunk_label(data, lease.chunks, each) for each in range(least, chunk + 1)}
        for entry in entries:
            if label(entry) not in right:
                raise Violation(f"{entry.location} is labelled as of another chunk than {chunk}")
        self.items["tasks in chunks"] += 1

    def asks(self, worker: SimulatedWorker, wanted: Wanted, address: str) -> None:
        """Check that all who ask the same servers ask one of them for an item, and none of another zone.

        As that server has each item fetched once, so has each zone.
        """
        sources = self._cluster.sources
        servers = frozenset(worker.item_reads.servers)
        there = {server.address: server.zone for server in sources.servers}
        if not sources.undisturbed or servers != _asked(there, worker.zone):
            return  # it has yet to hear of some
        key = Key(self._cluster.tenants[wanted.read.job] if wanted.key.startswith(NAME) else "", wanted.key)
        owner = self._owners.setdefault((servers, key), address)
        if owner != address:
            raise Violation(f"{worker.name} asks {address} for {wanted.entry.location}, which others ask {owner} for")
        self.items["asked in a zone"] += servers != {*there}

    def fetches(self, wanted: Wanted, why: str) -> None:
        """Check that a worker asks the store itself (``why``) only where a cache server can't be asked."""
        self.items["fetched"] += 1
        self.items["read past the cache"] += why == "probed"
        if why and why not in {"no server", "probed"} and self._cluster.sources.undisturbed:
            raise Violation(f"{wanted.entry.location} is fetched for {wanted.read.job} beside the cache: {why}")

    def inserts(self, wanted: Wanted) -> None:
        """Note under which keys tenants insert."""
        self._inserted.add(Key(self._cluster.tenants[wanted.read.job], wanted.key))

    def found(self, wanted: Wanted, data: bytes) -> None:
        """Check what a cache server gave to a job."""
        self.items["found"] += 1
        tenant = self._cluster.tenants[wanted.read.job]
        if data != self._cluster.sources.bytes_of(wanted.read.job, wanted.entry):
            raise Violation(f"{wanted.read.job} was given other bytes than {wanted.entry.location} has")
        if wanted.key.startswith(NAME) and Key(tenant, wanted.key) not in self._inserted:
            where = f"{wanted.read.job} was given {wanted.entry.location}"
            raise Violation(f"{where}, which tenant {tenant} has never inserted")

    # -- the dispatcher ------------------------------------------------------------------------------------------------

    def decided(self, dispatcher: SimulatedDispatcher, events: Sequence[Event]) -> None:
        """Check a state that has just been brought up to date."""
        for event in events:
            match event:
                case EpochOpened(job=job, epoch=epoch, chunks=chunks) if chunks:
                    self._check_chunks(dispatcher, job, epoch, chunks)
                case TaskLeased(job=job, epoch=epoch, fresh=True):
                    self._check_turns(dispatcher, job, epoch)
                case ChunksKept(data=data, kept=kept) if len({*kept}) != len(kept) or len(kept) > MOST_CHUNKS:
                    raise Violation(f"chunks {kept} of {data} are kept")
        if given := sum(isinstance(event, RoomGiven) for event in events):
            self.items["rooms given"] += given
            _check_rooms(dispatcher)

    def _check_chunks(self, dispatcher: SimulatedDispatcher, name: str, epoch: int, chunks: int) -> None:
        """Check that each element of an epoch is in exactly one of its chunks, and each item in one."""
        job = dispatcher.state.jobs[name]
        pipeline = self._cluster.pipelines[job.spec.structure]
        plan = pipeline.plan_for(job.spec, chunks)
        assert pipeline.files is not None
        assert plan.length is not None
        bounds = [plan.chunk(chunk) for chunk in range(chunks)]
        found = [
            np.concatenate([pipeline.positions_of(plan.task(at), job.seed, epoch, chunks) for at in range(*bound)])
            for bound in bounds
        ]
        positions = np.sort(np.concatenate(found)).tolist()
        if positions != [*range(len(positions))] or len(positions) != pipeline.positions:
            raise Violation(f"epoch {epoch} of job {name} in {chunks} chunks reads {positions}")
        items = [item for its in found for item in pipeline.files.items(its)]
        if len({*items}) < len(items) and not pipeline.at_edges:
            raise Violation(f"of epoch {epoch} of job {name} more than one of {chunks} chunks has the items {items}")
        if [first for first, _ in bounds] != [0, *(stop for _, stop in bounds[:-1])] or bounds[-1][1] != plan.length:
            raise Violation(f"the chunks of epoch {epoch} of job {name} are tasks {bounds} of {plan.length}")

    def _check_turns(self, dispatcher: SimulatedDispatcher, name: str, number: int) -> None:
        """Check that all chunks were dealt that were begun before the last one."""
        job = dispatcher.state.jobs.get(name)
        epoch = None if job is None else job.epochs.get(number)
        if job is None or epoch is None or not epoch.chunks:
            return
        plan = dispatcher.state.plan(job, number)
        if source_chunks.in_chunks(job, plan):
            before = [(int(key[1:]), at) for key, at in epoch.cursors.items() if key.startswith("h")][:-1]
            for chunk, at in before:
                if not all(map(epoch.over, range(at, plan.chunk(chunk)[1]))):
                    where = f"epoch {number} of job {name}"
                    raise Violation(f"{where} began another chunk before all tasks of chunk {chunk} were dealt")

    def ticked(self, dispatcher: SimulatedDispatcher) -> None:
        """Check what everybody was told who was told all, and that no claim and no probe is too old."""
        self._check_probes(dispatcher)
        for server in self._cluster.sources.servers:
            if not server.paused:
                self.looked(server, late=True)
                self._check_told(dispatcher, server)
        for worker in self._cluster.alive_workers():
            self._check_known(dispatcher, worker)

    def _check_probes(self, dispatcher: SimulatedDispatcher) -> None:
        """Check that one job of a data set is measured past the cache at a time, and not for ever."""
        jobs, probed = dispatcher.state.jobs, Counter[str]()
        for name, observation in dispatcher.observed.sources.items():
            self.items["probes"] += max(0, observation.probes - self._probes.get((dispatcher, name), 0))
            self._probes[dispatcher, name] = observation.probes
            if not observation.past or name not in jobs:
                continue
            probed[jobs[name].data_set] += 1
            if dispatcher.now() - observation.past_s > _LONGEST_PROBE_S:
                raise Violation(f"job {name} reads past the cache since {observation.past_s:.3f}")
        for data, count in probed.items():
            if count > 1:
                raise Violation(f"{count} jobs of the data set {data} read past the cache at a time")

    def _check_told(self, dispatcher: SimulatedDispatcher, server: SimulatedCacheServer) -> None:
        """Check that a server knows which chunks are kept."""
        there = server.known_as in dispatcher.observed.cache_servers and _settled(dispatcher, server.session)
        if not there or dispatcher.owes_cache_server(server.known_as):
            return
        caches = dispatcher.state.caches
        kept = dict(source_rooms.to_keep(caches))
        if (kept or caches.rooms) and kept != server.told:
            raise Violation(f"{server.name} was told to keep {server.told}, and {kept} are kept")

    def _check_known(self, dispatcher: SimulatedDispatcher, worker: SimulatedWorker) -> None:
        """Check that a worker knows which cache servers there are."""
        told = dispatcher.observed.cache_told
        there = worker.name in dispatcher.state.workers and _settled(dispatcher, worker.session)
        if told is None or not told.addresses or not there or worker.paused or dispatcher.owes(worker.name):
            return  # where there are none, who comes back goes on with those that it knew
        reads = worker.item_reads
        if dispatcher.observed.all_back and told != source_probes.known(dispatcher.observed):
            raise Violation(f"workers were told {told}, and {source_probes.known(dispatcher.observed)} is so")
        zones = {each: self._cluster.sources.by_address[each].zone for each in told.addresses}
        if (frozenset(reads.servers), reads.past) != (_asked(zones, worker.zone), told.past):
            where = f"{worker.name}, of zone {worker.zone!r},"
            raise Violation(f"{where} asks {reads.servers}, and past them for {reads.past}, where it is {told}")


def _check_rooms(dispatcher: SimulatedDispatcher) -> None:
    """Check that what data sets were given is there: together what is filled, or one that is read as much as there is.

    What nobody reads any more of one that could have all goes as others need the room, as what was read longest ago.
    """
    given, (room, _) = dispatcher.state.caches.rooms, dispatcher.observed.cache_room
    read = source_rooms.data_read(dispatcher.state)
    taken = sum(each.bytes for each in given.values() if each.room == "full")
    taken += sum(KEPT * chunk_bytes(each.bytes, room) for each in given.values() if each.room == "two chunks")
    free = [data for data, each in given.items() if each.room == "free" and data in read]
    copies = _copies(dispatcher)
    if room > min(copies, default=room):
        raise Violation(f"cache servers are to keep {room} bytes, of which copies have room for {sorted(copies)}")
    if taken > room * FILLED or len(free) > 1 or (free and taken):
        rooms = {data: (each.bytes, each.room) for data, each in given.items()}
        raise Violation(f"of {room} bytes cache servers are to keep {rooms}")


def _copies(dispatcher: SimulatedDispatcher) -> list[int]:
    """Bytes that find room in each copy that workers ask for; none while the room of servers that have gone counts."""
    observed, workers = dispatcher.observed, dispatcher.state.workers
    if len(observed.cache_servers) < observed.cache_room[1]:
        return []
    zones = {name: each.zone for name, each in observed.cache_servers.items()}
    asked = {_asked(zones, zone) for worker, zone in observed.cache_clients.items() if worker in workers}
    return [len(names) * min(observed.cache_servers[name].most_bytes for name in names) for names in asked if names]


def _asked(zones: Mapping[str, str], own: str) -> frozenset[str]:
    """Find the servers, of these with their zones, that somebody in a zone asks."""
    return frozenset(each for each, zone in zones.items() if own and zone == own) or frozenset(zones)


def _is_there(server: SimulatedCacheServer, content: bytes, item: StoredItem) -> bool:
    """Whether an item has been there since it was kept."""
    return server.items.disk.items.get(content) == item


def _key(peer: Connection, raw: bytes) -> Key:
    return Key(peer.label if raw.startswith(NAME) else "", raw)


def _settled(dispatcher: SimulatedDispatcher, session: Connection | None) -> bool:
    """Nothing is under way on a session with the dispatcher."""
    there = session is not None and session.live and session.ends[1] is dispatcher
    return there and session is not None and session.open_at(dispatcher) and not any(session.under_way)
