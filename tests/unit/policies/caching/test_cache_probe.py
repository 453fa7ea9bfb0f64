"""When a job is probed, and what a probe of one says about all."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching.cache_budget import ROOMS, DataSetUse, JobTimes, place
from millrace.policies.caching.cache_probe import (
    ALL,
    NOTHING,
    PROBE_BATCHES,
    PROBE_COST,
    PROBE_INTERVAL_S,
    ProbeCandidate,
    believed_miss,
    measured_by,
    next_probe,
    probe_over,
)


def test_a_job_is_probed_when_it_first_asks_to_keep_something():
    quiet, asks = ProbeCandidate("a"), ProbeCandidate("b", inserts=True)
    decision = next_probe([quiet, asks], "none", now=0.0)
    assert decision.value == "b"
    assert decision.reason == "b has asked to keep what it read, and was never probed"
    assert next_probe([quiet], "full", now=1e9).value is None
    assert next_probe([], "none", now=0.0).reason == "none of its jobs has asked to keep what it read"


def test_one_job_of_a_data_set_is_probed_at_a_time():
    new = [ProbeCandidate(name, inserts=True) for name in ("a", "b")]
    decision = next_probe(new, "none", now=0.0, probing="a")
    assert decision.value is None
    assert decision.reason == "a is being probed, and one job of a data set is at a time"


def test_a_job_is_probed_again_after_an_interval_who_waits_longest_first():
    jobs = [ProbeCandidate(name, True, probed_s=at, miss_s=2.0, hit_s=1.9) for name, at in (("a", 50.0), ("b", 20.0))]
    assert next_probe(jobs, "full", now=PROBE_INTERVAL_S).value is None
    decision = next_probe(jobs, "full", now=PROBE_INTERVAL_S + 20)
    assert decision.value == "b"
    assert decision.reason == "b was probed 10 min ago, and the load of the link may have changed"
    early = next_probe(jobs, "full", now=PROBE_INTERVAL_S + 10)
    assert early.reason == "b was probed 9 min 50 s ago, and is every 10 min, for 2 % of its time at most"


def test_who_has_no_room_is_measured_without_a_probe():
    known = ProbeCandidate("a", True, probed_s=0.0, miss_s=2.0, hit_s=1.0)
    assert next_probe([known], "none", now=1e9).value is None
    assert next_probe([known], "two chunks", now=1e9).value == "a"


@given(st.floats(1e-3, 1e3), st.floats(1e-3, 1e3))
def test_probes_cost_a_job_two_percent_of_its_time_at_most(miss_s, hit_s):
    interval_s = ProbeCandidate("a", miss_s=miss_s, hit_s=hit_s).interval_s
    assert interval_s >= PROBE_INTERVAL_S
    assert PROBE_BATCHES * (miss_s - hit_s) <= PROBE_COST * interval_s * (1 + 1e-9)


candidates = st.builds(
    ProbeCandidate,
    name=st.sampled_from("abcdef"),
    inserts=st.booleans(),
    probed_s=st.none() | st.floats(0, 1e4),
    miss_s=st.none() | st.floats(0.1, 10),
    hit_s=st.none() | st.floats(0.1, 10),
)


@given(st.lists(candidates, unique_by=lambda job: job.name), st.sampled_from(ROOMS), st.floats(0, 1e5), st.data())
def test_who_is_probed_asks_for_it_and_the_order_of_jobs_does_not_matter(jobs, room, now, data):
    decision = next_probe(jobs, room, now)
    assert next_probe(data.draw(st.permutations(jobs)), room, now) == decision
    if decision.value is not None:
        chosen = next(job for job in jobs if job.name == decision.value)
        assert chosen.inserts
        assert chosen.probed_s is None or now - chosen.probed_s >= chosen.interval_s


def test_a_probe_takes_a_hundred_batches():
    assert [probe_over(batches).value for batches in (0, 99, 100)] == [False, False, True]
    assert probe_over(7).reason == "7 of 100 batches are measured"


@given(st.floats(0.01, 100), st.integers(1, 10), st.integers(1, 10), st.none() | st.floats(0.01, 100))
def test_what_is_believed_lies_between_a_link_of_one_s_own_and_one_that_all_share(measured_s, missing, sharers, before):
    believed = believed_miss(measured_s, missing, sharers, before)
    assert measured_s <= believed <= measured_s * max(1.0, sharers / missing) * (1 + 1e-9)
    assert believed_miss(measured_s, missing, sharers, believed) == believed
    if missing >= sharers:
        assert believed == measured_s


def test_what_was_believed_stays_as_long_as_a_lone_probe_does_not_contradict_it():
    assert believed_miss(1.0, 1, 4, before_s=2.5) == 2.5
    assert believed_miss(3.0, 1, 4, before_s=2.5) == 3.0
    assert believed_miss(0.5, 1, 4, before_s=2.5) == 2.0
    assert believed_miss(1.5, 1, 4) == 1.5
    with pytest.raises(ValueError, match="at least the one that was measured does"):
        believed_miss(1.0, 0, 4)


def test_a_link_that_feeds_one_job_but_not_four_takes_no_room_away():
    """By the bare probe neither data set would gain, and each would lose its room to the other, in turn."""

    def rooms(believed, before):
        uses = [
            DataSetUse(name, 100, tuple(JobTimes(4, miss_s, 1.0) for miss_s in times), at_once=1)
            for name, times in believed.items()
        ]
        return {name: decision.value for name, decision in place(uses, 100, before).items()}

    believed = {"a": [believed_miss(2.0, 4, 4)] * 4, "b": [believed_miss(1.6, 4, 4)] * 4}
    held = rooms(believed, None)
    assert held == {"a": "full", "b": "none"}
    believed["a"] = [believed_miss(1.0, 1, 4, before) for before in believed["a"]]
    assert rooms(believed, held) == held
    assert rooms({**believed, "a": [1.0] * 4}, held) == {"a": "none", "b": "full"}


def test_probes_of_all_orders_believe_the_same():
    steps = [(1.2, 1), (0.9, 1), (1.1, 1)]
    found = set()
    for order in itertools.permutations(steps):
        believed = believed_miss(2.0, 4, 4)
        for measured_s, missing in order:
            believed = believed_miss(measured_s, missing, 4, believed)
        found.add(believed)
    assert found == {2.0}


@pytest.mark.parametrize(
    ("share", "past", "in_chunks", "what"),
    [
        (0.0, False, False, "miss"),
        (NOTHING, True, False, "miss"),
        (0.5, False, False, "neither"),
        (ALL, False, False, "hit"),
        (1.0, False, True, "two chunks"),
        (0.0, False, True, "two chunks"),
        (0.0, True, True, "miss"),
        (1.0, True, True, "hit"),
    ],
)
def test_what_a_share_of_bytes_from_the_cache_says(share, past, in_chunks, what):
    assert measured_by(share, past=past, in_chunks=in_chunks) == what
