"""Cost scaling: the number of workers with which a job's elements cost least, whatever time they take. Pure.

With n workers, of which an hour costs ``worker``, and training hosts that cost ``training`` an hour together, an
element costs ``t(n) * (n * worker + training)``: equation 1 of tf.data service (4.1) over the elements of a job.
``t(n)`` is the consumer's own time for an element, or the time in which n workers give one, if that is longer.

Each look tells what its number of workers gives. Other numbers are assumed at their best:

* from one number alone, twice the workers give twice as much;
* beyond two numbers that were seen, they go on along the line through them over 1 / n (as with work that is done by one
  after the other, or with memory that all share), give or take two standard errors;
* fewer workers never give more, and workers that find nothing to do while the consumer waits (too few splits) say that
  more would not, either.

The next look is at the number that would then be the cheapest. The search ends when even that would save less than 2 %
(or two standard errors, and no more than a quarter, however noisy the looks are) of the cost with the cheapest number
that was seen, and goes on when another would save twice as much. Prices and the consumer's time are no part of what was
seen of workers, so that a change of either needs few new looks; two looks in a row that differ from what was seen with
the same number begin anew.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Literal

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.figures import counted, duration, number, rounded
from millrace.policies.prices import HourlyRates
from millrace.policies.scaling.autoscale import DRIFT, JUMP, LOOKS, MARGIN, VAGUE, WITHIN, Limits, Look, bound

SAVES = 0.02
"""Share of the cost of an element below which saving it is not worth a look."""
SHARP = 0.05
"""Share of the cost above which noise could hide a saving, so that another look is taken, up to ``AGAIN`` of them."""
AGAIN = 4
APART = 1.25
"""Ratio of two numbers of workers of which the difference can be told from noise."""
NEWEST = 0.25
"""Weight of one more look at the same number of workers."""
PROBE_LOOKS = 40
"""Looks at the same number after which fewer are tried where workers give less than the consumer would take: if a store
limits them, their busy time does not tell that they have become too many."""
_STEPS = 20
"""Divisor of a number of workers that gives the distance to the next one that is tried in thought."""


class WorkerMeasure(msgspec.Struct, frozen=True):
    """Measures of a number of workers.

    Attributes:
        workers: their number.
        given_s: seconds in which they give an element, if nobody holds them up.
        work_s: seconds of a worker that went into an element.
        idle: they found nothing to do though the consumer waited.
        noise: relative standard error of ``given_s``.
    """

    workers: int
    given_s: float
    work_s: float
    idle: bool = False
    noise: float = 0.0


class CheapScale(msgspec.Struct, frozen=True, tag="cheapest"):
    """State of the search.

    Attributes:
        workers: number that the job is to have.
        phase: whether there is another number to be looked at.
        own_s: seconds that the consumer takes for an element when nothing holds it up.
        curve: measures by number of workers, the fewest first.
        differing: looks in a row that differed from it.
        looks: in a row at the same number that did not.
    """

    workers: int = 1
    phase: Literal["search", "settled"] = "search"
    own_s: float = 0.0
    curve: tuple[WorkerMeasure, ...] = ()
    differing: int = 0
    looks: int = 0


def begin(workers: int, limits: Limits) -> Decision[CheapScale]:
    """Begin a job's search, with the number that the last one of this name and pipeline ended with, or a first one."""
    first = limits.clip(workers)
    return Decision(CheapScale(first), f"begins with {counted(first)}, to find out what elements cost")


