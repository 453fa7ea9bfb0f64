"""The rules that autoscaling is compared with."""

from millrace.policies.scaling import cachew_scaling, hpa
from millrace.policies.scaling.autoscale import Limits, Look
from millrace.policies.scaling.cachew_scaling import PUBLISHED, RELEASED, CachewScale

LIMITS = Limits(1, 100)


def cachew(needed: float, looks: int, *, released: bool = False) -> list[int]:
    """Numbers of workers of a job that needs so many."""
    scale, path = CachewScale(released=released), []
    for _ in range(looks):
        batch_s = max(1.0, needed / scale.workers)
        scale = cachew_scaling.step(scale, Look(scale.workers, batch_s, 0.0, 1.0), LIMITS, queue=1.0).value
        path.append(scale.workers)
    return path


def test_cachew_adds_one_by_one_and_takes_the_superfluous_one_away():
    assert cachew(4, 6) == [2, 3, 4, 5, 4, 4]


def test_cachew_never_goes_beyond_33():
    assert max(cachew(80, 99)) == 34
    assert cachew(80, 99)[-1] == 33


def test_cachew_comes_back_after_ten_looks():
    scale = CachewScale(4, "settled", settled_s=1.0, queue=10.0)
    slower = Look(4, 1.2, 0.2, 1.0)
    for _ in range(PUBLISHED.looks - 1):
        scale = cachew_scaling.step(scale, slower, LIMITS, queue=10.0).value
        assert scale.workers == 4
    assert cachew_scaling.step(scale, slower, LIMITS, queue=10.0).value.workers == 5
    fuller = cachew_scaling.step(scale, Look(4, 1.0, 0.0, 0.5), LIMITS, queue=15.0).value
    assert (fuller.workers, fuller.phase) == (3, "down")
    needed = cachew_scaling.step(fuller, Look(3, 1.3, 0.3, 1.0), LIMITS).value
    assert (needed.workers, needed.phase) == (4, "settled")


def test_cachew_waits_for_its_workers_for_half_a_minute_and_tries_one_more_after_ten_looks():
    scale, fewer = CachewScale(4), Look(3, 0.11, 0.05, 1.0)
    for _ in range(2):  # of 11 seconds each
        waiting = cachew_scaling.step(scale, fewer, LIMITS)
        scale = waiting.value
        assert (scale.workers, scale.phase) == (4, "up")
    limited = cachew_scaling.step(scale, fewer, LIMITS)
    assert (limited.value.workers, limited.value.phase) == (3, "settled")
    assert "3 of 4 workers were there for 30 s: that is the limit for 10 looks" in limited.reason
    scale = limited.value
    for _ in range(PUBLISHED.looks - 1):
        scale = cachew_scaling.step(scale, fewer, LIMITS).value
        assert scale.workers == 3
    assert cachew_scaling.step(scale, fewer, LIMITS).value.workers == 4
    assert cachew_scaling.step(scale, fewer, Limits(1, 3)).value.workers == 3


def test_the_released_code_asks_for_seven_percent():
    assert cachew(4, 6, released=True) == [2, 3, 4, 5, 4, 4]
    assert max(cachew(80, 99, released=True)) == 15  # the fifteenth brings a fifteenth, 6.7 %
    assert cachew(80, 99, released=True)[-1] == 14


def test_the_released_code_keeps_what_there_was_without_the_superfluous_worker():
    scale = CachewScale(4, "up", before_s=1.0, before_queue=3.0, released=True)
    look = Look(4, 0.95, 0.0, 1.0)
    found = cachew_scaling.step(scale, look, LIMITS, queue=9.0).value
    assert (found.workers, found.phase, found.settled_s, found.queue) == (3, "settled", 1.0, 3.0)
    published = cachew_scaling.step(
        CachewScale(4, "up", before_s=0.96, before_queue=3.0), look, LIMITS, queue=9.0
    ).value
    assert (published.workers, published.settled_s, published.queue) == (3, 0.96, 9.0)


