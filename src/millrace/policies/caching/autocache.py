"""Autocache: whether a job caches, and where (Cachew 4.4). Pure.

It differs from Cachew:

* Reading from the cache and computing run beside each other (see :mod:`millrace.policies.caching.cache_cost_model`).
* A cache has to pay for its writing within the epochs that are still to come (:func:`later_epochs`).
* Half a cache is used, and counts by its share; a hit is compared with computing, and left if it is clearly slower.
* "Equal" is 3 %, or what the noise of the measurements makes of it. Among equals the cheapest is taken: a cache that is
  kept already, then computing, then the one that writes the fewest bytes. So a job that its consumer limits writes
  nothing: time that its workers save is nobody's gain, and blocks that it keeps take the place of others' blocks.
* A wrong decision is undone (:func:`revisit`), and not made again by the same measures.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from millrace.policies.caching.cache_cost_model import Profile, StoreModel, Times, times
from millrace.policies.decision import Decision
from millrace.policies.figures import duration, percent, rounded

MODES = ("auto", "compute", "cache")
"""Values of ``autocache(mode=...)``: decide by measuring; never use it; use it in any case."""

PROFILE_BATCHES = 300
"""Elements of the pipeline's end after which measures are good enough to decide (Cachew 4.4)."""
MARGIN = 0.03
"""Relative difference below which times are equal (Cachew's threshold), however small the noise."""
REST = 0.01
"""Share of a point below which a missing rest is not written any more: its size is often an estimate."""
DRIFT = 0.10
"""Change of the batch time with which a decision is made anew."""
LOST = 1.0
"""Change of the waiting time, relative to the batch time, with which a job with a cache decides anew."""
LOOKS = 5
"""Looks of which the middle one counts: 500 elements, and 1,000 to see a change (as Cachew 4.3 for scaling)."""

Kind = Literal["profile", "compute", "put", "get"]
Verdict = Literal["keep", "decide anew", "undo"]


class Mode(msgspec.Struct, frozen=True):
    """Cache mode of a job.

    Attributes:
        kind: "profile": computes everything, is measured, and is not scaled meanwhile; "compute": computes everything;
            "get": reads what is kept and computes the rest; "put": that, and keeps what it computes.
        point: node id of the active point, None without one.
        slower: how many times as long as computing an element may take until the mode is not worth it: 1, and more
            while writing, as the epochs after it make up for that.
    """

    kind: Kind
    point: int | None = None
    slower: float = 1.0


class CandidatePoint(msgspec.Struct, frozen=True):
    """Cache point where a job may cache.

    Attributes:
        node: its id; of two points on one path the one nearer the end has the higher one.
        label: of the operator whose output is kept.
        mode: one of :data:`MODES`.
        kept: share of its items that are in the store and that the job may read, between 0 and 1.
        whole: bytes that all of it would take, known or estimated. Not used before the profile.
        undone: the mode in which a decision for it was undone: after "get" it isn't used again, after "put" nothing is
            written again. To be forgotten with the profile that it was compared with.
        saves: share of the computing time that jobs which used the point measured it to save, if all of it is read;
            None: none has used it. Not used after the profile.
    """

    node: int
    label: str
    mode: str = "auto"
    kept: float = 0.0
    whole: int = 1
    undone: Kind | None = None
    saves: float | None = None


class BatchTime(msgspec.Struct, frozen=True):
    """Time of a batch with a way of caching, over at least 100 elements: seconds, of these waiting, and the noise.

    Attributes:
        noise: relative standard error of ``batch_s``.
    """

    batch_s: float
    wait_s: float
    noise: float = 0.0


def profiled(batches: int, *, ended: bool) -> Decision[bool]:
    """Decide whether the profile is long enough: 300 elements of the end or the epoch, whichever is over first."""
    inputs = {"batches": batches, "ended": ended}
    if batches >= PROFILE_BATCHES:
        return Decision(True, f"{batches} elements were measured", inputs)
    if ended:
        return Decision(True, f"the epoch ended, and all of its {batches} elements were measured", inputs)
    return Decision(False, f"{batches} of {PROFILE_BATCHES} elements are measured", inputs)


