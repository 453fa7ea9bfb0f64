"""Whether and where a job caches."""

import random

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.unit.policies.cache_models import (
    MB,
    Linear,
    all_points,
    point,
    profile,
    profiles,
    store,
    stores,
    worth_writing,
)

from millrace.policies.caching.autocache import (
    LOOKS,
    MARGIN,
    BatchTime,
    Mode,
    choose_mode,
    later_epochs,
    profiled,
    revisit,
)
from millrace.policies.caching.cache_cost_model import Passed, Stage, times

SLOW = profile(Stage(0.0102, threads=1, under=(1,)))
"""10.2 ms an element under the point, nothing above it."""


# -- unmeasured --------------------------------------------------------------------------------------------------------


def test_without_a_point_everything_is_computed():
    assert choose_mode([]).value == Mode("compute")
    assert choose_mode([point(mode="compute", kept=1.0)]).value == Mode("compute")


def test_a_job_begins_with_a_profile_unless_something_is_kept():
    decision = choose_mode([point(1), point(2)])
    assert decision.value == Mode("profile")
    assert decision.reason == (
        "computes up to 300 elements to learn what a cache would save; nothing is kept of it yet"
    )
    kept = choose_mode([point(1, kept=0.3), point(2, kept=0.1)])
    assert kept.value == Mode("get", 1)
    assert kept.reason == "cache at map(f1): 30 % of it is kept already"
    assert choose_mode([point(1, kept=1.0), point(2, kept=1.0)]).value == Mode("get", 2)


def test_of_several_hits_the_fastest_is_taken_as_far_as_that_was_measured():
    decision = choose_mode([point(1, kept=1.0, saves=0.8), point(2, kept=1.0, saves=0.3), point(3)])
    assert decision.value == Mode("get", 1)
    assert decision.reason == (
        "cache at map(f1): 100 % of it is kept already, and it saves the most of 2 such points: 80 %"
    )
    half = choose_mode([point(1, kept=0.5, saves=0.8), point(2, kept=0.9, saves=0.6)])
    assert half.value == Mode("get", 2)  # what is not kept is computed
    unmeasured = choose_mode([point(1, kept=0.5, saves=0.9), point(2, kept=0.6)])
    assert unmeasured.value == Mode("get", 2)
    assert choose_mode([point(1, kept=1.0, saves=-0.2), point(2, kept=1.0, saves=-0.1)]).value == Mode("get", 2)


def test_a_point_that_the_pipeline_asks_for_is_used_unmeasured():
    decision = choose_mode([point(1, mode="cache"), point(2, mode="cache"), point(3)])
    assert decision.value == Mode("put", 2)
    assert decision.reason == "cache at map(f2): the pipeline asks for it, and it is the last of 2 such points"
    assert choose_mode([point(1, mode="cache", kept=1.0)], store(9e9), 0, SLOW).value == Mode("get", 1)


def test_a_profile_is_300_batches_or_the_epoch():
    assert not profiled(299, ended=False).value
    assert profiled(300, ended=False).value
    assert profiled(12, ended=True).value
    assert profiled(12, ended=False).reason == "12 of 300 elements are measured"


def test_epochs_to_come_are_announced_or_as_many_as_ended():
    assert [later_epochs(ended, None) for ended in (0, 1, 2, 7)] == [1, 1, 2, 7]
    assert [later_epochs(ended, 3) for ended in (0, 1, 2, 3)] == [2, 1, 0, 0]


# -- measured ----------------------------------------------------------------------------------------------------------


def test_the_reason_has_the_numbers_in_plain_words():
    decision = choose_mode([point()], store(0.0041), 1, SLOW)
    assert (decision.value.kind, decision.value.point) == ("put", 1)
    assert decision.reason == (
        "cache at map(f1): 4.1 ms/element from the cache beside 10.2 ms computed; worth it from the 2nd epoch on"
    )
    assert decision.inputs["points"][1]["computed"] == pytest.approx(0.0102)


def test_computing_is_preferred_within_noise():
    assert choose_mode([point()], store(0.0100), 9, SLOW).value == Mode("compute")
    assert choose_mode([point()], store(0.0098), 9, SLOW).value.kind == "put"
    noisy = msgspec.structs.replace(SLOW, noise=0.05)
    assert choose_mode([point()], store(0.0095), 9, noisy).value == Mode("compute")
    assert choose_mode([point()], store(0.0095), 9, noisy).reason == (
        "computes everything, 10.2 ms/element: 9.5 ms with a cache at map(f1) is no gain beyond 10 %"
    )


