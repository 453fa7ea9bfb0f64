"""Whether two samples are of one distribution: the tests of Mann and Whitney, and of Kolmogorov and Smirnov.

Both look at ranks alone. If what is measured is drawn at random for each measurement, they say how likely such a
difference is by that draw, however the measurements depend on one another or on what else the machine does.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import numpy.typing as npt

Sample = npt.NDArray[Any]


def mann_whitney(one: Sample, other: Sample) -> float:
    """Two-sided p-value that values of one sample are no more often the larger ones; by the normal approximation.

    Args:
        one: at least some twenty numbers, of shape (n,).
        other: likewise.
    """
    n, m = len(one), len(other)
    _, inverse, counts = np.unique(np.concatenate([one, other]), return_inverse=True, return_counts=True)
    ranks = np.cumsum(counts) - (counts - 1) / 2
    larger = ranks[inverse[:n]].sum() - n * (n + 1) / 2
    ties = float((counts.astype(float) ** 3 - counts).sum()) / ((n + m) * (n + m - 1))
    spread = math.sqrt(n * m / 12 * (n + m + 1 - ties))
    return math.erfc(abs(larger - n * m / 2) / spread / math.sqrt(2)) if spread else 1.0


def kolmogorov_smirnov(one: Sample, other: Sample) -> float:
    """P-value that both are of one distribution, by the largest distance of the empirical ones; asymptotic.

    The approximation for finite samples is that of Stephens (1970).
    """
    one, other = np.sort(one), np.sort(other)
    both = np.concatenate([one, other])
    shares = [np.searchsorted(each, both, side="right") / len(each) for each in (one, other)]
    apart = float(np.abs(shares[0] - shares[1]).max())
    size = math.sqrt(len(one) * len(other) / (len(one) + len(other)))
    scaled = (size + 0.12 + 0.11 / size) * apart
    if scaled < 0.2:  # the series converges too slowly, and its sum is 1 to twelve digits
        return 1.0
    terms = [(1.0 if number % 2 else -1.0) * math.exp(-2 * (number * scaled) ** 2) for number in range(1, 101)]
    return min(1.0, max(0.0, 2 * sum(terms)))


def least_shift(one: Sample, other: Sample, level: float) -> float:
    """Least shift of one sample upwards by which :func:`mann_whitney` would be below a level, to about 1 %."""
    low, high = 0.0, float(np.median(other)) / 1000
    while mann_whitney(one + high, other) >= level:
        low, high = high, 2 * high
    while high - low > 0.01 * high:
        middle = (low + high) / 2
        low, high = (middle, high) if mann_whitney(one + middle, other) >= level else (low, middle)
    return high
