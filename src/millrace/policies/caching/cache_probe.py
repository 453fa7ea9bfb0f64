"""Probes of the source cache: when a job reads past it to measure what it gains, and what that says (Quiver 5.3). Pure.

A job that asks to keep what it has read is probed at once, and from time to time again, as others that come and go
make the link slower or faster to it. For a probe the cache servers answer none of its look-ups for
:data:`PROBE_BATCHES` batches. One job of a data set is probed at a time: the others go on as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from millrace.policies.caching.cache_budget import Room
from millrace.policies.decision import Decision
from millrace.policies.figures import duration, percent

ALL, NOTHING = 0.95, 0.05
"""Shares of a job's bytes from the cache from which, and up to which, its time is one with hits, or without."""
PROBE_BATCHES = 100
"""Batches with the cache off (Quiver 5.3)."""
PROBE_LIMIT_S = 300.0
"""Seconds after which a probe is given up that has not measured enough: its job hardly reads."""
PROBE_COST = 0.02
"""Largest share of a job's time that probes may cost it."""
PROBE_INTERVAL_S = 600.0
"""Least seconds from the end of a probe to the next one of the job."""


class ProbeCandidate(msgspec.Struct, frozen=True):
    """Job that may be probed.

    Attributes:
        name: unique among the jobs of the data set.
        inserts: whether it has asked a cache server to keep something.
        probed_s: when its last probe ended, on the clock of ``now``; None: it was never probed.
        miss_s: seconds of a batch in that probe.
        hit_s: seconds of a batch with the cache.
        least_s: seconds from the end of a probe to the next one, at least.
    """

    name: str
    inserts: bool = False
    probed_s: float | None = None
    miss_s: float | None = None
    hit_s: float | None = None
    least_s: float = PROBE_INTERVAL_S

    @property
    def interval_s(self) -> float:
        """Seconds between probes: as many as make what a probe costs :data:`PROBE_COST` of the job's time."""
        if self.miss_s is None or self.hit_s is None:
            return self.least_s
        return max(self.least_s, PROBE_BATCHES * (self.miss_s - self.hit_s) / PROBE_COST)


def next_probe(
    jobs: Iterable[ProbeCandidate], room: Room, now: float, probing: str | None = None
) -> Decision[str | None]:
    """Choose the job of a data set that is probed next, if any: one that never was, then who waits longest.

    Args:
        jobs: all that read the data set.
        room: of the data set: who has none reads past the cache anyway, so that each look at its batch time says what
            a probe would.
        now: in seconds.
        probing: the job of this data set that is being probed.
    """
    if probing is not None:
        reason = f"{probing} is being probed, and one job of a data set is at a time"
        return Decision(None, reason, {"probing": probing})
    asking = sorted((job for job in jobs if job.inserts), key=lambda job: job.name)
    new = [job for job in asking if job.probed_s is None]
    if new:
        reason = f"{new[0].name} has asked to keep what it read, and was never probed"
        return Decision(new[0].name, reason, {"waiting": len(new)})
    if not asking:
        return Decision(None, "none of its jobs has asked to keep what it read")
    if room == "none":
        return Decision(None, "nothing of it is kept, so that its jobs are measured without the cache all the time")
    overdue = [(now - (job.probed_s or 0.0) - job.interval_s, job) for job in asking]
    late_s, longest = max(overdue, key=lambda each: each[0])
    inputs = {"interval_s": longest.interval_s, "overdue_s": late_s}
    since = f"{longest.name} was probed {duration(now - (longest.probed_s or 0.0))} ago"
    if late_s < 0:
        often = f"every {duration(longest.interval_s)}"
        return Decision(None, f"{since}, and is {often}, for {percent(PROBE_COST)} of its time at most", inputs)
    return Decision(longest.name, f"{since}, and the load of the link may have changed", inputs)


def measured_by(share: float, *, past: bool, in_chunks: bool) -> Literal["miss", "hit", "two chunks", "neither"]:
    """Tell which time of a batch was measured while a job read.

    Args:
        share: of its bytes that came from the cache.
        past: whether it was probed.
        in_chunks: whether its data have two chunks and are read in them. Then who fetches all that it reads is not one
            without the cache: others have it from there.
    """
    if in_chunks and not past:
        return "two chunks"
    if share <= NOTHING:
        return "miss"
    return "hit" if share >= ALL else "neither"


def probe_over(batches: int, needed: int = PROBE_BATCHES) -> Decision[bool]:
    """Decide whether a probe has measured enough.

    Args:
        batches: that the job had with the cache off, without those that had begun before.
        needed: that are to be measured.
    """
    if batches < needed:
        return Decision(False, f"{batches} of {needed} batches are measured", {"batches": batches})
    return Decision(True, f"{batches} batches were measured with the cache off", {"batches": batches})


def believed_miss(measured_s: float, missing: int, sharers: int, before_s: float | None = None) -> float:
    """Estimate the time of a batch if no job of the data set is served by the cache, from fewer that were not.

    A job that is probed alone has a link to itself that all sharers would have to share. Its share with them is at
    least that part of what it had alone, if the link is shared fairly, and at most all of it. Between these limits
    what was believed before is still believed: a probe that contradicts nothing changes nothing. Without this a data
    set whose jobs are fed by the link one at a time, but not together, would lose its room by each probe, and get it
    back when its jobs are slow without.

    Args:
        measured_s: seconds of a batch in the probe.
        missing: jobs of the data set that were not served by the cache meanwhile, this one included.
        sharers: jobs that would not be, this one included.
        before_s: the estimate up to now; None: there is none.

    Raises:
        ValueError: there are fewer than one of either.
    """
    if min(missing, sharers) < 1:
        raise ValueError(f"{missing} of {sharers} jobs missed: at least the one that was measured does")
    slowest_s = measured_s * max(1.0, sharers / missing)
    return min(max(measured_s if before_s is None else before_s, measured_s), slowest_s)