def test_reading_that_hides_behind_computing_is_worth_it_though_the_sum_is_not():
    work = profile(Stage(0.015, threads=1, under=(1,)), Stage(0.010, threads=1))
    assert choose_mode([point()], store(0.010), 1, work).value.kind == "put"  # 10 ms; the sum is 20


def test_a_cache_that_only_relieves_what_was_hidden_is_not_worth_it_though_the_sum_is():
    work = profile(Stage(0.010, threads=1, under=(1,)), Stage(0.015, threads=1))
    assert choose_mode([point()], store(0.004), 1, work).value == Mode("compute")  # 15 ms; the sums are 25 and 19


def test_writing_has_to_pay_within_the_epochs_to_come():
    slow_writes = store(0.0002, write_s=0.0602)
    decision = choose_mode([point()], slow_writes, 4, SLOW)
    assert decision.value == Mode("compute")
    assert decision.reason == (
        "computes everything, 10.2 ms/element: 0.2 ms with a cache at map(f1), but 60.2 ms while it is written, so "
        "that it is worth it from the 7th epoch on, and 5 are likely"
    )
    decision = choose_mode([point()], slow_writes, 6, SLOW)
    assert decision.value.kind == "put"
    assert decision.value.slower == pytest.approx((7 * 10.2 - 6 * 0.2) / 10.2)
    assert decision.reason.endswith("worth it from the 7th epoch on")
    assert choose_mode([point()], store(0.0002), 0, SLOW).value == Mode("compute")


def test_a_share_that_fits_counts_by_what_it_saves():
    decision = choose_mode([point()], store(0.0002, room=20 * MB), 1, SLOW)
    assert decision.value.kind == "put"
    assert "8.2 ms/element from the cache beside 10.2 ms computed; 20 % of it fits" in decision.reason
    assert choose_mode([point()], store(0.0002, room=2 * MB), 1, SLOW).value == Mode("compute")
    assert choose_mode([point()], store(0.0002, room=0), 1, SLOW).reason == (
        "computes everything, 10.2 ms/element: there is no room for more"
    )


def test_a_job_that_its_consumer_limits_writes_nothing_and_takes_what_is_there():
    limited = msgspec.structs.replace(SLOW, wait_s=0.01)
    decision = choose_mode([point()], store(0.0002), 9, limited)
    assert decision.value == Mode("compute")
    assert decision.reason == (
        "computes everything, 10.2 ms/element: its consumer waits 1 % of the time, so that nothing makes it faster"
    )
    assert choose_mode([point(kept=0.5)], store(0.0002), 9, limited).value == Mode("get", 1)


def test_a_hit_is_taken_unless_it_is_clearly_slower():
    kept = [point(kept=1.0)]
    assert choose_mode(kept, store(0.0104), 1, SLOW).value == Mode("get", 1)
    assert choose_mode(kept, store(0.0110), 1, SLOW).value == Mode("compute")
    assert choose_mode(kept, store(0.0110), 1, SLOW).reason == (
        "computes everything, 10.2 ms/element: 11 ms with the 100 % that are kept of map(f1) is slower"
    )
    decision = choose_mode(kept, store(0.0041), 1, SLOW)
    assert decision.reason == ("cache at map(f1): 100 % of it is kept; 4.1 ms/element with it beside 10.2 ms computed")


def test_the_rest_of_a_half_kept_point_is_written_if_that_is_a_gain():
    decision = choose_mode([point(kept=0.5)], store(0.0042), 1, SLOW)
    assert (decision.value.kind, decision.value.point) == ("put", 1)
    assert decision.reason == (
        "cache at map(f1): 4.2 ms/element from the cache beside 7.2 ms with the cache at map(f1), of which 50 % is "
        "kept; worth it from the 2nd epoch on"
    )
    assert choose_mode([point(kept=0.98)], store(0.0042), 1, SLOW).value.kind == "put"
    assert choose_mode([point(kept=0.995)], store(0.0042), 1, SLOW).value == Mode("get", 1)


