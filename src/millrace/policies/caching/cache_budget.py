"""Cache budget: how much room each data set gets in the source cache, by what its jobs gain (Quiver 5.3). Pure.

A data set is kept in full, or two chunks of it are (one that its jobs read and one that is being fetched), or nothing.
What a place is worth is counted in accelerators: ``n`` of them that take ``hit_s`` for a batch in place of ``miss_s``
do the work of ``n * miss_s / hit_s``, so that the cache has gained ``n * (miss_s / hit_s - 1)``. (Quiver adds up
``n * miss_s / hit_s``, which is ``n`` for a job that gains nothing at all.)

It differs from Quiver in what is done with these figures, too. To choose the most gain per byte first can leave half of
what is possible and more: one data set that fills the cache loses to a small one with a little more per byte. Choices
are few, so all of them are compared, but for those that another one beats with no more room. And room that is left over
goes to data sets whose jobs gain nothing themselves, if they take a link from others that wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, NamedTuple

import msgspec

from millrace.policies.caching.kept_chunks import CHUNK_BYTES, LEAST_CHUNKS
from millrace.policies.decision import Decision, listed
from millrace.policies.figures import counted, data_size, duration, number, percent

Room = Literal["none", "two chunks", "full"]
"""Part of a data set that is kept."""
ROOMS: tuple[Room, ...] = ("none", "two chunks", "full")
"""All of them, the least first."""

HARDLY = 0.05
"""Gain below which times "hardly differ": two measures of 100 batches of one job differ by as much."""
WORTH = 1.25
"""Factor by which other data sets must be worth more than one that has room already until it is taken away: measures
differ from probe to probe, and what is dropped has to be fetched again."""
HELD = 0.1
"""Gain that counts for each accelerator at least, where a data set has room already: a share of next to nothing is no
protection from noise."""
STATES = 300
"""Choices that are followed at a time; beyond, those of nearly the same gain count as one."""


class JobTimes(msgspec.Struct, frozen=True):
    """Measured times of a job that reads a data set.

    Attributes:
        accelerators: number of them that wait while the job does.
        miss_s: seconds of a batch if no job of the data set is served by the cache, see
            :func:`millrace.policies.caching.cache_probe.believed_miss`; None: not probed yet.
        hit_s: seconds of a batch if all of it is in the cache; None: not measured yet.
        two_chunks_s: seconds of a batch with two chunks and the present sharers; None: not measured, and modelled.
        batch_bytes: bytes that a batch reads; 0: unknown.
        in_chunks: whether it can read its data chunk by chunk; else it has nothing of two chunks.
    """

    accelerators: int
    miss_s: float | None = None
    hit_s: float | None = None
    two_chunks_s: float | None = None
    batch_bytes: float = 0.0
    in_chunks: bool = True

    def __post_init__(self) -> None:
        """Check the figures.

        Raises:
            ValueError: a time is not above 0 and finite, or a number is below 0.
        """
        times = (self.miss_s, self.hit_s, self.two_chunks_s)
        if not all(each is None or 0 < each < math.inf for each in times):
            raise ValueError(f"times of batches must be positive: {times}")
        if self.accelerators < 0 or not 0 <= self.batch_bytes < math.inf:
            raise ValueError(
                f"{self.accelerators} accelerators and {self.batch_bytes} bytes a batch: neither is negative"
            )

    @property
    def known(self) -> bool:
        """Whether both times that tell its gain were measured."""
        return self.miss_s is not None and self.hit_s is not None

    @property
    def benefit(self) -> float:
        """Quiver's b: the time of a batch without the cache over that with hits; 1 if it is unknown or hardly more."""
        if self.miss_s is None or self.hit_s is None:
            return 1.0
        found = self.miss_s / self.hit_s
        return found if found >= 1 + HARDLY else 1.0


