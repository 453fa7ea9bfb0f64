"""Which faults, and when: by budget, at random from a seed."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Mapping

LAST = 0.92
"""Faults begin while at most this part of all elements has been read, so that there is something left to disturb."""


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault to come.

    Attributes:
        number: in the order of the schedule.
        kind: what is done.
        at: part of all elements that was read when it begins.
        seed: of what it draws itself: whom it strikes, and for how long.
    """

    number: int
    kind: str
    at: float
    seed: str


def apportion(count: int, weights: Mapping[str, float]) -> dict[str, int]:
    """``count`` dealt out by weight: quotas rounded down, and what is left to the largest remainders."""
    total = sum(weights.values())
    quotas = {kind: count * weight / total for kind, weight in weights.items()}
    budget = {kind: int(quota) for kind, quota in quotas.items()}
    by_remainder = sorted(quotas, key=lambda kind: budget[kind] - quotas[kind])
    for kind in by_remainder[: count - sum(budget.values())]:
        budget[kind] += 1
    return budget


def draw(seed: int, count: int, weights: Mapping[str, float]) -> list[Fault]:
    """``count`` faults, in the order in which they begin."""
    rng = random.Random(seed)
    kinds = [kind for kind, budget in apportion(count, weights).items() for _ in range(budget)]
    rng.shuffle(kinds)
    times = sorted(rng.uniform(0.0, LAST) for _ in kinds)
    return [Fault(n, kind, at, f"{seed} {n}") for n, (kind, at) in enumerate(zip(kinds, times, strict=True))]
