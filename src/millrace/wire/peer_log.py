"""Log of what peers bring about: so many lines in a while, and the number of those that were left out."""

from __future__ import annotations

import logging
import threading
import time

LINES = 20
"""Lines that are written in :data:`PERIOD_S`."""
PERIOD_S = 60.0


class PeerLog:
    """Warnings about peers, who could otherwise fill a disk with them. Thread-safe.

    Args:
        logger: that they are written to.
    """

    def __init__(self, logger: logging.Logger) -> None:
        self._logger = logger
        self._lock = threading.Lock()
        self._since = float("-inf")
        self._lines = self._left_out = 0

    def warning(self, message: str, *args: object) -> None:
        """Write a line, or count it."""
        with self._lock:
            now = time.monotonic()
            if now >= self._since + PERIOD_S:
                self._since, self._lines = now, 0
            self._lines += 1
            if self._lines > LINES:
                self._left_out += 1
                return
            left_out, self._left_out = self._left_out, 0
        if left_out:
            self._logger.warning("%d lines about peers were left out", left_out)
        self._logger.warning(message, *args)