class DataSetUse(msgspec.Struct, frozen=True):
    """Data set, and who reads it.

    Attributes:
        name: unique among all.
        bytes: its size, at least 0.
        jobs: all that read it.
        at_once: number of these that read at the same time, and so can use what one of them has fetched; None: all.
        chunk_bytes: size of a chunk; None: as :func:`chunk_size` has it.
    """

    name: str
    bytes: int
    jobs: tuple[JobTimes, ...] = ()
    at_once: int | None = None
    chunk_bytes: int | None = None

    @property
    def sharers(self) -> int:
        """Number of jobs that fetch for one another: read at once, and wait for the link. At least 1.

        A job that hardly gains is fed by its own share of the link, or less. It reads what others have fetched, and
        does not help to fetch it sooner.
        """
        waiting = sum(job.benefit > 1 and job.in_chunks for job in self.jobs)
        return max(1, waiting if self.at_once is None else min(waiting, self.at_once))

    def cost(self, room: Room) -> int:
        """Bytes that a place takes."""
        chunk = chunk_size(self.bytes) if self.chunk_bytes is None else self.chunk_bytes
        return {"none": 0, "two chunks": min(2 * chunk, self.bytes), "full": self.bytes}[room]

    def gain(self, room: Room) -> float:
        """Accelerators that would have to be added to do as much without a place."""
        return sum(job.accelerators * (_speedup(job, room, self.sharers) - 1) for job in self.jobs)

    def relief(self, room: Room) -> float:
        """Bytes per second less that cross the link with a place, as far as it was measured what its jobs read.

        With two chunks what the fastest job asks for crosses the link, once, if several read at once.
        """
        measured = [job for job in self.jobs if job.miss_s is not None and job.hit_s is not None]
        crosses = sum(job.batch_bytes / (job.miss_s or 1.0) for job in measured)
        if room == "full":
            return crosses
        together = [job for job in measured if job.in_chunks]
        at_once = len(together) if self.at_once is None else min(len(together), self.at_once)
        if room == "none" or at_once < 2:
            return 0.0
        crosses = sum(job.batch_bytes / (job.miss_s or 1.0) for job in together)
        return max(0.0, crosses - max(job.batch_bytes / (job.hit_s or 1.0) for job in together))


def chunk_size(size: int, largest: int = CHUNK_BYTES) -> int:
    """Size of a chunk of a data set of ``size`` bytes: the tenth of it, or ``largest`` bytes if that is less."""
    return min(largest, math.ceil(size / LEAST_CHUNKS))


def place(
    data_sets: Iterable[DataSetUse], budget: int, before: Mapping[str, Room] | None = None
) -> dict[str, Decision[Room]]:
    """Choose how much of each data set is kept, so that accelerators gain the most in all.

    First come those whose own jobs gain. Who hardly does counts for nothing then, and neither does who was not probed
    yet. What room is left goes to what is there already, and, as long as somebody waits for the link, to what takes the
    most bytes per second off it. A data set that keeps all the room that it had counts :data:`WORTH` times, and as a
    gain of :data:`HELD` for each of its accelerators at least.

    What is chosen gains all of what is possible by the measures where nothing had room before, and else ``1 /
    WORTH`` of what is possible less :data:`HELD` of the accelerators whose data sets had room. (Where more than
    :data:`STATES` choices are left, one in so many less for each data set.)

    Args:
        data_sets: all that are read, and those that have room.
        budget: bytes of all cache servers together.
        before: rooms that the last decision gave; a data set that is missing had none.

    Returns:
        by name, in the order of names: the room, and why.

    Raises:
        ValueError: two data sets have one name, or a size is below 0.
    """
    uses = sorted(data_sets, key=lambda use: use.name)
    if len({use.name for use in uses}) < len(uses):
        raise ValueError("two data sets have one name")
    if any(use.bytes < 0 or (use.chunk_bytes or 0) < 0 for use in uses):
        raise ValueError("a data set has fewer than no bytes")
    budget = max(0, budget)
    had = [(before or {}).get(use.name, "none") for use in uses]
    own = _best([_gaining(use, old) for use, old in zip(uses, had, strict=True)], budget)
    fresh = own
    if any(old != "none" for old in had):
        fresh = _best([_gaining(use, "none") for use in uses], budget)
    waits = tuple(use.name for use, room in zip(uses, own, strict=True) if use.gain(room) < use.gain("full"))
    places = [_relieving(use, room, old, waits=bool(waits)) for use, room, old in zip(uses, own, had, strict=True)]
    rooms = _best(places, budget)
    found = {}
    for use, room, old, least, anew in zip(uses, rooms, had, own, fresh, strict=True):
        why = _Circumstances(budget, waits, least, ROOMS.index(anew) > ROOMS.index(room))
        found[use.name] = Decision(room, _reason(use, room, why), _inputs(use, room, old, budget))
    return found


# -- what a place is worth ---------------------------------------------------------------------------------------------


