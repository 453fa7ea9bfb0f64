"""Who gets how much room in the source cache."""

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching import cache_budget
from millrace.policies.caching.cache_budget import (
    HELD,
    ROOMS,
    WORTH,
    DataSetUse,
    JobTimes,
    Room,
    chunk_size,
    place,
)
from millrace.policies.caching.kept_chunks import CHUNK_BYTES

GB = 10**9


def use(name, size, *times, accelerators=4, **more):
    """A data set of so many GB, and for each of its jobs the time with a miss, where one with hits takes 1 s."""
    return DataSetUse(name, round(size * GB), tuple(JobTimes(accelerators, miss_s, 1.0) for miss_s in times), **more)


def rooms(decided):
    return {name: decision.value for name, decision in decided.items()}


def gained(uses, chosen):
    """Accelerators gained, worked out by hand: what Quiver's 5.3 and the link times sharers say."""
    total = 0.0
    for each in uses:
        gaining = [job for job in each.jobs if job.miss_s and job.hit_s and job.miss_s >= 1.05 * job.hit_s]
        many = len(gaining) if each.at_once is None else min(len(gaining), each.at_once)
        for job in gaining:
            takes = {"none": job.miss_s, "full": job.hit_s}
            takes["two chunks"] = job.two_chunks_s if job.two_chunks_s and many > 1 else job.miss_s / max(1, many)
            with_it = min(job.miss_s, max(job.hit_s, takes[chosen[each.name]]))
            with_it = job.hit_s if with_it < 1.05 * job.hit_s else with_it
            total += job.accelerators * (job.miss_s / with_it - 1)
    return total


def costs(uses, chosen):
    size = {"none": lambda each: 0, "full": lambda each: each.bytes}
    size["two chunks"] = lambda each: min(
        each.bytes, 2 * (chunk_size(each.bytes) if each.chunk_bytes is None else each.chunk_bytes)
    )
    return sum(size[chosen[each.name]](each) for each in uses)


def optimum(uses, budget):
    """The most that any placement gains, by enumeration."""
    names = [each.name for each in uses]
    every = (dict(zip(names, chosen, strict=True)) for chosen in itertools.product(ROOMS, repeat=len(names)))
    return max(gained(uses, chosen) for chosen in every if costs(uses, chosen) <= budget)


seconds = st.floats(-2, 2).map(lambda exponent: 10**exponent)
jobs = st.builds(
    JobTimes,
    accelerators=st.integers(0, 16),
    miss_s=st.none() | seconds,
    hit_s=st.none() | seconds,
    two_chunks_s=st.none() | seconds,
    batch_bytes=st.sampled_from([0.0, 1e6, 5e7]),
)
sizes = st.sampled_from([0, 1, 9, 10, 100, 250]) | st.integers(0, 1000)


@st.composite
def all_uses(draw, most=5, job=jobs):
    return [
        DataSetUse(
            f"data{number}",
            draw(sizes),
            tuple(draw(st.lists(job, max_size=4))),
            draw(st.none() | st.integers(0, 4)),
            draw(st.none() | st.integers(0, 30)),
        )
        for number in range(draw(st.integers(0, most)))
    ]


budgets = st.integers(0, 2000)


@st.composite
def with_before(draw):
    uses = draw(all_uses())
    return uses, {each.name: draw(st.sampled_from(ROOMS)) for each in uses}


# -- properties --------------------------------------------------------------------------------------------------------


@given(with_before(), budgets)
def test_never_over_the_budget(found, budget):
    uses, before = found
    for had in (None, before):
        decided = place(uses, budget, had)
        assert costs(uses, rooms(decided)) <= budget
        assert sum(decision.inputs["bytes"] for decision in decided.values()) <= budget
        assert list(decided) == sorted(each.name for each in uses)


@given(all_uses(), budgets)
def test_of_what_is_possible_all_is_gained(uses, budget):
    assert gained(uses, rooms(place(uses, budget))) == pytest.approx(optimum(uses, budget), rel=1e-6, abs=1e-5)


@given(with_before(), budgets)
def test_what_was_there_before_costs_a_fifth_of_the_gain_and_a_tenth_of_its_accelerators_at_most(found, budget):
    uses, before = found
    held = HELD * sum(job.accelerators for each in uses if before[each.name] != "none" for job in each.jobs)
    assert gained(uses, rooms(place(uses, budget, before))) * WORTH + held >= optimum(uses, budget) - 1e-4


@given(all_uses(), budgets, budgets)
def test_a_larger_cache_never_gains_less(uses, budget, more):
    less = gained(uses, rooms(place(uses, budget)))
    assert gained(uses, rooms(place(uses, budget + more))) >= less - 1e-4


