"""Eviction: which blocks stay when not all of them fit, by benefit per byte over all jobs. Pure.

The worth of a point's byte is the share of an epoch's time that the whole point saves a job, summed over the jobs
that use it and divided by the point's bytes; Nectar's and Cachew's criterion (Cachew 5.1), per time rather than per
epoch, as a point that is read twice as often saves twice as much.

A job's contribution fades by half with every hour since it last read from the point. Exponential fading keeps the
order of points that nobody uses, however long that lasts, and keeps no count of evictions, as GreedyDual's aging does.

It is the point that ages, not the block: each epoch reads each block once, so of a job's own blocks the one that was
read longest ago is the one it needs next. LRU would give up that one, and has hardly any hits when a working set
doesn't fit.

Hence admission: a new block takes the place of less useful ones only, never of its equals. So of a working set that is
four times the cache, a quarter is kept, and stays.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import data_size

HALF_LIFE_S = 3600.0
"""Half-life of a benefit in seconds: the next training on the same data comes within hours, if at all."""
WORTH = 1.25
"""Factor by which a new block must be worth more than what it displaces: measures of two points differ by less than
that from epoch to epoch, and each exchange is paid for by writing."""


class PointUse(msgspec.Struct, frozen=True):
    """Worth of a point to a job.

    Attributes:
        saves: share of an epoch's time, as it would be without the point, that is saved with all of it in the cache.
        last_s: when the job last read from the point, or could have, on the clock of ``now``.
    """

    saves: float
    last_s: float


class KeptBlockSize(msgspec.Struct, frozen=True):
    """Block that is kept.

    Attributes:
        name: unique among all.
        bytes: its size.
    """

    name: str
    bytes: int


Blocks = Mapping[str, Iterable[KeptBlockSize]]
"""Blocks kept of each point, the one that was read longest ago first."""


def benefit(uses: Iterable[PointUse], whole: int, now: float) -> float:
    """Worth of a point's byte: seconds saved per second of training and byte, over all jobs.

    Args:
        uses: of each job that uses or used the point.
        whole: bytes of all of the point, kept or not; more than 0.
        now: seconds, on the clock of ``uses``.
    """
    return sum(max(0.0, use.saves) * _faded(now - use.last_s) for use in uses) / whole


def evict(blocks: Blocks, benefits: Mapping[str, float], need: int) -> Decision[tuple[str, ...]]:
    """Choose the blocks to give up so that ``need`` bytes come free: the least benefit, read longest ago of equals.

    If all blocks don't suffice, it is all of them.
    """
    chosen = _least(blocks, benefits, need, math.inf)
    freed = chosen.bytes
    inputs = {"need": need, "freed": freed, "blocks": len(chosen.names)}
    if freed < need:
        reason = f"{data_size(freed)} of {data_size(need)} can be given up: that is all that is kept"
    elif freed:
        reason = f"{data_size(freed)} of {chosen.points} go, as they save the least time per byte"
    else:
        reason = "nothing has to go"
    return Decision(chosen.names, reason, inputs)


def admit(
    point: str, size: int, lacking: int, free: int, blocks: Blocks, benefits: Mapping[str, float]
) -> Decision[tuple[str, ...] | None]:
    """Decide whether a new block is kept: the blocks to give up for it, or None if it isn't worth what would go.

    Args:
        point: of the new block.
        size: its bytes.
        lacking: bytes of the point that are not kept yet, this block's included. Bytes that come free beyond ``size``
            are of use up to this.
        free: bytes that are neither used nor reserved.
        blocks: all that may be given up.
        benefits: of each point's bytes; 0 for a point that is missing.
    """
    worth = benefits.get(point, 0.0)
    inputs = {"size": size, "free": free, "benefit": worth}
    if size <= free:
        return Decision((), f"{data_size(size)} of {point} fit into {data_size(free)} that are free", inputs)
    chosen = _least(blocks, benefits, size - free, worth / WORTH)
    inputs |= {"freed": chosen.bytes, "lost": chosen.lost}
    if free + chosen.bytes < size:
        reason = f"{point} gets no more room: nothing that may go saves clearly less time per byte"
        return Decision(None, reason, inputs)
    if WORTH * chosen.lost >= worth * min(free + chosen.bytes, max(size, lacking)):
        reason = f"{point} gets no more room: {data_size(chosen.bytes)} of {chosen.points} would go, and save more time"
        return Decision(None, reason, inputs)
    reason = f"{data_size(size)} of {point} save more time than {data_size(chosen.bytes)} of {chosen.points}, which go"
    return Decision(chosen.names, reason, inputs)


class _Chosen(NamedTuple):
    """Blocks to give up.

    Attributes:
        names: of the blocks.
        bytes: of all of them.
        lost: seconds that they save per second of training.
        points: whose items they hold, in words.
    """

    names: tuple[str, ...]
    bytes: int
    lost: float
    points: str


def _least(blocks: Blocks, benefits: Mapping[str, float], need: int, below: float) -> _Chosen:
    """Choose blocks to give up, for ``need`` bytes if there are so many, of points worth less than ``below`` a byte."""
    names, points, freed, lost = [], [], 0, 0.0
    for worth, point in sorted((benefits.get(point, 0.0), point) for point in blocks):
        if worth >= below:
            break
        for block in blocks[point]:
            if freed >= need:
                break
            names.append(block.name)
            points.append(point)
            freed += block.bytes
            lost += worth * block.bytes
    return _Chosen(tuple(names), freed, lost, ", ".join(dict.fromkeys(points)))


def _faded(age_s: float) -> float:
    return math.exp2(-max(0.0, age_s) / HALF_LIFE_S)