def _speedup(job: JobTimes, room: Room, sharers: int) -> float:
    """Speed of a job with a place, in terms of its speed without one; at least 1.

    With two chunks each item crosses the link once for all sharers, so that the link is as if it were ``sharers`` times
    as fast to each of them. A batch then takes ``miss_s / sharers`` where the link is what it waits for, and no less
    than ``hit_s``, which no link makes shorter: reading and computing run beside each other. What hardly differs from
    that is as good.
    """
    if room == "none" or job.benefit <= 1 or job.miss_s is None or job.hit_s is None:
        return 1.0
    if room == "full":
        return job.benefit
    if sharers == 1 or not job.in_chunks:
        return 1.0
    two_chunks_s = job.miss_s / sharers if job.two_chunks_s is None else job.two_chunks_s
    if two_chunks_s < (1 + HARDLY) * job.hit_s:
        return job.benefit
    return max(1.0, job.miss_s / two_chunks_s)


_Order = tuple[float, int, float]
_DIGITS = 6
"""Decimal places of an accelerator, or of a byte per second, beyond which gains are equal."""


class _Option(NamedTuple):
    """Choice for one data set.

    Attributes:
        room: that it is.
        bytes: that it takes.
        order: what it is worth, bytes that are there already and stay, and what all of the data set would gain: the
            first decides, the others decide between equals.
    """

    room: Room
    bytes: int
    order: _Order


def _gaining(use: DataSetUse, had: Room) -> list[_Option]:
    """List what may be chosen for the gain of a data set's own jobs."""
    found = [_Option("none", 0, (0.0, 0, 0.0))]
    for room in ROOMS[1:]:
        gain, bonus = use.gain(room), _bonus(use, room, had)
        if gain > 0 or (bonus > 0 and room == had):
            found.append(_Option(room, use.cost(room), (round(gain + bonus, _DIGITS), 0, use.gain("full"))))
    return found


def _bonus(use: DataSetUse, room: Room, had: Room) -> float:
    """Accelerators that count for a data set that keeps what it has, beside its gain."""
    if had == "none" or ROOMS.index(room) < ROOMS.index(had):
        return 0.0
    return max((WORTH - 1) * use.gain(had), HELD * sum(job.accelerators for job in use.jobs))


def _relieving(use: DataSetUse, least: Room, had: Room, *, waits: bool) -> list[_Option]:
    """List what may be chosen of the room that is left: at least what was given for the gain of its own jobs."""
    found = []
    for room in ROOMS[ROOMS.index(least) :]:
        relief = use.relief(room) if waits else 0.0
        stays = had != "none" and ROOMS.index(room) >= ROOMS.index(had)
        if room == least or relief > 0 or (stays and room == had):
            worth = relief + ((WORTH - 1) * use.relief(had) if waits and stays else 0.0)
            order = (round(worth, _DIGITS), use.cost(had) if stays else 0, use.gain("full") if room != least else 0.0)
            found.append(_Option(room, use.cost(room), order))
    return found


class _Chosen(NamedTuple):
    """Choices for the first data sets, each linked with the ones before it.

    Attributes:
        bytes: of all of them.
        order: the sum of theirs; the higher the better.
        room: the last one.
        earlier: those before; None: there is none.
    """

    bytes: int
    order: _Order
    room: Room
    earlier: _Chosen | None


def _add(end: _Chosen, each: _Option) -> _Chosen:
    (worth, stays, wanted), (more, staying, wants) = end.order, each.order
    return _Chosen(end.bytes + each.bytes, (worth + more, stays + staying, wanted + wants), each.room, end)


def _best(options: Sequence[Sequence[_Option]], budget: int) -> list[Room]:
    """Choose one option of each data set: the highest order within the budget, and of equals the fewest bytes.

    All choices are followed, but for those that another one beats with no more bytes (Nemhauser and Ullmann 1969). If
    more than :data:`STATES` are left, those whose worth differs by less than the best one's part in so many are one:
    the least in bytes. So each data set costs at most that part of the best.
    """
    ends = [_Chosen(0, (0.0, 0, 0.0), "none", None)]
    needed = sum(min(each.bytes for each in places) for places in options)
    for places in options:
        needed -= min(each.bytes for each in places)
        longer = [_add(end, each) for end in ends for each in places if end.bytes + each.bytes + needed <= budget]
        longer.sort(key=lambda end: (-end.bytes, end.order), reverse=True)
        ends = []
        for end in longer:
            if not ends or end.order > ends[-1].order:
                ends.append(end)
        if len(ends) > STATES:
            ends = _thinned(ends)
    rooms: list[Room] = []
    last = ends[-1]
    while last.earlier is not None:
        rooms.append(last.room)
        last = last.earlier
    return rooms[::-1]


