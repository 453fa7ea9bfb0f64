"""When requests that failed are made again: soon at first, and never by many at a time."""

from __future__ import annotations

import heapq

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies import read_retries
from millrace.policies.read_retries import RetryBudget, answered, backoff_s, take


@given(st.integers(1, 1000), st.floats(0, 1))
def test_one_request_waits_longer_each_time_up_to_a_bound(failures: int, chance: float) -> None:
    wait_s = backoff_s(failures, chance)
    assert 0.05 <= wait_s <= 15
    assert wait_s <= backoff_s(failures + 1, 1.0)
    assert backoff_s(failures, 0.0) == pytest.approx(backoff_s(failures, 1.0) / 2)


def play(readers: int, down_s: float) -> tuple[list[float], float]:
    """Seconds of the requests that so many readers make at a store that is down, and when all have been answered."""
    budget, made, waiting, end = RetryBudget(), list[float](), [(0.0, 0, 0)] * readers, 0.0
    heapq.heapify(waiting)
    while waiting:
        now, failures, due = heapq.heappop(waiting)
        if due:
            budget, wait_s = take(budget, now)
            if wait_s:
                heapq.heappush(waiting, (now + wait_s, failures, 1))
                continue
        made.append(now)
        if now < down_s:
            heapq.heappush(waiting, (now + backoff_s(failures + 1, 0.5), failures + 1, 1))
        else:
            budget, end = answered(budget, repeated=failures > 0), now
    return made, end


@pytest.mark.parametrize("readers", [1, 16, 256])
def test_a_store_that_is_down_is_asked_by_few_at_a_time_and_all_are_answered_soon_after(readers: int) -> None:
    made, end = play(readers, down_s=60.0)
    again = [now for now in made if 0 < now < 60]
    for start in range(0, 60, 10):
        within = sum(start <= now < start + 10 for now in again)
        assert within <= 32 + 4 * 10 + 1, "a burst, and four a second"
    assert end < 60 + 25
    assert end < 60 + read_retries.PATIENCE_S


def test_answers_give_something_back_within_bounds() -> None:
    budget = RetryBudget(credit=0.0)
    assert take(budget, 0.0)[1] > 0
    assert take(answered(budget, repeated=True), 0.0)[1] == 0
    assert take(answered(budget, repeated=False), 0.0)[1] > 0
    for _ in range(10_000):
        budget = answered(budget, repeated=True)
    assert budget.credit == RetryBudget().credit
    assert take(budget, 1e9)[0].credit == RetryBudget().credit - 1
