"""An element that ends the process of its worker is found and handled by ``on_error``, at the price of few workers."""

import os
import signal
import warnings
from collections import Counter

import pytest
from tests.integration.service.service_driving import job_of

import millrace as mr

COUNT = 60
POISON = 17
DEATHS = 4
"""Of a worker each: two that show that it is this task, two that show that it is this element. Another one may come to
the element meanwhile, as it prepares the next epoch."""

pytestmark = pytest.mark.alone
"""A test process ended once while one of these ran beside other tests, and never by itself; the cause is not known."""


def crash(number):
    if number == POISON:
        signal.raise_signal(signal.SIGSEGV)  # to this thread: a process as a whole may get it when this has gone on
    return number


def leave(number):
    if number == POISON:
        os._exit(3)
    return number


@pytest.mark.parametrize("own_service", [DEATHS + 2], indirect=True)
def test_it_is_skipped_and_everything_else_comes_once(own_service):
    dataset = mr.Dataset.range(COUNT).map(crash).with_options(on_error="skip")
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        with dataset.distribute(own_service.address, job_name="ours", tasks=6) as data:
            for _ in range(2):  # in the second epoch nobody touches it
                assert Counter(data) == Counter(set(range(COUNT)) - {POISON})
            own_service.until(lambda status: job_of(status, "ours")["skipped"] >= 2)  # as the tasks' ends are reported
            job = job_of(own_service.status(), "ours")
    [notice] = [str(each.message) for each in told]
    assert notice.startswith("map(crash) of item 17 has ended the process of every worker that came to it")
    assert job["poison"] == ["map(crash) of item 17"]
    ended = [process for process in own_service.workers.values() if process.poll() is not None]
    assert DEATHS <= len(ended) <= DEATHS + 1
    assert {process.returncode for process in ended} == {-signal.SIGSEGV}


def test_it_ends_a_job_that_does_not_skip_with_its_name():
    """The service starts other workers in the place of those that end, and says that they do."""
    dataset = mr.Dataset.range(COUNT).map(leave)
    with warnings.catch_warnings(record=True) as told, mr.LocalService(max_workers=2) as service:
        warnings.simplefilter("always")
        with (
            pytest.raises(
                mr.ElementError, match=r"every worker that came to it ended: a crash in native code"
            ) as error,
            dataset.distribute(service.address, tasks=6) as data,
        ):
            list(data)
    assert (error.value.operator, error.value.where) == ("map(leave)", "item 17")
    assert any("workers of this service keep ending" in str(each.message) for each in told)
