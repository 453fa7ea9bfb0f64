"""Cachew's rules for the number of workers (4.3), for comparison and for those who want them. Pure.

One more worker as long as that improves the batch time by more than 3 %; the one that did not is taken away. Then,
every ten looks: one more if the batch time rose, one less if the consumer's queue grew by more than 40 %, and again
one less as long as that costs less than 3 %.

Cachew takes for granted that a worker that was asked for comes. Here one that has not come after half a minute counts
as one that cannot be had: the number that is there is settled for, and one more is tried after ten looks.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.scaling.autoscale import LOOK_ELEMENTS, Limits, Look, bound

THRESHOLD = 0.03
QUEUE_GROWTH = 0.40
REVISIT_LOOKS = 10
SHORT_S = 30.0
"""Seconds of looks in a row with fewer workers than were asked for, after which those are all: starting one takes a
while, and a look at a fast training takes less."""


class CachewScale(msgspec.Struct, frozen=True, tag="cachew"):
    """State of the search.

    Attributes:
        workers: number that the job is to have.
        phase: "up": adding; "settled"; "down": taking away.
        before_s: batch time with the number before.
        settled_s: batch time when it settled.
        queue: length of the consumer's queue when it settled.
        looks: since then.
        limited: it settled as no more could be had, and not as they brought nothing.
        short_s: seconds of looks in a row with fewer workers.
    """

    workers: int = 1
    phase: Literal["up", "settled", "down"] = "up"
    before_s: float | None = None
    settled_s: float = 0.0
    queue: float = 0.0
    looks: int = 0
    limited: bool = False
    short_s: float = 0.0


def step(
    scale: CachewScale, look: Look, limits: Limits, queue: float = 0.0, threshold: float = THRESHOLD
) -> Decision[CachewScale]:
    """Advance the search by one look.

    Args:
        scale: so far.
        look: at the job; one with more workers than ``scale.workers`` says nothing.
        limits: of the job.
        queue: elements that lay ready for the consumer, mean over the look.
        threshold: of the batch time's improvement.
    """
    decision = _there(scale, look, limits, queue)
    if decision is None:
        scale = msgspec.structs.replace(scale, short_s=0.0)
        match scale.phase:
            case "up":
                decision = _up(scale, look, limits, queue, threshold)
            case "down":
                decision = _down(scale, look, limits, queue, threshold)
            case "settled":
                decision = _revisit(scale, look, limits, queue, threshold)
    return Decision(decision.value, decision.reason, {"batch_s": look.batch_s, "queue": queue})


def _there(scale: CachewScale, look: Look, limits: Limits, queue: float) -> Decision[CachewScale] | None:
    """Handle a look at another number of workers than it is to have; None: as many are there."""
    if not limits.least <= scale.workers <= limits.most:
        workers = limits.clip(scale.workers)
        limited = workers < scale.workers
        bounded = CachewScale(workers, "settled", settled_s=look.batch_s, queue=queue, limited=limited)
        return Decision(bounded, f"{workers}{bound(limits, workers)}")
    if look.workers > scale.workers:
        return Decision(scale, "waits until the others have left")
    if scale.workers in {look.workers, limits.least}:
        return None
    short_s = scale.short_s + LOOK_ELEMENTS * look.batch_s
    if short_s < SHORT_S:
        return Decision(msgspec.structs.replace(scale, short_s=short_s), "the workers are not there yet")
    there = max(limits.least, look.workers)
    reason = (
        f"{look.workers} of {scale.workers} workers were there for {SHORT_S:.0f} s: that is the limit for "
        f"{REVISIT_LOOKS} looks, and then one more is tried"
    )
    return Decision(CachewScale(there, "settled", settled_s=look.batch_s, queue=queue, limited=True), reason)


def _up(scale: CachewScale, look: Look, limits: Limits, queue: float, threshold: float) -> Decision[CachewScale]:
    worse = scale.before_s is not None and look.batch_s > (1 - threshold) * scale.before_s
    if not worse and scale.workers < limits.most:
        more = msgspec.structs.replace(scale, workers=scale.workers + 1, before_s=look.batch_s)
        return Decision(more, "one more")
    workers = max(limits.least, scale.workers - 1) if worse else scale.workers
    settled_s = scale.before_s if worse and scale.before_s is not None else look.batch_s
    reason = f"the last worker brought less than {threshold:.0%}" if worse else f"all{bound(limits, workers)}"
    return Decision(CachewScale(workers, "settled", settled_s=settled_s, queue=queue, limited=not worse), reason)


def _down(scale: CachewScale, look: Look, limits: Limits, queue: float, threshold: float) -> Decision[CachewScale]:
    assert scale.before_s is not None
    if look.batch_s > (1 + threshold) * scale.before_s:
        back = min(limits.most, scale.workers + 1)
        settled = CachewScale(back, "settled", settled_s=scale.before_s, queue=queue)
        return Decision(settled, "the last worker was needed")
    if scale.workers > limits.least:
        fewer = msgspec.structs.replace(scale, workers=scale.workers - 1, before_s=look.batch_s)
        return Decision(fewer, "one less")
    return Decision(CachewScale(scale.workers, "settled", settled_s=look.batch_s, queue=queue), "the least")


def _revisit(scale: CachewScale, look: Look, limits: Limits, queue: float, threshold: float) -> Decision[CachewScale]:
    if scale.looks + 1 < REVISIT_LOOKS:
        return Decision(msgspec.structs.replace(scale, looks=scale.looks + 1), "settled")
    rose = look.batch_s > (1 + threshold) * scale.settled_s
    if (rose or scale.limited) and scale.workers < limits.most:
        reason = "the batch time rose" if rose else "perhaps there is one more"
        return Decision(CachewScale(scale.workers + 1, "up", before_s=look.batch_s), reason)
    if queue > (1 + QUEUE_GROWTH) * scale.queue and scale.workers > limits.least:
        return Decision(CachewScale(scale.workers - 1, "down", before_s=look.batch_s), "the queue grew")
    return Decision(msgspec.structs.replace(scale, looks=0), "settled")
