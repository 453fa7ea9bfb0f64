"""Lease demand: how many leases a worker should hold, from how long its tasks take."""

from __future__ import annotations

import math
from collections import deque

AHEAD_S = 2.0
"""Seconds of work that a worker wants to hold leases for."""
REST_S = 5.0
"""Seconds without work after which a worker gives memory back that it would need for more."""


class LeaseDemand:
    """Measures of a worker's runs. ``now`` is in seconds of the caller's clock.

    Args:
        now: when the worker began.
    """

    def __init__(self, now: float) -> None:
        self._times: deque[float] = deque(maxlen=20)
        self._active = 0
        self._since = now
        self._busy_s = 0.0
        self._rested = True
        self.want = 2
        """Leases to hold: about two seconds of work, from 2 to 16."""

    def enter(self, now: float) -> None:
        """Note that one more lane computes."""
        if self._active == 0:
            self._since = now
        self._active += 1
        self._rested = False

    def leave(self, now: float) -> None:
        """Note that a lane computes no more, as its run is over or its buffer is full."""
        self._active -= 1
        if self._active == 0:
            self._busy_s, self._since = self._busy_s + now - self._since, now

    def rests(self, now: float) -> bool:
        """Whether no lane has computed for :data:`REST_S` seconds; said once, until one computes again."""
        if self._rested or self._active or now - self._since < REST_S:
            return False
        self._rested = True
        return True

    def took(self, seconds: float) -> None:
        """Learn that a task was computed in so many seconds, without waiting for a reader."""
        self._times.append(seconds)
        mean = sum(self._times) / len(self._times)
        self.want = max(2, min(16, math.ceil(AHEAD_S / max(mean, 1e-6))))

    def busy_s(self, now: float) -> float:
        """Count the seconds in which at least one lane computed."""
        return self._busy_s + (now - self._since if self._active else 0.0)

    @property
    def active(self) -> int:
        """Number of lanes that compute."""
        return self._active
