"""Cachew's rules for the number of workers (4.3), for comparison and for those who want them. Pure.

One more worker as long as that improves the batch time by more than 3 %; the one that did not is taken away. Then,
every ten looks: one more if the batch time rose, one less if the consumer's queue grew by more than 40 %, and again
one less as long as that costs less than 3 %.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from millrace.policies.autoscale import Limits, Look
from millrace.policies.decision import Decision

THRESHOLD = 0.03
QUEUE_GROWTH = 0.40
REVISIT_LOOKS = 10


class CachewScale(msgspec.Struct, frozen=True, tag="cachew"):
    """Where it has come to.

    Attributes:
        workers: that the job is to have.
        phase: "up": adding; "settled"; "down": taking away.
        before_s: batch time with the number before.
        settled_s: batch time, and
        queue: length of the consumer's queue, when it settled.
        looks: since then.
    """

    workers: int = 1
    phase: Literal["up", "settled", "down"] = "up"
    before_s: float | None = None
    settled_s: float = 0.0
    queue: float = 0.0
    looks: int = 0


def step(
    scale: CachewScale, look: Look, limits: Limits, queue: float = 0.0, threshold: float = THRESHOLD
) -> Decision[CachewScale]:
    """What follows from one more look.

    Args:
        scale: so far.
        look: at the job, with ``scale.workers``.
        limits: of the job.
        queue: elements that lay ready for the consumer, mean over the look.
        threshold: of the batch time's improvement.
    """
    inputs = {"batch_s": look.batch_s, "queue": queue}
    if look.workers != scale.workers:
        return Decision(scale, "the workers are not there yet", inputs)
    replace = msgspec.structs.replace
    if scale.phase == "up":
        worse = scale.before_s is not None and look.batch_s > (1 - threshold) * scale.before_s
        if worse or scale.workers >= limits.most:
            workers = max(limits.least, scale.workers - 1) if worse else scale.workers
            settled_s = scale.before_s if worse and scale.before_s is not None else look.batch_s
            return Decision(
                CachewScale(workers, "settled", settled_s=settled_s, queue=queue),
                f"the last worker brought less than {threshold:.0%}",
                inputs,
            )
        return Decision(replace(scale, workers=scale.workers + 1, before_s=look.batch_s), "one more", inputs)
    if scale.phase == "down":
        assert scale.before_s is not None
        if look.batch_s > (1 + threshold) * scale.before_s:
            back = min(limits.most, scale.workers + 1)
            settled = CachewScale(back, "settled", settled_s=scale.before_s, queue=queue)
            return Decision(settled, "the last worker was needed", inputs)
        if scale.workers > limits.least:
            return Decision(replace(scale, workers=scale.workers - 1, before_s=look.batch_s), "one less", inputs)
        return Decision(CachewScale(scale.workers, "settled", settled_s=look.batch_s, queue=queue), "the least", inputs)
    if scale.looks + 1 < REVISIT_LOOKS:
        return Decision(replace(scale, looks=scale.looks + 1), "settled", inputs)
    if look.batch_s > (1 + threshold) * scale.settled_s and scale.workers < limits.most:
        return Decision(CachewScale(scale.workers + 1, "up", before_s=look.batch_s), "the batch time rose", inputs)
    if queue > (1 + QUEUE_GROWTH) * scale.queue and scale.workers > limits.least:
        return Decision(CachewScale(scale.workers - 1, "down", before_s=look.batch_s), "the queue grew", inputs)
    return Decision(replace(scale, looks=0), "settled", inputs)
