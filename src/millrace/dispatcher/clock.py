"""Dispatcher's clock, which counts the seconds in which the dispatcher ran, over all of its lives."""

from __future__ import annotations

from collections.abc import Callable

HUNG_S = 2.5
"""Seconds without a look at the clock, which comes every second, from which the process or its host stood still."""


class Clock:
    """Clock that goes on where an earlier life left it, never back, and not while the process stands still.

    So nobody misses a deadline that could not be kept: what was said meanwhile is heard before time goes on.

    Args:
        source: returns the seconds of a clock that doesn't go back.
        at: seconds that it shows first.
    """

    def __init__(self, source: Callable[[], float], at: float = 0.0) -> None:
        self._source = source
        self._seen = source()
        self._now = at

    def now(self) -> float:
        """Return the time in seconds."""
        seen = self._source()
        passed, self._seen = seen - self._seen, seen
        if passed < HUNG_S:
            self._now += passed
        return self._now
