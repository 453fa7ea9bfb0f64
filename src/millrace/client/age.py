"""For how long this process has been running."""

from __future__ import annotations

import os
import time


def process_age_s() -> float:
    """Seconds since this process was started, or forked; -1.0 where nobody can tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError, IndexError):
        return -1.0
