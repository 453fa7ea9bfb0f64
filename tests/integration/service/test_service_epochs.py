"""The next epoch is prepared while this one ends, and what nobody reads any more is dropped."""

import contextlib
import gc
from collections import Counter

import numpy as np
import pytest
from tests.integration.service.service_driving import consume, job_of, together

import millrace as mr

COUNT = 40


def noted(path):
    """Notes each element that it sees."""

    def note(number):
        with open(path, "ab", buffering=0) as file:
            file.write(b"%d\n" % number)
        return np.full(100, number)

    return note


def seen(path):
    return Counter(int(line) for line in path.read_bytes().split())


def nothing_kept(status):
    return all(
        worker["leases"] == worker["kept"] == sum(lane["buffered_bytes"] for lane in worker["lanes"]) == 0
        for worker in status["workers"]
    )


@pytest.mark.parametrize("service", [1, 2], indirect=True)
@pytest.mark.parametrize("count", [1, 3])
def test_the_next_epoch_lies_ready_when_this_one_has_been_read(service, tmp_path, count):
    dataset = mr.Dataset.range(COUNT).map(noted(tmp_path / "seen"))
    job = {"job_name": "ready", "num_consumers": count, "tasks": 4 * count}
    with contextlib.ExitStack() as stack:
        readers = [stack.enter_context(dataset.distribute(service.address, **job)) for _ in range(count)]
        for epoch in range(2):
            begun = [iter(reader) for reader in readers]
            read = [int(element[0]) for elements in begun for element in elements]
            assert Counter(read) == Counter(range(COUNT))

            def prepared(status, epoch=epoch):
                lanes = {lane["consumer"] for w in status["workers"] for lane in w["lanes"] if lane["buffered_bytes"]}
                return job_of(status, "ready")["epoch"] == epoch and lanes == set(range(count))

            service.until(prepared)


@pytest.mark.parametrize("own_service", [1, 2], indirect=True)
@pytest.mark.parametrize("epochs", [1, 3])
def test_nothing_is_prepared_beyond_the_epochs_asked_for(own_service, tmp_path, epochs):
    dataset = mr.Dataset.range(COUNT).map(noted(tmp_path / "seen"))
    with dataset.distribute(own_service.address, job_name="so many", tasks=4) as elements:
        assert len(list(elements.epochs(epochs))) == epochs * COUNT
        own_service.until(nothing_kept)
        assert job_of(own_service.status(), "so many")["epoch"] == epochs - 1
        assert set(seen(tmp_path / "seen").values()) == {epochs}


def close(reader, elements):
    reader.close()


def drop(reader, elements):
    """The caller's references are the last ones."""


@pytest.mark.parametrize("own_service", [2], indirect=True)
@pytest.mark.parametrize("how", [close, drop], ids=["close", "drop"])
def test_with_its_last_consumer_a_job_is_gone(own_service, how):
    """In the middle of an epoch that would never end."""
    dataset = mr.Dataset.range(10**9).map(lambda number: np.full(1000, number))
    reader = dataset.distribute(own_service.address, job_name="x")
    elements = iter(reader)
    next(elements)
    own_service.until(lambda status: any(lane["buffered_bytes"] for w in status["workers"] for lane in w["lanes"]))
    how(reader, elements)
    del reader, elements
    gc.collect()
    own_service.until(lambda status: not job_of(status, "x"))
    own_service.until(nothing_kept)
    own_service.until(lambda status: all(worker["job"] is None for worker in status["workers"]))
    assert {worker["why"] for worker in own_service.status()["workers"]} == {"waits for a job"}


@pytest.mark.parametrize("service", [2], indirect=True)
def test_an_epoch_that_was_left_early_is_over(service):
    with mr.Dataset.range(1000).map(lambda number: np.full(1000, number)).distribute(service.address) as reader:
        for _ in reader:
            break
        [rest] = together(consume([reader]))
    assert Counter(int(element[0]) for element in rest) == Counter(range(1000))
