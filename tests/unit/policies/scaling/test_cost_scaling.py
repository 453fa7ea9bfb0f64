"""With how many workers a job's elements are cheapest."""

import math

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.prices import USUAL, HourlyRates
from millrace.policies.scaling.autoscale import DRIFT, LOOKS, Limits, Look
from millrace.policies.scaling.cost_scaling import PROBE_LOOKS, SAVES, CheapScale, begin, price, step

LIMITS = Limits(1, 300)
OWN_S = 0.01


class Job(msgspec.Struct, frozen=True):
    """A consumer that takes an element in ``own_s``, and workers that take ``needed`` times as long.

    They share ``contention`` of that for each further worker, a store that gives an element in ``floor_s``, and so many
    splits.
    """

    needed: float
    contention: float = 0.0
    floor_s: float = 0.0
    splits: int = 1 << 30
    own_s: float = OWN_S

    def batch_s(self, workers: int) -> float:
        return max(self.own_s, self.floor_s, self.work_s(workers) / min(workers, self.splits))

    def work_s(self, workers: int) -> float:
        return OWN_S * self.needed * (1 + self.contention * (min(workers, self.splits) - 1))

    def look(self, workers: int) -> Look:
        batch_s = self.batch_s(workers)
        busy = min(1.0, self.work_s(workers) / workers / batch_s)
        if self.floor_s and batch_s == self.floor_s:
            busy = 1.0  # whoever waits for the store computes
        return Look(workers, batch_s, batch_s - self.own_s, busy)

    def cost(self, workers: int, rates: HourlyRates) -> float:
        return self.batch_s(workers) * (workers * rates.worker + rates.training)

    def least_cost(self, rates: HourlyRates, limits: Limits = LIMITS) -> float:
        return min(self.cost(workers, rates) for workers in range(limits.least, limits.most + 1))


def search(
    job: Job, rates: HourlyRates, limits: Limits = LIMITS, scale: CheapScale | None = None, first: int = 1
) -> tuple[CheapScale, list[int]]:
    """Where a search ends, and all numbers of workers on its way."""
    scale = scale or begin(first, limits).value
    path = [scale.workers]
    for _ in range(40):
        scale = step(scale, job.look(scale.workers), limits, rates).value
        if scale.workers != path[-1]:
            path.append(scale.workers)
        if scale.phase == "settled":
            return scale, path
    raise AssertionError(path)


rates_of = st.builds(HourlyRates, st.just(1.0), st.floats(0.1, 300))
jobs = st.one_of(
    st.builds(Job, st.floats(0.2, 250)),
    st.builds(Job, st.floats(1, 250), contention=st.floats(0, 0.3)),
    st.builds(Job, st.floats(1, 250), floor_s=st.floats(1, 4).map(lambda times: OWN_S * times)),
    st.builds(Job, st.floats(1, 250), splits=st.integers(1, 200)),
)


@given(jobs, rates_of, st.integers(1, 300))
def test_no_number_costs_much_less_than_the_one_that_it_ends_with(job, rates, first):
    scale, path = search(job, rates, first=first)
    assert job.cost(scale.workers, rates) <= (1 + 2 * SAVES) * job.least_cost(rates)
    assert len(path) <= 12


@given(jobs, rates_of, st.integers(1, 20), st.integers(20, 60), st.integers(1, 300))
def test_it_keeps_to_its_limits(job, rates, least, most, first):
    limits = Limits(least, most)
    scale, path = search(job, rates, limits, first=first)
    assert all(least <= count <= most for count in path)
    assert job.cost(scale.workers, rates) <= (1 + 2 * SAVES) * job.least_cost(rates, limits)


@given(jobs, rates_of)
def test_what_is_settled_stays_so(job, rates):
    scale, _ = search(job, rates)
    for _ in range(PROBE_LOOKS - 2):
        again = step(scale, job.look(scale.workers), LIMITS, rates).value
        assert (again.workers, again.phase) == (scale.workers, "settled")
        scale = again


@given(st.floats(0.5, 200), rates_of)
def test_where_workers_do_not_hamper_each_other_it_takes_as_many_as_keep_the_consumer_busy(needed, rates):
    """An element then costs what its work costs and what the host costs for as long: the sooner, the cheaper.

    But for the last one, which may have so little to do that it costs as much as it saves.
    """
    job = Job(needed)
    scale, _ = search(job, rates)
    busy = math.ceil(needed)
    assert needed * 0.9 <= scale.workers <= max(1.0, needed * 1.05 + 1) or (
        job.cost(scale.workers, rates) <= (1 + 2 * SAVES) * job.cost(busy, rates)
    )


def test_noise_hides_no_saving_of_more_than_a_quarter():
    job, rates, scale = Job(24), HourlyRates(1.0, 50.0), begin(6, LIMITS).value
    for _ in range(40):
        look = msgspec.structs.replace(job.look(scale.workers), noise=0.6)
        scale = step(scale, look, LIMITS, rates).value
    assert job.cost(scale.workers, rates) <= 1.25 * job.least_cost(rates)