@given(with_before(), budgets, st.randoms(use_true_random=False))
def test_the_order_of_data_sets_and_jobs_does_not_matter(found, budget, chance):
    uses, before = found
    expected = place(uses, budget, before)
    chance.shuffle(uses)
    assert place(uses, budget, dict(sorted(before.items(), reverse=True))) == expected


@given(with_before(), budgets)
def test_a_placement_stays_as_long_as_the_measures_do(found, budget):
    uses, before = found
    chosen = rooms(place(uses, budget, before))
    assert rooms(place(uses, budget, chosen)) == chosen


gaining = st.builds(JobTimes, st.integers(1, 8), st.floats(1.1, 20), st.just(1.0))
hardly = st.builds(JobTimes, st.integers(1, 8), st.floats(0.5, 1.049), st.just(1.0))


@given(all_uses(most=4, job=gaining), st.lists(st.tuples(sizes, st.lists(hardly, max_size=4)), max_size=3), budgets)
def test_who_hardly_gains_gets_nothing_and_takes_nothing_from_anybody(uses, others, budget):
    idle = [DataSetUse(f"idle{number}", size, tuple(some)) for number, (size, some) in enumerate(others)]
    decided = rooms(place([*idle, *uses], budget))
    assert {decided.pop(each.name) for each in idle} <= {"none"}
    assert decided == rooms(place(uses, budget))


reading = st.builds(JobTimes, st.integers(1, 8), st.floats(0.5, 20), st.just(1.0), batch_bytes=st.floats(1e3, 1e8))


@given(all_uses(job=reading), budgets)
def test_who_takes_others_off_the_link_takes_no_room_that_they_gain_by(uses, budget):
    needed = place([each for each in uses if each.gain("full") > 0], budget)
    decided = rooms(place(uses, budget))
    expected = sum(each.gain(needed[each.name].value) for each in uses if each.name in needed)
    assert sum(each.gain(decided[each.name]) for each in uses) == pytest.approx(expected, abs=1e-4)


@given(all_uses(most=6), budgets)
def test_few_choices_that_are_followed_lose_little(uses, budget):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache_budget, "STATES", 20)
        found = rooms(place(uses, budget))
    assert costs(uses, found) <= budget
    assert gained(uses, found) >= (1 - len(uses) / 20) * optimum(uses, budget) - 1e-4


def test_a_hundred_data_sets_fill_the_cache_with_what_gains_nearly_the_most():
    chance = random.Random(2)
    uses = [
        use(f"data{number}", chance.uniform(1, 600), *[chance.uniform(1, 12)] * chance.randint(1, 6))
        for number in range(100)
    ]
    budget = 5000 * GB
    found = rooms(place(uses, budget))
    assert costs(uses, found) <= budget
    # A cache that may cut the last data set in two gains at least as much as any that may not.
    steps = []
    for each in uses:
        gains = [each.gain(room) for room in ROOMS]
        prices = [each.cost(room) for room in ROOMS]
        if gains[1] / prices[1] >= gains[2] / prices[2]:
            steps += [(gains[1], prices[1]), (gains[2] - gains[1], prices[2] - prices[1])]
        else:
            steps.append((gains[2], prices[2]))
    bound, left = 0.0, budget
    for gain, price in sorted(steps, key=lambda step: step[0] / step[1], reverse=True):
        bound += gain * min(1.0, left / price)
        left = max(0, left - price)
    assert gained(uses, found) >= 0.98 * bound


# -- examples ----------------------------------------------------------------------------------------------------------


def test_the_most_per_byte_first_would_leave_nine_tenths_and_ours_does_not():
    small, large = use("small", 10, 2.0), use("large", 100, 10.0)
    assert small.gain("full") / small.bytes > large.gain("full") / large.bytes
    assert rooms(place([small, large], 100 * GB)) == {"small": "none", "large": "full"}
    assert gained([small, large], {"small": "full", "large": "none"}) == 4
    assert gained([small, large], {"small": "none", "large": "full"}) == 36


def test_all_of_it_is_kept_where_there_is_room():
    decision = place([use("a", 100, 3.0, 2.0)], 100 * GB)["a"]
    assert decision.value == "full"
    assert decision.reason == "all of its 93.1 GiB are kept: 8 accelerators do the work of 20"
    assert decision.inputs["gains"] == {"two chunks": 4 * 1 + 4 * 1, "full": 4 * 2 + 4 * 1}


def test_two_chunks_serve_all_that_share_and_leave_room_for_others():
    decided = place([use("a", 300, *[6.0] * 4), use("b", 100, *[9.0] * 4)], 160 * GB)
    assert rooms(decided) == {"a": "two chunks", "b": "full"}
    assert decided["a"].reason == (
        "two chunks of it are kept, 27.9 GiB, and what one of 4 jobs fetches serves all: 16 accelerators do the work of"
        " 64; all of it is more than the 149 GiB of the cache"
    )


