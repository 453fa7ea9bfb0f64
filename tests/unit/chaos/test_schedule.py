"""Faults are drawn from a seed, by budget."""

from collections import Counter

from chaos.schedule import LAST, apportion, draw
from hypothesis import given
from hypothesis import strategies as st

WEIGHTS = st.lists(st.integers(1, 100), min_size=1, max_size=20).map(lambda weights: dict(enumerate(weights)))


@given(count=st.integers(0, 400), weights=WEIGHTS)
def test_a_budget_is_spent_by_weight(count, weights):
    budget = apportion(count, weights)
    assert sum(budget.values()) == count
    for kind, weight in weights.items():
        assert abs(budget[kind] - count * weight / sum(weights.values())) < 1


@given(seed=st.integers(0, 1 << 31), count=st.integers(0, 400), weights=WEIGHTS)
def test_a_schedule_follows_from_its_seed(seed, count, weights):
    schedule = draw(seed, count, weights)
    assert schedule == draw(seed, count, weights)
    assert {kind: n for kind, n in apportion(count, weights).items() if n} == Counter(fault.kind for fault in schedule)
    times = [fault.at for fault in schedule]
    assert times == sorted(times)
    assert all(0 <= at <= LAST for at in times)


def test_another_seed_is_another_schedule():
    weights = {"one": 1, "other": 1}
    assert draw(1, 20, weights) != draw(2, 20, weights)
