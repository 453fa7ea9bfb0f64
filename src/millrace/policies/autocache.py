"""Whether a job caches, and where: Cachew 4.4. Pure.

What differs from Cachew:

* Reading from the cache and computing run beside each other (see :mod:`millrace.policies.projection`).
* A cache has to pay for its writing within the epochs that are still to come (:func:`later_epochs`).
* Half a cache is used, and counts by its share; a hit is compared with computing, and left if it is clearly slower.
* "Equal" is 3 %, or what the noise of the measurements makes of it. Among equals the cheapest is taken: what is kept
  already, then computing, then what writes the fewest bytes. Processor time isn't counted: a job whose consumer limits
  it gains no time from a cache, and a cache takes bytes that another job could use, while a worker that does less
  computes for nobody else until it is let go.
* A wrong decision is undone (:func:`revisit`), and what was measured replaces what was projected, so that it isn't
  made again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

import msgspec

from millrace.policies.decision import Decision
from millrace.policies.projection import Profile, Store, Times, times

MODES = ("auto", "compute", "cache")
"""What ``autocache(mode=...)`` may say of a point: decide by measuring; never use it; use it in any case."""

PROFILE_BATCHES = 300
"""Elements of the pipeline's end after which measures are good enough to decide (Cachew 4.4)."""
MARGIN = 0.03
"""Times that differ by less are equal (Cachew's threshold), however small the noise."""
DRIFT = 0.10
"""Change of the batch time with which a decision is made anew."""
LOOKS = 2
"""So many looks in a row have to agree before anything is changed."""

Kind = Literal["profile", "compute", "put", "get"]
Verdict = Literal["keep", "decide anew", "undo"]


class Mode(msgspec.Struct, frozen=True):
    """What a job does.

    Attributes:
        kind: "profile": computes everything, is measured, and is not scaled meanwhile; "compute": computes everything;
            "get": reads what is kept and computes the rest; "put": that, and keeps what it computes.
        point: node id of the active point, None without one.
        slower: how long an element may take of the time that computing takes, as projected; 1 unless writing is slower.
    """

    kind: Kind
    point: int | None = None
    slower: float = 1.0


class Point(msgspec.Struct, frozen=True):
    """A place where a job may cache.

    Attributes:
        node: its id; of two points on one path the one nearer the end has the higher one.
        label: of the operator whose output is kept.
        mode: one of :data:`MODES`.
        kept: share of its items that are in the store and that the job may read, between 0 and 1.
        whole: bytes that all of it would take, known or estimated. Not used before the profile.
        undone: if a decision for it was undone: the time of an element then, over that of computing it. It replaces
            what would be projected, and is forgotten with the profile that it was compared with.
    """

    node: int
    label: str
    mode: str = "auto"
    kept: float = 0.0
    whole: int = 1
    undone: float | None = None


class Look(msgspec.Struct, frozen=True):
    """Batch time over at least 100 elements: seconds, of these waiting, and the relative standard error."""

    batch_s: float
    wait_s: float
    noise: float = 0.0


def profiled(batches: int, *, ended: bool) -> Decision[bool]:
    """Whether the profile is long enough to decide: 300 elements of the end or the epoch, whichever is over first."""
    inputs = {"batches": batches, "ended": ended}
    if batches >= PROFILE_BATCHES:
        return Decision(True, f"{batches} elements were measured", inputs)
    if ended:
        return Decision(True, f"the epoch ended, and all of its {batches} elements were measured", inputs)
    return Decision(False, f"{batches} of {PROFILE_BATCHES} elements are measured", inputs)


def later_epochs(ended: int, announced: int | None) -> int:
    """Epochs that are likely to read what is written from now on; the one that writes is not among them.

    Unless a job announced them, as many as have ended, and at least 1. That is the rule of the ski rental: buy when
    what was spent on rent would have paid for it (Karlin, Manasse, Rudolph and Sleator 1988). So if the job ends right
    after it has written, it has spent about twice the least that was possible, and no more. At least 1, as hardly a job
    reads its data once, and those that do can say so.

    Args:
        ended: epochs that the job has read to their end.
        announced: epochs that the job will read in all; None if unknown.
    """
    return max(1, ended) if announced is None else max(0, announced - ended - 1)


