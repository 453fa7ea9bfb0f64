"""A cache server under virtual time: the real exchange of items, and a shell without threads, sockets and files."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from millrace.cache_server.item_exchange import ItemExchange, ItemReply, checked_key, examined
from millrace.cache_server.item_store import StoredItem
from millrace.protocol import source_cache_messages as msg
from millrace.protocol.cache_server_messages import (
    CacheServerHello,
    CacheServerReport,
    CacheServerWelcome,
    KeepChunks,
    SourceCounts,
)
from millrace.simulation.simulated_items import ItemDisk, SimulatedItems
from millrace.simulation.simulated_worker import delays_of
from millrace.simulation.virtual_network import Connection, Process

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster


CLAIM_S = 6.0
"""Seconds after which a claim passes on: all that takes a minute takes seconds."""
LOOK_S = 0.05
"""Seconds from one look at claims to the next, at least."""


class SimulatedCacheServer(Process):
    """One life of a cache server.

    Args:
        name: of the process.
        known_as: to the dispatcher; a server that is started again may have the name that it had.
        address: of its data port.
        disk: what the lives before have left.
        most_bytes: that it may hold.
        cluster: finds the dispatcher.

    Attributes:
        zone: that it is in, and says hello with.
        welcomed: it belongs to the service, and knows who may ask.
        told: by data set, the labels that are kept, as it was told last in this life; None: it was told nothing.
    """

    def __init__(
        self, name: str, known_as: str, address: str, disk: ItemDisk, most_bytes: int, cluster: SimulatedCluster
    ) -> None:
        network = cluster.network
        super().__init__(network, name)
        self.known_as, self.address, self.zone = known_as, address, ""
        self.items = SimulatedItems(disk, most_bytes, network.now)
        self.exchange = ItemExchange(self.items.find, CLAIM_S)
        self.session: Connection | None = None
        self.welcomed = False
        self.told: dict[bytes, list[bytes]] | None = None
        self._cluster, self._invariants = cluster, cluster.sources.invariants
        self._heartbeat_s = 5.0
        self._pauses = delays_of(network)
        self._watching = False
        self.after(network.delay(), self._connect)
        self.after(self._heartbeat_s, self._beat)

    # -- the session ---------------------------------------------------------------------------------------------------

    def _connect(self) -> None:
        dispatcher = self._cluster.dispatcher
        if dispatcher is None or not self.network.reachable(self, dispatcher):
            self.after(next(self._pauses), self._connect)
            return
        self.session = Connection(self.network, self, dispatcher, "session")
        hello = CacheServerHello(self.known_as, self.address, self.name, 1, self.items.most_bytes, self.zone)
        self.session.send(self, hello)

    def _beat(self) -> None:
        if self.session is not None:
            count = len(self.items.disk.items)
            counts = SourceCounts(**self.exchange.counts, items=count, bytes=self.items.held)
            self.session.send(self, CacheServerReport(counts))
        self.after(self._heartbeat_s, self._beat)

    def heard(self, connection: Connection, message: Any) -> None:
        """Take a message of the dispatcher or a worker."""
        self.items.at(self.network.now)
        if connection is not self.session:
            self._heard_of_items(connection, message)
            return
        match message:
            case CacheServerWelcome():
                self.welcomed, self._heartbeat_s = True, message.heartbeat_s
                self._pauses = delays_of(self.network)
            case KeepChunks(sets=sets):
                self.told = dict(sets)
                self.items.keep_labels(self.told)
                self._invariants.told(self)

    def broken(self, connection: Connection) -> None:
        """Note that a connection has ended."""
        if connection is self.session:
            self.session = None
            self.after(next(self._pauses), self._connect)
            return
        self._invariants.left(self, connection)
        self._give(self.exchange.left(connection, self.network.now))

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _heard_of_items(self, peer: Connection, message: Any) -> None:
        tenant, now = peer.label.encode(), self.network.now
        match message:
            case msg.AskItems():
                self._invariants.asked(self, peer, message)
                self._give(self.exchange.asked(peer, tenant, message, 0, now))
            case msg.ReleaseItem(key=key):
                self._invariants.released(self, peer, key)
                self._give(self.exchange.released(checked_key(tenant, key), peer, now))
            case (msg.InsertItem(key=key, label=label), bytes() as payload):
                data = memoryview(payload)
                insert = examined(tenant, key, data, label)
                kept = self.items.add(data, insert.content, insert.name, label) if insert.right else None
                self._invariants.inserted(self, peer, key, insert, kept)
                self._give(self.exchange.inserted(insert, peer, data, kept, now))

    def _give(self, answers: Sequence[ItemReply[StoredItem]]) -> None:
        """Have answers sent, each peer's together, and watch over the claims."""
        by_peer: dict[Any, list[ItemReply[StoredItem]]] = {}
        for answer in answers:
            if answer.number:
                self._invariants.answered(self, answer.peer, answer.number, fetch=answer.fetch)
            by_peer.setdefault(answer.peer, []).append(answer)
        for peer, its in by_peer.items():
            self.after(self.network.rng.expovariate(200.0), self._send, peer, its)
        self._invariants.looked(self)
        due = self.exchange.next_expiry
        if due is not None and not self._watching:
            self._watching = True
            self.after(max(LOOK_S, due - self.network.now), self._pass_on_late)

    def _pass_on_late(self) -> None:
        self._watching = False
        late = self.exchange.expired(self.network.now)
        if late:
            self._cluster.fired["claim passed on late"] += len(late)
        self._give(late)

    def _send(self, peer: Connection, answers: Sequence[ItemReply[StoredItem]]) -> None:
        """Send answers to a peer; what has gone meanwhile it is to fetch."""
        found, missing = [], []
        for answer in answers:
            data = answer.data if answer.item is None else self.items.read(answer.item)
            if data is None:
                missing.append(answer.number)
            else:
                found.append((answer.number, data))
        if missing:
            peer.send(self, (msg.FetchItems(missing), b""))
        if found:
            header = msg.FoundItems([number for number, _ in found], [len(data) for _, data in found])
            peer.send(self, (header, b"".join(data for _, data in found)))

    def die(self, *, silently: bool = False) -> None:
        """End the process at once; its disk stays."""
        self._cluster.sources.disturbed()
        self._invariants.died(self)
        super().die(silently=silently)
