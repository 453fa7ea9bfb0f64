"""Dispatcher's clock, which counts the seconds in which the dispatcher ran, over all of its lives."""

from __future__ import annotations

from collections.abc import Callable

HUNG_S, HUNG_HEARTBEATS = 2.5, 1.5
"""Seconds, and heartbeats, without a look at the clock, which comes every second, or every quarter of a heartbeat: from
the fewer of them on the process or its host stood still. Who is silent for two and a half heartbeats is given up, and
the last word may be one of them old."""


class Clock:
    """Clock that goes on where an earlier life left it, never back, and not while the process stands still.

    So nobody misses a deadline that could not be kept: what was said meanwhile is heard before time goes on.

    Args:
        source: returns the seconds of a clock that doesn't go back.
        at: seconds that it shows first.
        heartbeat_s: of the dispatcher's peers.
    """

    def __init__(self, source: Callable[[], float], at: float = 0.0, heartbeat_s: float = 5.0) -> None:
        self._source = source
        self._seen = source()
        self._now = at
        self._hung_s = min(HUNG_S, HUNG_HEARTBEATS * heartbeat_s)

    def now(self) -> float:
        """Return the time in seconds."""
        seen = self._source()
        passed, self._seen = seen - self._seen, seen
        if passed < self._hung_s:
            self._now += passed
        return self._now
