"""Fair share: how workers are divided among the jobs of a service.

:func:`share` says how many each job is to have: max-min fair by need (Bertsekas and Gallager, Data Networks, 6.5.2),
weighted by priority, within what the job's tenant may have. A share can have a fraction, and half a worker is one for
half of the time: so :func:`ahead` keeps account of what a job had beyond its share, and :func:`gives` says when a
worker of one job is to go to another.

A priority is a weight, as in the fair sharing of YARN and Slurm, and not an order in which jobs preempt each other, as
Kubernetes' PriorityClass is. A job that gets no data holds its accelerators all the same, so to let it starve saves
nothing; and no order of priorities could promise that no job starves.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import number

MIN_PRIORITY, MAX_PRIORITY = 0.01, 100.0
"""Bounds of priorities: further apart, the lower one would get next to nothing."""
PATIENCE_S = 10.0
"""Worker-seconds that a job may be ahead of one that has a worker, too, before it gives one up."""
MEMORY_S = 600.0
"""Seconds in which what a job had beyond its share, or less, fades by a factor of e."""


class Need(msgspec.Struct, frozen=True):
    """Need of a job for workers.

    Attributes:
        job: its name.
        tenant: whose quota it counts against.
        priority: its weight, above 0.
        wanted: workers that keep it fed; None: it is not known, and any number would be of use.
    """

    job: str
    tenant: str = "default"
    priority: float = 1.0
    wanted: int | None = None


class Standing(msgspec.Struct):
    """Workers and account of a job.

    Attributes:
        workers: number that serve it.
        share: number that it is to have.
        ahead: worker-seconds that it had beyond its share; below 0: that it is behind.
    """

    workers: int
    share: float
    ahead: float = 0.0

    @property
    def short(self) -> bool:
        """Whether it has fewer than the whole workers of its share."""
        return self.workers < math.floor(self.share)


def share(needs: Sequence[Need], workers: int, quotas: Mapping[str, int]) -> dict[str, Decision[float]]:
    """Divide the workers: by job, how many it is to have.

    No job gets more than it wants, nor the jobs of a tenant more than its quota. Beyond that nobody could get more
    without taking it from a job that has no more for its priority.

    Args:
        needs: of all jobs that have use for workers, each name once.
        workers: number that there are.
        quotas: by tenant, how many its jobs may have together; of others: all.
    """
    most = {need.job: float(workers if need.wanted is None else min(need.wanted, workers)) for need in needs}
    for tenant, quota in quotas.items():
        _limit(most, [need for need in needs if need.tenant == tenant], quota)
    allowed = dict(most)
    _limit(most, needs, workers)
    return {
        need.job: Decision(
            round(most[need.job], 6),
            _reason(need, most[need.job], allowed[need.job], len(needs), workers, quotas.get(need.tenant)),
            {"workers": workers, "jobs": len(needs), "priority": need.priority, "wanted": need.wanted},
        )
        for need in needs
    }


def _limit(most: dict[str, float], needs: Sequence[Need], amount: float) -> None:
    """Lower what some jobs may have until it is ``amount`` together, with one level for each unit of priority."""
    weight = sum(need.priority for need in needs)
    for need in sorted(needs, key=lambda need: most[need.job] / need.priority):
        # Whoever needs less than the level leaves the rest to the others.
        most[need.job] = min(most[need.job], amount * min(1.0, need.priority / weight))
        amount -= most[need.job]
        weight -= need.priority


def _reason(need: Need, value: float, allowed: float, jobs: int, workers: int, quota: int | None) -> str:
    there = "1 worker" if workers == 1 else f"{workers} workers"
    if need.wanted is not None and value >= need.wanted:
        return f"{need.job} is to have the {need.wanted} that it wants of {there}"
    if quota is not None and value >= allowed and quota < workers:
        return f"{need.job} is to have {number(value)} of {there}: tenant {need.tenant} may have {quota}"
    if jobs == 1:
        return f"{need.job} is the only job with work and is to have all of {there}"
    weight = "" if need.priority == 1 else f", its priority being {number(need.priority)}"
    return f"{need.job} is to have {number(value)} of {there} for {jobs} jobs{weight}"


def ahead(before: float, beyond: float, seconds: float) -> float:
    """Worker-seconds that a job had beyond its share, of late.

    Args:
        before: the same ``seconds`` ago.
        beyond: workers that it had since then, less its share. Beyond one they are on their way to another job, as when
            that has just come, and it isn't to pay for it by standing still.
        seconds: since then.
    """
    keep = math.exp(-seconds / MEMORY_S)
    return before * keep + _counted(beyond) * MEMORY_S * (1.0 - keep)


def _counted(beyond: float) -> float:
    return min(1.0, max(-1.0, beyond))


def gives(giver: Standing, taker: Standing) -> bool:
    """Whether a worker of the one job is to go to the other.

    It is one that the first has beyond its share; and the other lacks a whole one, or has had no more of its share so
    far, and less by :data:`PATIENCE_S` unless it stands still without one.
    """
    if giver.workers <= giver.share:
        return False
    return taker.short or giver.ahead - taker.ahead >= (PATIENCE_S if taker.workers else 0.0)


class Accounts:
    """Accounts of jobs from a moment on, for as long as none of them gets or loses a worker."""

    def __init__(self, standings: Mapping[str, Standing]) -> None:
        has = standings.values()
        accounts = [(each.ahead, _counted(each.workers - each.share) * MEMORY_S) for each in has]
        patience = [-math.inf if each.short else PATIENCE_S if each.workers else 0.0 for each in has]
        self._all = list(zip(standings, accounts, patience, strict=True))
        self._givers = [account for account, each in zip(accounts, has, strict=True) if each.workers > each.share]
        self._last: tuple[float, list[str]] = (-1.0, [])

    def takers(self, seconds: float) -> list[str]:
        """Find the jobs that the giver furthest ahead gives a worker to: whoever gets none of it gets none at all.

        The rule is that of :func:`ahead` and :func:`gives` for one job and another, but in one go.
        """
        if not self._givers:
            return []
        if seconds == self._last[0]:  # nothing but time changes it, and one moment is looked at several times
            return self._last[1]
        keep = math.exp(-seconds / MEMORY_S)
        first = max([before * keep + gain * (1.0 - keep) for before, gain in self._givers])
        found = [
            name
            for name, (before, gain), patience in self._all
            if first - (before * keep + gain * (1.0 - keep)) >= patience
        ]
        self._last = (seconds, found)
        return found