def test_of_equal_points_the_one_with_fewer_bytes_is_written():
    work = profile(Stage(0.020, threads=1, under=(1, 2)), Stage(0.010, threads=1), points=(1, 2))
    work = msgspec.structs.replace(work, passed={**work.passed, 2: Passed(100, 50 * MB)})
    large, small = point(1), point(2, whole=50 * MB)
    assert choose_mode([large, small], store(0.002), 1, work).value.point == 2
    # Reading the large one is slower now.
    assert choose_mode([large, small], store(0.012), 1, work).value.point == 2
    work = msgspec.structs.replace(work, passed={1: Passed(100, 50 * MB), 2: Passed(100, 100 * MB)})
    assert choose_mode([point(1, whole=50 * MB), point(2)], store(0.002), 1, work).value.point == 1


def test_fewer_bytes_do_not_make_up_for_slower_epochs_or_slower_writing():
    work = profile(Stage(0.020, threads=1, under=(1, 2)), Stage(0.0105, threads=1, under=(1,)), points=(1, 2))
    work = msgspec.structs.replace(work, passed={1: Passed(100, 100 * MB), 2: Passed(100, 50 * MB)})
    points = [point(1), point(2, whole=50 * MB)]
    assert choose_mode(points, store(0.010), 1, work).value.point == 1  # 10 ms after 20, beside 10.5 after 20
    work = profile(Stage(0.020, threads=1, under=(1, 2)), Stage(0.010, threads=1), points=(1, 2))
    work = msgspec.structs.replace(work, passed={1: Passed(100, 100 * MB), 2: Passed(10_000, 50 * MB)})
    assert choose_mode(points, store(0.002), 9, work).value.point == 2
    seeks = msgspec.structs.replace(store(0.002), write=Linear(0.0, begin_s=0.0004))
    assert choose_mode(points, seeks, 9, work).value.point == 1


def test_what_was_undone_is_not_chosen_again_by_the_same_measures():
    assert choose_mode([point()], store(0.0041), 9, SLOW).value.kind == "put"
    decision = choose_mode([point(undone="get", kept=1.0)], store(0.0041), 9, SLOW)
    assert decision.value == Mode("compute")
    assert decision.reason == "computes everything: the cache at map(f1) was slower"
    decision = choose_mode([point(undone="put")], store(0.0041), 9, SLOW)
    assert decision.value == Mode("compute")
    assert decision.reason == (
        "computes everything, 10.2 ms/element: writing the cache at map(f1) was given up, as it took longer than it "
        "could save"
    )
    assert choose_mode([point(undone="put", kept=0.5)], store(0.0041), 9, SLOW).value == Mode("get", 1)
    assert choose_mode([point(1, undone="get", kept=1.0), point(2)]).value == Mode("profile")


def seconds_of(mode, points, work, kept_in, later):
    """Of an element, on average over this epoch and the later ones."""
    if mode.kind == "compute":
        return times(work, kept_in, 1, 0.0, 1).computed
    chosen = next(each for each in points if each.node == mode.point)
    found = times(work, kept_in, chosen.node, chosen.kept, chosen.whole)
    return found.got if mode.kind == "get" else (found.put + later * found.after) / (1 + later)


epochs = st.integers(0, 20)


def margin_of(work):
    return max(MARGIN, 2 * work.noise)


@given(all_points(), stores(), epochs, profiles())
def test_what_is_chosen_is_not_slower_than_computing_or_any_hit(points, kept_in, later, work):
    mode = choose_mode(points, kept_in, later, work).value
    chosen = seconds_of(mode, points, work, kept_in, later)
    free = [Mode("compute")] + [Mode("get", each.node) for each in points if each.kept]
    least = min(seconds_of(each, points, work, kept_in, later) for each in free)
    assert chosen <= (1 + margin_of(work)) * least * (1 + 1e-9)


@given(all_points(st.floats(0, 0.5)), worth_writing, st.integers(1, 20), profiles())
def test_what_is_written_saves_more_than_noise_in_each_later_epoch(points, kept_in, later, work):
    mode = choose_mode(points, kept_in, later, work).value
    assume(mode.kind == "put")
    chosen = next(each for each in points if each.node == mode.point)
    found = times(work, kept_in, chosen.node, chosen.kept, chosen.whole)
    assert (1 + margin_of(work)) * found.after < found.computed
    assert found.put + later * found.after < (1 + later) * found.computed


@given(all_points(st.just(0.0)), stores(), epochs, profiles(), st.floats(1, 100))
def test_reading_that_costs_more_never_turns_computing_into_caching(points, kept_in, later, work, slower):
    assume(choose_mode(points, kept_in, later, work).value.kind == "compute")
    read = Linear(kept_in.read.byte_s * slower, kept_in.read.begin_s * slower)
    assert choose_mode(points, msgspec.structs.replace(kept_in, read=read), later, work).value.kind == "compute"


