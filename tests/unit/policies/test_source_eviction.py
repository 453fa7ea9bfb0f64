"""What goes from a cache of stored bytes: only what nobody reads."""

import random

import pytest

from millrace.policies.caching.source_eviction import SegmentUse, victim


def test_nothing_goes_that_is_in_use():
    assert victim([SegmentUse(1, 50.0), SegmentUse(2, 90.0)], 100.0, idle_s=60.0) is None


def test_the_one_that_was_used_longest_ago_goes():
    assert victim([SegmentUse(2, 20.0), SegmentUse(1, 30.0), SegmentUse(3, 95.0)], 100.0, idle_s=60.0) == 2
    assert victim([], 100.0) is None


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_a_cache_of_a_share_of_the_data_serves_that_share_of_an_epoch(share: float):
    """As it would not if what was read longest ago went: played with one item a segment, a second each."""
    items, rng = 400, random.Random(1)
    room = round(share * items)
    kept: dict[int, float] = {}
    hits, now = [0, 0], 0.0
    for epoch in range(6):
        order = rng.sample(range(items), items)
        for item in order:
            now += 1.0
            if item in kept:
                hits[epoch > 0] += 1
                kept[item] = now
                continue
            if len(kept) == room:
                gone = victim([SegmentUse(*each) for each in kept.items()], now, idle_s=3.0 * items)
                if gone is None:
                    continue
                del kept[gone]
            kept[item] = now
    assert hits == [0, 5 * room]