def test_the_released_code_asks_the_queue_first_after_twenty_looks_and_both_for_half_more():
    def after(batch_s: float, queue: float, known: float = 10.0) -> tuple[int, str]:
        scale = CachewScale(4, "settled", settled_s=1.0, queue=known, released=True)
        for _ in range(RELEASED.looks - 1):
            scale = cachew_scaling.step(scale, Look(4, batch_s, 0.0, 1.0), LIMITS, queue=queue).value
            assert scale.workers == 4
        scale = cachew_scaling.step(scale, Look(4, batch_s, 0.0, 1.0), LIMITS, queue=queue).value
        return scale.workers, scale.phase

    assert after(1.6, 16.0) == (3, "down")
    assert after(1.6, 10.0) == (5, "up")
    assert after(1.4, 14.0) == (4, "settled")
    assert after(1.6, 16.0, known=0.0) == (4, "settled")  # there is no growth of nothing


def test_the_released_code_goes_back_from_the_least_and_takes_an_unstable_look_for_none():
    scale = CachewScale(1, "down", before_s=1.0, before_queue=5.0, released=True)
    assert cachew_scaling.step(scale, Look(1, 2.3, 0.0, 1.0), LIMITS, queue=7.0).value == scale
    found = cachew_scaling.step(scale, Look(1, 1.0, 0.0, 1.0), LIMITS, queue=7.0).value
    assert (found.workers, found.phase, found.settled_s, found.queue) == (2, "settled", 1.0, 5.0)
    needed = cachew_scaling.step(scale, Look(1, 1.04, 0.0, 1.0), LIMITS, queue=7.0)
    assert (needed.value.workers, needed.reason) == (2, "the last worker was needed")
    rising = CachewScale(2, "up", before_s=1.0, released=True)
    assert cachew_scaling.step(rising, Look(2, 2.3, 0.0, 1.0), LIMITS).value == rising
    assert cachew_scaling.step(CachewScale(2, "up", before_s=1.0), Look(2, 2.3, 0.0, 1.0), LIMITS).value.workers == 1


def test_cachew_keeps_to_limits_that_have_become_lower_and_says_why():
    found = cachew_scaling.step(CachewScale(8), Look(8, 1.0, 0.5, 1.0), Limits(1, 5, "5 of 8 workers could be had"))
    assert (found.value.workers, found.value.phase) == (5, "settled")
    assert found.reason == "5: 5 of 8 workers could be had"


def test_the_hpa_keeps_to_limits_that_have_become_lower_at_once():
    found = hpa.step(hpa.HpaScale(8), 1.0, 0.0, Limits(1, 5, "5 of 8 workers could be had"))
    assert found.value.workers == 5
    assert found.reason.endswith("is wanted: 5 of 8 workers could be had")


def test_the_hpa_goes_by_the_workers_that_are_there():
    """Else it would want more and more, as those that are there stay busy."""
    assert hpa.step(hpa.HpaScale(8), 1.0, 0.0, LIMITS, ready=5).value.workers == 8
    assert hpa.step(hpa.HpaScale(8), 1.0, 0.0, LIMITS, ready=8).value.workers == 10
    idle = hpa.step(hpa.HpaScale(8), 0.4, 0.0, LIMITS, ready=5).value
    assert idle.desired[-1] == (0.0, 3)


def test_the_hpa_goes_by_processor_time_alone():
    assert hpa.step(hpa.HpaScale(10), 1.0, 0.0, LIMITS).value.workers == 13
    assert hpa.step(hpa.HpaScale(10), 0.85, 0.0, LIMITS).value.workers == 10
    assert hpa.step(hpa.HpaScale(90), 1.0, 0.0, LIMITS).value.workers == 100


def test_the_hpa_takes_away_only_what_was_too_much_for_five_minutes():
    scale = hpa.HpaScale(10)
    for now in range(0, 300, 15):
        scale = hpa.step(scale, 0.4, float(now), LIMITS).value
        assert scale.workers == 10
    assert hpa.step(scale, 0.4, 300.0, LIMITS).value.workers == 5