def test_two_chunks_make_no_batch_shorter_than_computing_takes():
    both = use("a", 100, 3.0, 1.5)
    assert both.gain("two chunks") == 4 * (3.0 / 1.5 - 1) + 4 * (1.5 / 1.0 - 1)
    assert use("a", 100, *[3.0] * 4).gain("two chunks") == use("a", 100, *[3.0] * 4).gain("full")


def test_who_hardly_gains_does_not_help_to_fetch():
    assert use("a", 100, 3.0, 3.0, 1.0, 1.01).sharers == 2
    assert use("a", 100, 3.0, 3.0, 3.0, at_once=2).sharers == 2
    assert use("a", 100, 1.0).sharers == 1


def test_what_two_chunks_were_measured_to_bring_counts_more_than_what_they_should():
    modelled = DataSetUse("a", 100 * GB, (JobTimes(4, 4.0, 1.0),) * 4)
    measured = DataSetUse("a", 100 * GB, (JobTimes(4, 4.0, 1.0, two_chunks_s=2.0),) * 4)
    assert (modelled.gain("two chunks"), measured.gain("two chunks")) == (48, 16)
    assert [place([each], 100 * GB)["a"].value for each in (modelled, measured)] == ["two chunks", "full"]
    slower = DataSetUse("a", 100 * GB, (JobTimes(4, 4.0, 1.0, two_chunks_s=9.0),) * 4)
    assert slower.gain("two chunks") == 0


def test_a_single_job_gains_nothing_by_two_chunks_and_gets_none():
    decision = place([use("a", 300, 5.0)], 200 * GB)["a"]
    assert decision.value == "none"
    assert decision.reason == (
        "nothing of it is kept: its 279 GiB are more than the 186 GiB of the cache, and two chunks gain nothing where"
        " no other job reads it at once"
    )
    assert place([use("a", 300, *[5.0] * 3, at_once=1)], 200 * GB)["a"].value == "none"


def test_who_was_not_probed_gets_nothing_yet_and_takes_no_room_from_others():
    new = DataSetUse("new", 10 * GB, (JobTimes(8), JobTimes(8, miss_s=3.0)))
    decided = place([new, use("old", 50, 1.2)], 50 * GB)
    assert rooms(decided) == {"new": "none", "old": "full"}
    assert decided["new"].reason == (
        "nothing of it is kept: of its 2 jobs 2 were not probed yet, and no other gains by it"
    )
    joined = DataSetUse("old", 10 * GB, (JobTimes(8), JobTimes(8, 3.0, 1.0)))
    assert place([joined], 50 * GB)["old"].value == "full"


def test_times_that_hardly_differ_are_no_gain():
    decided = place([use("a", 10, 1.04), use("b", 10, 0.9)], 100 * GB)
    assert decided["a"].reason == (
        "nothing of it is kept: a batch takes 1.04 s with the cache off, 4 % more than the 1 s with hits, where less"
        " than 5 % is no gain"
    )
    assert decided["b"].reason == (
        "nothing of it is kept: a batch takes 900 ms with the cache off, no more than the 1 s with hits, where less"
        " than 5 % is no gain"
    )


def test_room_that_is_left_takes_off_the_link_what_others_wait_for():
    idle = DataSetUse("idle", 50 * GB, (JobTimes(4, 1.0, 1.0, batch_bytes=100e6),) * 4)
    waiting = DataSetUse("waiting", 500 * GB, (JobTimes(4, 8.0, 1.0, batch_bytes=400e6),) * 4)
    decided = place([idle, waiting], 100 * GB)
    assert rooms(decided) == {"idle": "full", "waiting": "two chunks"}
    assert decided["idle"].reason == (
        "all of its 46.6 GiB are kept: its own jobs gain nothing, but that takes 381 MiB/s off the link, for which jobs"
        " of waiting wait"
    )
    assert rooms(place([idle, waiting], 45 * GB)) == {"idle": "two chunks", "waiting": "two chunks"}
    assert rooms(place([idle, waiting], 35 * GB)) == {"idle": "none", "waiting": "two chunks"}
    assert rooms(place([idle], 100 * GB)) == {"idle": "none"}


def test_of_equals_the_hungriest_comes_first():
    # Two chunks make all of them four times as fast.
    equals = [use("a", 200, *[5.0] * 4), use("b", 200, *[9.0] * 4), use("c", 200, *[7.0] * 4)]
    assert rooms(place(equals, 70 * GB)) == {"a": "none", "b": "two chunks", "c": "two chunks"}
    twins = [use("a", 10, 2.0), use("b", 10, 2.0)]
    assert place(twins, 10 * GB) == place(twins[::-1], 10 * GB)


