"""When a slow request is made a second time."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.read_hedging import KEPT, hedge_after_s


def test_nobody_knows_what_is_usual_at_first() -> None:
    assert hedge_after_s([0.05] * 31, 10_000, 0) is None
    assert hedge_after_s([0.05] * 32, 10_000, 0) == 0.1


@given(st.lists(st.floats(0, 100), min_size=32, max_size=KEPT), st.integers(0, 10_000), st.integers(0, 1000))
def test_the_share_of_second_requests_is_bounded(durations: list[float], requests: int, hedged: int) -> None:
    after_s = hedge_after_s(durations, requests, hedged)
    assert (after_s is None) == (hedged + 1 > 0.05 * requests)
    assert after_s is None or after_s >= 0.02


def test_a_tail_is_cut_and_a_store_that_is_slow_for_all_is_left_alone() -> None:
    draw = random.Random(1)
    quick = [draw.uniform(0.04, 0.06) for _ in range(126)] + [3.0, 5.0]
    after_s = hedge_after_s(quick, 10_000, 0)
    assert after_s is not None
    assert after_s < 0.15
    assert sum(each > after_s for each in quick) == 2
    slow = [10 * each for each in quick]
    longer_s = hedge_after_s(slow, 10_000, 0)
    assert longer_s is not None
    assert sum(each > longer_s for each in slow) == 2
