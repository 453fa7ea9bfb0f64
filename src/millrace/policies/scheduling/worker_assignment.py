"""Worker assignment: a free worker serves a job that lacks a whole worker of its share, else the furthest behind."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import msgspec

from millrace.policies.decision import Decision, listed
from millrace.policies.figures import number
from millrace.policies.scheduling.fair_share import Standing


class JobNeed(msgspec.Struct, frozen=True):
    """Job as a free worker sees it.

    Attributes:
        job: its name.
        standing: the others that serve it, its share, and its account.
        served: number of the turn at which it last got or lost a worker; lower means that it has waited longer.
    """

    job: str
    standing: Standing
    served: int


def assign(needs: Sequence[JobNeed], runnable: Callable[[str], bool], current: str = "") -> Decision[str]:
    """Choose the job for a worker that has nothing in hand.

    No job with work waits for ever: as others are served they get ahead of it, or, if they are alike in that, stand
    behind it.

    Args:
        needs: of all jobs that may have the worker.
        runnable: whether a job has something for this worker to do now; asked of as few as need be.
        current: the job that it serves, with which it stays if no other has work; "" for none.
    """
    ordered = sorted(needs, key=lambda need: (_rank(need), need.served, need.job == current, need.job))
    best = next((need for need in ordered if runnable(need.job)), None)
    if best is None and current:
        return Decision(current, f"no other job has work; stays with {current}")
    if best is None:
        if not needs:
            return Decision("", "no job may have another worker")
        idle = min(needs, key=lambda need: (need.standing.workers, need.served, need.job))
        return Decision(idle.job, f"no job has work now; stands by for {idle.job}", {"jobs": len(needs)})
    has = best.standing
    rivals = [need for need in needs if need is not best and need.standing.share > 0]
    reason = f"{best.job} has {has.workers} other of the {number(has.share)} workers that are its share"
    if not rivals:
        reason = f"{best.job} is the only job with work"
    elif not has.short:
        alike = [need.job for need in rivals if _rank(need)[:2] == _rank(best)[:2]]
        reason += f", and had less of that than {listed(sorted(alike))}" if alike else ""
    return Decision(best.job, reason, {"workers": has.workers, "share": has.share, "ahead_s": has.ahead})


def _rank(need: JobNeed) -> tuple[bool, bool, float]:
    has = need.standing
    return not has.short, has.workers >= has.share, has.ahead
