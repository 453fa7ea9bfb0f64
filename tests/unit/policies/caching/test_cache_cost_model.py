"""How long an epoch with a cache would take."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.unit.policies.cache_models import MB, Linear, all_points, profile, profiles, store, stores

from millrace.policies.caching.cache_cost_model import Passed, Stage, StoreModel, times

UNDER = (1,)


def test_reading_from_the_cache_and_computing_run_beside_each_other():
    work = profile(Stage(0.015, threads=1, under=UNDER), Stage(0.010, threads=1))
    found = times(work, store(read_s=0.010), 1, kept=0.0, whole=100 * MB)
    assert found.computed == pytest.approx(0.015)
    # The sum, 20 ms, would be slower than computing.
    assert found.after == pytest.approx(0.010)


def test_stages_on_the_thread_that_pulls_take_turns():
    work = profile(Stage(0.015, under=UNDER), Stage(0.010))
    found = times(work, store(read_s=0.004), 1, kept=0.0, whole=100 * MB)
    assert (found.computed, found.after) == pytest.approx((0.025, 0.010))


def test_a_stage_is_as_fast_as_its_threads():
    work = profile(Stage(0.040, threads=4, under=UNDER), Stage(0.010, threads=2))
    found = times(work, store(read_s=0.021, threads=3), 1, kept=0.0, whole=100 * MB)
    assert (found.computed, found.after) == pytest.approx((0.010, 0.007))


def test_what_reading_computes_takes_turns_with_the_rest_at_the_cores():
    work = profile(Stage(0.030, cpu_s=0.030, threads=2, under=UNDER), Stage(0.010, cpu_s=0.010, threads=2), cores=2)
    found = times(work, store(read_s=0.004, cpu_s=0.004 / MB), 1, kept=0.0, whole=100 * MB)
    assert (found.computed, found.after) == pytest.approx((0.020, 0.007))


def test_an_epoch_that_writes_takes_the_longer_of_computing_and_writing():
    work = profile(Stage(0.015, threads=1, under=UNDER))
    slow = times(work, store(read_s=0.010, write_s=0.050), 1, kept=0.0, whole=100 * MB)
    fast = times(work, store(read_s=0.010, write_s=0.001), 1, kept=0.0, whole=100 * MB)
    assert (slow.put, fast.put) == pytest.approx((0.050, 0.015))


def test_only_what_is_missing_is_written_and_hits_do_not_make_writing_faster():
    work = profile(Stage(0.020, threads=1, under=UNDER))
    found = times(work, store(read_s=0.010, write_s=0.050), 1, kept=0.5, whole=100 * MB)
    assert found.put == pytest.approx(0.025)


def test_what_is_saved_grows_with_the_share_that_fits_and_with_what_is_kept():
    work = profile(Stage(0.020, threads=1, under=UNDER))
    found = times(work, store(read_s=0.010, room=30 * MB), 1, kept=0.2, whole=100 * MB)
    assert found.share == pytest.approx(0.5)
    assert (found.got, found.put, found.after) == pytest.approx((0.018, 0.018, 0.015))
    assert found.written == 30 * MB
    assert found.saves == pytest.approx(0.5)


def test_no_cache_makes_a_job_faster_than_its_consumer():
    work = profile(Stage(0.020, threads=1, under=UNDER), wait_share=0.25)
    found = times(work, store(read_s=0.001), 1, kept=0.0, whole=100 * MB)
    assert found.after == pytest.approx(0.015)


def test_small_elements_are_read_by_the_message():
    work = profile(Stage(0.020, threads=1, under=UNDER))
    work = msgspec.structs.replace(work, passed={1: Passed(10_000, 10_000 * 100)})
    seek = StoreModel(Linear(0.0, begin_s=0.010), Linear(0.0), room=MB, message=100_000)
    # 10,000 elements in 10 reads, for 100 elements at the end
    assert times(work, seek, 1, kept=0.0, whole=MB).after == pytest.approx(10 * 0.010 / 100)
    one_by_one = msgspec.structs.replace(seek, message=1)
    assert times(work, one_by_one, 1, kept=0.0, whole=MB).after == pytest.approx(10_000 * 0.010 / 100)


def test_nothing_passed_and_nothing_took_any_time():
    work = msgspec.structs.replace(profile(Stage(0.0)), passed={1: Passed(0, 0)}, batch_s=0.0, wait_s=0.0)
    found = times(work, store(read_s=0.010), 1, kept=0.0, whole=1)
    assert (found.computed, found.put, found.after) == (0, 0, 0)


@given(profiles(), stores(), all_points(), st.floats(1, 100))
def test_a_slower_store_and_less_room_are_never_faster(work, fast, points, times_slower):
    slow = msgspec.structs.replace(
        fast, read=Linear(fast.read.byte_s * times_slower, fast.read.begin_s * times_slower), room=fast.room
    )
    for point in points:
        with_fast, with_slow = (times(work, each, point.node, point.kept, point.whole) for each in (fast, slow))
        assert with_slow.got >= with_fast.got * (1 - 1e-9)
        assert with_slow.put >= with_fast.put * (1 - 1e-9)
        assert with_slow.after >= with_fast.after * (1 - 1e-9)
        assert with_fast.share >= point.kept
        cramped = msgspec.structs.replace(fast, room=fast.room // 2)
        assert times(work, cramped, point.node, point.kept, point.whole).share <= with_fast.share


def test_what_a_starved_consumer_sees_is_what_computing_takes():
    stages = (Stage(0.040, threads=1, under=UNDER), Stage(0.010))
    work = profile(*stages)
    slow = msgspec.structs.replace(work, batch_s=0.050, wait_s=0.050, workers=1.0)
    found = times(slow, store(read_s=0.004), 1, kept=0.0, whole=100 * MB)
    assert (found.computed, found.after) == pytest.approx((0.050, 0.0125))  # what is left takes longer, too
    shared = msgspec.structs.replace(slow, batch_s=0.025, wait_s=0.025, workers=2.0)
    assert times(shared, store(read_s=0.004), 1, kept=0.0, whole=100 * MB) == found
    busy = msgspec.structs.replace(slow, wait_s=0.004)
    assert times(busy, store(read_s=0.004), 1, kept=0.0, whole=100 * MB).computed == pytest.approx(0.040)


def test_no_stage_takes_longer_than_all_together():
    work = profile(Stage(0.080, threads=1, under=UNDER), Stage(0.043))  # calls that waited for one another
    slow = msgspec.structs.replace(work, batch_s=0.044, wait_s=0.044, workers=1.0)
    found = times(slow, store(read_s=0.016), 1, kept=0.0, whole=100 * MB)
    assert (found.computed, found.after) == pytest.approx((0.044, 0.043))
