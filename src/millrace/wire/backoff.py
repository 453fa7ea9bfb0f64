"""Backoff: seconds to wait before trying again."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator


def delays(first: float = 0.05, longest: float = 1.3, draw: Callable[[], float] = random.random) -> Iterator[float]:
    """Seconds to wait before each further attempt: doubling from ``first`` to ``longest``, jittered by half.

    Jitter keeps hundreds of workers from coming back to a restarted dispatcher at the same moment; by default they find
    it within two seconds. ``draw`` gives numbers from 0 to 1.
    """
    step = first
    while True:
        yield step * (0.5 + draw())
        step = min(2 * step, longest)
