"""Which job a free worker serves: the one with the fewest workers, then the one that has waited longest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.policies.decision import Decision


class JobNeed(msgspec.Struct, frozen=True):
    """A job as a free worker sees it.

    Attributes:
        job: its name.
        workers: how many others serve it.
        served: number of the turn at which it last got or lost a worker; lower means that it has waited longer.
        runnable: there is something for this worker to do now.
    """

    job: str
    workers: int
    served: int
    runnable: bool


def assign(needs: Sequence[JobNeed], current: str = "") -> Decision[str]:
    """The job for a worker that has nothing in hand; its ``current`` one, or "", if no other has use for it.

    No job with work waits for ever: each time a worker comes free, those served later stand behind it.
    """
    open_needs = [need for need in needs if need.runnable]
    if not open_needs:
        if current or not needs:
            reason = "no job has work" if not current else f"no other job has work; stays with {current}"
            return Decision(current, reason)
        idle = min(needs, key=lambda need: (need.workers, need.served, need.job))
        return Decision(idle.job, f"no job has work now; stands by for {idle.job}", {"jobs": len(needs)})
    best = min(open_needs, key=lambda need: (need.workers, need.served, need.job == current, need.job))
    rivals = [need for need in open_needs if need.workers == best.workers and need.job != best.job]
    others = "1 other worker" if best.workers == 1 else f"{best.workers or 'no'} other workers"
    if not rivals:
        reason = f"{best.job} has {others}, the fewest of {len(open_needs)} jobs with work"
    else:
        reason = f"{best.job} has {others} and has waited longer than {', '.join(sorted(n.job for n in rivals))}"
    if len(open_needs) == 1:
        reason = f"{best.job} is the only job with work"
    return Decision(best.job, reason, {"workers": {need.job: need.workers for need in open_needs}})
