"""Events of caches."""

from __future__ import annotations

from millrace.control.journal.event import Event, reduces
from millrace.control.state.cache_state import CachedPoint, CacheMode, Use
from millrace.control.state.state import (
    State,
)
from millrace.policies.caching.autocache import Kind
from millrace.protocol.cache_messages import KeptBlock, StoreCost


class ModeChosen(Event, frozen=True, tag="ModeChosen"):
    """The job uses its cache points in this way from now on; fields as in ``CacheMode``."""

    job: str
    kind: Kind
    node: int
    reason: str
    epoch: int
    slower: float = 1.0
    undone: dict[int, Kind] = {}
    saves: dict[int, float] = {}


@reduces(ModeChosen)
def _mode_chosen(state: State, event: ModeChosen) -> None:
    job = state.jobs[event.job]
    history = [*job.caching.history, (event.epoch, event.kind)]
    job.caching = CacheMode(
        event.kind, event.node, event.slower, event.reason, event.epoch, event.undone, event.saves, history[-100:]
    )


class PointUsed(Event, frozen=True, tag="PointUsed"):
    """The job reads from a point, or will; the last three fields as in ``CachedPoint``.

    ``whole`` 0: as before.
    """

    job: str
    place: str
    at: float
    saves: float
    label: str
    whole: int = 0
    writer: str = ""


@reduces(PointUsed)
def _point_used(state: State, event: PointUsed) -> None:
    point = _point(state, event.place, event.writer)
    point.label = event.label
    point.whole = event.whole or point.whole
    point.uses[event.job] = Use(event.saves, event.at)


class BlocksPublished(Event, frozen=True, tag="BlocksPublished"):
    """Blocks are in the store; some may have been before.

    Attributes:
        lease: they are all that it added; -1: of nobody.
        wanted: bytes for which it would have needed room.
        writer: of all at that place; empty: as it is known.
    """

    place: str
    blocks: list[KeptBlock]
    lease: int = -1
    wanted: int = 0
    writer: str = ""


@reduces(BlocksPublished)
def _blocks_published(state: State, event: BlocksPublished) -> None:
    point = _point(state, event.place, event.writer)
    for block in event.blocks:
        point.blocks[block.name] = block
    held = state.caches.reservations.get(event.lease)
    if held is not None:
        point.largest = max(point.largest, event.wanted, sum(block.bytes for block in event.blocks))
        held.room = 0
        if held.over:
            del state.caches.reservations[event.lease]


class BlocksGivenUp(Event, frozen=True, tag="BlocksGivenUp"):
    """Nobody is told of them any more; what runs may still read them, and when that is over they are deleted."""

    place: str
    names: list[str]
    reason: str


@reduces(BlocksGivenUp)
def _blocks_given_up(state: State, event: BlocksGivenUp) -> None:
    leases = [
        lease
        for lease, held in state.caches.reservations.items()
        if not held.over and (held.place == event.place or event.place in held.also)
    ]
    point = state.caches.points[event.place]
    for name in event.names:
        point.evicting[name] = leases


class BlocksDeleted(Event, frozen=True, tag="BlocksDeleted"):
    """Blocks are not in the store any more."""

    place: str
    names: list[str]


@reduces(BlocksDeleted)
def _blocks_deleted(state: State, event: BlocksDeleted) -> None:
    point = state.caches.points[event.place]
    for name in event.names:
        point.blocks.pop(name, None)
        point.evicting.pop(name, None)
    if not point.blocks and not any(job in state.jobs for job in point.uses):
        del state.caches.points[event.place]


class PromisesKept(Event, frozen=True, tag="PromisesKept"):
    """The store was listed after these leases had ended: whatever they added is known."""

    leases: list[int]


@reduces(PromisesKept)
def _promises_kept(state: State, event: PromisesKept) -> None:
    for lease in event.leases:
        held = state.caches.reservations.get(lease)
        if held is not None and held.over:
            del state.caches.reservations[lease]


class StoreCalibrated(Event, frozen=True, tag="StoreCalibrated"):
    """Reads and writes of a store take so long."""

    path: str
    cost: StoreCost


@reduces(StoreCalibrated)
def _store_calibrated(state: State, event: StoreCalibrated) -> None:
    state.caches.costs[event.path] = event.cost


def _point(state: State, place: str, writer: str) -> CachedPoint:
    point = state.caches.points.setdefault(place, CachedPoint(path=place.partition("@")[2]))
    point.writer = writer or point.writer
    return point
