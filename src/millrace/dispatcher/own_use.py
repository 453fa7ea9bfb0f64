"""Use of processor and memory by the dispatcher's own process, for the bill."""

from __future__ import annotations

import time

from millrace.control.state.observed import Spent
from millrace.engine.run.host_limits import resident_bytes


def own_use(alive_s: float) -> Spent:
    """Measure what this process has used so far, as one worker's; its memory counts as it is now.

    Args:
        alive_s: seconds since it began.
    """
    return Spent(worker_s=alive_s, core_s=time.process_time(), gib_s=resident_bytes() / (1 << 30) * alive_s)
