"""State of caches: what is kept, and what room is reserved. Plain values, a part of the state."""

from __future__ import annotations

import hashlib
from collections.abc import Container
from typing import Literal

import msgspec

from millrace.policies.caching.autocache import Kind
from millrace.protocol.cache_messages import KeptBlock, StoreCost


class Use(msgspec.Struct):
    """Worth of a point to a job; see :class:`millrace.policies.caching.eviction.PointUse`."""

    saves: float
    last: float


class CachedPoint(msgspec.Struct):
    """Blocks that one writer has kept of one point.

    Attributes:
        label: of the operator whose output it is.
        path: where, if that is not where the service keeps its blocks.
        writer: the tenant for whose jobs it was made; empty: nobody has put his name to it, and nobody reads it, but
            for what is in a pipeline's own folder.
        whole: bytes that all of it would take, as last estimated; 0: unknown.
        largest: bytes that one task has added at most.
        blocks: by name, the oldest first. They count until they are deleted.
        evicting: of these, by name, the leases that may still read it, and after which it is deleted.
        uses: by job; of :data:`USES`, those that began last.
    """

    label: str = ""
    path: str = ""
    whole: int = 0
    largest: int = 0
    blocks: dict[str, KeptBlock] = {}
    evicting: dict[str, list[int]] = msgspec.field(default_factory=dict, name="going")
    uses: dict[str, Use] = {}
    writer: str = ""

    @property
    def bytes(self) -> int:
        """All that is kept takes."""
        return sum(block.bytes for block in self.blocks.values())

    @property
    def items(self) -> int:
        """All that can be read."""
        return sum(block.items for block in self.readable)

    @property
    def readable(self) -> list[KeptBlock]:
        """The blocks that leases are told of, the oldest first."""
        return [block for name, block in self.blocks.items() if name not in self.evicting]


class Reservation(msgspec.Struct, array_like=True):
    """Room of a lease in caches, and what it may read.

    Attributes:
        place: of the point; there it may add
        room: so many bytes.
        over: the lease has ended, and nobody has said what it added: that counts until the store was listed.
        also: places of others that it may read, too.
    """

    place: str
    room: int = 0
    over: bool = False
    also: list[str] = []


USES = 256
"""Jobs of which it is remembered what a point saved them, or all that read it if these are more."""
DATA_SETS = 64
"""Data sets of which it is remembered which chunks cache servers keep; of others these go when room is needed."""


class KeptChunks(msgspec.Struct, frozen=True):
    """Chunks of a data set that cache servers keep of what is stored.

    Attributes:
        chunks: into how many the data are cut.
        kept: those that are kept, the newest last.
        reason: of the last change.
    """

    chunks: int
    kept: list[int]
    reason: str = ""


Given = Literal["free", "none", "two chunks", "full"]
"""Room of a data set in the source cache: as :data:`~millrace.policies.caching.cache_budget.Room` has it; or what there
is, as nobody else wants it."""


class DataSetRoom(msgspec.Struct, frozen=True):
    """Room of a data set in the source cache.

    Attributes:
        bytes: of the whole data set.
        room: that it was given.
        reason: of the decision.
    """

    bytes: int
    room: Given
    reason: str = ""


class Caches(msgspec.Struct):
    """All points of which something is kept, with reservations of room and costs of stores.

    Attributes:
        points: by place (:func:`place_of`).
        reservations: by lease.
        costs: by location of a store, "" for the service's.
        source_chunks: by data set that is read in chunks, those that cache servers keep; of the last :data:`DATA_SETS`.
        rooms: by data set that is read, or was, its room; of :data:`DATA_SETS`, or of all that are read if that is
            more.
    """

    points: dict[str, CachedPoint] = {}
    reservations: dict[int, Reservation] = msgspec.field(default_factory=dict, name="promises")
    costs: dict[str, StoreCost] = {}
    source_chunks: dict[str, KeptChunks] = {}
    rooms: dict[str, DataSetRoom] = {}

    def unused(self, jobs: Container[str]) -> list[str]:
        """List points of which nothing is kept, or is about to be, and that none of these jobs uses."""
        empty = {name: cached.uses for name, cached in self.points.items() if not cached.blocks}
        if not empty:
            return []
        written = {place for held in self.reservations.values() for place in (held.place, *held.also)}
        return [name for name, uses in empty.items() if name not in written and not any(job in jobs for job in uses)]

    def lease_ended(self, lease: int) -> None:
        """Note the end of a lease; what it added to the service's store, if nobody has said it, is to be found out."""
        held = self.reservations.get(lease)
        if held is None:
            return
        if not held.room or "@" in held.place:
            del self.reservations[lease]
        else:
            held.over = True

    @property
    def taken(self) -> int:
        """Bytes of the service's store that blocks take, or were promised."""
        blocks = sum(cached.bytes for cached in self.points.values() if not cached.path)
        return blocks + sum(held.room for held in self.reservations.values() if "@" not in held.place)

    def taken_by(self, tenant: str) -> int:
        """Count the bytes of the service's store that a tenant's blocks take, or were promised for these."""
        blocks = sum(cached.bytes for name, cached in self.points.items() if is_of(name, tenant))
        return blocks + sum(held.room for held in self.reservations.values() if is_of(held.place, tenant))


class CacheMode(msgspec.Struct, frozen=True):
    """Use that a job makes of its cache points.

    Attributes:
        kind: see :class:`millrace.policies.caching.autocache.Mode`.
        node: the active point, -1 without one.
        slower: see there.
        reason: of the decision.
        epoch: the newest when it was made; how many epochs it stands tells whether it was measured.
        undone: by node, the mode that was undone.
        saves: by node, the share of an epoch's time that its cache saves, as last measured.
        history: kinds that were, by epoch in which they began, the latest of each.
    """

    kind: Kind = "compute"
    node: int = -1
    slower: float = 1.0
    reason: str = ""
    epoch: int = 0
    undone: dict[int, Kind] = {}
    saves: dict[int, float] = {}
    history: list[tuple[int, str]] = []


def place_of(fingerprint: str, path: str, writer: str) -> str:
    """Where the blocks of a point lie that were made for one tenant's jobs.

    Args:
        fingerprint: of the point.
        path: of a pipeline's own folder, whose blocks have no writer; empty: where the service keeps them.
        writer: the tenant, whose name may have any characters and any length; empty: nobody.
    """
    if path:
        return f"{fingerprint}@{path}"
    return f"{fingerprint}-{hashlib.blake2b(writer.encode(), digest_size=8).hexdigest()}" if writer else fingerprint


def is_of(place: str, tenant: str) -> bool:
    """Whether blocks at a place of the service's store were made for a tenant's jobs."""
    fingerprint, _, path = split_place(place)
    return not path and place == place_of(fingerprint, "", tenant)


def split_place(place: str) -> tuple[str, str, str]:
    """Split a place into its fingerprint, the name of its folder in the store, and the path of that."""
    folder, _, path = place.partition("@")
    return folder.partition("-")[0], folder, path
