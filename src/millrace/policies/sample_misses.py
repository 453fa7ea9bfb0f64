"""Misses of a cache of samples that lets go of the oldest first, where every epoch is shuffled anew. Pure.

A training whose hosts each read a random part of the data, another one in each epoch (DELI, V-C), finds in its cache
what happens to be left of the epochs before. Let a host's cache hold the share ``q`` of all data as an epoch begins,
and have room for the share ``g``. When the share ``v`` has been added since, what is left of ``q`` is
``min(q, g - v)``, as the oldest samples go first. Samples are asked for in a random order, so this is also the
probability that the next one is there. It is added if it isn't; so ``v`` grows by ``1 - min(q, g - v)`` for each
sample. For ``q = g`` and reads without prefetching the solution is ``v(t) = (1 - g)(exp(t) - 1)``, until ``v`` reaches
``g`` and everything misses.

With prefetching a sample is asked for before it is read. What was there when it was asked for may have gone when it is
read, and then is fetched after all.
"""

from __future__ import annotations

_STEPS = 1000
"""Parts that an epoch of one host is cut into."""


def fetched_samples(samples: int, hosts: int, room: float, epochs: int, ahead: float = 0.0) -> list[float]:
    """Expect how many samples all hosts together fetch in each epoch, each with a cache of its own.

    Args:
        samples: of the data set.
        hosts: that divide it among them, anew in each epoch.
        room: samples that the cache of one host can hold.
        epochs: their number; caches are empty at first.
        ahead: samples asked for and not yet read, on average.
    """
    if not samples:
        return [0.0] * epochs
    limit, held, found = room / samples, 0.0, []
    added, before = 0.0, -1.0
    for _ in range(epochs):
        if held != before:  # else this epoch is as the last one
            added, before = _added(held, limit, 1 / hosts, ahead / samples), held
            held = min(limit, held + added)
        found.append(round(hosts * added * samples, 6))
    return found


def _added(held: float, limit: float, part: float, ahead: float) -> float:
    """Share of the data that is added to a cache while its host reads the share ``part``."""
    step = part / _STEPS
    window = min(_STEPS, round(ahead / step))
    asked: list[float] = []
    added = 0.0
    for number in range(_STEPS + window):
        if number < _STEPS:
            there = min(held, max(0.0, limit - added))
            asked.append(there)
            added += (1 - there) * step
        if number >= window:
            there = min(held, max(0.0, limit - added))
            added += max(0.0, asked[number - window] - there) * step
    return added