def _thinned(ends: Sequence[_Chosen]) -> list[_Chosen]:
    """Leave the least in bytes of those that differ by less than a step in what decides, which is worth if any is."""
    leads = next((place for place, each in enumerate(ends[-1].order) if each > 0), 0)
    step = ends[-1].order[leads] / STATES
    least = {math.floor(end.order[leads] / step): end for end in reversed(ends)}
    return list(least.values())[::-1]


# -- words -------------------------------------------------------------------------------------------------------------


class _Circumstances(NamedTuple):
    """Circumstances of a decision for one data set.

    Attributes:
        budget: bytes of the cache.
        waits: data sets whose jobs would gain by more room than they have for their own gain.
        own: room that this one has for the gain of its own jobs.
        held: whether it would have more if nobody had had room before.
    """

    budget: int
    waits: tuple[str, ...]
    own: Room
    held: bool

    @property
    def others(self) -> str:
        """Reason why a data set that would fit has no more room."""
        return "others who have that room already gain nearly as much" if self.held else "others gain more in that room"


def _reason(use: DataSetUse, room: Room, why: _Circumstances) -> str:
    if room == "none":
        return f"nothing of it is kept: {_why_none(use, why)}"
    kept = f"all of its {data_size(use.bytes)} are kept"
    if room == "two chunks":
        kept = f"two chunks of it are kept, {data_size(use.cost(room))}"
    gain = use.gain(room)
    off = f"that takes {data_size(use.relief(room))}/s off the link, for which jobs of {listed(why.waits)} wait"
    relieves = bool(why.waits) and use.relief(room) > 0
    if gain <= 0:
        return f"{kept}: its own jobs gain nothing, but {off if relieves else 'nobody who gains needs the room'}"
    accelerators = sum(job.accelerators for job in use.jobs if job.benefit > 1)
    does = f"{counted(accelerators, 'accelerator')} do the work of {number(accelerators + gain)}"
    if room == "two chunks":
        return f"{kept}, and what one of {use.sharers} jobs fetches serves all: {does}{_why_not_full(use, why)}"
    if why.own == "full":
        return f"{kept}: {does}"
    return (
        f"{kept}: {does}, as they would with two chunks, but {off if relieves else 'nobody who gains needs the room'}"
    )


def _why_not_full(use: DataSetUse, why: _Circumstances) -> str:
    more = use.gain("full") - use.gain("two chunks")
    if more <= 0:
        return "; all of it would gain them no more"
    if use.bytes > why.budget:
        return f"; all of it is more than the {data_size(why.budget)} of the cache"
    return f"; all of it would gain {number(more)} more, and {why.others}"


def _why_none(use: DataSetUse, why: _Circumstances) -> str:
    if not use.jobs:
        return "nobody reads it"
    if use.gain("full") <= 0:
        unknown = sum(not job.known for job in use.jobs)
        if unknown:
            were = "was" if unknown == 1 else "were"
            return f"of its {counted(len(use.jobs), 'job')} {unknown} {were} not probed yet, and no other gains by it"
        times = [(job.miss_s, job.hit_s) for job in use.jobs if job.miss_s is not None and job.hit_s is not None]
        miss_s, hit_s = max(times, key=lambda each: each[0] / each[1])
        more = f"{percent(miss_s / hit_s - 1)} more than" if miss_s > hit_s else "no more than"
        return (
            f"a batch takes {duration(miss_s)} with the cache off, {more} the {duration(hit_s)} with hits, where less "
            f"than {percent(HARDLY)} is no gain"
        )
    if use.bytes > why.budget and use.gain("two chunks") <= 0:
        return (
            f"its {data_size(use.bytes)} are more than the {data_size(why.budget)} of the cache, and two chunks gain "
            "nothing where no other job reads it at once"
        )
    if min(use.cost(room) for room in ROOMS[1:] if use.gain(room) > 0) > why.budget:
        return f"no part of it fits into the {data_size(why.budget)} of the cache"
    return f"it would gain {number(use.gain('full'))} accelerators, and {why.others}"


def _inputs(use: DataSetUse, room: Room, had: Room, budget: int) -> dict[str, object]:
    return {
        "budget": budget,
        "bytes": use.cost(room),
        "had": had,
        "sharers": use.sharers,
        "gains": {each: use.gain(each) for each in ROOMS[1:]},
        "relief": {each: use.relief(each) for each in ROOMS[1:]},
        "costs": {each: use.cost(each) for each in ROOMS[1:]},
        "benefits": [job.benefit for job in use.jobs],
    }
