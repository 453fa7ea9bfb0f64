"""Capacity of a cluster: the number of workers that it can hold, found out by asking it for them. Pure.

Nobody can tell beforehand: nodes are full, a quota is used up, a cluster that adds nodes needs minutes for one. So
planned workers are asked for, and if fewer are there for a while (``patience_s``), their number is the limit of all
plans. Requests beyond it are given up, so that nothing is pending for ever. The limit holds five times as long
as was waited; then more are asked for, if anybody wants them. Each such try that brings no more waits twice as long as
the one before, up to eight times as long as the first, for clusters whose nodes come slowly. Workers that come late all
the same are kept for a while, for jobs that have done with fewer to find out whether they need them.
"""

from __future__ import annotations

import msgspec

from millrace.policies.decision import Decision

PAUSE = 5
"""Multiple of the waiting time for which a limit holds."""
DOUBLINGS = 3
"""Most doublings of the waiting time."""


class Capacity(msgspec.Struct, frozen=True):
    """Limit that was found: a cluster held no more workers.

    Attributes:
        workers: number that it held.
        until: second at which more are tried.
        tries: in a row that brought no more than the one before.
        reason: in words.
        late: they came after fewer had been taken for all, and are kept until then.
    """

    workers: int
    until: float
    tries: int = 0
    reason: str = ""
    late: bool = False


class Shortage(msgspec.Struct, frozen=True):
    """Fewer workers than planned are there.

    Attributes:
        most: largest number that was there at a time.
        since: second at which so many had come, or so many were planned, or fewer were there for the first time.
        planned: number of workers.
    """

    most: int
    since: float
    planned: int = 0


def in_force(capacity: Capacity | None, now: float) -> Capacity | None:
    """Return the limit, unless there is none or it is time to try more."""
    return capacity if capacity is not None and now < capacity.until else None


def patience(known: Capacity | None, patience_s: float) -> float:
    """Seconds to wait for workers, ``patience_s`` the first time, by the last limit that was found."""
    return patience_s if known is None else patience_s * 2.0 ** min(known.tries + 1, DOUBLINGS)


def watch(
    known: Capacity | None,
    short: Shortage | None,
    planned: int,
    there: int,
    patience_s: float,
    now: float,
    *,
    least: int = 1,
) -> tuple[Capacity | None, Shortage | None]:
    """Advance by one more count of the workers: the limit, and the shortage for the next count.

    Args:
        known: the last limit that was found, in force or not.
        short: as this has said before.
        planned: workers that were asked for.
        there: workers.
        patience_s: seconds to wait for workers the first time.
        now: second.
        least: so many are asked for whatever comes of it.
    """
    if known is not None and there > known.workers:  # so it holds more
        known = late(there, patience_s, now).value if in_force(known, now) else None
    if there >= planned:
        return known, None
    if short is None or there > short.most or planned > short.planned:
        short = Shortage(there, now, planned)
    most, waited_s = max(least, short.most), patience(known, patience_s)
    if most >= planned or now - short.since < waited_s:
        return known, short
    return found(known, planned, short.most, waited_s, now, least=least).value, None


def found(
    known: Capacity | None, planned: int, there: int, waited_s: float, now: float, *, least: int = 1
) -> Decision[Capacity]:
    """Set the limit, after no more than ``there`` of the planned workers were there for ``waited_s`` seconds."""
    most = max(least, there)
    tries = known.tries + 1 if known is not None and most <= known.workers else 0
    pause_s = PAUSE * waited_s
    limit = "that is the limit" if most == there else f"the limit is {most}, the fewest that are asked for,"
    reason = (
        f"{there} of {planned} workers could be had for {waited_s:.0f} s: {limit} for {pause_s:.0f} s, "
        f"and then more are tried"
    )
    inputs = {"planned": planned, "there": there, "least": least, "waited_s": waited_s}
    return Decision(Capacity(most, now + pause_s, tries, reason), reason, inputs)


def late(there: int, patience_s: float, now: float) -> Decision[Capacity]:
    """Raise the limit for ``patience_s`` seconds: more workers are there than it says."""
    reason = f"{there} workers have come after all, and stay for {patience_s:.0f} s to be of use"
    return Decision(Capacity(there, now + patience_s, 0, reason, late=True), reason, {"there": there})
