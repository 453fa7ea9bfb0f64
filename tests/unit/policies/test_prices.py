"""What an epoch costs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.prices import Machine, Prices, cost

TPU = Machine(hour=4.5)
N2 = Machine(hour=0.08)


def cheapest(batch_s, worker, host):
    """Number of workers with which an element costs least; of equals the fastest."""
    return min(batch_s, key=lambda count: (cost(batch_s[count], count, worker, 1, host).total, batch_s[count]))


def test_the_example_of_tfdata_service():
    """ResNet50 (4.2): 112,320 steps, 1.75 a second colocated, and 4.5 with 16 workers and a dispatcher."""
    assert cost(112_320 / 1.75, 0, N2, 1, TPU).total == pytest.approx(80.2, abs=0.05)
    found = cost(112_320 / 4.5, 17, N2, 1, TPU)
    assert found.service == pytest.approx(9.4, abs=0.05)
    assert found.training == pytest.approx(31.2, abs=0.05)
    assert found.total == pytest.approx(40.6, abs=0.05)


def test_workers_count_by_what_they_use_and_hosts_by_what_they_have():
    prices = Prices(core=0.05, gib=0.01, accelerator=2.0)
    found = cost(7200, 10, Machine(cores=1.5, gib=4), 2, Machine(cores=96, gib=600, accelerators=8), prices)
    assert found.service == pytest.approx(2 * 10 * (1.5 * 0.05 + 4 * 0.01))
    assert found.training == pytest.approx(2 * 2 * (96 * 0.05 + 600 * 0.01 + 8 * 2.0))


@given(st.floats(1, 100), st.floats(0.1, 50), st.floats(0.1, 50))
def test_the_cheapest_number_keeps_a_dear_accelerator_busy_and_not_a_cheap_one(needed, worker, host):
    times = {count: max(1.0, needed / count) for count in range(1, 201)}
    chosen = cheapest(times, Machine(hour=worker), Machine(hour=host))
    prices = {count: seconds * (count * worker + host) for count, seconds in times.items()}
    assert prices[chosen] == min(prices.values())
    assert all(times[chosen] <= times[count] for count in times if prices[count] == prices[chosen])


def test_more_workers_than_are_needed_cost_more():
    times = {1: 4.0, 2: 2.0, 4: 1.0, 8: 1.0}
    assert cheapest(times, N2, TPU) == 4
    assert cheapest({1: 1.0, 2: 1.0}, N2, TPU) == 1
