"""What transfers cost: a model that never leaves what was measured, and learns."""

import math
import random

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching.io_cost import TransferCost, fit, proportional

SIZES = [4096 * 4**step for step in range(9)]
times = st.floats(1e-7, 1e3)
costs = st.lists(st.tuples(st.integers(1, 1 << 40), times), min_size=1, max_size=9, unique_by=lambda each: each[0]).map(
    fit
)
sizes = st.integers(1, 1 << 42)


def disk(size):
    """Five milliseconds, then 200 MB/s."""
    return 5e-3 + size / 2e8


@given(costs, sizes)
def test_between_what_was_measured_nothing_is_outside_of_it(cost, size):
    seconds = cost.seconds(size)
    if size <= cost.sizes[0]:
        assert seconds == cost.times[0]
    elif size >= cost.sizes[-1]:
        assert seconds == pytest.approx(cost.times[-1] * size / cost.sizes[-1])
    else:
        after = next(number for number, each in enumerate(cost.sizes) if each > size)
        low, high = sorted(cost.times[after - 1 : after + 1])
        assert low * (1 - 1e-9) <= seconds <= high * (1 + 1e-9)


@given(costs)
def test_what_was_measured_is_what_is_said(cost):
    assert [cost.seconds(size) for size in cost.sizes] == pytest.approx(cost.times)


@pytest.mark.parametrize("size", [5000, 100_000, 700_000, 3_000_000, 100_000_000, 10**9])
def test_latency_and_bandwidth_are_found_between_a_few_sizes(size):
    cost = fit((each, disk(each)) for each in SIZES)
    assert cost.seconds(size) == pytest.approx(disk(size), rel=0.07)


def test_a_median_is_taken():
    assert fit([(10, 1.0), (10, 100.0), (10, 2.0), (20, 3.0)]) == TransferCost((10, 20), (2.0, 3.0))


def test_what_is_smaller_takes_no_longer():
    assert fit([(10, 9.0), (20, 2.0), (30, 7.0), (40, 5.0), (50, 6.0)]).times == (2.0, 2.0, 5.0, 5.0, 6.0)


def test_unless_many_reads_say_that_it_does():
    """As where a small answer waits in the server for what would fill its packet."""
    assert fit([*[(10, 44.0)] * 3, *[(20, 3.0)] * 2, (30, 2.0)]).times == (44.0, 2.0, 2.0)


@given(st.integers(2, 1 << 40), times, sizes)
def test_what_is_proportional(largest, seconds, size):
    assert proportional(largest, seconds).seconds(size) == pytest.approx(seconds * size / largest)


def test_it_can_be_kept():
    cost = fit((size, disk(size)) for size in SIZES)
    assert msgspec.json.decode(msgspec.json.encode(cost), type=TransferCost) == cost


# -- learning ----------------------------------------------------------------------------------------------------------


def learned(cost, seconds_of, count, seed=1):
    draw = random.Random(seed)
    for _ in range(count):
        size = round(math.exp(draw.uniform(math.log(SIZES[0]), math.log(SIZES[-1]))))
        cost = cost.learn(size, seconds_of(size) * math.exp(draw.gauss(0, 0.1)))
    return cost


def test_a_store_that_became_slower_is_learned():
    cost = learned(fit((size, disk(size)) for size in SIZES), lambda size: 4 * disk(size), 200)
    assert [cost.seconds(size) / disk(size) for size in SIZES] == pytest.approx([4] * len(SIZES), rel=0.25)


def test_what_is_forgotten_is_three_tenths_with_each_measurement():
    cost = TransferCost((1000,), (1.0,))
    for count in range(1, 30):
        cost = cost.learn(1000, math.e)
        assert math.log(cost.seconds(1000)) == pytest.approx(1 - 0.7**count)


def test_a_single_outlier_changes_little():
    cost = fit((size, disk(size)) for size in SIZES)
    assert cost.learn(65536, 100 * disk(65536)).seconds(65536) < 1.6 * disk(65536)


def test_sizes_far_away_learn_less():
    before = fit((size, disk(size)) for size in SIZES)
    after = before.learn(SIZES[2], 2 * disk(SIZES[2]))
    changes = [after.seconds(size) / before.seconds(size) for size in SIZES]
    assert changes[2] == max(changes)
    assert changes[2:] == sorted(changes[2:], reverse=True)
    assert 1 < changes[-1] < 1.004


@given(costs, sizes, times)
def test_learning_moves_towards_what_was_measured_and_not_beyond(cost, size, seconds):
    before, after = cost.seconds(size), cost.learn(size, seconds).seconds(size)
    low, high = sorted([before, seconds])
    assert low * (1 - 1e-6) <= after <= high * (1 + 1e-6)


@pytest.mark.parametrize("seconds", [0.0, -1.0, math.inf, math.nan])
def test_what_is_no_time_says_nothing(seconds):
    cost = TransferCost((1000,), (1.0,))
    assert cost.learn(1000, seconds) is cost


@pytest.mark.parametrize(
    ("sizes", "times", "why"),
    [
        ((), (), "0 times for 0 sizes"),
        ((1, 2), (1.0,), "1 times for 2 sizes"),
        ((2, 1), (1.0, 1.0), "ascending"),
        ((1, 1), (1.0, 1.0), "ascending"),
        ((0,), (1.0,), "positive"),
        ((1,), (0.0,), "times must be positive"),
        ((1,), (math.inf,), "times must be positive"),
    ],
)
def test_what_was_never_measured_is_refused(sizes, times, why):
    with pytest.raises(ValueError, match=why):
        TransferCost(sizes, times)
