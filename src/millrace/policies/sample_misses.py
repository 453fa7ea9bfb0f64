"""Misses of a cache of samples that lets go of the oldest first, where every epoch is shuffled anew. Pure.

A training whose hosts each read a random part of the data, another one in each epoch (DELI, V-C), finds in its cache
what happens to be left of the epochs before. Let a host's cache hold the share ``q`` of all data as an epoch begins,
and have room for the share ``g``. Samples are asked for in a random order, so that each of those that were not asked
for yet in this epoch is as likely to be the next one. Let ``t`` be the share that was asked for so far.

**Without prefetching** a sample that is there stays at its place in the line. When the share ``v`` has been added in
this epoch, ``min(q, g - v)`` is left of ``q``, and the part ``t`` of that was asked for; so the next sample is there
with probability ``min(q, g - v)``. It is added if it isn't: ``v`` grows by ``1 - min(q, g - v)``. For ``q = g`` that is
``v(t) = (1 - g)(exp(t) - 1)``, until ``v`` reaches ``g`` and everything misses.

**With prefetching** a sample that is there when it is asked for goes to the end of the line, as it would else go before
it is read. So all that was asked for in this epoch stands behind what was not, and none of it goes unread, as what is
asked for and unread never exceeds the room: how far ahead of the loop a sample is asked for changes nothing. What is
being fetched takes no room yet: other samples go once it is there. With the share ``f`` under way, always the same,
``min(q (1 - t), g + f - t)`` is held that was not asked for, of ``1 - t``; so the next sample is there with probability
``min(q, (g + f - t) / (1 - t))``.
"""

from __future__ import annotations

import math
from collections.abc import Callable

_STEPS = 1000
"""Parts that an epoch of one host is cut into, without prefetching."""


def fetched_samples(samples: int, hosts: int, room: float, epochs: int) -> list[float]:
    """Expect how many samples all hosts together fetch in each epoch, each with a cache of its own, at first empty.

    Args:
        samples: of the data set.
        hosts: that divide it among them, anew in each epoch.
        room: samples that the cache of one host can hold.
        epochs: their number.
    """
    return _by_epoch(samples, hosts, room, epochs, _added)


def prefetched_samples(samples: int, hosts: int, room: float, epochs: int, at_once: int) -> list[float]:
    """Expect the same where samples are asked for before they are read, up to as many as a cache can hold.

    Args:
        samples: of the data set.
        hosts: that divide it among them, anew in each epoch.
        room: samples that the cache of one host can hold.
        epochs: their number.
        at_once: fetches of a host at a time: while it looks a sample up, all but one may be under way.
    """
    under_way = max(0.0, min(at_once, room) - 1) / max(1, samples)
    return _by_epoch(
        samples, hosts, room, epochs, lambda held, limit, part: part - _found_ahead(held, limit, part, under_way)
    )


def _by_epoch(
    samples: int, hosts: int, room: float, epochs: int, added_in: Callable[[float, float, float], float]
) -> list[float]:
    """Go through all epochs with a function that says what share of the data a host adds to its cache in one."""
    if not samples:
        return [0.0] * epochs
    limit, held, found = min(1.0, room / samples), 0.0, []
    added, before = 0.0, -1.0
    for _ in range(epochs):
        if held != before:  # else this epoch is as the last one
            added, before = added_in(held, limit, 1 / hosts), held
            held = min(limit, held + added)
        found.append(round(hosts * added * samples, 6))
    return found


def _added(held: float, limit: float, part: float) -> float:
    """Share of the data that is added to a cache while its host reads the share ``part``."""
    step = part / _STEPS
    added = 0.0
    for _ in range(_STEPS):
        added += (1 - min(held, max(0.0, limit - added))) * step
    return added


def _found_ahead(held: float, limit: float, part: float, under_way: float) -> float:
    """Share of the data that is there when it is asked for, while the share ``part`` is asked for ahead of its host.

    That is the probability of the module's docstring, integrated: ``held`` as long as the cache has room, then
    ``1 - (1 - wide) / (1 - t)`` until nothing is left that was not asked for.
    """
    wide = limit + under_way
    if held >= 1 or wide >= 1:  # nothing that is held ever goes before it is asked for
        return held * part
    full = min(part, (wide - held) / (1 - held))
    end = max(full, min(part, wide))
    return held * full + (end - full) - (1 - wide) * math.log((1 - full) / (1 - end))
