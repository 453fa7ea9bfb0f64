"""Autoscaling: the fewest workers with which a job's consumer does not wait longer than it has to. Pure.

A state machine; each step takes one look at the job, over 100 elements or more, all with the same number of workers::

                    looks at W workers                    low < W: too few, measured
        begin ---> SEARCH ------------------> SEARCH      high >= W: enough, measured
                      ^      next W in          |
                      |      (low, high)        | high - low <= max(1, 3 %)
                      |                         v
                      +------------------- SETTLED at high
                        two looks that differ: the consumer waits anew, or workers idle

Where the next W comes from:

* The consumer waits: it takes an element per ``batch_s - wait_s`` when nothing holds it up, and W workers give one per
  ``batch_s``, so ``W * batch_s / (batch_s - wait_s)`` of them are enough, if twice as many give twice as much. That is
  the jump; by no more than eight times, as a store that is shared may not give more to more workers.
* It waits, and more workers than before gave hardly more than before (less than half of what perfect scaling would
  have), or workers find nothing to do (too few splits): more are of no use. Enough are as many as give what can be had.
* It does not wait: workers that compute a share ``busy`` of the time could be ``W * busy``.

A cluster may not have started all of W, or other jobs may have them. Fewer that turn out to be enough are enough; that
fewer are too few says nothing new, and W stays as it is. What can't be had for long is a matter of limits. A job that
has settled for the most that it may have goes on as soon as it may have more. One that waits though more brought
nothing tries more now and then, and fewer in turns with that, ever more rarely.

What differs from Cachew (4.3): it jumps to the estimate instead of adding one by one; a gain is compared with what
perfect scaling would bring, where Cachew asks for 3 % a worker and so never goes beyond 33, as even a perfect 34th
gains less (1 / (W + 1)); and what counts as a difference is measured (two standard errors), not set.
"""

from __future__ import annotations

import math
from typing import Literal

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import counted, duration, rounded

LOOK_ELEMENTS = 100
"""Elements of a look (Cachew 4.3)."""
PAUSE_ELEMENTS = 150
"""Elements after a change of workers that say nothing yet (Cachew 4.3)."""
CLEAR = 0.5
"""Share of waiting above which a consumer clearly needs many more workers."""
QUICK = 0.2
"""Share of both numbers of elements that is enough then."""
QUICK_S = 5.0
"""Seconds after which fewer are enough then: batches of a second each would take a minute to tell what is clear."""
LOOK_S = 2.0
"""Seconds that a look lasts at least: a hundred elements may come in one burst of a host that has a part of a core."""
LOADING_S = 15.0
"""Seconds for which a worker that has given nothing yet may be loading what functions need, on a host with a part of a
core; after that it finds nothing to do."""
QUICK_LEAST = 4
"""Elements that there are to be even then."""
MARGIN = 0.03
"""Relative difference below which there is none, however small the noise (Cachew 4.3)."""
WITHIN = 0.03
"""Relative difference of two numbers of workers between which no other is looked for."""
JUMP = 8
"""Largest factor by which workers are added at once."""
VAGUE = 0.25
"""Share of waiting above which a consumer does wait, however large the noise: elements may come in bursts."""
DRIFT = 0.10
"""Relative change of a settled job's batch time from which something has changed."""
LOOKS = 2
"""Number of looks in a row that have to differ."""
SCALES = 0.5
"""Least share of the gain of perfect scaling where more workers are of use."""

TRIM_LOOKS = 10
"""Looks of a settled job after which their mean is looked at."""

PROBE_MEANS = 3
"""Unchanged means after which another number is tried where more workers brought nothing: the workers' busy time does
not tell that they are too many, nor that the store or the consumer, which limits the job, could take more by now."""
PROBE_GAIN = 1.5
"""Factor by which workers are added then."""
PROBE_DOUBLINGS = 3
"""How often the means from one such trial to the next are doubled: trials that find nothing cost ever less."""

Phase = Literal["search", "settled"]


