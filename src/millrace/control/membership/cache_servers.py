"""Cache servers: which are there, and who is told of them.

Nothing of it is journalled: a cache server says hello again to a dispatcher that comes back, and until then workers ask
those that they knew.
"""

from __future__ import annotations

from millrace.control.actions import CloseCacheServer, SendToCacheServer
from millrace.control.caching import source_probes, source_rooms
from millrace.control.inputs import CacheServerSaid
from millrace.control.journal.transaction import Transaction
from millrace.control.membership import access
from millrace.control.membership.admission import Refused
from millrace.control.state.observed import CacheServerObservation
from millrace.protocol.cache_server_messages import (
    CacheServerHello,
    CacheServerReport,
    CacheServerWelcome,
)
from millrace.protocol.messages import Failure, WorkerHello

MISSED_HEARTBEATS = 2
"""A cache server is given up when so many reports in a row did not come."""


def said(tx: Transaction, item: CacheServerSaid) -> None:
    """Take in what a cache server says."""
    match item.message:
        case CacheServerHello():
            _hello(tx, item, item.message)
        case CacheServerReport(counts=counts):
            known = tx.observed.cache_servers.get(item.server)
            if known is not None:
                known.counts, known.last_seen = counts, tx.now


def _hello(tx: Transaction, item: CacheServerSaid, message: CacheServerHello) -> None:
    try:
        access.check_cache_server(item.caller)
    except Refused as refused:
        tx.act(CloseCacheServer(item.server, refused.failure))
        return
    tx.observed.cache_servers[item.server] = CacheServerObservation(
        message.address, message.host, message.pid, message.most_bytes, tx.now, zone=message.zone
    )
    tx.act(SendToCacheServer(item.server, CacheServerWelcome(tx.state.settings.heartbeat_s)))
    source_rooms.tell(tx, item.server)
    source_probes.tell_workers(tx)


def gone(tx: Transaction, server: str) -> None:
    """Have workers ask a cache server no more, which has ended or can't be reached."""
    if tx.observed.cache_servers.pop(server, None) is not None:
        source_probes.tell_workers(tx)


def watch(tx: Transaction) -> None:
    """Give up on cache servers that are silent."""
    limit = (MISSED_HEARTBEATS + 0.5) * tx.state.settings.heartbeat_s
    for name, known in list(tx.observed.cache_servers.items()):
        if tx.now - known.last_seen > limit:
            why = f"cache server {name} was silent for {limit:g} s"
            tx.act(CloseCacheServer(name, Failure("ServiceUnreachableError", why)))
            gone(tx, name)


def tell(tx: Transaction, hello: WorkerHello) -> None:
    """Tell a worker that has come of the cache servers; if there are none it goes on with those that it knew."""
    if hello.asks_caches and hello.worker in tx.state.workers:
        tx.observed.cache_clients[hello.worker] = hello.zone
        tx.observed.cache_zones[hello.zone] = tx.now
        if tx.observed.cache_servers and tx.observed.all_back:
            tx.to_worker(hello.worker, source_probes.known(tx.observed))
