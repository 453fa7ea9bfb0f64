"""The dispatcher dies at any moment and goes on where its journal ends: each element once all the same."""

import random
import threading
from collections import Counter

import pytest
from tests.integration.service.service_driving import Reading, Service, job_of, together

import millrace as mr
from millrace import ShardingPolicy

COUNT = 400
TASKS = 20
BATCH = 16


def pipeline(look):
    return mr.Dataset.range(COUNT).map(look).filter(lambda number: number % 3 != 0).batch(BATCH)


def gated(gate, stops):
    def look(number):
        if number in stops:
            gate.pass_through()
        return number

    return pipeline(look)


def readers(dataset, service, count, **options):
    return [
        dataset.distribute(service.address, job_name="ours", num_consumers=count, tasks=TASKS, **options)
        for _ in range(count)
    ]


def check(read):
    for epoch in together(read):
        assert Counter(n for batch in epoch for n in batch.tolist()) == Counter(n for n in range(COUNT) if n % 3)
        assert sum(len(batch) < BATCH for batch in epoch) <= 1


def all_joined(service, count):
    service.until(lambda status: len(job_of(status, "ours").get("consumers", ())) == count)


def all_there(status):
    """Everybody has found the dispatcher again."""
    consumers = [consumer for job in status["jobs"] for consumer in job["consumers"]]
    return all(c["connected"] for c in consumers) and not any("session broke" in w["why"] for w in status["workers"])


@pytest.mark.parametrize("count", [1, 3])
def test_a_restarted_dispatcher_goes_on_with_what_is_leased(tmp_path, gate, keeper, count):
    with Service(2, work_dir=tmp_path / "work") as service:
        with Reading(readers(gated(gate, {200}), service, count), 2) as reading:
            all_joined(service, count)
            holder = service.named(keeper.wait())
            service.restart_dispatcher()
            back = service.until(lambda status: all_there(status) and {w["id"]: w["leases"] for w in status["workers"]})
            assert back[holder]  # nothing was taken from it
            keeper.open()
            check(reading.result())
        assert not service.status()["jobs"]


@pytest.mark.parametrize("sharding", [ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC])
@pytest.mark.parametrize(("count", "deterministic"), [(1, True), (3, False)])
def test_a_dispatcher_that_is_killed_again_and_again(tmp_path, sharding, count, deterministic):
    rng = random.Random(f"{sharding} {count}")
    over = threading.Event()
    killed = 0
    with Service(2, work_dir=tmp_path / "work") as service:
        data = readers(pipeline(lambda n: n), service, count, sharding=sharding, deterministic=deterministic)
        with Reading(data, 6) as reading:
            reading.then(over.set)
            all_joined(service, count)
            while killed < 6 and not over.wait(rng.uniform(0.0, 0.3)):
                service.restart_dispatcher()
                killed += 1
                if killed == 3:
                    service.kill("w0")
                    service.add(1)
                service.until(lambda status: over.is_set() or all_there(status))
            check(reading.result())
    assert killed > 2


def test_a_service_started_again_knows_its_jobs(tmp_path):
    dataset = mr.Dataset.range(100).batch(10)
    with mr.LocalService(max_workers=1, work_dir=str(tmp_path)) as service:
        batches = dataset.distribute(service.address, job_name="ours")
        assert len(list(batches)) == 10
        assert batches.status()["journal"]["work_dir"] == str(tmp_path)
        with pytest.raises(
            mr.ServiceError, match=rf"work_dir {tmp_path} is in use by another dispatcher, process \d+;"
        ):
            mr.LocalService(max_workers=1, work_dir=str(tmp_path))
    with mr.LocalService(max_workers=1, work_dir=str(tmp_path)) as service:
        assert job_of(service.status(), "ours")["epoch"] == 0
        with dataset.distribute(service.address, job_name="ours") as again:
            assert len(list(again)) == 10
            assert job_of(service.status(), "ours")["epoch"] == 1
    batches.close()
