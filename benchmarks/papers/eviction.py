"""How much of what a cache could save it does save when it is too small: a model, beside LRU.

    python -m benchmarks.papers.eviction [--json FILE]

Jobs read all blocks of their point once an epoch, each time in another random order, at the speed that hits and misses
leave them. A cache decides at each miss whether it keeps the block, and what goes for it. Figures are of the epochs
after a job's first two. The ideal keeps from the outset what is worth most; its hit ratio is the capacity's share of
the working set, if there is one job.
"""

from __future__ import annotations

import heapq
import random
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from benchmarks.papers.report import main
from millrace.policies.caching.eviction import KeptBlockSize, PointUse, admit, benefit

SHARES = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
"""Capacity over the working set of all jobs."""
BLOCKS = 200
EPOCHS = 8
"""Of the slowest job."""
BEGUN = 2
"""Epochs of each job that don't count: one writes, and what it wrote of less use may still have to go."""


class Job(msgspec.Struct, frozen=True):
    """A training on a point of its own.

    Attributes:
        name: also of the point.
        computed_s: seconds to compute a block.
        got_s: seconds to read one.
        blocks: of an epoch.
    """

    name: str
    computed_s: float
    got_s: float
    blocks: int = BLOCKS

    @property
    def saves(self) -> float:
        """Share of its time that a job saves if all blocks are kept."""
        return 1 - self.got_s / self.computed_s


class Cache(Protocol):
    """A cache for blocks of one size."""

    def read(self, job: Job, block: int, now: float) -> bool:
        """Whether the block is there; if not it may be afterwards."""
        ...


class Kept:
    """What :mod:`millrace.policies.caching.eviction` keeps; ``capacity`` in blocks."""

    def __init__(self, capacity: int) -> None:
        self.free = capacity
        self.blocks: dict[str, dict[str, KeptBlockSize]] = {}
        self._uses: dict[Job, PointUse] = {}

    def read(self, job: Job, block: int, now: float) -> bool:
        """Reads it, or asks whether to keep it."""
        name = f"{job.name}/{block}"
        mine = self.blocks.setdefault(job.name, {})
        self._uses[job] = PointUse(job.saves, now)
        if name in mine:
            mine[name] = mine.pop(name)
            return True
        benefits = {each.name: benefit([use], each.blocks, now) for each, use in self._uses.items()}
        kept = {point: blocks.values() for point, blocks in self.blocks.items()}
        going = admit(job.name, 1, job.blocks - len(mine), self.free, kept, benefits).value
        if going is not None:
            for each in going:
                del self.blocks[each.partition("/")[0]][each]
            mine[name] = KeptBlockSize(name, 1)
            self.free += len(going) - 1
        return False


class Recent:
    """LRU."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._blocks: OrderedDict[tuple[str, int], None] = OrderedDict()

    def read(self, job: Job, block: int, now: float) -> bool:
        """Reads it, or keeps it instead of the one that was read longest ago."""
        hit = (job.name, block) in self._blocks
        self._blocks[job.name, block] = None
        self._blocks.move_to_end((job.name, block))
        if len(self._blocks) > self.capacity:
            self._blocks.popitem(last=False)
        return hit


class Chosen:
    """The ideal: blocks of the jobs that save the most of their time per block, known beforehand."""

    def __init__(self, capacity: int, jobs: Sequence[Job]) -> None:
        self._most: dict[str, int] = {}
        for job in sorted(jobs, key=lambda job: job.saves / job.blocks, reverse=True):
            self._most[job.name] = min(job.blocks, capacity)
            capacity -= self._most[job.name]

    def read(self, job: Job, block: int, now: float) -> bool:
        """The first of a job's blocks are there."""
        return block < self._most[job.name]


def hit_ratios(cache: Cache, jobs: Sequence[Job], seed: int = 1) -> dict[str, float]:
    """Of each job's reads after its first epochs, the share that the cache had.

    Jobs begin together, and go on until the slowest has read its epochs.
    """
    chance = random.Random(seed)
    orders = [list(range(job.blocks)) for job in jobs]
    reads, hits = [0] * len(jobs), [0] * len(jobs)
    turns = [(0.0, index) for index in range(len(jobs))]
    while any(count < EPOCHS * job.blocks for count, job in zip(reads, jobs, strict=True)):
        now, index = heapq.heappop(turns)
        job, order = jobs[index], orders[index]
        epoch, place = divmod(reads[index], job.blocks)
        if not place:
            chance.shuffle(order)
        hit = cache.read(job, order[place], now)
        reads[index] += 1
        hits[index] += hit and epoch >= BEGUN
        heapq.heappush(turns, (now + (job.got_s if hit else job.computed_s), index))
    return {job.name: hit / (read - BEGUN * job.blocks) for job, read, hit in zip(jobs, reads, hits, strict=True)}


ONE = (Job("one job", 1.0, 0.25),)
TWO = (Job("saves 80 %", 1.0, 0.2), Job("saves 20 %", 1.0, 0.8))


def sweep(jobs: Sequence[Job]) -> dict[str, Any]:
    """By cache and capacity: hit ratios, and the share of their time that jobs save, each the mean over jobs."""
    makes: Mapping[str, Callable[[int], Cache]] = {
        "millrace": Kept,
        "LRU": Recent,
        "ideal": lambda capacity: Chosen(capacity, jobs),
    }
    found: dict[str, Any] = {"capacity_share": SHARES}
    for name, make in makes.items():
        rows = [hit_ratios(make(round(share * sum(job.blocks for job in jobs))), jobs) for share in SHARES]
        found[name] = {
            "hit_ratio": [sum(row.values()) / len(jobs) for row in rows],
            "saved": [sum(row[job.name] * job.saves for job in jobs) / len(jobs) for row in rows],
            "jobs": {job.name: [row[job.name] for row in rows] for job in jobs},
        }
    return found


def measure() -> dict[str, Any]:
    """Both sweeps, printed."""
    found = {"one job": sweep(ONE), "two jobs": sweep(TWO)}
    for name, rows in found.items():
        print(f"\n{name}: hit ratio, and mean share of the time saved")
        caches = [cache for cache in rows if cache != "capacity_share"]
        print(f"{'capacity':10}", *(f"{cache:>18}" for cache in caches))
        for place, share in enumerate(rows["capacity_share"]):
            cells = (f"{rows[cache]['hit_ratio'][place]:9.3f}{rows[cache]['saved'][place]:9.3f}" for cache in caches)
            print(f"{share:<10.0%}", *cells)
    return {"epochs": {"all": EPOCHS, "left out": BEGUN}, "blocks": BLOCKS, "results": found}


if __name__ == "__main__":
    main(
        "benchmarks.papers.eviction", "How much of what a cache could save does it save when it is too small?", measure
    )
