"""Each element once an epoch, however the work is divided and whoever reads it."""

import json
import subprocess
import sys
from collections import Counter

import pytest
from tests.integration.service.service_data import COUNT, PER_FILE, number_of
from tests.integration.service.service_driving import WAIT_S, consume, together
from tests.pairwise import pairwise

import millrace as mr
from millrace import ShardingPolicy, Visitation

EPOCHS = 3


def last_worker_has_most(tasks, workers):
    """Uneven on purpose: the first worker gets one task, the last one all that are left over."""
    return [min(task, len(workers) - 1) for task in tasks]


SHARDINGS = [ShardingPolicy.DYNAMIC, ShardingPolicy.STATIC, last_worker_has_most]
WORKERS = [1, 2, 5]


def name_of(value):
    """In the test's name; None: as it is."""
    return getattr(value, "name", None) or ("custom" if callable(value) else None)


def consumers(dataset, service, count, **options):
    """``count`` of them, of a job that has its name from the test."""
    if count == 1:
        return [dataset.distribute(service.address, **options)]
    return [
        dataset.distribute(service.address, num_consumers=count, consumer_index=index, **options)
        for index in range(count)
    ]


@pytest.mark.parametrize(
    ("than_workers", "count", "sharding", "service"),
    pairwise(["fewer", "as many", "more"], [1, 3], SHARDINGS, WORKERS),
    ids=name_of,
    indirect=["service"],
)
def test_each_element_of_files_of_records_once_an_epoch(service, data, sharding, count, than_workers, request):
    files = {"fewer": 1, "as many": len(service.workers), "more": 7}[than_workers]
    dataset = mr.Dataset.from_tfrecords(data.paths("tfrecord", files)).map(number_of)
    read = consume(consumers(dataset, service, count, sharding=sharding, job_name=request.node.name), EPOCHS)
    for epoch in together(read):
        assert Counter(epoch) == Counter(range(files * PER_FILE))


@pytest.mark.parametrize(
    ("count", "sharding", "service"), pairwise([1, 3], SHARDINGS, WORKERS), ids=name_of, indirect=["service"]
)
def test_each_element_of_other_sources_once_an_epoch(service, data, sharding, count, request):
    sources = {
        "files": mr.Dataset.from_files(data.files).map(lambda file: number_of(file["bytes"])),
        "tar": mr.Dataset.from_webdataset(data.paths("tar", 2)).map(lambda sample: number_of(sample["txt"])),
        "one": mr.Dataset.range(1),
        "none": mr.Dataset.range(0),
    }
    counts = {"files": COUNT, "tar": 2 * PER_FILE, "one": 1, "none": 0}
    for name, dataset in sources.items():
        job = f"{request.node.name} {name}"
        for epoch in together(consume(consumers(dataset, service, count, sharding=sharding, job_name=job), EPOCHS)):
            assert Counter(epoch) == Counter(range(counts[name]))


@pytest.mark.parametrize(
    ("tasks", "deterministic", "service"), pairwise([1, 3, 40], [False, True], WORKERS), indirect=["service"]
)
def test_few_and_many_tasks_and_tails(service, data, deterministic, tasks, request):
    """More workers and consumers than tasks, and two levels of tails."""
    dataset = mr.Dataset.from_webdataset(data.paths("tar")).map(lambda sample: number_of(sample["txt"]))
    dataset = dataset.filter(lambda number: number % 3 != 0).batch(8)
    options = {"deterministic": deterministic, "tasks": tasks, "job_name": request.node.name}
    for epoch in together(consume(consumers(dataset, service, 3, **options), EPOCHS)):
        assert Counter(n for batch in epoch for n in batch.tolist()) == Counter(n for n in range(COUNT) if n % 3)
        assert sum(len(batch) < 8 for batch in epoch) <= 1


@pytest.mark.parametrize("service", [2], indirect=True)
def test_consumers_that_are_processes(service, data, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(
        "import json, sys\n"
        "import millrace as mr\n"
        "address, index, pattern = sys.argv[1:]\n"
        "dataset = mr.Dataset.from_tfrecords(pattern).map(lambda raw: int(raw.rstrip(b',')))\n"
        "with dataset.distribute(address, job_name='ranks', num_consumers=3, consumer_index=int(index)) as elements:\n"
        "    print(json.dumps([list(elements) for _ in range(3)]), flush=True)\n"
        "    sys.stdin.read()\n"  # a job ends with its last consumer: here, when all have read all
    )
    ranks = [
        subprocess.Popen(
            [sys.executable, script, service.address, str(index), str(data.root / "*.tfrecord")],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        for index in range(3)
    ]
    read = [json.loads(rank.stdout.readline()) for rank in ranks if rank.stdout]
    assert [rank.communicate(timeout=WAIT_S)[0] for rank in ranks] == [b""] * 3
    for epoch in together(read):
        assert Counter(epoch) == Counter(range(COUNT))


@pytest.mark.parametrize("service", WORKERS, indirect=True)
@pytest.mark.parametrize("count", [1, 3])
def test_without_sharding_an_epoch_is_as_long_as_the_data(service, data, count, request):
    dataset = mr.Dataset.from_tfrecords(data.paths("tfrecord")).map(number_of)
    options = {"sharding": ShardingPolicy.OFF, "visitation": Visitation.ZERO_ONCE_OR_MORE}
    read = consume(consumers(dataset, service, count, job_name=request.node.name, **options), EPOCHS)
    for epoch in together(read):
        assert len(epoch) == COUNT
        assert set(epoch) <= set(range(COUNT))


@pytest.mark.parametrize("visitation", [Visitation.EXACTLY_ONCE, Visitation.AT_MOST_ONCE])
def test_without_sharding_nothing_can_be_promised(visitation):
    with pytest.raises(mr.PipelineError, match=r"say visitation=Visitation\.ZERO_ONCE_OR_MORE, or use .*DYNAMIC"):
        mr.Dataset.range(10).distribute("127.0.0.1:1", sharding=ShardingPolicy.OFF, visitation=visitation)


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("sharding", SHARDINGS, ids=name_of)
def test_at_most_once_is_once_if_nothing_is_lost(service, sharding):
    dataset = mr.Dataset.range(500).filter(lambda number: number % 2 == 0).batch(7)
    with dataset.distribute(service.address, sharding=sharding, visitation=Visitation.AT_MOST_ONCE) as elements:
        for _ in range(EPOCHS):
            got = [n for batch in elements for n in batch.tolist()]
            assert Counter(got) == Counter(range(0, 500, 2))