class Look(msgspec.Struct, frozen=True):
    """Measures of one look at a job.

    Attributes:
        workers: number that it had all the time.
        batch_s: seconds from one element to the next, the consumer's own work included.
        wait_s: of these, seconds that the consumer waited.
        busy: mean share of the time in which a worker computed, or of the processor time that it may use, whichever is
            larger, between 0 and 1.
        noise: relative standard error of ``batch_s``.
    """

    workers: int
    batch_s: float
    wait_s: float
    busy: float
    noise: float = 0.0


class Limits(msgspec.Struct, frozen=True):
    """Limits of a job's number of workers.

    Attributes:
        least: number that it has in any case.
        most: number that it may have.
        why: why it may have no more, if that is nobody's choice: in words.
    """

    least: int = 1
    most: int = 1
    why: str = ""

    def clip(self, workers: int) -> int:
        """Nearest number of workers that is within the limits."""
        return max(self.least, min(workers, self.most))


class Scale(msgspec.Struct, frozen=True):
    """State of the search for a job's number of workers.

    Attributes:
        workers: number that it is to have.
        phase: see the module.
        low: most workers that were found too few; 0: none were.
        high: fewest workers that were found enough; None: none were.
        floor_s: batch time that more workers don't better, though the consumer waits; None: not known.
        seen: number of workers and batch time of each look of this search.
        settled: the look that the search ended with.
        differing: looks in a row that differed from it.
        looks: number of looks of which ``settled`` is the mean.
        means: number of such means before that changed nothing.
        limited: it settled for the most that it might have then, and would have more.
        probes: how often other numbers were tried though nothing had changed.
        back: number that it goes back to if more, which are tried, bring nothing; 0: none are.
    """

    workers: int = 1
    phase: Phase = "search"
    low: int = 0
    high: int | None = None
    floor_s: float | None = None
    seen: tuple[tuple[int, float], ...] = ()
    settled: Look | None = None
    differing: int = 0
    looks: int = 1
    means: int = 0
    limited: bool = False
    probes: int = 0
    back: int = 0


def look_elements(waits: float, batch_s: float) -> int:
    """Choose the number of elements of a look, by the share of the time that the consumer waits, and an element's."""
    return _elements(LOOK_ELEMENTS, waits, batch_s)


def pause_elements(waits: float, batch_s: float) -> int:
    """Choose the number of elements that say nothing after workers have come or gone, likewise."""
    return _elements(PAUSE_ELEMENTS, waits, batch_s)


def _elements(usual: int, waits: float, batch_s: float) -> int:
    if waits <= CLEAR:
        return usual
    few = round(usual * QUICK)
    return max(QUICK_LEAST, min(few, math.ceil(QUICK_S / batch_s))) if batch_s > 0 else few


def begin(workers: int, limits: Limits) -> Decision[Scale]:
    """Begin a job's search, with as many workers as the last one of this name and pipeline ended with, or 1."""
    first = limits.clip(workers)
    return Decision(Scale(first), f"begins with {counted(first)}", {"workers": first})


def step(scale: Scale, look: Look, limits: Limits) -> Decision[Scale]:
    """Advance the search by one look; one with more workers than ``scale.workers`` says nothing."""
    inputs = {"batch_s": look.batch_s, "wait_s": look.wait_s, "busy": look.busy, "noise": look.noise}
    if not limits.least <= scale.workers <= limits.most:
        workers = limits.clip(scale.workers)
        if look.workers != workers or look.batch_s <= 0:
            return Decision(Scale(workers), f"{counted(workers)}{bound(limits, workers)}", inputs)
        scale = Scale(workers)
    if look.workers > scale.workers or look.batch_s <= 0:
        return Decision(scale, f"waits until {counted(scale.workers)} are there", inputs)
    if look.workers < scale.workers:
        decision = _fewer(scale, look, limits)
    elif scale.phase == "settled":
        decision = _watch(scale, look, limits)
    else:
        decision = _search(scale, look, limits)
    chosen = msgspec.structs.replace(decision.value, workers=limits.clip(decision.value.workers))
    return Decision(chosen, decision.reason, inputs)


def bound(limits: Limits, workers: int) -> str:
    """Explain why it is so many and no other number, as the end of a sentence."""
    return f": {limits.why}" if limits.why and workers == limits.most else ", as its limits say"