def choose_mode(
    points: Sequence[Point], store: Store | None = None, later: int = 1, profile: Profile | None = None
) -> Decision[Mode]:
    """The mode of a job: before anything is measured (``profile`` is None), or by the measures.

    A point whose mode is "cache" is used unmeasured; of several the last, which leaves the least to compute. Before a
    profile a point of which something is kept is used at once, of several the one of which most is kept; it is measured
    while it is used, and compared then.

    Args:
        points: all of the pipeline.
        store: where blocks are kept; needed once there is a profile.
        later: epochs that will read what is written now, see :func:`later_epochs`.
        profile: of this job's pipeline, with what passed each point.
    """
    forced = [point for point in points if point.mode == "cache"]
    if forced:
        return _forced(max(forced, key=lambda point: point.node), others=len(forced) - 1)
    points = [point for point in points if point.mode == "auto"]
    if not points:
        return Decision(Mode("compute"), "computes everything: no point of the pipeline may be cached")
    if profile is None:
        return _unmeasured(points)
    assert store is not None, "a profile is compared with what a store does"
    margin = max(MARGIN, 2 * profile.noise)
    found = {point.node: _projected(point, store, profile) for point in points}
    free = _free(points, found, margin)
    saving = [
        (point, each)
        for point in points
        if _saves(each := found[point.node], free[1], margin) and _pays(each, free[1], later)
    ]
    inputs = _inputs(found, profile, margin, later)
    if not saving:
        return Decision(_mode_of(free[0]), _why_free(free[0], free[1], points, found, profile, margin, later), inputs)
    least = min(saving, key=lambda each: _total(each[1], later))[1]
    equal = [
        (point, each)
        for point, each in saving
        if each.after <= (1 + margin) * least.after and _total(each, later) <= (1 + margin) * _total(least, later)
    ]
    point, best = min(equal, key=lambda each: each[1].written)
    slower = max(1.0, best.put / best.computed)
    return Decision(Mode("put", point.node, slower), _why_put(point, best, free), inputs)


def revisit(mode: Mode, computing: Look | None, looks: Sequence[Look]) -> Decision[Verdict]:
    """Whether a decision still holds.

    "undo": a job with a cache is slower than it was without one, by more than noise, and its consumer isn't the reason.
    "decide anew": the batch time differs by more than a tenth (or twice the noise) from what it was when the mode
    began. Both only if the last two looks say so alike. Deciding anew begins a new series of looks, so that it takes
    another tenth until the next time.

    Args:
        mode: the present one.
        computing: the look at the profile, None if there was none.
        looks: since the mode began, oldest first, each over other elements. All of them, and ``computing``, with the
            same number of workers: measures of other numbers of workers can't be compared.
    """
    if len(looks) < LOOKS:
        return Decision("keep", f"{len(looks)} of {LOOKS} looks at the present mode are there", {"looks": len(looks)})
    recent = looks[-LOOKS:]
    now = sum(look.batch_s for look in recent) / LOOKS
    inputs = {"batch_s": now, "began_s": looks[0].batch_s, "computing_s": computing.batch_s if computing else None}
    if computing is not None and mode.kind in {"put", "get"}:
        limits = [_limit(mode, computing, look) for look in recent]
        if all(look.batch_s > limit for look, limit in zip(recent, limits, strict=True)):
            reason = (
                f"{_ms(now)}/element with the cache beside {_ms(computing.batch_s)} computed: "
                "it is slower by more than noise"
            )
            return Decision("undo", reason, inputs)
    first = looks[0]
    changes = [_change(first, look) for look in recent]
    if len(looks) > LOOKS and (min(changes) > 0 or max(changes) < 0):
        reason = (
            f"{_ms(now)}/element now beside {_ms(first.batch_s)} when this mode began: what was measured has changed"
        )
        return Decision("decide anew", reason, inputs)
    return Decision("keep", f"{_ms(now)}/element, as when this mode began ({_ms(first.batch_s)})", inputs)


# -- choosing ----------------------------------------------------------------------------------------------------------


def _forced(point: Point, others: int) -> Decision[Mode]:
    reason = f"cache at {point.label}: the pipeline asks for it"
    if others:
        reason += f", and it is the last of {others + 1} such points"
    return Decision(Mode("get" if point.kept >= 1 else "put", point.node), reason, {"kept": point.kept})


def _unmeasured(points: Sequence[Point]) -> Decision[Mode]:
    best = max(points, key=lambda point: (point.kept, point.node))
    if best.kept:
        reason = f"cache at {best.label}: {_share(best.kept)} of it is kept already"
        return Decision(Mode("get", best.node), reason, {"kept": best.kept})
    reason = f"computes up to {PROFILE_BATCHES} elements to learn what a cache would save; nothing is kept of it yet"
    return Decision(Mode("profile"), reason)


def _projected(point: Point, store: Store, profile: Profile) -> Times:
    found = times(profile, store, point.node, point.kept, point.whole)
    if point.undone is None:
        return found
    after = found.computed * point.undone
    return msgspec.structs.replace(found, after=after, got=after if point.kept else found.got)


Free = tuple[Point | None, float]
"""What writes nothing: the point that is read, None if nothing is, and seconds per element."""


