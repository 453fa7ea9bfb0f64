"""What a process says of samples that it could not fetch ahead."""

import logging

import pytest

from millrace.blocks.samples.sample_cache import SampleCache


@pytest.fixture
def cache():
    made = SampleCache(1 << 20)
    yield made
    made.close()


def refused():
    raise PermissionError("no credentials in this process")


def warnings(caplog):
    return [each.getMessage() for each in caplog.records if each.levelno >= logging.WARNING]


def test_a_process_that_can_fetch_no_sample_ahead_warns_once_with_the_cause_and_what_to_do(cache, caplog):
    for index in range(7):
        assert not cache.fetch_ahead("a", index, refused)
    assert warnings(caplog) == []
    for index in range(7, 30):
        assert not cache.fetch_ahead("a", index, refused)
    (said,) = warnings(caplog)
    assert "could fetch no sample ahead" in said
    assert "sample 7, with PermissionError: no credentials in this process" in said
    assert "make it open what it needs (files, connections) when it is first asked, in each process" in said
    assert cache.stats().failed == 30


def test_samples_that_fail_among_others_are_counted_and_no_more(cache, caplog):
    assert cache.fetch_ahead("a", 0, lambda: 0)
    for index in range(1, 30):
        assert not cache.fetch_ahead("a", index, refused)
    assert warnings(caplog) == []
    assert cache.stats().failed == 29