def later_epochs(ended: int, announced: int | None) -> int:
    """Estimate the epochs that will read what is written from now on; the one that writes is not among them.

    Unless a job announced them, as many as have ended, and at least 1. That is the rule of the ski rental: buy when the
    rent so far would have paid for it (Karlin, Manasse, Rudolph and Sleator 1988). So if the job ends right after it
    has written, it has spent about twice the least that was possible, and no more. It is at least 1, as hardly a job
    reads its data once, and those that do can say so.

    Args:
        ended: epochs that the job has read to their end.
        announced: epochs that the job will read in all; None if unknown.
    """
    return max(1, ended) if announced is None else max(0, announced - ended - 1)


def choose_mode(
    points: Sequence[CandidatePoint], store: StoreModel | None = None, later: int = 1, profile: Profile | None = None
) -> Decision[Mode]:
    """Choose the mode of a job: before anything is measured (``profile`` is None), or by the measures.

    A point whose mode is "cache" is used unmeasured; of several the last, which leaves the least to compute. Before a
    profile a point of which something is kept is used at once, of several the fastest (Cachew 4.4), as far as the jobs
    that used them have measured that, else the one of which most is kept; it is measured while it is used, and compared
    then. To be asked again at the end of each epoch, when more is kept and more epochs are likely.

    Args:
        points: all of the pipeline.
        store: where blocks are kept; needed once there is a profile.
        later: epochs that will read what is written now, see :func:`later_epochs`.
        profile: of this job's pipeline, with what passed each point.
    """
    forced = [point for point in points if point.mode == "cache"]
    if forced:
        return _forced(max(forced, key=lambda point: point.node), others=len(forced) - 1)
    slow = [point.label for point in points if point.mode == "auto" and point.undone == "get"]
    points = [point for point in points if point.mode == "auto" and point.undone != "get"]
    if not points:
        why = f"the cache at {' and '.join(slow)} was slower" if slow else "no point of the pipeline may be cached"
        return Decision(Mode("compute"), f"computes everything: {why}")
    if profile is None:
        return _unmeasured(points)
    assert store is not None, "a profile is compared with what a store does"
    margin = max(MARGIN, 2 * profile.noise)
    found = {point.node: times(profile, store, point.node, point.kept, point.whole) for point in points}
    free = _free(points, found, margin)
    new = [(point, found[point.node]) for point in points if point.undone is None and found[point.node].written]
    saving = [each for each in new if _saves(*each, free, margin) and _pays(each[1], free, later)]
    inputs = _inputs(found, profile, margin, later)
    if not saving:
        mode = Mode("compute") if free.point is None else Mode("get", free.point.node)
        return Decision(mode, f"{_why_free(free)}{_why_no_more(free, points, found, profile, margin, later)}", inputs)
    least = min(saving, key=lambda each: _total(each[1], later))[1]
    equal = [
        (point, each)
        for point, each in saving
        if each.after <= (1 + margin) * least.after and _total(each, later) <= (1 + margin) * _total(least, later)
    ]
    point, best = min(equal, key=lambda each: each[1].written)
    slower = ((1 + later) * free.seconds - later * best.after) / best.computed
    return Decision(Mode("put", point.node, slower), _why_put(point, best, free), inputs)


