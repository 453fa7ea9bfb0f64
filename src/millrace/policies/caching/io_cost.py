"""I/O cost: seconds to read from a store or to write to it, by size.

Between the sizes that were measured the logarithm of the time is interpolated over that of the size: a straight line
there is a power of the size, so that latency (no slope) and bandwidth (slope one) both come out right, nothing ever
gets negative, and 4 KB count as much as 256 MB. One latency and one bandwidth, fitted to all, would miss what lies
between them: read-ahead, parts that are fetched at once, the processor's caches. (The published code of Cachew has a
table from 5 to 100 MB, whose line goes below zero for small rows.)
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable

import msgspec

_SURPRISE = 1.5
"""Largest change of the logarithm: a single read that took a hundred times as long counts as one of five times."""
_ENOUGH = 3
"""Measurements of a size whose median is believed."""
LEARNING_RATE = 0.3
"""Share of a measurement's difference that is believed at once; after three measurements a third is left of what was
known."""


class TransferCost(msgspec.Struct, frozen=True):
    """Cost of a transfer: seconds by size.

    Attributes:
        sizes: bytes, ascending, at least one.
        times: seconds of each, above 0.
    """

    sizes: tuple[int, ...]
    times: tuple[float, ...]

    def __post_init__(self) -> None:
        """Check the measures.

        Raises:
            ValueError: there are not as many times as sizes, or none, or they are not positive and in order.
        """
        if not len(self.sizes) == len(self.times) > 0:
            raise ValueError(f"{len(self.times)} times for {len(self.sizes)} sizes: as many are needed, and one")
        if min(self.sizes) < 1 or list(self.sizes) != sorted(set(self.sizes)):
            raise ValueError(f"sizes must be positive and ascending: {self.sizes}")
        if not all(0 < each < math.inf for each in self.times):
            raise ValueError(f"times must be positive: {self.times}")

    def seconds(self, size: int, /) -> float:
        """Seconds of one read (or write) of ``size`` bytes.

        A size below all that were measured takes as long as the smallest; one above the largest goes at its speed.
        """
        if size <= self.sizes[0]:
            return self.times[0]
        if size >= self.sizes[-1]:
            return self.times[-1] * size / self.sizes[-1]
        place = self._place(size)
        low = int(place)
        below, above = math.log(self.times[low]), math.log(self.times[low + 1])
        return math.exp(below + (place - low) * (above - below))

    def learn(self, size: int, seconds: float, rate: float = LEARNING_RATE) -> TransferCost:
        """Update by one more measurement; older ones are forgotten exponentially.

        Sizes nearby learn from it too, half as much for each step away from it: a store that has become slower is so
        for all of them.

        Args:
            size: bytes.
            seconds: time that they took; a time that isn't above 0 says nothing.
            rate: how much of the difference (of the logarithms) is believed.
        """
        if not 0 < seconds < math.inf:
            return self
        place = self._place(size)
        off = max(-_SURPRISE, min(_SURPRISE, math.log(seconds / self.seconds(size))))
        times = [each * math.exp(rate * off * 0.5 ** abs(number - place)) for number, each in enumerate(self.times)]
        return TransferCost(self.sizes, tuple(times))

    def _place(self, size: int) -> float:
        """Position of ``size`` among the sizes: 1.5 is in the middle between the second and the third."""
        if size <= self.sizes[0]:
            return 0.0
        if size >= self.sizes[-1]:
            return float(len(self.sizes) - 1)
        high = bisect_right(self.sizes, size)
        low, above = self.sizes[high - 1], self.sizes[high]
        return high - 1 + math.log(size / low) / math.log(above / low)


def fit(samples: Iterable[tuple[int, float]]) -> TransferCost:
    """Fit measurements (bytes, seconds): the median of those of one size.

    Where there are too few to tell a slow one from a slow size, a size takes no longer than a larger one.

    Raises:
        ValueError: there are none, or a size or time is not above 0.
    """
    by_size: dict[int, list[float]] = {}
    for size, seconds in samples:
        by_size.setdefault(size, []).append(seconds)
    sizes = sorted(by_size)
    medians = [statistics.median(by_size[size]) for size in sizes]
    times: list[float] = []
    for size, median in zip(reversed(sizes), reversed(medians), strict=True):
        times.append(median if len(by_size[size]) >= _ENOUGH else min([median, *times]))
    return TransferCost(tuple(sizes), tuple(reversed(times)))


def proportional(size: int, seconds: float) -> TransferCost:
    """Cost of a transfer whose bytes take equally long however many come at a time, as writing to a draft does."""
    return TransferCost((1, size), (seconds / size, seconds))
