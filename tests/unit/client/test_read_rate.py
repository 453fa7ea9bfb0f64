import pytest

from millrace.client.read_rate import Rates, ReadRateMeter


def test_time_from_one_element_to_the_next_and_the_wait_in_it():
    meter = ReadRateMeter()
    meter.took(1, asked=0.0, got=5.0, queued=0)  # start-up does not count
    meter.took(1, asked=5.8, got=6.0, queued=0)
    meter.took(1, asked=6.8, got=7.0, queued=0)
    rates = meter.rates(7.8)
    assert rates.batch_time_s == pytest.approx((0.8 + 1.0 + 1.0) / 3)
    assert rates.wait_s == pytest.approx((0.0 + 0.2 + 0.2) / 3)
    assert meter.handed == 2


def test_elements_of_a_message_share_its_time():
    meter = ReadRateMeter()
    meter.took(10, asked=0.0, got=0.0, queued=30)
    assert meter.rates(5.0, left=5).batch_time_s == pytest.approx(1.0)
    meter.took(10, asked=10.0, got=10.0, queued=20)
    assert meter.rates(10.0, left=10).batch_time_s == pytest.approx(1.0)
    assert meter.rates(10.0, left=10).queue_elements == pytest.approx(30)
    assert meter.handed == 10


def test_only_about_the_last_hundred_count():
    meter = ReadRateMeter()
    now = 0.0
    for _ in range(200):
        meter.took(1, asked=now, got=now, queued=0)
        now += 1.0
    for _ in range(150):
        meter.took(1, asked=now, got=now, queued=7)
        now += 2.0
    assert meter.rates(now, left=1).batch_time_s == pytest.approx(2.0)
    assert meter.rates(now, left=1).queue_elements == pytest.approx(7)


def test_nothing_read_is_no_rate():
    assert ReadRateMeter().rates(9.0) == Rates()