# -- searching ---------------------------------------------------------------------------------------------------------


def _fewer(scale: Scale, look: Look, limits: Limits) -> Decision[Scale]:
    """Handle a look at fewer workers than are to be there: they may do."""
    settled = scale.phase == "settled"
    found = _search(Scale(scale.workers, floor_s=scale.floor_s) if settled else scale, look, limits)
    enough = found.value.workers if found.value.phase == "settled" else found.value.high
    if enough is not None and enough <= look.workers:
        if settled and scale.differing + 1 < LOOKS:
            again = msgspec.structs.replace(scale, differing=scale.differing + 1)
            return Decision(again, f"{found.reason}; looks once more")
        return found
    waits = f"the consumer waits {rounded(look.wait_s / look.batch_s)} of the time with {counted(look.workers)}"
    scale = msgspec.structs.replace(scale, differing=0)
    return Decision(scale, f"{waits}, and is to have {scale.workers}: more are not there yet")


def _search(scale: Scale, look: Look, limits: Limits) -> Decision[Scale]:
    count, margin = look.workers, max(MARGIN, 2 * look.noise)
    back = scale.back
    scale = msgspec.structs.replace(scale, seen=(*scale.seen, (count, look.batch_s)), back=0)
    waits = look.wait_s / look.batch_s
    own_s = max(look.batch_s - look.wait_s, 1e-9)
    if waits <= min(margin, VAGUE):
        # No scaling is better than perfect: what fewer gave says how many are needed at least.
        least = max((workers * batch_s for workers, batch_s in scale.seen[:-1] if workers < count), default=0.0)
        needed = max(math.ceil(count * look.busy), min(count, math.ceil((1 - margin) * least / look.batch_s)))
        return _narrow(
            scale, look, limits, scale.low, count, needed, f"the consumer waits {rounded(waits)} of the time"
        )
    if scale.floor_s is not None:
        return _below_floor(scale, look, limits, scale.floor_s, margin)
    if look.busy < 1 - 2 * margin - WITHIN and count * look.busy < count - 1:
        why = f"workers find something to do for {rounded(look.busy)} of the time, and more would find less"
        return _saturated(scale, look, limits, margin, why, back)
    jump = JUMP
    fewer = [seen for seen in scale.seen[:-1] if seen[0] < count]
    if fewer:
        before, before_s = max(fewer)
        gain = math.log(max(before_s / look.batch_s, 1e-9)) / math.log(count / before)
        if gain + math.log1p(margin) / math.log(count / before) < SCALES:  # that much could be noise
            return _saturated(scale, look, limits, margin, back=back)
        if gain < 0.9:
            jump = 2  # it may be the last that more workers bring
    else:
        gain = 1.0
    if count >= limits.most:
        return _settle(scale, look, count, _no_more(waits, limits), limited=True)
    needed = math.ceil(count * (look.batch_s / own_s) ** (1 / min(1.0, max(gain, SCALES))))
    target = min(max(needed, count + 1), jump * count, limits.most)
    if scale.high is not None and scale.high - count <= _near(scale.high):
        return _settle(scale, look, scale.high, f"{_are(count)} too few, {scale.high} are enough")
    if scale.high is not None:
        target = min(target, scale.high - 1)
    reason = (
        f"the consumer waits {rounded(waits)} of the time: {duration(look.batch_s)} an element with {counted(count)}, "
        f"and it would take one in {duration(own_s)}"
    )
    return Decision(msgspec.structs.replace(scale, workers=target, low=max(scale.low, count)), reason)


