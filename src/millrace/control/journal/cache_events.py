"""Events of caches."""

from __future__ import annotations

from millrace.control.journal.event import Event, JobEvent
from millrace.control.state.cache_state import (
    DATA_SETS,
    USES,
    CachedPoint,
    CacheMode,
    DataSetRoom,
    Given,
    KeptChunks,
    Use,
)
from millrace.control.state.state import State
from millrace.policies.caching.autocache import Kind
from millrace.protocol.cache_messages import KeptBlock, StoreCost


class ModeChosen(JobEvent, frozen=True, tag="ModeChosen"):
    """The job uses its cache points in this way from now on; fields as in ``CacheMode``."""

    kind: Kind
    node: int
    reason: str
    epoch: int
    slower: float = 1.0
    undone: dict[int, Kind] = {}
    saves: dict[int, float] = {}

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        history = [*job.caching.history, (self.epoch, self.kind)]
        job.caching = CacheMode(
            self.kind, self.node, self.slower, self.reason, self.epoch, self.undone, self.saves, history[-100:]
        )


class PointUsed(JobEvent, frozen=True, tag="PointUsed"):
    """The job reads from a point, or will; the last three fields as in ``CachedPoint``.

    ``whole`` 0: as before.
    """

    place: str
    at: float
    saves: float
    label: str
    whole: int = 0
    writer: str = ""

    def apply(self, state: State) -> None:
        point = _point(state, self.place, self.writer)
        point.label = self.label
        point.whole = self.whole or point.whole
        point.uses.pop(self.job, None)  # it comes last now
        point.uses[self.job] = Use(self.saves, self.at)
        over = [name for name in point.uses if name not in state.jobs] if len(point.uses) > USES else []
        for name in over[: len(point.uses) - USES]:  # the oldest: their benefits have faded
            del point.uses[name]


class ChunksKept(Event, frozen=True, tag="ChunksKept"):
    """Cache servers keep these chunks of a data set and no others; fields as in ``KeptChunks``."""

    data: str
    chunks: int
    kept: list[int]
    reason: str

    def apply(self, state: State) -> None:
        known = state.caches.source_chunks
        known.pop(self.data, None)  # it comes last now
        known[self.data] = KeptChunks(self.chunks, self.kept, self.reason)
        if len(known) > DATA_SETS:
            del known[next(iter(known))]


class RoomGiven(Event, frozen=True, tag="RoomGiven"):
    """A data set has this room in the source cache from now on; fields as in ``DataSetRoom``."""

    data: str
    bytes: int
    room: Given
    reason: str

    def apply(self, state: State) -> None:
        rooms = state.caches.rooms
        rooms.pop(self.data, None)  # it comes last now
        rooms[self.data] = DataSetRoom(self.bytes, self.room, self.reason)
        if len(rooms) > DATA_SETS:
            read = {job.data_set for job in state.jobs.values()}
            over = [data for data in rooms if data not in read]
            gone = next((data for data in over if rooms[data].room == "none"), over[0] if over else None)
            if gone is not None:
                del rooms[gone]


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

    def apply(self, state: State) -> None:
        point = _point(state, self.place, self.writer)
        for block in self.blocks:
            point.blocks[block.name] = block
        held = state.caches.reservations.get(self.lease)
        if held is not None:
            point.largest = max(point.largest, self.wanted, sum(block.bytes for block in self.blocks))
            held.room = 0
            if held.over:
                del state.caches.reservations[self.lease]


class BlocksGivenUp(Event, frozen=True, tag="BlocksGivenUp"):
    """Nobody is told of them any more; what runs may still read them, and when that is over they are deleted."""

    place: str
    names: list[str]
    reason: str

    def apply(self, state: State) -> None:
        leases = [
            lease
            for lease, held in state.caches.reservations.items()
            if not held.over and (held.place == self.place or self.place in held.also)
        ]
        point = state.caches.points[self.place]
        for name in self.names:
            point.evicting[name] = leases


class BlocksDeleted(Event, frozen=True, tag="BlocksDeleted"):
    """Blocks are not in the store any more."""

    place: str
    names: list[str]

    def apply(self, state: State) -> None:
        point = state.caches.points[self.place]
        for name in self.names:
            point.blocks.pop(name, None)
            point.evicting.pop(name, None)
        if not point.blocks and not any(job in state.jobs for job in point.uses):
            del state.caches.points[self.place]


class PointsForgotten(Event, frozen=True, tag="PointsForgotten"):
    """Nothing is kept of these points, and no job uses them."""

    places: list[str]

    def apply(self, state: State) -> None:
        for place in self.places:
            state.caches.points.pop(place, None)


class PromisesKept(Event, frozen=True, tag="PromisesKept"):
    """The store was listed after these leases had ended: whatever they added is known."""

    leases: list[int]

    def apply(self, state: State) -> None:
        for lease in self.leases:
            held = state.caches.reservations.get(lease)
            if held is not None and held.over:
                del state.caches.reservations[lease]


class StoreCalibrated(Event, frozen=True, tag="StoreCalibrated"):
    """Reads and writes of a store take so long."""

    path: str
    cost: StoreCost

    def apply(self, state: State) -> None:
        state.caches.costs[self.path] = self.cost


def _point(state: State, place: str, writer: str) -> CachedPoint:
    point = state.caches.points.setdefault(place, CachedPoint(path=place.partition("@")[2]))
    point.writer = writer or point.writer
    return point