def test_what_has_room_keeps_it_until_another_one_is_worth_clearly_more():
    def chosen(miss_s, before):
        return rooms(place([use("a", 100, 3.0), use("b", 100, miss_s)], 100 * GB, before))

    had: dict[str, Room] = {"a": "full"}
    assert chosen(3.2, None) == {"a": "none", "b": "full"}
    assert chosen(3.2, had) == {"a": "full", "b": "none"}
    assert chosen(3.6, had) == {"a": "none", "b": "full"}
    assert chosen(3.2, {"b": "full"}) == {"a": "none", "b": "full"}
    both = [use("a", 100, 3.0), use("b", 100, 3.2)]
    assert place(both, 100 * GB, had)["b"].reason == (
        "nothing of it is kept: it would gain 8.8 accelerators, and others who have that room already gain nearly as"
        " much"
    )
    assert place(both, 100 * GB)["a"].reason == (
        "nothing of it is kept: it would gain 8 accelerators, and others gain more in that room"
    )


def test_next_to_no_gain_takes_no_room_from_what_is_there():
    idle, little = use("idle", 100, 1.0), use("little", 100, 1.08)
    assert rooms(place([idle, little], 100 * GB)) == {"idle": "none", "little": "full"}
    assert rooms(place([idle, little], 100 * GB, {"idle": "full"})) == {"idle": "full", "little": "none"}
    assert rooms(place([idle, use("some", 100, 1.2)], 100 * GB, {"idle": "full"})) == {"idle": "none", "some": "full"}


def test_two_chunks_that_are_hardly_slower_than_hits_are_as_good():
    jobs = (JobTimes(4, 8.0, 1.0, two_chunks_s=1.04),) * 4
    assert DataSetUse("a", GB, jobs).gain("two chunks") == DataSetUse("a", GB, jobs).gain("full")


def test_what_nobody_gains_by_any_more_stays_until_somebody_needs_its_room():
    gone, idle = use("gone", 50), use("idle", 50, 1.0)
    decided = place([gone, idle], 100 * GB, {"gone": "full", "idle": "full"})
    assert rooms(decided) == {"gone": "full", "idle": "full"}
    assert decided["gone"].reason == (
        "all of its 46.6 GiB are kept: its own jobs gain nothing, but nobody who gains needs the room"
    )
    decided = place([gone, idle, use("new", 60, 2.0)], 120 * GB, {"gone": "full", "idle": "full"})
    assert sorted(rooms(decided).values()) == ["full", "full", "none"]
    assert decided["new"].value == "full"
    assert place([gone], 100 * GB)["gone"].reason == "nothing of it is kept: nobody reads it"


def test_a_cache_that_has_become_smaller_is_not_overfilled():
    assert rooms(place([use("a", 100, 3.0)], 99 * GB, {"a": "full"})) == {"a": "none"}
    assert rooms(place([use("a", 100, 3.0)], -1)) == {"a": "none"}


def test_nothing_has_a_size_of_nothing():
    assert rooms(place([use("a", 0, 3.0), use("b", 0, 1.0), use("c", 0)], 0)) == {"a": "full", "b": "none", "c": "none"}
    assert place([], 10) == {}


def test_a_chunk_is_the_tenth_of_a_data_set_or_15_gb():
    assert chunk_size(90 * GB) == 9 * GB
    assert chunk_size(531 * GB) == CHUNK_BYTES
    assert chunk_size(11) == 2
    assert chunk_size(0) == 0
    assert [use("a", 90, chunk_bytes=50 * GB).cost(room) for room in ROOMS] == [0, 90 * GB, 90 * GB]


@given(st.floats(1.5, 50), st.floats(-0.03, 0.03), st.floats(-0.03, 0.03))
def test_noise_of_three_percent_moves_no_data_set(miss_s, first, second):
    held = rooms(place([use("a", 100, miss_s), use("b", 100, miss_s)], 100 * GB))
    assert sorted(held.values()) == ["full", "none"]
    noisy = [use("a", 100, miss_s * (1 + first)), use("b", 100, miss_s * (1 + second))]
    assert rooms(place(noisy, 100 * GB, held)) == held


@pytest.mark.parametrize(
    "times", [{"miss_s": 0.0}, {"hit_s": -1.0}, {"two_chunks_s": float("nan")}, {"miss_s": float("inf")}]
)
def test_times_are_positive(times):
    with pytest.raises(ValueError, match="times of batches must be positive"):
        JobTimes(4, **times)


def test_other_figures_that_cannot_be():
    with pytest.raises(ValueError, match="neither is negative"):
        JobTimes(-1)
    with pytest.raises(ValueError, match="neither is negative"):
        JobTimes(1, batch_bytes=-1.0)
    with pytest.raises(ValueError, match="two data sets have one name"):
        place([use("a", 1), use("a", 2)], 10)
    with pytest.raises(ValueError, match="fewer than no bytes"):
        place([use("a", -1)], 10)
