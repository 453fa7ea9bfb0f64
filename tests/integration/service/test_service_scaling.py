"""A service that runs as many workers as its jobs need, with real processes."""

import threading

import pytest
from tests.integration.service.service_driving import Service, job_of

import millrace as mr

COST_S = 0.04
OWN_S = 0.01


def waits(number):
    threading.Event().wait(COST_S)
    return number


@pytest.fixture
def scaled():
    with Service(local="1-8", heartbeat_s=0.2) as service:
        yield service


def test_as_many_workers_as_feed_the_consumer(scaled):
    """It begins with all, as they are on this machine; those that are too many leave, and come when they are needed."""
    dataset = mr.Dataset.range(100_000).map(waits, num_parallel_calls=1)
    seen, numbers, workers = [], [], {}
    with dataset.distribute(scaled.address, job_name="ours", tasks=5_000) as distributed:
        for number in distributed:
            seen.append(number)
            threading.Event().wait(OWN_S)
            if len(seen) % 50 == 0:
                workers = job_of(scaled.status(), "ours")["workers"]
                numbers.append(workers["observed"])
                if workers["phase"] == "settled" and workers["observed"] == workers["plan"] < 8:
                    break
        assert max(numbers) == 8
        assert 1 <= workers["plan"] < 8, numbers  # about four, where nothing else keeps the machine busy
        fleet = scaled.until(lambda status: status["fleet"] if len(status["workers"]) == workers["plan"] else None)
        assert fleet["plan"] == workers["plan"]
        assert len(set(seen)) == len(seen)
        lost = job_of(scaled.status(), "ours")["lost"]
    assert lost == {"tasks": 0, "elements": 0}


def test_a_job_gets_no_more_than_its_user_says(scaled):
    dataset = mr.Dataset.range(400).map(waits, num_parallel_calls=1)
    with dataset.distribute(scaled.address, job_name="ours", workers=2, tasks=40) as distributed:
        assert sorted(distributed) == list(range(400))
        status = scaled.until(lambda status: status if len(status["workers"]) == 2 else None)
        assert job_of(status, "ours")["workers"]["plan"] == 2
        assert "ours 2" in status["fleet"]["why"]
