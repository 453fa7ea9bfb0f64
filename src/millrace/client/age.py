"""Age of this process, by which the dispatcher tells whether it can have been part of a job's earlier run."""

from __future__ import annotations

import os
import time

_refused: dict[str, float] = {}
"""By job, when this process was last told that it cannot be part of the run that is over, in seconds since the boot."""


def process_age_s(job: str = "") -> float:
    """Seconds since this process was started, or forked, or was last refused by the job; -1.0 where nobody can tell."""
    try:
        with open("/proc/self/stat", "rb") as file:
            ticks = int(file.read().rpartition(b")")[2].split()[19])
        began = max(ticks / os.sysconf("SC_CLK_TCK"), _refused.get(job, 0.0))
        return time.clock_gettime(time.CLOCK_BOOTTIME) - began
    except (OSError, AttributeError, ValueError, IndexError):
        return -1.0


def refused(job: str) -> None:
    """Note that this process's run of the job is over: if it asks again, that is another run."""
    if hasattr(time, "CLOCK_BOOTTIME"):
        _refused[job] = time.clock_gettime(time.CLOCK_BOOTTIME)