def _saturated(
    scale: Scale, look: Look, limits: Limits, margin: float, why: str = "", back: int = 0
) -> Decision[Scale]:
    """Choose where more workers don't help: as many are enough as come near the best that was seen, or ``back``."""
    best = min(batch_s for _, batch_s in scale.seen)
    alike = [(count, batch_s) for count, batch_s in scale.seen if batch_s <= (1 + 2 * margin) * best]
    floor = sum(batch_s for _, batch_s in alike) / len(alike)  # the least alone would be noise's
    enough = min(alike)[0]
    few = [(count, batch_s) for count, batch_s in scale.seen if count < enough]
    low, low_s = max(few, default=(0, 0.0))
    needed = math.ceil(low * low_s / floor) if low else 1
    if why:  # what they find to do says it better
        needed = math.ceil(look.workers * look.busy)
    why = why or f"{duration(floor)} an element is all that more workers bring"
    scale = msgspec.structs.replace(scale, floor_s=floor)
    if back:
        return _settle(scale, look, back, f"{_are(back)} enough: {why}")
    return _narrow(scale, look, limits, low, enough, needed, why)


def _below_floor(scale: Scale, look: Look, limits: Limits, floor_s: float, margin: float) -> Decision[Scale]:
    """Choose where the attainable batch time is known: these may be enough for it."""
    count = look.workers
    if look.batch_s < (1 - margin) * floor_s:  # what was seen with more of them was no floor: they had just begun, say
        floor_s = look.batch_s
        scale = msgspec.structs.replace(scale, floor_s=floor_s)
    why = f"{duration(floor_s)} an element is all that more workers bring"
    if look.batch_s <= (1 + margin) * floor_s:
        needed = math.ceil(count * look.busy)
        if not scale.low:  # none were too few yet
            needed = min(needed, math.floor((1 - 2 * DRIFT) * count))
        return _narrow(scale, look, limits, scale.low, count, needed, why)
    high = scale.high or limits.most
    needed = math.ceil(count * look.batch_s / floor_s)
    return _narrow(msgspec.structs.replace(scale, low=count), look, limits, count, high, needed, why)


def _narrow(scale: Scale, look: Look, limits: Limits, low: int, enough: int, needed: int, why: str) -> Decision[Scale]:
    """Narrow the search: ``enough`` are enough, ``low`` are not, ``needed`` would be if all went on linearly."""
    high = enough if scale.high is None else min(scale.high, enough)
    low = max(limits.least - 1, min(low, high - 1))
    target = max(needed, low + 1)
    if high - low <= _near(high) or high - target < _near(high):
        return _settle(scale, look, high, f"{_are(high)} enough: {why}")
    reason = f"{why} with {counted(look.workers)}; {target} may be enough"
    return Decision(msgspec.structs.replace(scale, workers=target, low=low, high=high), reason)


def _settle(scale: Scale, look: Look, workers: int, reason: str, *, limited: bool = False) -> Decision[Scale]:
    settled = look if workers == look.workers else None  # else the next look is what is compared with
    found = Scale(workers, "settled", floor_s=scale.floor_s, settled=settled, limited=limited, probes=scale.probes)
    return Decision(found, reason)


# -- settled -----------------------------------------------------------------------------------------------------------


def _watch(scale: Scale, look: Look, limits: Limits) -> Decision[Scale]:
    then = scale.settled
    if scale.limited and look.workers < limits.most:
        return _search(Scale(look.workers), look, limits)
    if then is None:
        return Decision(msgspec.structs.replace(scale, settled=look), _still(look, limits))
    over = scale.looks == TRIM_LOOKS
    if over:
        trimmed = _trim(scale, then, limits)
        if trimmed.value.workers != scale.workers:
            return trimmed
        scale = trimmed.value
    margin = max(MARGIN, 2 * math.hypot(look.noise, then.noise))
    waits, waited = look.wait_s / look.batch_s, then.wait_s / then.batch_s
    idle = math.ceil(look.workers * look.busy * (1 + margin))
    reason = ""
    if waits > waited + max(DRIFT, margin):
        reason = f"the consumer waits {rounded(waits)} of the time, and waited {rounded(waited)}"
    elif waits > margin and look.batch_s > (1 + max(DRIFT, margin)) * then.batch_s:
        reason = f"an element takes {duration(look.batch_s)}, and took {duration(then.batch_s)}"
    elif waits <= margin and idle < look.workers - _near(look.workers) and look.busy < then.busy - DRIFT:
        reason = f"workers compute {rounded(look.busy)} of the time, and computed {rounded(then.busy)}"
    if not reason:
        if over:
            return Decision(msgspec.structs.replace(scale, differing=0, settled=look), _still(look, limits))
        looks = scale.looks + 1
        mean = Look(
            look.workers,
            then.batch_s + (look.batch_s - then.batch_s) / looks,
            then.wait_s + (look.wait_s - then.wait_s) / looks,
            then.busy + (look.busy - then.busy) / looks,
            look.noise / math.sqrt(looks),
        )
        settled = msgspec.structs.replace(scale, differing=0, looks=looks, settled=mean)
        return Decision(settled, _still(look, limits))
    if scale.differing + 1 < LOOKS:
        return Decision(msgspec.structs.replace(scale, differing=scale.differing + 1), f"{reason}; looks once more")
    return Decision(Scale(look.workers), f"{reason}: looks for another number")


