"""Outcome of a schedule that was played."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field


@dataclass
class ScheduleOutcome:
    """How one schedule went.

    Attributes:
        seed: which one.
        events: that became durable; ``inputs`` that were decided about; ``elements`` that users got.
        faults: that fired, by kind.
        items: that were read by way of cache servers, by how they came, and what else was counted of them.
        seconds: of virtual time.
        violation: what was wrong, empty if nothing was; with ``trace``, the last things that happened.
    """

    seed: int
    events: int = 0
    elements: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    items: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    violation: str = ""
    trace: list[str] = field(default_factory=list)
