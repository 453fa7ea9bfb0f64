"""What happened to caches; a part of :mod:`millrace.control.journal.events`."""

from __future__ import annotations

from millrace.control.journal.event import Event
from millrace.policies.caching.autocache import Kind
from millrace.protocol.cache_messages import KeptBlock, StoreCost


class ModeChosen(Event, frozen=True, tag="ModeChosen"):
    """What the job does about its cache points from now on; fields as in ``ModeOf``."""

    job: str
    kind: Kind
    node: int
    reason: str
    epoch: int
    slower: float = 1.0
    undone: dict[int, Kind] = {}
    saves: dict[int, float] = {}


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


class BlocksPublished(Event, frozen=True, tag="BlocksPublished"):
    """They are in the store; some may have been before.

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


class BlocksGivenUp(Event, frozen=True, tag="BlocksGivenUp"):
    """Nobody is told of them any more; what runs may still read them, and when that is over they are deleted."""

    place: str
    names: list[str]
    reason: str


class BlocksDeleted(Event, frozen=True, tag="BlocksDeleted"):
    """They are not in the store any more."""

    place: str
    names: list[str]


class PromisesKept(Event, frozen=True, tag="PromisesKept"):
    """The store was listed after these leases had ended: whatever they added is known."""

    leases: list[int]


class StoreCalibrated(Event, frozen=True, tag="StoreCalibrated"):
    """What reads and writes of a store take."""

    path: str
    cost: StoreCost
