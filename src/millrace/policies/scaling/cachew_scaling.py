"""Cachew's rules for the number of workers (4.3), for comparison and for those who want them. Pure.

One more worker as long as that improves the batch time by more than 3 %; the one that did not is taken away. Then,
every ten looks: one more if the batch time rose, one less if the consumer's queue grew by more than 40 %, and again
one less as long as that costs less than 3 %.

The code that its authors released (https://github.com/eth-easl/cachew, scaling_utils.cc) goes by other numbers: 7 % for
one more, and growth of either by half, which it looks for after twenty looks, of the queue first. It compares with the
batch time and the queue that there were without the superfluous worker, and a batch time that is 2.2 times the one
before counts for nothing. With one worker left it goes back to two.

Cachew takes for granted that a worker that was asked for comes. Here one that has not come after half a minute counts
as one that cannot be had: the number that is there is settled for, and one more is tried after ten looks.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.scaling.autoscale import LOOK_ELEMENTS, Limits, Look, bound


class Rules(NamedTuple):
    """Numbers that the rules go by.

    Attributes:
        up: part of the batch time that one more worker has to save.
        down: part of the batch time that one less may cost.
        rise: growth of the batch time after which one more is tried.
        queue_growth: growth of the queue after which one less is tried.
        looks: between two questions whether either has grown.
        released: all else is as in the released code, too.
    """

    up: float
    down: float
    rise: float
    queue_growth: float
    looks: int
    released: bool = False


PUBLISHED = Rules(up=0.03, down=0.03, rise=0.03, queue_growth=0.40, looks=10)
RELEASED = Rules(up=0.07, down=0.03, rise=0.50, queue_growth=0.50, looks=21, released=True)
_UNSTABLE = 2.2
"""Batch time, of the one before, from which on the released code takes a look for none."""
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
        before_queue: length of the consumer's queue with the number before.
        released: by the rules of the released code.
    """

    workers: int = 1
    phase: Literal["up", "settled", "down"] = "up"
    before_s: float | None = None
    settled_s: float = 0.0
    queue: float = 0.0
    looks: int = 0
    limited: bool = False
    short_s: float = 0.0
    before_queue: float = 0.0
    released: bool = False


def step(
    scale: CachewScale, look: Look, limits: Limits, queue: float = 0.0, rules: Rules | None = None
) -> Decision[CachewScale]:
    """Advance the search by one look.

    Args:
        scale: so far.
        look: at the job; one with more workers than ``scale.workers`` says nothing.
        limits: of the job.
        queue: elements that lay ready for the consumer, mean over the look.
        rules: other ones than those of ``scale``.
    """
    rules = rules or (RELEASED if scale.released else PUBLISHED)
    decision = _there(scale, look, limits, queue, rules)
    if decision is None:
        scale = msgspec.structs.replace(scale, short_s=0.0)
        match scale.phase:
            case "up":
                decision = _up(scale, look, limits, queue, rules)
            case "down":
                decision = _down(scale, look, limits, queue, rules)
            case "settled":
                decision = _revisit(scale, look, limits, queue, rules)
    return Decision(decision.value, decision.reason, {"batch_s": look.batch_s, "queue": queue})


def _settle(scale: CachewScale, workers: int, batch_s: float, queue: float, *, limited: bool = False) -> CachewScale:
    """End the search with so many workers."""
    return CachewScale(workers, "settled", settled_s=batch_s, queue=queue, limited=limited, released=scale.released)


def _there(scale: CachewScale, look: Look, limits: Limits, queue: float, rules: Rules) -> Decision[CachewScale] | None:
    """Handle a look at another number of workers than it is to have; None: as many are there."""
    if not limits.least <= scale.workers <= limits.most:
        workers = limits.clip(scale.workers)
        bounded = _settle(scale, workers, look.batch_s, queue, limited=workers < scale.workers)
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
        f"{rules.looks} looks, and then one more is tried"
    )
    return Decision(_settle(scale, there, look.batch_s, queue, limited=True), reason)


def _goes_on(scale: CachewScale, phase: Literal["up", "down"], look: Look, queue: float) -> CachewScale:
    """Try one worker more, or one less."""
    workers = scale.workers + (1 if phase == "up" else -1)
    return CachewScale(workers, phase, before_s=look.batch_s, before_queue=queue, released=scale.released)


def _up(scale: CachewScale, look: Look, limits: Limits, queue: float, rules: Rules) -> Decision[CachewScale]:
    before_s = scale.before_s
    if before_s is not None and rules.released and look.batch_s > _UNSTABLE * before_s:
        return Decision(scale, "the batch time was unstable")
    if before_s is not None and look.batch_s > (1 - rules.up) * before_s:
        workers = max(limits.least, scale.workers - 1)
        ready = scale.before_queue if rules.released else queue
        return Decision(_settle(scale, workers, before_s, ready), f"the last worker brought less than {rules.up:.0%}")
    if scale.workers < limits.most:
        return Decision(_goes_on(scale, "up", look, queue), "one more")
    settled = _settle(scale, scale.workers, look.batch_s, queue, limited=True)
    return Decision(settled, f"all{bound(limits, scale.workers)}")


def _down(scale: CachewScale, look: Look, limits: Limits, queue: float, rules: Rules) -> Decision[CachewScale]:
    assert scale.before_s is not None
    if rules.released and look.batch_s > _UNSTABLE * scale.before_s:
        return Decision(scale, "the batch time was unstable")
    needed = look.batch_s > (1 + rules.down) * scale.before_s
    if not needed and scale.workers > limits.least:
        return Decision(_goes_on(scale, "down", look, queue), "one less")
    if not needed and not rules.released:
        return Decision(_settle(scale, scale.workers, look.batch_s, queue), "the least")
    ready = scale.before_queue if rules.released else queue
    settled = _settle(scale, min(limits.most, scale.workers + 1), scale.before_s, ready)
    return Decision(settled, "the last worker was needed" if needed else "the one before the least")


def _revisit(scale: CachewScale, look: Look, limits: Limits, queue: float, rules: Rules) -> Decision[CachewScale]:
    if scale.looks + 1 < rules.looks:
        return Decision(msgspec.structs.replace(scale, looks=scale.looks + 1), "settled")
    known = scale.queue > 0 or not rules.released
    rose = known and look.batch_s > (1 + rules.rise) * scale.settled_s
    grew = known and queue > (1 + rules.queue_growth) * scale.queue and scale.workers > limits.least
    if (rose or scale.limited) and scale.workers < limits.most and not (rules.released and grew):
        reason = "the batch time rose" if rose else "perhaps there is one more"
        return Decision(_goes_on(scale, "up", look, queue), reason)
    if grew:
        return Decision(_goes_on(scale, "down", look, queue), "the queue grew")
    return Decision(msgspec.structs.replace(scale, looks=0), "settled")