def step(scale: CheapScale, look: Look, limits: Limits, rates: HourlyRates) -> Decision[CheapScale]:
    """Advance the search by one look; one with more workers than ``scale.workers`` says nothing.

    One with fewer, as not all have come, tells what these give, like any other.
    """
    inputs = {"batch_s": look.batch_s, "wait_s": look.wait_s, "busy": look.busy, "training": rates.training}
    replace = msgspec.structs.replace
    if not limits.least <= scale.workers <= limits.most:
        workers = limits.clip(scale.workers)
        return Decision(
            replace(scale, workers=workers, phase="search"), f"{counted(workers)}{bound(limits, workers)}", inputs
        )
    if not limits.least <= look.workers <= scale.workers or look.batch_s <= 0:
        return Decision(scale, f"waits until {counted(scale.workers)} are there", inputs)
    planned = scale.workers
    if look.workers < planned:
        scale = replace(scale, workers=look.workers, phase="search")
    point, own_s = _seen(look)
    known = next((each for each in scale.curve if each.workers == point.workers), None)
    if known is None:
        scale = replace(scale, own_s=own_s, differing=0, looks=0)
    else:
        differs = _differs(scale, known, point, own_s)
        if differs and scale.differing + 1 < LOOKS:
            again = replace(scale, workers=planned, differing=scale.differing + 1)
            return Decision(again, f"{differs}; looks once more", inputs)
        if differs:
            scale = CheapScale(scale.workers, own_s=own_s)
        else:
            point = _mixed(known, point)
            own_s = scale.own_s + NEWEST * (own_s - scale.own_s)
            scale = replace(scale, own_s=own_s, differing=0, looks=scale.looks + 1)
    fewer = math.floor(scale.workers / APART)
    if scale.looks >= PROBE_LOOKS and point.given_s > (1 + DRIFT) * scale.own_s and fewer >= limits.least:
        probe = CheapScale(fewer, own_s=scale.own_s, curve=(point,))
        return Decision(
            probe, f"{counted(scale.workers)} were cheapest for long, though the consumer waits: tries {fewer}"
        )
    others = [each for each in scale.curve if each.workers != point.workers]
    scale = replace(scale, curve=tuple(sorted([*others, point], key=lambda each: each.workers)))
    found = _choose(scale, limits, rates)
    return Decision(found.value, found.reason, inputs)


def price(scale: CheapScale, workers: int, rates: HourlyRates) -> float:
    """Cost of an element with so many workers: as it was seen, or at the best."""
    seconds = max(scale.own_s, _given(scale.curve, workers))
    return seconds / 3600 * (rates.workers(workers) + rates.training)


