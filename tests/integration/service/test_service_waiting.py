"""A training process says what its first element waits for, and how far it is."""

import threading

import pytest
from tests.integration.service.service_driving import Service

import millrace as mr
from millrace.client import monitor


class Reading(threading.Thread):
    """Reads a distributed dataset to its end."""

    def __init__(self, dataset: mr.DistributedDataset) -> None:
        super().__init__()
        self.dataset, self.found = dataset, list[int]()
        self.start()

    def run(self) -> None:
        self.found = sorted(self.dataset)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(monitor, "FIRST_S", 0.3)


def said(caplog: pytest.LogCaptureFixture, service: Service) -> str:
    """What the training process has said, as soon as it has."""
    found: list[str] = service.until(
        lambda _: [record.getMessage() for record in caplog.records if record.name == monitor.__name__]
    )
    assert len(found) == 1
    return found[0]


@pytest.mark.parametrize("own_service", [0], indirect=True)
@pytest.mark.usefixtures("impatient")
def test_that_no_worker_is_there_is_said(own_service: Service, caplog: pytest.LogCaptureFixture):
    with mr.Dataset.range(5).distribute(own_service.address, job_name="early") as numbers:
        reading = Reading(numbers)
        assert said(caplog, own_service) == (
            "job early has had no element for 300 ms: job early waits for a worker: none is registered"
        )
        own_service.add(1)
        reading.join()
    assert reading.found == list(range(5))
    assert len(caplog.records) == 1


@pytest.mark.parametrize("service", [1], indirect=True)
@pytest.mark.usefixtures("impatient")
def test_the_ranks_that_have_not_come_are_said(service: Service, caplog: pytest.LogCaptureFixture):
    def rank(index: int) -> mr.DistributedDataset:
        dataset = mr.Dataset.range(400).filter(bool)
        return dataset.distribute(
            service.address, job_name="ranks", seed=1, tasks=20, num_consumers=2, consumer_index=index, equal_steps=True
        )

    with rank(0) as first, rank(1) as second:
        one = Reading(first)
        assert said(caplog, service).endswith("before all have one, and consumer 1 has not come yet")
        other = Reading(second)
        one.join()
        other.join()
    assert len(one.found) == len(other.found) > 0


@pytest.mark.parametrize("service", [1], indirect=True)
def test_progress_is_a_line_for_each_epoch(service: Service, capsys: pytest.CaptureFixture[str]):
    with mr.Dataset.range(5).distribute(service.address, progress=True) as numbers:
        assert len(list(numbers.epochs(2))) == 10
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(" in ")[0] for line in lines] == ["epoch 0: 5 elements", "epoch 1: 5 elements"]