def revisit(mode: Mode, computing: BatchTime | None, looks: Sequence[BatchTime]) -> Decision[Verdict]:
    """Decide whether a decision still holds.

    "undo": a job with a cache is slower than it was without one, by more than noise, or writes more slowly than pays,
    and its consumer isn't the reason.

    "decide anew": the batch time differs by more than a tenth, and by more than noise, from what it was when the mode
    began. With a cache that is not enough, as everything has to be computed to measure anew, and reading is short: its
    consumer has to wait longer than then by as much as an element took altogether. The middle one of five looks counts,
    so that two that were disturbed decide nothing. Deciding anew begins a new series of looks, so that it takes another
    change until the next time.

    Args:
        mode: the present one.
        computing: the look at the profile, None if there was none.
        looks: since the mode began, oldest first, each over other elements. All of them, and ``computing``, with the
            same number of workers: measures of other numbers of workers can't be compared.
    """
    if len(looks) < LOOKS:
        return Decision("keep", f"{len(looks)} looks at the present mode are there, and it takes {LOOKS}")
    began, now = _middle(looks[:LOOKS]), _middle(looks[-LOOKS:])
    inputs = {"batch_s": now.batch_s, "began_s": began.batch_s, "computing_s": computing.batch_s if computing else None}
    if computing is not None and mode.kind in {"put", "get"}:
        # Computing would take as long now, too, if it is the consumer that has become slower.
        limit = max(mode.slower * computing.batch_s, now.batch_s - now.wait_s)
        if now.batch_s > (1 + _noise(computing, now)) * limit:
            why = "it is slower by more than noise" if mode.slower <= 1 else "writing takes longer than it can save"
            reason = (
                f"{duration(now.batch_s)}/element with the cache beside {duration(computing.batch_s)} computed: {why}"
            )
            return Decision("undo", reason, inputs)
    cached = mode.kind in {"put", "get"}
    change = now.wait_s - began.wait_s if cached else abs(now.batch_s - began.batch_s)
    beside = f"{duration(now.batch_s)}/element now beside {duration(began.batch_s)} when this mode began"
    if len(looks) >= 2 * LOOKS and change > max(LOST if cached else DRIFT, _noise(began, now)) * began.batch_s:
        return Decision("decide anew", f"{beside}: what was measured has changed", inputs)
    return Decision("keep", f"{beside}: no change that matters", inputs)


# -- choosing ----------------------------------------------------------------------------------------------------------


def _forced(point: CandidatePoint, others: int) -> Decision[Mode]:
    reason = f"cache at {point.label}: the pipeline asks for it"
    if others:
        reason += f", and it is the last of {others + 1} such points"
    return Decision(Mode("get" if point.kept >= 1 else "put", point.node), reason, {"kept": point.kept})


def _unmeasured(points: Sequence[CandidatePoint]) -> Decision[Mode]:
    hits = [point for point in points if point.kept]
    if hits:
        known = all(point.saves is not None for point in hits)
        best = max(hits, key=lambda hit: (hit.kept * (hit.saves or 0.0) if known else 0.0, hit.kept, hit.node))
        reason = f"cache at {best.label}: {rounded(best.kept)} of it is kept already"
        if len(hits) > 1 and known:
            reason += f", and it saves the most of {len(hits)} such points: {rounded(best.kept * (best.saves or 0.0))}"
        return Decision(Mode("get", best.node), reason, {"kept": best.kept, "saves": best.saves})
    reason = f"computes up to {PROFILE_BATCHES} elements to learn what a cache would save; nothing is kept of it yet"
    return Decision(Mode("profile"), reason)


class _Free(NamedTuple):
    """Best choice that writes nothing.

    Attributes:
        point: the point that is read, None if everything is computed.
        seconds: per element.
        computed: seconds per element if everything is computed.
    """

    point: CandidatePoint | None
    seconds: float
    computed: float


def _free(points: Sequence[CandidatePoint], found: Mapping[int, Times], margin: float) -> _Free:
    """Choose the best that writes nothing: the fastest hit, unless it is clearly slower than computing."""
    computed = found[points[0].node].computed
    hits = [point for point in points if point.kept]
    best = min(hits, key=lambda point: found[point.node].got, default=None)
    if best is None or found[best.node].got > (1 + margin) * computed:
        return _Free(None, computed, computed)
    return _Free(best, found[best.node].got, computed)


def _saves(point: CandidatePoint, each: Times, free: _Free, margin: float) -> bool:
    """Whether epochs that read what is written now are faster by more than noise.

    Where the point is the one that is read already, all that it saves is compared with noise: its rest saves in
    proportion, and room that is left may be worth no more than noise.
    """
    if free.point is None or free.point.node != point.node:
        return (1 + margin) * each.after < free.seconds
    return (1 + margin) * each.after < free.computed and each.share - point.kept > REST


