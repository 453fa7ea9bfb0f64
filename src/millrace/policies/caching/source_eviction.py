"""Source eviction: which segment of a cache of stored bytes goes to make room, if any. Pure.

A training reads each item once an epoch, in an order of its own each time. Whatever was read longest ago is then what
is needed soonest, so that the usual rule, by which that goes first, makes a cache that is smaller than the data set
useless: each item has gone when it is needed again. What stays serves its share of the reads whatever the order is.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

IDLE_S = 600.0
"""Seconds without a read after which a segment is nobody's: those who read at random touch each many times an epoch."""


class SegmentUse(NamedTuple):
    """Use of a segment.

    Attributes:
        number: of the segment; later ones are higher.
        used: time, in seconds, at which something of it was last read or written.
        given: whether its data were given room.
    """

    number: int
    used: float
    given: bool = False


def victim(segments: Iterable[SegmentUse], now: float, idle_s: float = IDLE_S, *, given: bool = False) -> int | None:
    """Choose the segment that goes to make room for another one.

    Args:
        segments: all of them.
        now: in seconds, on the clock of :attr:`SegmentUse.used`.
        idle_s: seconds for which a segment must have been unused.
        given: the other one is of data that were given room: what was given none goes for it, used or not.

    Returns:
        the number of the one that was used longest ago; None: all are in use, and what is new is not kept.
    """
    oldest = min(segments, key=lambda segment: (given and segment.given, segment.used, segment.number), default=None)
    if oldest is None or (now - oldest.used < idle_s and (oldest.given or not given)):
        return None
    return oldest.number
