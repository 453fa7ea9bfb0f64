"""How sure a mean of a few values is: Student's t, without a library for it."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

CONFIDENCE = 0.95


def within(t: float, degrees: int) -> float:
    """Probability that Student's t with so many degrees of freedom lies between ``-t`` and ``t``.

    The finite series of Abramowitz and Stegun, 26.7.3 and 26.7.4.
    """
    angle = math.atan(t / math.sqrt(degrees))
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = degrees % 2
    term = cosine if odd else 1.0
    total = 0.0
    for power in range(odd, degrees - 1, 2):
        total += term
        term *= cosine * cosine * (power + 1) / (power + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total


def quantile(probability: float, degrees: int) -> float:
    """The t with which :func:`within` is ``probability``, which is between 0 and 1 (exclusive)."""
    low, high = 0.0, 1.0
    while within(high, degrees) < probability:
        high *= 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if within(middle, degrees) < probability else (low, middle)
    return high


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean of at least two values, and how far its 95 % confidence interval reaches to both sides."""
    return statistics.fmean(values), quantile(CONFIDENCE, len(values) - 1) * _error(values)


def chance(differences: Sequence[float]) -> float:
    """Two-sided p-value of the paired t test: how likely such a mean is if the true difference is 0."""
    mean, error = statistics.fmean(differences), _error(differences)
    if mean == 0:
        return 1.0
    return 1 - within(abs(mean) / error if error else math.inf, len(differences) - 1)


def _error(values: Sequence[float]) -> float:
    """Standard error of the mean."""
    return statistics.stdev(values) / math.sqrt(len(values))
