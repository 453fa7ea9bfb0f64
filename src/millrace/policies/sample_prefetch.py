"""How far to prefetch samples into a cache of limited size (DELI, sections III-B, IV-C and V-D)."""

from __future__ import annotations

from typing import NamedTuple

from millrace.policies.decision import Decision

UNKNOWN_FETCH = 64
"""Samples to fetch at a time as long as their size, and so the number that the cache can hold, is not known."""
MOST_FETCHED = 4096
"""Most samples to fetch at a time by default: of small samples a cache may hold millions."""


class PrefetchSizes(NamedTuple):
    """How much a sampler fetches ahead, in samples.

    Attributes:
        fetch_size: samples to ask for at a time.
        threshold: samples asked for and not yet read, at or below which the next ones are asked for.
    """

    fetch_size: int
    threshold: int


def prefetch_sizes(
    room: int | None, fetch_size: int | None = None, threshold: int | None = None
) -> Decision[PrefetchSizes]:
    """Decide how much to fetch ahead: by default half of what the cache can hold, once half is left to be read.

    That is the paper's rule of 50/50: what has been asked for and not read then fills the cache and never more, so that
    a cache which lets go of the oldest samples first does not lose any that is still to be read.

    Args:
        room: samples that the cache can hold; None: not known yet.
        fetch_size: as the user wants it; None: by the rule.
        threshold: as the user wants it; None: by the rule.
    """
    half = UNKNOWN_FETCH if room is None else max(1, min(MOST_FETCHED, room // 2))
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
    why = f"{' and '.join(chosen)} as given" if chosen else "half of them is fetched once half is left to be read"
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