def _choose(scale: CheapScale, limits: Limits, rates: HourlyRates) -> Decision[CheapScale]:
    """Choose another number that is worth a look, or else the cheapest that was seen."""
    replace = msgspec.structs.replace
    settled = scale.phase == "settled"
    seen = [each for each in scale.curve if limits.least <= each.workers <= limits.most]
    seen = [each for each in seen if each.workers == scale.workers or not settled]
    base = min(seen, key=lambda each: (price(scale, each.workers, rates), each.workers))
    hoped = _best(scale, limits, rates)
    costs, hope = price(scale, base.workers, rates), price(scale, hoped, rates)
    saves = min(max(SAVES, 2 * base.noise), VAGUE) * (2 if settled else 1)
    if (1 - saves) * costs <= hope < (1 - SHARP) * costs and saves > SHARP and scale.looks < AGAIN:
        reason = f"{counted(base.workers)}: what elements take differs by {rounded(base.noise)}; looks once more"
        return Decision(replace(scale, workers=base.workers), reason)
    fewer = max(limits.least, math.floor(base.workers / APART))
    first, last = scale.curve[0].workers, scale.curve[-1].workers
    if hope >= (1 - saves) * costs and base.workers == first and last < APART * first and fewer < first:
        reason = f"{counted(base.workers)} may be cheapest; {fewer} tell how much they hamper each other"
        return Decision(replace(scale, workers=fewer, phase="search"), reason)
    if hope >= (1 - saves) * costs:
        share = rates.workers(base.workers) / max(rates.workers(base.workers) + rates.training, 1e-300)
        reason = (
            f"{counted(base.workers)}: 1,000 elements cost {_money(1000 * costs, rates)}, {rounded(share)} of it for "
            f"workers, and no other number would save more than {rounded(saves)}"
        )
        return Decision(replace(scale, workers=base.workers, phase="settled"), reason)
    target = min(hoped, (JUMP if hope < costs / 2 else 2) * last)
    target = limits.clip(max(target, first // 2))
    reason = (
        f"1,000 elements cost {_money(1000 * costs, rates)} with {counted(base.workers)}, and with {target} perhaps "
        f"{_money(1000 * price(scale, target, rates), rates)}"
    )
    return Decision(replace(scale, workers=target, phase="search"), reason)


def _best(scale: CheapScale, limits: Limits, rates: HourlyRates) -> int:
    """Find the number that costs least at the best: among those 5 % apart, and then among those around it."""

    def least(numbers: Iterable[int]) -> int:
        return min(numbers, key=lambda count: (price(scale, count, rates), count))

    near = least(
        {
            *_apart(limits),
            limits.most,
            *(each.workers for each in scale.curve if limits.least <= each.workers <= limits.most),
        }
    )
    around = max(1, near // _STEPS)
    return least(range(max(limits.least, near - around), min(limits.most, near + around) + 1))


def _apart(limits: Limits) -> Iterator[int]:
    count = limits.least
    while count < limits.most:
        yield count
        count += max(1, count // _STEPS)


# -- what was seen -----------------------------------------------------------------------------------------------------


def _seen(look: Look) -> tuple[WorkerMeasure, float]:
    """Separate what the workers gave from what the consumer takes."""
    margin = min(max(MARGIN, 2 * look.noise), VAGUE)
    work_s = look.workers * look.busy * look.batch_s
    if look.wait_s <= margin * look.batch_s:
        return WorkerMeasure(look.workers, look.busy * look.batch_s, work_s, noise=look.noise), look.batch_s
    idle = look.busy < 1 - 2 * margin - WITHIN and look.workers * look.busy < look.workers - 1
    return WorkerMeasure(look.workers, look.batch_s, work_s, idle, look.noise), max(look.batch_s - look.wait_s, 1e-9)


def _differs(scale: CheapScale, known: WorkerMeasure, point: WorkerMeasure, own_s: float) -> str:
    """Explain how it differs from before; empty if it does not."""
    margin = max(DRIFT, 2 * math.hypot(known.noise, point.noise))
    for what, then, now in (
        ("the consumer takes", scale.own_s, own_s),
        ("its workers take", known.given_s, point.given_s),
    ):
        if abs(now - then) > margin * then:
            return f"{what} {duration(now)} for an element, and took {duration(then)}"
    return ""


def _mixed(known: WorkerMeasure, point: WorkerMeasure) -> WorkerMeasure:
    """Average one more look at a number that was seen."""

    def mean(then: float, now: float) -> float:
        return then + NEWEST * (now - then)

    given_s, work_s = mean(known.given_s, point.given_s), mean(known.work_s, point.work_s)
    noise = math.hypot((1 - NEWEST) * known.noise, NEWEST * point.noise)
    return WorkerMeasure(point.workers, given_s, work_s, point.idle, noise)


def _given(curve: Sequence[WorkerMeasure], workers: int) -> float:
    """Seconds in which so many workers would give an element, at best."""
    at = bisect.bisect_right(curve, workers, key=lambda each: each.workers)
    below, above = curve[:at], curve[at:]
    if below and below[-1].workers == workers:
        return below[-1].given_s
    return max(_more(below, workers) if below else 0.0, _fewer(above, workers, alone=not below) if above else 0.0)


def _more(below: Sequence[WorkerMeasure], workers: int) -> float:
    """Seconds in which they would, by what fewer gave."""
    near = below[-1]
    if near.idle:
        return near.given_s
    perfect = near.given_s * near.workers / workers
    far = next((each for each in reversed(below) if each.workers * APART <= near.workers), None)
    if far is None:
        return perfect
    # Far away, what a line says is not sharp: errors of what few workers gave are large beside what many give.
    return min(
        near.given_s, max(perfect, _line(far, near, workers) - 2 * math.hypot(far.noise, near.noise) * near.given_s)
    )


def _fewer(above: Sequence[WorkerMeasure], workers: int, *, alone: bool) -> float:
    """Seconds in which they would, by what more gave."""
    near = above[0]
    perfect = max(near.given_s, near.work_s / workers)
    far = next((each for each in above if each.workers >= near.workers * APART), None)
    if near.idle or (alone and far is None):
        return perfect
    return near.given_s if far is None else max(near.given_s, min(perfect, _line(far, near, workers)))


def _line(far: WorkerMeasure, near: WorkerMeasure, workers: int) -> float:
    """Interpolate along the line through both over 1 / workers."""
    slope = (far.given_s - near.given_s) / (1 / far.workers - 1 / near.workers)
    return near.given_s + slope * (1 / workers - 1 / near.workers)


# -- words -------------------------------------------------------------------------------------------------------------


def _money(amount: float, rates: HourlyRates) -> str:
    return f"{number(amount)} {rates.currency}".rstrip()
