"""Bugs of the source cache, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np

from millrace.cache_server import item_exchange
from millrace.cache_server.item_claims import Asker, ItemClaims
from millrace.control.caching import source_chunks, source_probes
from millrace.control.journal.cache_events import ChunksKept
from millrace.control.membership import cache_servers
from millrace.control.state.state import State
from millrace.dispatcher import recovery
from millrace.planning import server_zones
from millrace.planning.orders import EpochOrders
from millrace.planning.plan import ChunkedPlan
from millrace.planning.split_table import SplitTable
from millrace.planning.units import Positions
from millrace.policies.caching import cache_budget, cache_probe, kept_chunks
from millrace.policies.decision import Decision
from millrace.protocol import source_cache_messages as msg
from millrace.protocol.cache_server_messages import CacheServersKnown
from millrace.simulation import pipelines, simulated_cache_server, simulated_dispatcher, simulated_worker
from millrace.simulation.planting import MutantList, always
from millrace.simulation.simulated_items import SimulatedItems
from millrace.worker.chunk_labels import Label

SOURCE_CACHE_MUTANTS = MutantList()
_is, _replaces, _always = SOURCE_CACHE_MUTANTS.add, SOURCE_CACHE_MUTANTS.replaces, always

_examined, _inserted, _known, _next_probe, _pass_on = (
    item_exchange.examined,
    item_exchange.ItemExchange.inserted,
    source_probes.known,
    cache_probe.next_probe,
    ItemClaims._pass_on,  # noqa: SLF001
)

_is("claim-of-the-dead", "A claim stays with a peer whose connection has ended.", ItemClaims, "leave", _always([]))
_is("endless-claim", "A claim stays with its owner, however long that takes.", ItemClaims, "expire", _always([]))
_is("claim-for-all", "Whoever asks for what is missing is to fetch it.", ItemClaims, "ask", _always(True))
_is(
    "silent-failure",
    "Those who wait do not hear that who was to fetch an item could not.",
    ItemClaims,
    "release",
    _always(None),
)
_is(
    "third-chunk",
    "Three chunks of a data set are kept at a time.",
    kept_chunks,
    "KEPT",
    3,
)
_is(
    "chunk-that-stays",
    "A server adds nothing to a chunk that is not kept any more, and keeps what it has of it.",
    SimulatedItems,
    "keep_labels",
    lambda self, sets: setattr(self, "_kept", {data: frozenset(labels) for data, labels in sets.items()}),
)
_is(
    "any-label",
    "A server keeps what is inserted, of whichever chunk it is.",
    SimulatedItems,
    "_keeps",
    _always(True),
)
_is(
    "bytes-that-stay",
    "A segment counts as removed, and its file stays.",
    SimulatedItems,
    "_unlink",
    _always(None),
)
_is(
    "untold-server",
    "A cache server that comes is not told which chunks are kept.",
    cache_servers,
    "source_rooms",
    SimpleNamespace(tell=_always(None)),
)
_is(
    "unknown-servers",
    "A worker that comes does not hear which cache servers there are.",
    cache_servers,
    "tell",
    lambda tx, hello: tx.observed.cache_clients.update({hello.worker: hello.zone}),
)


_is(
    "zone-blind",
    "A worker asks the cache servers of all zones, whether its own has some or not.",
    simulated_worker,
    "servers_asked",
    lambda servers, *_: list(servers),
)
_is(
    "room-of-all-zones",
    "The room is that of all cache servers, though each zone keeps a copy of its own.",
    server_zones,
    "room",
    lambda servers, _: len(servers) * min((most_bytes for _, most_bytes in servers), default=0),
)


@_replaces("untold-zones", "Workers are not told in which zones cache servers are.", source_probes, "known")
def _known_without_zones(observed: Any) -> CacheServersKnown:
    return msgspec.structs.replace(_known(observed), zones={})


@_replaces(
    "given-to-none",
    "Those who wait for an item do not get it where it is inserted and there is no room for it.",
    item_exchange.ItemExchange,
    "inserted",
)
def _kept_alone(self: Any, insert: item_exchange.Insert, peer: Any, data: memoryview, kept: Any, now: float) -> Any:
    answers = _inserted(self, insert, peer, data, kept, now)
    return answers if kept is not None or not insert.right else []


def _without_tenant(_: bytes, key: bytes) -> bytes:
    return key


_is(
    "name-of-all",
    "A name leads to the same item for all tenants.",
    item_exchange,
    "checked_key",
    _without_tenant,
    (simulated_cache_server, "checked_key", _without_tenant),
)


def _trusting(tenant: bytes, key: bytes, data: memoryview, label: bytes) -> item_exchange.Insert:
    insert = _examined(tenant, key, data, label)
    content = insert.key[1:] if insert.key.startswith(msg.CONTENT) else insert.content
    return insert._replace(content=content, right=True)


_is(
    "trusted-hash",
    "What is inserted under a hash is taken to be what that says.",
    simulated_cache_server,
    "examined",
    _trusting,
)


@_replaces(
    "hasty-chunk", "A job begins the chunk that is newest, be the one before all dealt or not.", source_chunks, "begun"
)
def _begun_never(epoch: Any) -> list[int]:
    return []


@_replaces("overlapping-chunks", "The last task of a chunk is the first one of the next, too.", ChunkedPlan, "_begin")
def _begin_early(self: ChunkedPlan, number: int) -> int:
    chunk, part = divmod(number, self._each)
    start, stop = self._bounds[chunk], self._bounds[chunk + 1]
    return max(0, start + (stop - start) * part // self._each - (part == 0))


@_replaces("forgotten-chunks", "Which chunks are kept is journalled and not replayed.", simulated_dispatcher, "rebuild")
def _skipping(fresh: Callable[[], State], past: Any) -> tuple[State, str]:
    past.events = [[event for event in group if not isinstance(event, ChunksKept)] for group in past.events]
    return recovery.rebuild(fresh, past)


@_replaces("wrong-label", "An item is labelled by its number, and not by its chunk.", pipelines, "chunk_labels")
def _by_number(source: str, _table: SplitTable, chunks: int) -> Label:
    data = msg.name_of_data(source)
    return lambda entry: msg.chunk_label(data, chunks, entry.item % chunks)


@_replaces(
    "blocks-in-turn",
    "Blocks of shards come in chunks by their number in the listing.",
    EpochOrders,
    "_chunks_of_blocks",
)
def _by_place(self: EpochOrders, bounds: Positions) -> Positions:
    return np.arange(len(bounds) - 1) * self.chunks // (len(bounds) - 1)


@_replaces("rooms-for-all", "Each data set is given room for all of it, whatever others have.", cache_budget, "place")
def _all_full(uses: Any, *_: Any) -> dict[str, Decision[cache_budget.Room]]:
    return {use.name: Decision[cache_budget.Room]("full", "a planted bug") for use in uses}


@_replaces(
    "probes-at-once", "Jobs of a data set are measured past the cache at the same time.", cache_probe, "next_probe"
)
def _next_of_others(jobs: Any, room: Any, now: float, probing: str | None = None) -> Decision[str | None]:
    return _next_probe([job for job in jobs if job.name != probing], room, now)


@_replaces(
    "forgotten-waiter", "Who waits longest is told to fetch, and the others are forgotten.", ItemClaims, "_pass_on"
)
def _only_heir(self: ItemClaims, key: bytes, claim: Any, now: float) -> Asker | None:
    heir = _pass_on(self, key, claim, now)
    claim.waiting.clear()
    return heir
