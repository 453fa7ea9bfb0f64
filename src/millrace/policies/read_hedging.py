"""Read hedging: when a request that is slow is made a second time, and the answer that comes first is taken. Pure.

A few requests of a store take many times as long as the rest. Reads are handed out in order, so one of them stops the
whole pipeline. A second request that begins when nearly all others would have been answered costs little and ends that
wait (Dean and Barroso, The Tail at Scale, 2013). It is worth it only for reads that somebody waits for, and must not
add to the load of a store that is slow for everybody: then all take long, what is usual grows with it, and the share of
second requests is bounded besides.
"""

from __future__ import annotations

from collections.abc import Sequence

KEPT = 128
"""Latest durations that the decision is made from."""
_LEAST = 32
"""Durations below which it isn't known what is usual."""
_USUAL = 0.95
_TIMES = 2.0
_SHORTEST_S = 0.02
_SHARE = 0.05
"""Most second requests, as a share of all."""


def hedge_after_s(durations: Sequence[float], requests: int, hedged: int) -> float | None:
    """Choose the seconds after which a request that somebody waits for is made a second time.

    Args:
        durations: seconds that the latest reads of about its size took.
        requests: number of all so far.
        hedged: number of those that were made a second time.

    Returns:
        Twice the 95th percentile; None: not at all, as nobody knows what is usual, or the share is used up.
    """
    if len(durations) < _LEAST or hedged + 1 > _SHARE * requests:
        return None
    return max(_SHORTEST_S, _TIMES * sorted(durations)[int(_USUAL * len(durations))])
