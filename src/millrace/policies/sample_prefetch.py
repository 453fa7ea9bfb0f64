"""How far to prefetch samples into a cache of limited size (DELI, sections III-B, IV-C and V-D)."""

from __future__ import annotations

from typing import NamedTuple

from millrace.policies.decision import Decision

UNKNOWN_FETCH = 64
"""Samples to fetch at a time as long as their size, and so the number that the cache can hold, is not known."""
MOST_FETCHED = 4096
"""Most samples to fetch at a time by default: of small samples a cache may hold millions."""

LEAST_FETCHED = 32
"""Least samples to fetch at a time with ``look_ahead``, if eight jobs can: twice that may be under way."""

FEWEST_FETCHED = 4
"""Fewest samples to fetch at a time with ``look_ahead``, where half of the cache is more."""


class PrefetchSizes(NamedTuple):
    """How much a sampler fetches ahead, in samples.

    Attributes:
        fetch_size: samples to ask for at a time.
        threshold: samples asked for and not yet read, at or below which the next ones are asked for.
    """

    fetch_size: int
    threshold: int


def prefetch_sizes(
    room: int | None,
    fetch_size: int | None = None,
    threshold: int | None = None,
    look_ahead: int | None = None,
    batch: int = 0,
) -> Decision[PrefetchSizes]:
    """Decide how much to fetch ahead: by default half of what the cache can hold, once half is left to be read.

    That is the paper's rule of 50/50: what has been asked for and not read then fills the cache and never more, so that
    a cache which lets go of the oldest samples first does not lose any that is still to be read.

    With ``look_ahead`` what others have fetched is read first, and several jobs fill one cache. So what each has asked
    for is a smaller part of it, two batches or more, and stays until it is read though others ask for as much.

    Args:
        room: samples that the cache can hold; None: not known yet.
        fetch_size: as the user wants it; None: by the rule.
        threshold: as the user wants it; None: by the rule.
        look_ahead: how many times as many samples are looked up as are handed out; None: samples come in one order.
        batch: samples of a batch that is handed out as a whole, with ``look_ahead``; 0: there are none.
    """
    half = UNKNOWN_FETCH if room is None else max(1, min(MOST_FETCHED, room // 2))
    rule = "half of them is fetched once half is left to be read"
    if look_ahead is not None and room is not None:
        half = min(half, max(FEWEST_FETCHED, batch, min(LEAST_FETCHED, room // 16), room // (2 * look_ahead)))
        rule = f"{half:,} of them are fetched once as many are left to be read, as other jobs may fetch as many"
    fetch = half if fetch_size is None else fetch_size
    if threshold is not None:
        least = threshold
    elif fetch_size is None or room is None:
        least = fetch
    else:
        least = max(0, min(fetch, room - fetch))
    holds = "the samples' size is not known yet" if room is None else f"the cache can hold {room:,} samples"
    chosen = [
        name for name, value in (("fetch_size", fetch_size), ("prefetch_threshold", threshold)) if value is not None
    ]
    why = f"{' and '.join(chosen)} as given" if chosen else rule
    return Decision(PrefetchSizes(fetch, least), f"{holds}; {why}", {"room": room})


def is_due(waiting: int, unread: int, threshold: int) -> bool:
    """Decide whether to ask for the next samples now.

    Args:
        waiting: samples asked for that the sampler has not handed out.
        unread: samples handed out that nobody has read yet: what a DataLoader's workers run ahead. They take room in
            the cache as those that wait do, so they count towards the threshold.
        threshold: of :class:`PrefetchSizes`.
    """
    return waiting == 0 or waiting + unread <= threshold


def worth_asking(drawn: int, unread: int, room: int | None) -> int:
    """Decide how many of the samples drawn to ask for: those that the cache can hold beside what is unread.

    A sampler may draw more, as a batch has to be handed out before any of it is read. To fetch them would put samples
    out that are still to be read, so that both were fetched again.

    Args:
        drawn: samples that come next.
        unread: samples asked for or handed out before them that nobody has read yet.
        room: samples that the cache can hold; None: not known yet.
    """
    return drawn if room is None else max(0, min(drawn, room - unread))
