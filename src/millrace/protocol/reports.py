"""Parts of what a worker reports of itself: how it fares for one consumer, what one operator did."""

from __future__ import annotations

import msgspec


class LaneReport(msgspec.Struct, frozen=True, array_like=True):
    """How a worker fares for one consumer."""

    consumer: int
    running: bool
    blocked_s: float
    """Seconds that its buffer has been full without anybody reading from it; 0 if it isn't."""
    buffered_bytes: int
    lived_s: float = 0.0
    """Seconds since the lane began."""
    computing_s: float = 0.0
    """Of these, seconds in which it ran tasks, without those in which its buffer was full."""
    filled_s: float = 0.0
    """Of these, seconds in which something of the epoch that is read lay here or was on its way to the consumer."""
    hits: int = 0
    """Outputs that a reader was sent after another one: they were computed once more often than that."""


class Pace(msgspec.Struct, frozen=True, array_like=True):
    """How a consumer has read an epoch, or a part of it: elements, and the seconds that took, of which it waited."""

    elements: int = 0
    read_s: float = 0.0
    waited_s: float = 0.0


class Flow(msgspec.Struct, frozen=True, array_like=True):
    """Elements that came to a consumer, and their bytes."""

    elements: int = 0
    bytes: int = 0


class NodeMeasure(msgspec.Struct, frozen=True, array_like=True):
    """Work of one operator in this worker for this job, so far."""

    node: int
    label: str
    elements: int
    bytes: int
    active_s: float
    cpu_s: float = 0.0
    """Of these, seconds of processor time."""
    threads: int = 0
    """That did it; 0: the one that pulls the pipeline's output."""
    wall_s: float = 0.0
    """Seconds for which it held that one, those in which it waited for other threads included."""
    reads_in_flight: int = 0
    """Reads of a store on another machine that it may have under way at once; 0: it reads none."""
    requests: int = 0
    """Requests to stores that it has made, repeated and second ones included."""
    stored_bytes: int = 0
    """Bytes that came from stores."""
    retried: int = 0
    """Requests that were made again, as they had failed."""
    hedged: int = 0
    """Requests that were made a second time, as they took long."""
    store_wait_s: float = 0.0
    """Seconds in which somebody waited for a store."""
    under_way: int = 0
    """Requests that are under way now."""
    padding: int = 0
    """Numbers that padding put into arrays of batches."""
    padded: int = 0
    """All numbers in these arrays."""
    cached_bytes: int = 0
    """Bytes that came from cache servers, in place of stores."""


class Told(msgspec.Struct, frozen=True, omit_defaults=True):
    """Facts that a peer was told, so that the journal of its service has to know them; see ``testimony``.

    Attributes:
        service: that it is a peer of; empty: of none yet.
        life: of that service's dispatcher, in which the peer was let in last.
        lease: the highest that it heard of there.
        epoch: of a consumer, the last one that it has begun.
        at: of a consumer, when it was let in last, in seconds of the dispatcher's clock, which never goes back.
    """

    service: str = ""
    life: str = ""
    lease: int = 0
    epoch: int = -1
    at: float = 0.0

    def let_in(self, told: Told) -> Told:
        """Facts of a peer that is let in again, be it by another service."""
        known = told.service == self.service
        return Told(told.service, told.life, self.lease, self.epoch, told.at) if known else told

    def hears_of(self, lease: int) -> Told:
        """Facts of a peer that hears of a lease."""
        return Told(self.service, self.life, max(self.lease, lease), self.epoch, self.at)