def _free(points: Sequence[Point], found: Mapping[int, Times], margin: float) -> Free:
    """The best that writes nothing: the fastest hit, unless it is clearly slower than computing."""
    all_computed = found[points[0].node].computed
    hits = [point for point in points if point.kept]
    if hits:
        best = min(hits, key=lambda point: found[point.node].got)
        if found[best.node].got <= (1 + margin) * all_computed:
            return best, found[best.node].got
    return None, all_computed


def _saves(each: Times, free_s: float, margin: float) -> bool:
    """Epochs that read what is written now are faster by more than noise."""
    return each.written > 0 and (1 + margin) * each.after < free_s


def _pays(each: Times, free_s: float, later: int) -> bool:
    return _total(each, later) < (1 + later) * free_s


def _total(each: Times, later: int) -> float:
    return each.put + later * each.after


def _mode_of(point: Point | None) -> Mode:
    return Mode("compute") if point is None else Mode("get", point.node)


# -- revisiting --------------------------------------------------------------------------------------------------------


def _limit(mode: Mode, computing: Look, look: Look) -> float:
    """Seconds per element that computing would take at most now: a consumer that has become slower is not held up."""
    consumer_s = look.batch_s - look.wait_s
    return (1 + _noise(computing, look)) * max(mode.slower * computing.batch_s, consumer_s)


def _change(first: Look, look: Look) -> float:
    """Relative change of the batch time, 0 if it is less than a drift."""
    change = look.batch_s / first.batch_s - 1 if first.batch_s else 0.0
    return change if abs(change) > max(DRIFT, _noise(first, look)) else 0.0


def _noise(first: Look, second: Look) -> float:
    return max(MARGIN, 2 * math.hypot(first.noise, second.noise))


# -- words -------------------------------------------------------------------------------------------------------------


def _why_put(point: Point, best: Times, free: Free) -> str:
    beside = (
        "computed" if free[0] is None else f"with the cache at {free[0].label}, of which {_share(free[0].kept)} is kept"
    )
    fits = "" if best.share >= 1 else f"; {_share(best.share)} of it fits"
    return (
        f"cache at {point.label}: {_ms(best.after)}/element from the cache beside {_ms(free[1])} {beside}{fits}; "
        f"worth it from the {_ordinal(_break_even(best, free[1]))} epoch on"
    )


def _why_free(
    point: Point | None,
    free_s: float,
    points: Sequence[Point],
    found: Mapping[int, Times],
    profile: Profile,
    margin: float,
    later: int,
) -> str:
    """Why nothing is written, from the point that came nearest to being worth it."""
    if point is None:
        begin = f"computes everything, {_ms(free_s)}/element"
    else:
        all_computed = found[point.node].computed
        begin = (
            f"cache at {point.label}: {_share(point.kept)} of it is kept; "
            f"{_ms(free_s)}/element with it beside {_ms(all_computed)} computed"
        )
    if profile.wait_s <= margin * profile.batch_s:
        waits = _share(profile.wait_s / profile.batch_s if profile.batch_s else 0.0)
        return f"{begin}: its consumer waits {waits} of the time, so that nothing makes it faster"
    new = [each for each in points if found[each.node].written]
    if not new:
        return begin if point is not None else f"{begin}: there is no room for a cache"
    best = min(new, key=lambda each: found[each.node].after)
    then = found[best.node]
    if not _saves(then, free_s, margin):
        fits = "" if then.share >= 1 else f", of which {_share(then.share)} fits"
        return f"{begin}: {_ms(then.after)} with a cache at {best.label}{fits} is no gain beyond {100 * margin:.2g} %"
    return (
        f"{begin}: {_ms(then.after)} with a cache at {best.label}, but {_ms(then.put)} while it is written, so that it "
        f"is worth it from the {_ordinal(_break_even(then, free_s))} epoch on, and {1 + later} are likely"
    )


def _inputs(found: Mapping[int, Times], profile: Profile, margin: float, later: int) -> dict[str, object]:
    return {
        "points": {node: msgspec.structs.asdict(each) for node, each in found.items()},
        "batch_s": profile.batch_s,
        "wait_s": profile.wait_s,
        "margin": margin,
        "later_epochs": later,
    }


def _break_even(each: Times, free_s: float) -> int:
    """Of the epochs from the one that writes on, the number of the first by whose end time was saved in all."""
    return max(0, math.floor((each.put - each.after) / (free_s - each.after))) + 1


def _ordinal(number: int) -> str:
    ending = "th" if number % 100 in {11, 12, 13} else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{ending}"


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms"


def _share(share: float) -> str:
    return f"{100 * share:.0f} %"
