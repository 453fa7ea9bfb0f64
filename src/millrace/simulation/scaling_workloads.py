"""Jobs for the autoscaler in virtual time: what their workers give, and what a consumer sees of it."""

from __future__ import annotations

import math
import random

import msgspec

from millrace.policies.scaling.autoscale import Look

MOST = 1000
"""Workers that a job may have."""
KINDS = ("compute", "store", "memory", "splits")
NEARLY = 1.003
"""A batch time that is worse by less is as good as the best."""


class Workload(msgspec.Struct, frozen=True):
    """A job.

    Attributes:
        kind: what more workers run into, if anything does: nothing ("compute"), a store that gives no more, memory that
            they share, or tasks of which there are few.
        own_s: seconds that the consumer takes for an element.
        work_s: seconds of a worker for an element.
        floor_s: seconds in which the store gives an element, whoever asks.
        contention: by so much more work is an element for each further worker.
        splits: tasks that can run at a time.
        noise: relative standard deviation of a batch time over 100 elements.
        cpu: share of a worker's time that is processor time.
    """

    kind: str
    own_s: float
    work_s: float
    floor_s: float = 0.0
    contention: float = 0.0
    splits: int = 1 << 30
    noise: float = 0.0
    cpu: float = 1.0

    def batch_s(self, workers: int) -> float:
        """Seconds from one element to the next."""
        return max(self.own_s, self._given(workers))

    def busy(self, workers: int) -> float:
        """Share of the time in which a worker computes, or waits for the store."""
        if self.floor_s and self._given(workers) == self.floor_s:
            return min(1.0, self.floor_s / self.own_s)
        active = min(workers, self.splits)
        work_s = self.work_s * (1 + self.contention * (active - 1))
        return min(1.0, work_s / workers / self.batch_s(workers))

    def least(self, most: int = MOST) -> int:
        """Return the fewest workers with which the batch time is as good as with any number up to ``most``."""
        best = min(self.batch_s(count) for count in range(1, most + 1))
        return next(count for count in range(1, most + 1) if self.batch_s(count) <= NEARLY * best)

    def look(self, workers: int, rng: random.Random) -> Look:
        """One look, of as many elements as it takes to know the batch time to 1 %, or of 1,000."""
        noise = self.noise / math.sqrt(10)
        noise = max(min(noise, 0.01), noise / math.sqrt(10))
        own_s = self.own_s * math.exp(rng.gauss(0, noise / 2))
        batch_s = max(own_s, self.batch_s(workers) * math.exp(rng.gauss(0, noise)))
        wait_s = batch_s - own_s
        if self.own_s >= 0.999 * self.batch_s(workers):
            wait_s = batch_s * abs(rng.gauss(0, 0.003))
        busy = self.busy(workers) * math.exp(rng.gauss(0, 0.01))
        return Look(workers, batch_s, wait_s, min(1.0, busy), noise)

    def _given(self, workers: int) -> float:
        active = min(workers, self.splits)
        return max(self.floor_s, self.work_s * (1 + self.contention * (active - 1)) / active)


def workload(rng: random.Random) -> Workload:
    """Any job: 1 to 500 workers needed, an element in 1 ms to 1 s."""
    kind = rng.choice(KINDS)
    needed = math.exp(rng.uniform(0, math.log(500)))
    own_s = math.exp(rng.uniform(math.log(0.001), 0.0))
    made = Workload(kind, own_s, own_s * needed, noise=rng.uniform(0.0, 0.1), cpu=rng.uniform(0.2, 1.0))
    match kind:
        case "store":
            return msgspec.structs.replace(made, floor_s=own_s * rng.uniform(1.2, 4))
        case "memory":
            return msgspec.structs.replace(made, contention=rng.uniform(0, 0.3) / needed)
        case "splits":
            return msgspec.structs.replace(made, splits=max(1, int(needed * rng.uniform(0.3, 2))))
    return made


def drifted(job: Workload, rng: random.Random) -> Workload:
    """Change a job: its functions, its data or its model take another time."""
    factor = math.exp(rng.uniform(-math.log(2), math.log(2)))
    if rng.random() < 0.5:
        return msgspec.structs.replace(job, own_s=job.own_s * factor)
    return msgspec.structs.replace(job, work_s=job.work_s * factor)