@given(all_points(st.floats(0, 0.5)), worth_writing, st.integers(1, 20), profiles())
def test_more_epochs_never_turn_caching_into_computing(points, kept_in, later, work):
    assume(choose_mode(points, kept_in, later, work).value.kind == "put")
    assert choose_mode(points, kept_in, later + 1, work).value.kind == "put"


@given(all_points(), stores(), epochs, profiles(), st.sampled_from([2.0**-10, 0.5, 2.0, 2.0**10]))
def test_it_does_not_matter_in_what_unit_time_is_measured(points, kept_in, later, work, unit):
    replace = msgspec.structs.replace
    stages = tuple(replace(each, seconds=unit * each.seconds, cpu_s=unit * each.cpu_s) for each in work.stages)
    other = replace(work, stages=stages, batch_s=unit * work.batch_s, wait_s=unit * work.wait_s)
    costs = [Linear(unit * cost.byte_s, unit * cost.begin_s) for cost in (kept_in.read, kept_in.write)]
    elsewhere = replace(kept_in, read=costs[0], write=costs[1], cpu_s=unit * kept_in.cpu_s)
    assert choose_mode(points, elsewhere, later, other).value == choose_mode(points, kept_in, later, work).value


@given(all_points(), stores(), epochs, profiles(), st.integers(2, 1000))
def test_it_does_not_matter_how_long_the_profile_was(points, kept_in, later, work, longer):
    replace = msgspec.structs.replace
    stages = tuple(replace(each, seconds=longer * each.seconds, cpu_s=longer * each.cpu_s) for each in work.stages)
    passed = {node: Passed(longer * each.elements, longer * each.bytes) for node, each in work.passed.items()}
    other = replace(work, elements=longer * work.elements, stages=stages, passed=passed)
    for each in points:
        one, two = (times(profile_, kept_in, each.node, each.kept, each.whole) for profile_ in (work, other))
        assert (two.computed, two.got, two.put, two.after) == pytest.approx((one.computed, one.got, one.put, one.after))


# -- revisited ---------------------------------------------------------------------------------------------------------

GET = Mode("get", 1)
COMPUTED = BatchTime(0.010, 0.008)


def looks(*batch_s, wait_share=0.8, noise=0.0):
    """Five looks at each."""
    return [BatchTime(each, each * wait_share, noise) for each in batch_s for _ in range(LOOKS)]


def test_a_cache_that_turns_out_slower_than_computing_is_undone():
    decision = revisit(GET, COMPUTED, looks(0.012))
    assert decision.value == "undo"
    assert decision.reason == "12 ms/element with the cache beside 10 ms computed: it is slower by more than noise"
    assert revisit(GET, COMPUTED, looks(0.0102)).value == "keep"
    assert revisit(GET, COMPUTED, looks(0.012, noise=0.1)).value == "undo"
    assert revisit(GET, COMPUTED, looks(0.012, noise=0.15)).value == "keep"
    assert revisit(GET, None, looks(0.012)).value == "keep"
    assert revisit(Mode("compute"), COMPUTED, looks(0.012)).value == "keep"


def test_writing_may_take_as_long_as_the_epochs_after_it_make_up_for():
    mode = choose_mode([point()], store(0.0052), 1, SLOW).value
    assert mode.slower == pytest.approx((10.2 + 10.2 - 5.2) / 10.2)
    put = Mode("put", 1, slower=1.5)
    assert revisit(put, COMPUTED, looks(0.015)).value == "keep"
    decision = revisit(put, COMPUTED, looks(0.016))
    assert decision.value == "undo"
    assert (
        decision.reason == "16 ms/element with the cache beside 10 ms computed: writing takes longer than it can save"
    )


def test_a_consumer_that_became_slower_is_not_the_cache_s_fault():
    assert revisit(GET, COMPUTED, looks(0.020, wait_share=0.01)).value == "keep"
    assert revisit(GET, COMPUTED, looks(0.020, wait_share=0.2)).value == "undo"