def _trim(scale: Scale, mean: Look, limits: Limits) -> Decision[Scale]:
    """Check the mean of many looks: it is sharper than those by which the search went, and shows slow changes."""
    workers = scale.workers
    waits = mean.wait_s / mean.batch_s
    needed = workers
    if mean.busy < 1 - MARGIN or scale.floor_s is None:
        needed = math.ceil(workers * mean.busy / (1 - waits if scale.floor_s is None else 1))
    elif mean.batch_s > (1 + MARGIN / 2) * scale.floor_s:
        needed = math.ceil(workers * mean.batch_s / scale.floor_s)
    elif scale.means >= PROBE_MEANS << min(scale.probes // 2, PROBE_DOUBLINGS):
        return _probe(scale, mean, limits)
    limited = needed > limits.most
    needed = min(limits.clip(needed), JUMP * workers)
    starved = waits > DRIFT and scale.floor_s is None
    if needed == workers or (abs(needed - workers) <= max(1, _near(workers) // 2) and not starved):
        replace = msgspec.structs.replace
        return Decision(replace(scale, settled=mean, means=scale.means + 1, looks=1, differing=0), _still(mean, limits))
    reason = f"over {scale.looks} looks workers computed {rounded(mean.busy)} of the time, and the consumer waited"
    found = Scale(needed, "settled", floor_s=scale.floor_s, limited=limited, probes=scale.probes)
    return Decision(found, f"{reason} {rounded(waits)}: {counted(needed)}")


def _probe(scale: Scale, mean: Look, limits: Limits) -> Decision[Scale]:
    """Try more workers and fewer in turns where the consumer waits and more brought nothing: that may have changed."""
    workers, seen = scale.workers, ((scale.workers, mean.batch_s),)
    tried = limits.clip(math.ceil(PROBE_GAIN * workers))
    probe = Scale(tried, seen=seen, probes=scale.probes + 1, back=workers)
    if scale.probes % 2 or tried == workers:
        tried = limits.clip(max(1, math.floor((1 - DRIFT) * workers)))
        probe = Scale(tried, high=workers, floor_s=mean.batch_s, seen=seen, probes=scale.probes + 1)
    if tried == workers:
        probe = msgspec.structs.replace(scale, settled=mean, means=0, looks=1, differing=0, probes=scale.probes + 1)
        return Decision(probe, _still(mean, limits))
    was = "was" if workers == 1 else "were"
    return Decision(probe, f"{counted(workers)} {was} enough for long, though the consumer waits: tries {tried}")


# -- words -------------------------------------------------------------------------------------------------------------


def _near(count: int) -> int:
    return max(1, int(WITHIN * count))


def _still(look: Look, limits: Limits) -> str:
    """Explain why nothing changes."""
    waits = look.wait_s / look.batch_s
    why = f"the consumer waits {rounded(waits)} of the time"
    if waits > MARGIN and look.workers >= limits.most:
        return _no_more(waits, limits)
    return f"{_are(look.workers)} enough: {why}"


def _no_more(waits: float, limits: Limits) -> str:
    why = f": {limits.why}" if limits.why else ""
    return f"the consumer waits {rounded(waits)} of the time, and it may have no more{why}"


def _are(count: int) -> str:
    return f"{counted(count)} {'is' if count == 1 else 'are'}"