def test_a_dear_training_gets_more_workers_than_a_cheap_one():
    """They hamper each other, so each further one brings less: t(n) = a + b / n costs least with sqrt(b r / a)."""
    job = Job(20, contention=0.04)
    found = [search(job, HourlyRates(1.0, training))[0].workers for training in (1, 4, 16)]
    assert found == sorted(set(found))
    assert found[1] == pytest.approx((0.96 / 0.04 * 4) ** 0.5, rel=0.25)  # the curve is flat there


def test_what_workers_cost_nothing_is_the_least_time():
    assert search(Job(12), HourlyRates(0.0, 1.0))[0].workers == 12


def test_where_a_training_costs_nothing_one_worker_is_as_good_as_any():
    assert search(Job(12), HourlyRates(1.0, 0.0))[0].workers == 1


def test_limits_that_change_are_kept_at_once():
    scale, _ = search(Job(50), HourlyRates(1.0, 90.0))
    assert step(scale, Job(50).look(scale.workers), Limits(1, 10), HourlyRates(1.0, 90.0)).value.workers == 10
    assert step(scale, Job(50).look(scale.workers), Limits(80, 100), HourlyRates(1.0, 90.0)).value.workers == 80


def test_a_look_at_more_workers_says_nothing():
    scale = begin(4, LIMITS).value
    assert step(scale, Job(50).look(5), LIMITS, HourlyRates(1.0, 1.0)).value == scale


def test_one_look_that_differs_changes_nothing():
    rates = HourlyRates(1.0, 90.0)
    scale, _ = search(Job(8), rates)
    for needed in (16, 8, 16, 8):
        scale = step(scale, Job(needed).look(scale.workers), LIMITS, rates).value
    assert (scale.workers, scale.phase) == (8, "settled")


@pytest.mark.parametrize("now", [16, 4])
def test_a_change_is_seen_twice_before_it_counts(now):
    rates = HourlyRates(1.0, 90.0)
    scale, _ = search(Job(8), rates)
    for number in range(LOOKS):
        assert scale.workers == 8, number
        scale = step(scale, Job(now).look(8), LIMITS, rates).value
    scale, _ = search(Job(now), rates, scale=scale)
    assert scale.workers == now


def test_other_prices_need_few_looks_if_any():
    job = Job(20, contention=0.04)
    scale, _ = search(job, HourlyRates(1.0, 4.0))
    dear, path = search(job, HourlyRates(1.0, 30.0), scale=msgspec.structs.replace(scale, phase="search"))
    assert dear.workers > 1.5 * scale.workers
    assert len(path) <= 4
    assert len(search(job, HourlyRates(1.0, 4.0), scale=dear)[1]) <= 2  # it was there before


def test_fewer_are_tried_now_and_then_where_a_store_limits_the_job():
    rates, before = HourlyRates(1.0, 90.0), Job(100, floor_s=2 * OWN_S)
    scale, _ = search(before, rates)
    assert scale.workers == pytest.approx(50, abs=2)
    now = Job(40, floor_s=2 * OWN_S)  # its functions take less, and what workers do doesn't tell
    for _ in range(PROBE_LOOKS + 10):
        scale = step(scale, now.look(scale.workers), LIMITS, rates).value
    assert scale.workers == pytest.approx(20, abs=2)


def test_workers_inside_the_training_hosts_cost_nothing():
    job = Job(20, contention=0.04)
    found, _ = search(job, HourlyRates(1.0, 2.0, local=6), Limits(6, 300), first=6)
    assert found.workers == 6
    assert price(found, 6, HourlyRates(1.0, 2.0, local=6)) == pytest.approx(job.batch_s(6) / 3600 * 2.0)
    assert search(job, HourlyRates(1.0, 20.0, local=6), Limits(6, 300), first=6)[0].workers > 12


def test_prices_are_those_of_equation_one():
    rates = USUAL.rates(2, 8)
    assert rates.worker == pytest.approx(0.03 + 2 * 0.004)
    assert rates.training == pytest.approx(2 * (16 * 0.03 + 120 * 0.004 + 8 * 2.5))
    scale, _ = search(Job(4), rates)
    seconds = OWN_S
    assert price(scale, 4, rates) == pytest.approx(seconds / 3600 * (4 * rates.worker + rates.training))


def test_reasons_say_what_elements_cost():
    rates = HourlyRates(0.36, 3.6, "USD")
    scale = begin(1, LIMITS).value
    decision = step(scale, Job(4).look(1), LIMITS, rates)
    assert decision.reason == "1,000 elements cost 0.044 USD with 1 worker, and with 4 perhaps 0.014 USD"
    assert step(decision.value, Job(4).look(4), LIMITS, rates).reason == (
        "4 workers: 1,000 elements cost 0.014 USD, 29 % of it for workers, and no other number would save more than 2 %"
    )
    slower = Job(4, own_s=(1 + 2 * DRIFT) * OWN_S)
    settled = step(decision.value, Job(4).look(4), LIMITS, rates).value
    assert step(settled, slower.look(4), LIMITS, rates).reason == (
        "the consumer takes 12 ms for an element, and took 10 ms; looks once more"
    )
