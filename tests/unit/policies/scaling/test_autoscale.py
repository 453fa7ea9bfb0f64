"""How many workers a job gets."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.scaling import scaling_policies
from millrace.policies.scaling.autoscale import (
    JUMP,
    LOOKS,
    PROBE_MEANS,
    TRIM_LOOKS,
    Limits,
    Look,
    Scale,
    begin,
    look_elements,
    pause_elements,
    step,
)

LIMITS = Limits(1, 1000)
OWN_S = 0.01


def look(workers: int, needed: float, *, floor_s: float = 0.0, splits: float = 1 << 30) -> Look:
    """At a job whose consumer takes an element in 10 ms, and which needs so many workers for that."""
    active = min(workers, splits)
    given_s = max(floor_s, OWN_S * needed / active)
    batch_s = max(OWN_S, given_s)
    busy = 1.0 if floor_s and given_s == floor_s else min(1.0, OWN_S * needed / workers / batch_s)
    return Look(workers, batch_s, batch_s - OWN_S, busy)


def search(
    needed: float, limits: Limits = LIMITS, first: int = 1, floor_s: float = 0.0, splits: float = 1 << 30
) -> tuple[Scale, list[int]]:
    """Where a search ends, and all numbers of workers on its way."""
    scale = begin(first, limits).value
    path = [scale.workers]
    for _ in range(20):
        scale = step(scale, look(scale.workers, needed, floor_s=floor_s, splits=splits), limits).value
        if scale.workers != path[-1]:
            path.append(scale.workers)
        if scale.phase == "settled":
            return scale, path
    raise AssertionError(path)


@given(st.floats(1, 900), st.integers(1, 1000))
def test_it_ends_where_the_consumer_just_does_not_wait(needed, first):
    scale, path = search(needed, first=first)
    least = math.ceil(needed)
    assert abs(scale.workers - least) <= max(1, 0.04 * least)
    assert len(path) <= 6


def test_it_jumps_to_the_estimate():
    assert search(0.5)[1] == [1]
    assert search(6)[1] == [1, 6]
    assert search(100)[1] == [1, JUMP, JUMP**2, 100]


def test_bursts_are_no_reason_to_believe_that_a_consumer_does_not_wait():
    """While a cache is written what has been computed comes all at once."""
    bursts = Look(1, 10 * OWN_S, 9 * OWN_S, 1.0, noise=0.6)
    assert step(begin(1, LIMITS).value, bursts, LIMITS).value.workers == JUMP


def test_a_gain_that_noise_may_have_hidden_is_looked_for_further_on():
    before = Scale(13, low=8, seen=((8, 2.2 * OWN_S),))
    quiet = Look(13, 1.8 * OWN_S, 0.8 * OWN_S, 1.0)
    assert step(before, quiet, LIMITS).value.floor_s is not None
    noisy = step(before, Look(13, 1.8 * OWN_S, 0.8 * OWN_S, 1.0, noise=0.15), LIMITS).value
    assert (noisy.floor_s, noisy.workers > 13) == (None, True)


def test_workers_that_seem_idle_are_not_too_many_if_fewer_were_too_few_for_that():
    """What had been computed while the others began may come all at once, as if all of it had been made since."""
    before = Scale(13, low=8, seen=((8, 1.8 * OWN_S),))  # so 14.4 are needed
    assert step(before, Look(13, OWN_S, 0.0, 0.6), LIMITS).value.workers == 13
    assert step(before, Look(26, OWN_S, 0.0, 0.3), LIMITS).value.workers == 13  # says nothing: there are others
    many = Scale(26, low=8, seen=((8, 1.8 * OWN_S),))
    assert step(many, Look(26, OWN_S, 0.0, 0.4), LIMITS).value.workers == 14


def test_one_that_waits_for_long_gets_more_workers_unless_more_are_no_use():
    waiting = Look(2, 4 * OWN_S, 3 * OWN_S, 1.0)

    def after(scale, limits=LIMITS):
        for _ in range(2 * TRIM_LOOKS):
            scale = step(scale, waiting, limits).value
            if scale.workers != waiting.workers:
                break
        return scale.workers

    assert after(Scale(2, "settled", settled=waiting)) == 8
    assert after(Scale(2, "settled", settled=waiting), Limits(1, 4)) == 4
    assert after(Scale(2, "settled", settled=waiting), Limits(1, 3)) == 3
    assert after(Scale(2, "settled", settled=waiting), Limits(1, 2)) == 2
    assert after(Scale(2, "settled", settled=waiting, floor_s=4 * OWN_S)) == 2


@given(st.integers(2, 200), st.floats(1.3, 4), st.integers(1, 300))
def test_where_a_store_gives_no_more_it_takes_as_many_as_get_all_of_it(knee, slower, first):
    floor_s = OWN_S * slower
    scale, _ = search(knee * slower, first=first, floor_s=floor_s)
    assert abs(scale.workers - knee) <= max(1, 0.07 * knee)  # within twice what makes no difference, or nearly so


@given(st.integers(1, 100), st.floats(1.1, 5))
def test_where_there_are_few_splits_it_takes_a_worker_for_each(splits, more):
    scale, _ = search(splits * more, splits=splits)
    assert abs(scale.workers - splits) <= max(1, 0.05 * splits)


@given(st.floats(1, 900), st.integers(1, 20), st.integers(20, 60))
def test_it_keeps_to_its_limits(needed, least, most):
    limits = Limits(least, most)
    scale, path = search(needed, limits)
    assert all(least <= count <= most for count in path)
    assert abs(scale.workers - min(most, max(least, math.ceil(needed)))) <= 1


def test_limits_that_change_are_kept_at_once():
    scale = Scale(50, "settled")
    assert step(scale, look(50, 50), Limits(1, 10)).value == Scale(10)
    assert step(scale, look(50, 50), Limits(60, 100)).value == Scale(60)


def test_a_look_at_more_workers_says_nothing():
    scale = begin(4, LIMITS).value
    assert step(scale, look(5, 3), LIMITS).value == scale
    assert step(scale, Look(4, 0.0, 0.0, 0.0), LIMITS).value == scale


@pytest.mark.parametrize("phase", ["search", "settled"])
def test_fewer_than_planned_that_are_enough_are_enough(phase):
    """15 of 16 have room, and the consumer does not wait."""
    scale = Scale(16, phase, settled=look(16, 14.6) if phase == "settled" else None)
    decision = step(step(scale, look(15, 14.6), LIMITS).value, look(15, 14.6), LIMITS)
    assert (decision.value.workers, decision.value.phase) == (15, "settled")
    assert decision.reason == "15 workers are enough: the consumer waits 0 % of the time"


def test_fewer_than_planned_that_are_too_few_change_nothing_and_say_so():
    for scale in (Scale(8), Scale(8, low=4, high=8), settled(8)):
        decision = step(scale, look(5, 8), LIMITS)
        assert decision.value == scale
        assert decision.reason == (
            "the consumer waits 38 % of the time with 5 workers, and is to have 8: more are not there yet"
        )


def test_fewer_than_planned_that_get_all_that_a_store_gives_are_enough():
    scale = Scale(16, low=2, seen=((2, 4 * OWN_S), (4, 2 * OWN_S)))
    decision = step(scale, look(12, 4 * 2, floor_s=2 * OWN_S), LIMITS)
    assert (decision.value.workers, decision.value.floor_s) == (4, 2 * OWN_S)


def test_one_that_may_have_no_more_says_why_and_goes_on_as_soon_as_it_may():
    few = Limits(1, 5, "5 of 8 workers could be had for 60 s: that is the limit for 300 s, and then more are tried")
    first = step(Scale(8), look(8, 8), few)
    assert (first.value, first.reason) == (Scale(5), f"5 workers: {few.why}")
    limited = step(Scale(8), look(5, 8), few)
    assert limited == step(first.value, look(5, 8), few)  # be it told with the look or before
    assert (limited.value.workers, limited.value.phase) == (5, "settled")
    assert limited.reason == f"the consumer waits 38 % of the time, and it may have no more: {few.why}"
    scale = limited.value
    for _ in range(3 * TRIM_LOOKS):
        decision = step(scale, look(5, 8), few)
        assert (decision.value.workers, decision.reason) == (5, limited.reason)
        scale = decision.value
    assert step(scale, look(5, 8), LIMITS).value.workers == 8


def test_a_job_begins_where_the_last_one_ended():
    assert begin(12, LIMITS).value.workers == 12
    assert begin(12, Limits(1, 8)).value.workers == 8


def settled(needed: float, floor_s: float = 0.0) -> Scale:
    """A job that has settled, and was looked at once more."""
    scale, _ = search(needed, floor_s=floor_s)
    return step(scale, look(scale.workers, needed, floor_s=floor_s), LIMITS).value


def after(scale: Scale, needed: float, looks: int, floor_s: float = 0.0) -> Scale:
    """The same after some more looks."""
    for _ in range(looks):
        scale = step(scale, look(scale.workers, needed, floor_s=floor_s), LIMITS).value
    return scale


@pytest.mark.parametrize("now", [16.0, 4.0])
def test_a_change_is_seen_twice_before_it_counts(now):
    scale = settled(8)
    assert after(scale, now, LOOKS - 1).phase == "settled"
    found = after(scale, now, LOOKS)
    assert found.phase == "search"
    assert after(found, now, 4).workers == now


def test_one_look_that_differs_changes_nothing():
    scale = settled(8)
    for needed in (16.0, 8.0, 16.0, 8.0):
        scale = after(scale, needed, 1)
    assert (scale.workers, scale.phase) == (8, "settled")


def test_a_small_change_is_seen_in_the_mean_of_many_looks():
    scale = settled(100)
    assert after(scale, 94, 3 * TRIM_LOOKS).workers in {94, 95}
    assert after(scale, 99, 5 * TRIM_LOOKS).workers == 100


LOOKS_TO_PROBE = (PROBE_MEANS + 1) * (TRIM_LOOKS + 1)


def test_more_and_fewer_are_tried_in_turns_where_a_store_limits_the_job():
    floor_s = 2 * OWN_S
    scale = settled(100, floor_s)
    assert scale.workers == 50
    tried = [after(scale, 100, count, floor_s).workers for count in range(2 * LOOKS_TO_PROBE + 10)]
    assert {50, 75, 45} <= set(tried) <= {50, 75, *range(45, 50)}
    assert tried.index(75) < tried.index(45)
    # Its functions take half as long now, and nothing but a trial can tell.
    assert after(scale, 50, 4 * LOOKS_TO_PROBE, floor_s).workers in range(24, 28)


def test_a_floor_that_is_none_any_more_is_found_out():
    """The store was slow for others, say: the consumer waited as long with any number of workers."""
    scale = settled(100, 10 * OWN_S)
    assert scale.workers == 10
    assert look(10, 100).batch_s == pytest.approx(10 * OWN_S), "ten give no more, so nothing seems to have changed"
    assert after(scale, 100, LOOKS_TO_PROBE + 10).workers in range(97, 104)


def test_trials_that_find_nothing_become_rare():
    floor_s, scale, tried = 2 * OWN_S, settled(10, 2 * OWN_S), []
    for _ in range(60 * LOOKS_TO_PROBE):
        scale = after(scale, 10, 1, floor_s)
        tried.append(scale.workers)
    begins = [number for number, (before, now) in enumerate(pairwise(tried)) if before == 5 != now]
    pauses = [then - now for now, then in pairwise(begins)]
    assert scale.workers == 5
    assert 5 * pauses[0] < max(pauses) < 10 * LOOKS_TO_PROBE
    assert min(pauses[-5:]) > 5 * pauses[0]


def test_more_that_are_tried_are_waited_for():
    floor_s = 2 * OWN_S
    scale = settled(100, floor_s)
    while scale.workers == 50:
        scale = after(scale, 100, 1, floor_s)
    assert scale.workers == 75
    for _ in range(3):  # a cluster takes minutes to start them
        scale = step(scale, look(50, 100, floor_s=floor_s), LIMITS).value
        assert (scale.workers, scale.phase) == (75, "search")
    assert after(scale, 100, 1, floor_s).workers == 50
    gone = step(scale, look(60, 100, floor_s=floor_s), Limits(1, 60))
    assert gone.value.workers in range(49, 61), "or there is no room for them"


def test_where_no_other_number_is_allowed_none_is_tried():
    limits = Limits(5, 5)
    scale = Scale(5, "settled", floor_s=2 * OWN_S, settled=look(5, 10, floor_s=2 * OWN_S))
    for _ in range(3 * LOOKS_TO_PROBE):
        scale = step(scale, look(5, 10, floor_s=2 * OWN_S), limits).value
        assert (scale.workers, scale.phase) == (5, "settled")


def test_little_is_looked_at_while_the_consumer_waits_for_most_of_the_time():
    assert look_elements(0.9, 0.01) < look_elements(0.3, 0.01) / 4
    assert pause_elements(0.9, 0.01) < pause_elements(0.3, 0.01) / 4


@pytest.mark.parametrize("kind", ["millrace", "cheapest"])
def test_elements_say_nothing_of_workers_that_have_given_none(kind):
    assert not scaling_policies.pause_over(kind, 10_000, 0.0, 14.9, begun=False)
    assert scaling_policies.pause_over(kind, 10_000, 0.0, 15.0, begun=False), "they find nothing to do"
    assert scaling_policies.pause_over(kind, 10_000, 0.0, 0.1, begun=True)
    assert scaling_policies.pause_over("cachew", 10_000, 0.0, 0.1, begun=False)


@pytest.mark.parametrize(
    ("elements", "waits", "seconds", "enough"),
    [(4, 0.9, 5, True), (3, 0.9, 99, False), (4, 0.9, 4, False), (20, 0.9, 3, False), (20, 0.5, 99, False)],
)
def test_a_few_slow_elements_are_enough_where_the_consumer_waits_for_most_of_the_time(elements, waits, seconds, enough):
    assert scaling_policies.look_over("millrace", elements, waits, seconds) is (
        enough or (elements == 20 and waits > 0.5)
    )
    assert scaling_policies.pause_over("cheapest", elements, waits, seconds, begun=True) is enough
    assert not scaling_policies.look_over("cachew", elements, waits, seconds)


def test_a_burst_is_no_look_however_many_elements_it_has():
    assert not scaling_policies.look_over("millrace", 10_000, 0.9, 0.5)
    assert scaling_policies.look_over("millrace", 10_000, 0.9, 2)
    assert scaling_policies.look_over("cachew", 10_000, 0.9, 0.5)


@pytest.mark.parametrize(
    ("elements", "came", "waits", "counts"),
    [
        (100, 60, 0.9, True),
        (5000, 3000, 0.9, False),
        (5000, 4990, 0.9, True),
        (100, 60, 0.3, False),
        (9, 20, 0.3, True),
    ],
)
def test_a_long_look_at_a_consumer_that_lives_on_ready_elements_says_nothing(elements, came, waits, counts):
    """One whose host takes long to receive seems to wait all the time, with any number of workers."""
    assert scaling_policies.look_counts("millrace", elements, came, waits, fewest=elements) is counts
    assert scaling_policies.look_counts("millrace", 50 * elements, 50 * came, waits, fewest=elements) is counts


def test_reasons_say_what_was_measured():
    scale = begin(1, LIMITS).value
    decision = step(scale, look(1, 4), LIMITS)
    assert decision.reason == (
        "the consumer waits 75 % of the time: 40 ms an element with 1 worker, and it would take one in 10 ms"
    )
    assert step(decision.value, look(4, 4), LIMITS).reason == (
        "4 workers are enough: the consumer waits 0 % of the time"
    )


@pytest.mark.parametrize(
    ("least", "most", "seen", "said"),
    [
        (1, 4, look(1, 0.5), "1 worker is enough: the consumer waits 0 % of the time"),
        (1, 1, look(1, 4), "the consumer waits 75 % of the time, and it may have no more"),
    ],
)
def test_a_settled_number_says_what_the_last_look_saw(least, most, seen, said):
    limits = Limits(least, most)
    decision = begin(1, limits)
    for _ in range(3):
        decision = step(decision.value, seen, limits)
    assert (decision.value.phase, decision.reason) == ("settled", said)


def test_what_fewer_workers_better_is_no_floor():
    """Eight had just begun when they were looked at; four give an element in a third of the time."""
    limits = Limits(1, 9)
    scale = Scale(4, high=8, floor_s=1.03e-3, seen=((1, 1.8e-3), (8, 1.03e-3)))
    fewer = step(scale, Look(4, 0.3e-3, 0.29e-3, 0.8), limits).value
    assert fewer.floor_s == 0.3e-3
    assert fewer.workers < 4
    again = step(fewer, Look(fewer.workers, 0.5e-3, 0.49e-3, 1.0), limits).value
    assert again.workers == 4
