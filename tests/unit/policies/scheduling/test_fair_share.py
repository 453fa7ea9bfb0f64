"""How workers are divided: sums, fairness, limits; and that over time each job has its share."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.policies.scheduling.fair_share import MEMORY_S, PATIENCE_S, Accounts, Need, Standing, ahead, gives, share

CLOSE = 1e-4
TENANTS = ("red", "green", "blue")


@st.composite
def services(draw):
    """Needs, a number of workers, quotas."""
    priorities = st.sampled_from([0.01, 0.1, 0.3, 0.5, 1.0, 1.0, 2.0, 3.7, 100.0])
    wants = st.one_of(st.none(), st.integers(1, 20))
    jobs = st.tuples(st.sampled_from(TENANTS), priorities, wants)
    needs = [Need(f"job{i}", *fields) for i, fields in enumerate(draw(st.lists(jobs, min_size=1, max_size=12)))]
    quotas = draw(st.dictionaries(st.sampled_from(TENANTS), st.integers(1, 10), max_size=2))
    return needs, draw(st.integers(1, 40)), quotas


def shares(needs, workers, quotas=None):
    return {name: decision.value for name, decision in share(needs, workers, quotas or {}).items()}


def most(need, workers):
    return workers if need.wanted is None else min(workers, need.wanted)


@given(services())
def test_all_workers_that_are_of_use_are_shared_out_and_no_job_starves(service):
    needs, workers, quotas = service
    found = shares(needs, workers, quotas)
    useful = 0.0
    for tenant in TENANTS:
        theirs = [need for need in needs if need.tenant == tenant]
        quota = quotas.get(tenant, math.inf)
        assert sum(found[need.job] for need in theirs) <= quota + CLOSE
        useful += min(quota, sum(most(need, workers) for need in theirs))
    assert sum(found.values()) == pytest.approx(min(workers, useful), abs=CLOSE)
    assert all(0 < found[need.job] <= most(need, workers) for need in needs)


@given(services())
def test_who_has_less_for_its_priority_than_another_has_all_it_can(service):
    needs, workers, quotas = service
    found = shares(needs, workers, quotas)
    for one in needs:
        for other in needs:
            mine, theirs = found[one.job] * other.priority, found[other.job] * one.priority
            if mine >= theirs - CLOSE * (one.priority + other.priority):
                continue
            theirs = sum(found[need.job] for need in needs if need.tenant == one.tenant)
            full = theirs >= quotas.get(one.tenant, math.inf) - CLOSE and one.tenant != other.tenant
            assert full or found[one.job] >= most(one, workers) - CLOSE, (one, other, found)


@given(services())
def test_equal_jobs_are_equal(service):
    needs, workers, quotas = service
    twin = Need("twin", needs[0].tenant, needs[0].priority, needs[0].wanted)
    found = shares([*needs, twin], workers, quotas)
    assert found["twin"] == pytest.approx(found["job0"], abs=CLOSE)


@given(services(), st.integers(1, 10))
def test_with_more_workers_or_fewer_jobs_nobody_has_less(service, more):
    needs, workers, quotas = service
    before = shares(needs, workers, quotas)
    after = shares(needs, workers + more, quotas)
    assert all(after[name] >= before[name] - CLOSE for name in before)
    fewer = shares(needs[1:], workers, quotas)
    assert all(fewer[name] >= before[name] - CLOSE for name in fewer)


@given(services(), st.sampled_from([1.5, 2.0, 10.0]))
def test_a_higher_priority_never_gives_less(service, factor):
    needs, workers, quotas = service
    first = needs[0]
    raised = Need(first.job, first.tenant, first.priority * factor, first.wanted)
    before, after = shares(needs, workers, quotas), shares([raised, *needs[1:]], workers, quotas)
    assert after["job0"] >= before["job0"] - CLOSE


@pytest.mark.parametrize(
    ("needs", "workers", "quotas", "expected", "reason"),
    [
        ([Need("a")], 4, {}, [4], "a is the only job with work and is to have all of 4 workers"),
        ([Need("a"), Need("b")], 3, {}, [1.5, 1.5], "a is to have 1.5 of 3 workers for 2 jobs"),
        (
            [Need("a", priority=2), Need("b")],
            3,
            {},
            [2, 1],
            "a is to have 2 of 3 workers for 2 jobs, its priority being 2",
        ),
        ([Need("a", wanted=1), Need("b")], 4, {}, [1, 3], "a is to have the 1 that it wants of 4 workers"),
        (
            [Need("a", "red"), Need("b", "red"), Need("c")],
            9,
            {"red": 2},
            [1, 1, 7],
            "a is to have 1 of 9 workers: tenant red may have 2",
        ),
        ([Need("a", wanted=2)], 4, {"default": 1}, [1], "a is to have 1 of 4 workers: tenant default may have 1"),
        ([Need("a"), Need("b")], 1, {"default": 1}, [0.5, 0.5], "a is to have 0.5 of 1 worker for 2 jobs"),
    ],
)
def test_shares_and_their_reasons(needs, workers, quotas, expected, reason):
    found = share(needs, workers, quotas)
    assert [found[need.job].value for need in needs] == expected
    assert found["a"].reason == reason


def test_without_workers_nobody_has_any():
    assert shares([Need("a"), Need("b", wanted=3)], 0) == {"a": 0, "b": 0}
    assert share([], 3, {"red": 2}) == {}


def test_who_lacks_a_whole_worker_gets_it_at_once():
    assert gives(Standing(4, 2.0), Standing(0, 2.0))
    assert gives(Standing(3, 2.0, -50.0), Standing(1, 2.0, 50.0))
    assert not gives(Standing(2, 2.0), Standing(1, 2.0))


def test_a_fraction_goes_to_who_has_had_less():
    assert gives(Standing(1, 0.5, 0.1), Standing(0, 0.5, -0.1))
    assert gives(Standing(1, 0.5), Standing(0, 0.5))
    assert not gives(Standing(1, 0.5, -0.1), Standing(0, 0.5, 0.1))
    assert not gives(Standing(2, 1.5, PATIENCE_S / 2), Standing(1, 1.5, -PATIENCE_S / 3))
    assert gives(Standing(2, 1.5, PATIENCE_S), Standing(1, 1.5, -PATIENCE_S / 2))


@given(st.floats(-1e4, 1e4), st.floats(-100, 100), st.floats(0, 1e4), st.floats(0, 1e4))
def test_an_account_is_the_same_in_one_step_and_in_two(before, beyond, first, second):
    once = ahead(before, beyond, first + second)
    assert ahead(ahead(before, beyond, first), beyond, second) == pytest.approx(once, abs=1e-3)
    assert abs(once) <= max(abs(before), abs(beyond) * MEMORY_S) + 1e-6


@st.composite
def trades(draw):
    """Jobs with work without end on a few workers, and how long a turn is at least."""
    jobs = draw(st.lists(st.sampled_from([1.0, 1.0, 1.0, 2.0, 3.0]), min_size=1, max_size=10))
    return jobs, draw(st.integers(1, 12)), draw(st.sampled_from([1.0, 3.0]))


@settings(max_examples=30)
@given(trades())
def test_over_time_each_job_has_its_share(trade):
    priorities, workers, turn = trade
    needs = [Need(str(i), priority=priority) for i, priority in enumerate(priorities)]
    wanted = shares(needs, workers)
    has = {name: Standing(0, value) for name, value in wanted.items()}
    has["0"].workers = workers
    had = dict.fromkeys(wanted, 0.0)
    longest = dict.fromkeys(wanted, 0.0)
    since = dict.fromkeys(wanted, 0.0)
    steps = round(1500.0 / turn)
    for step in range(steps):
        for taker in sorted(has, key=lambda name: has[name].ahead):
            giver = max(has, key=lambda name: (has[name].workers - has[name].share >= 1, has[name].ahead))
            while gives(has[giver], has[taker]):
                has[giver].workers -= 1
                has[taker].workers += 1
                if not has[taker].short:
                    break
        for name, each in has.items():
            each.ahead = ahead(each.ahead, each.workers - each.share, turn)
            had[name] += each.workers * turn * (step >= steps // 3)
            since[name] = 0.0 if each.workers else since[name] + turn
            longest[name] = max(longest[name], since[name])
    span = turn * (steps - steps // 3)
    for name, value in wanted.items():
        assert had[name] / span == pytest.approx(value, rel=0.1, abs=0.05)
        assert longest[name] <= 4 * PATIENCE_S + 6 * turn / value  # 4.2 of them in the worst of 1,500 trades


@given(
    jobs=st.lists(
        st.tuples(st.integers(0, 4), st.sampled_from([0.0, 0.4, 1.0, 1.7, 3.0]), st.floats(-30, 30)), max_size=6
    ),
    seconds=st.sampled_from([0.0, 0.3, 7.0, 60.0]),
)
def test_takers_are_those_whom_somebody_gives_a_worker(jobs, seconds):
    then = {f"job{i}": Standing(*fields) for i, fields in enumerate(jobs)}
    now = {
        name: Standing(has.workers, has.share, ahead(has.ahead, has.workers - has.share, seconds))
        for name, has in then.items()
    }
    takers = [name for name, has in now.items() if any(gives(giver, has) for giver in now.values())]
    accounts = Accounts(then)
    accounts.takers(seconds + 1.0)
    assert accounts.takers(seconds) == takers
    assert accounts.takers(seconds) == takers