def test_a_drift_decides_anew():
    assert revisit(GET, COMPUTED, looks(0.004, 0.0095)).value == "decide anew"
    assert revisit(Mode("compute"), None, looks(0.004, 0.005)).value == "decide anew"
    assert revisit(Mode("compute"), None, looks(0.004, 0.0035)).value == "decide anew"
    assert revisit(Mode("compute"), None, looks(0.004, 0.0043)).value == "keep"
    assert revisit(Mode("compute"), None, looks(0.004, 0.005, 0.004)).value == "keep"
    assert revisit(Mode("compute"), None, looks(0.004, 0.005, noise=0.15)).value == "keep"
    assert revisit(Mode("compute"), None, looks(0.010, 0.012)).reason == (
        "12 ms/element now beside 10 ms when this mode began: what was measured has changed"
    )


def test_a_cache_is_not_measured_again_unless_its_consumer_waits_much_longer():
    assert revisit(GET, None, looks(0.004, 0.0035)).value == "keep"
    assert revisit(GET, None, looks(0.004, 0.006)).value == "keep"
    assert revisit(GET, None, looks(0.004, 0.020, wait_share=0.1)).value == "keep"
    assert revisit(GET, None, looks(0.004, 0.010)).value == "decide anew"


def test_two_disturbed_looks_decide_nothing():
    series = looks(0.004, 0.004)
    series[-2:] = [BatchTime(0.9, 0.8), BatchTime(0.9, 0.8)]
    assert revisit(GET, COMPUTED, series).value == "keep"
    series[-3:] = [BatchTime(0.9, 0.8), BatchTime(0.9, 0.8), BatchTime(0.9, 0.8)]
    assert revisit(GET, COMPUTED, series).value == "undo"


def test_too_few_looks_decide_nothing():
    assert revisit(GET, COMPUTED, []).value == "keep"
    assert revisit(GET, COMPUTED, looks(0.9)[1:]).value == "keep"
    assert revisit(GET, None, looks(0.004, 0.9)[1:]).value == "keep"


@given(st.floats(1e-6, 1e3), st.lists(st.floats(0.955, 1.045), min_size=1, max_size=20))
def test_whatever_stays_within_a_tenth_is_kept(batch_s, changes):
    series = [BatchTime(batch_s * change, 0.0) for change in changes]
    assert revisit(Mode("compute"), None, series).value == "keep"


# -- the life of a job -------------------------------------------------------------------------------------------------


def life(kept=0.0, reads_s=0.0041, noise=0.0, seed=0, epochs=6):
    """Modes of a job, one after the other, whose store is projected to take 4.1 ms and takes ``reads_s``.

    ``noise`` is of 100 elements, over which a look is taken; the profile is as short as a look.
    """
    chance = random.Random(seed)
    modes: list[Mode] = []
    looks_: list[BatchTime] = []
    here, measured = point(kept=kept), None
    computing: BatchTime | None = None

    def look(batch_s):
        batch_s *= 1 + chance.gauss(0, noise)
        return BatchTime(batch_s, 0.9 * batch_s, noise)

    def choose(ended):
        mode = choose_mode([here], store(0.0041), later_epochs(ended, None), measured).value
        if not modes or modes[-1].kind != mode.kind:
            modes.append(mode)
            looks_.clear()

    choose(0)
    for epoch in range(epochs):
        if modes[-1].kind == "profile":
            computing = look(0.0102)
            measured = msgspec.structs.replace(SLOW, noise=noise)
            choose(epoch)
        for _ in range(50):
            looks_.append(look(reads_s if modes[-1].kind == "get" else 0.0102))
            verdict = revisit(modes[-1], computing, looks_).value
            if verdict == "undo":
                here = msgspec.structs.replace(here, undone=modes[-1].kind)
            if verdict != "keep":
                looks_.clear()
                choose(epoch)
        if modes[-1].kind == "put":
            here = msgspec.structs.replace(here, kept=1.0)
        choose(epoch + 1)
    return [mode.kind for mode in modes]


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_job_profiles_puts_and_gets_and_a_second_one_gets_at_once(noise):
    for seed in range(20):
        assert life(noise=noise, seed=seed) == ["profile", "put", "get"]
        assert life(kept=0.4, noise=noise, seed=seed) == ["get"]


@pytest.mark.parametrize("noise", [0.0, 0.05])
def test_a_job_whose_cache_turns_out_slow_goes_back_to_computing_and_stays_there(noise):
    for seed in range(20):
        assert life(reads_s=0.0150, noise=noise, seed=seed) == ["profile", "put", "get", "compute"]