def _pays(each: Times, free: _Free, later: int) -> bool:
    """Whether all epochs together, from the one that writes on, are faster."""
    return _total(each, later) < (1 + later) * free.seconds


def _total(each: Times, later: int) -> float:
    return each.put + later * each.after


# -- revisiting --------------------------------------------------------------------------------------------------------


def _middle(looks: Sequence[BatchTime]) -> BatchTime:
    """Look of the median batch time, with about half the noise of one (1.25 / sqrt(5) for normal errors)."""
    middle = sorted(looks, key=lambda look: look.batch_s)[len(looks) // 2]
    return msgspec.structs.replace(middle, noise=middle.noise / 2)


def _noise(first: BatchTime, second: BatchTime) -> float:
    """Relative difference that says nothing: three standard errors, as it is asked for again and again."""
    return max(MARGIN, 3 * math.hypot(first.noise, second.noise))


# -- words -------------------------------------------------------------------------------------------------------------


def _why_put(point: CandidatePoint, best: Times, free: _Free) -> str:
    beside = "computed"
    if free.point is not None:
        beside = f"with the cache at {free.point.label}, of which {rounded(free.point.kept)} is kept"
    fits = "" if best.share >= 1 else f"; {rounded(best.share)} of it fits"
    return (
        f"cache at {point.label}: {duration(best.after)}/element from the cache beside {duration(free.seconds)}"
        f" {beside}{fits}; "
        f"worth it from the {_break_even(best, free)} epoch on"
    )


def _why_free(free: _Free) -> str:
    if free.point is None:
        return f"computes everything, {duration(free.computed)}/element"
    return (
        f"cache at {free.point.label}: {rounded(free.point.kept)} of it is kept; "
        f"{duration(free.seconds)}/element with it beside {duration(free.computed)} computed"
    )


def _why_no_more(
    free: _Free,
    points: Sequence[CandidatePoint],
    found: Mapping[int, Times],
    profile: Profile,
    margin: float,
    later: int,
) -> str:
    """Explain why nothing is written, from the point that came nearest to being worth it."""
    hits = [point for point in points if point.kept]
    if hits and free.point is None:
        best = min(hits, key=lambda point: found[point.node].got)
        return (
            f": {duration(found[best.node].got)} with the {rounded(best.kept)} that are kept of {best.label} is slower"
        )
    if profile.wait_s <= MARGIN * profile.batch_s:
        waits = rounded(profile.wait_s / profile.batch_s if profile.batch_s else 0.0)
        return f": its consumer waits {waits} of the time, so that nothing makes it faster"
    if all(point.kept >= 1 for point in points):
        return ""
    new = [point for point in points if found[point.node].written]
    if not new:
        return ": there is no room for more"
    best = min(new, key=lambda point: found[point.node].after)
    then = found[best.node]
    if not _saves(best, then, free, margin):
        fits = "" if then.share >= 1 else f", of which {rounded(then.share)} fits"
        return f": {duration(then.after)} with a cache at {best.label}{fits} is no gain beyond {percent(margin)}"
    if best.undone:
        return f": writing the cache at {best.label} was given up, as it took longer than it could save"
    return (
        f": {duration(then.after)} with a cache at {best.label}, but {duration(then.put)} while it is written, so that"
        f" it is worth it from the {_break_even(then, free)} epoch on, and {1 + later} are likely"
    )


def _inputs(found: Mapping[int, Times], profile: Profile, margin: float, later: int) -> dict[str, object]:
    return {
        "points": {node: msgspec.structs.asdict(each) for node, each in found.items()},
        "batch_s": profile.batch_s,
        "wait_s": profile.wait_s,
        "margin": margin,
        "later_epochs": later,
    }


def _break_even(each: Times, free: _Free) -> str:
    """First epoch by whose end time was saved in all, the one that writes being the 1st."""
    return _ordinal(max(0, math.floor((each.put - each.after) / (free.seconds - each.after))) + 1)


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"
