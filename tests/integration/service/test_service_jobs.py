"""Several jobs and several consumers on few workers: nobody waits for ever, and the status says who waits for what."""

import contextlib
import subprocess
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_data import number_of
from tests.integration.service.service_driving import Reading, consume, job_of

import millrace as mr
from millrace.client.job_session import JobSession

COUNT = 300
NUMBERS = Counter(range(COUNT))


def at_the_gate(gate, number):
    def look(each):
        if each == number:
            gate.pass_through()
        return each

    return look


@pytest.mark.parametrize("own_service", [1], indirect=True)
def test_three_jobs_on_one_worker_all_finish_and_say_who_waits(own_service, gate, keeper):
    dataset = mr.Dataset.range(COUNT).map(at_the_gate(gate, 200))
    jobs = {name: dataset.distribute(own_service.address, job_name=name, tasks=10) for name in "abc"}
    with Reading([jobs["a"]], 2) as first:
        keeper.wait()
        with Reading([jobs["b"]], 2) as second, Reading([jobs["c"]], 2) as third:

            def all_wait(status):
                waits = [job["division"]["waits_s"] for job in status["jobs"] if job["name"] in "bc"]
                return len(waits) == 2 and None not in waits

            own_service.until(all_wait)
            claims = {job["name"]: job["division"] for job in own_service.status()["jobs"]}
            assert all(claims[name]["waits_for"] == ["a"] for name in "bc")
            assert sorted(claims[name]["behind"] for name in "bc") in ([[], ["b"]], [[], ["c"]])
            assert {claim["share"] for claim in claims.values()} == {0.333333}
            assert "s for a worker: 1 worker, serving a; its turn comes" in job_of(own_service.status(), "b")["why"]
            [worker] = own_service.status()["workers"]
            assert (worker["job"], worker["assigned"]) == ("a", "a is the only job with work")
            assert worker["why"].startswith("computes ")
            why = job_of(own_service.status(), "a")["why"]
            assert why.startswith("job a runs on 1 worker; ")
            assert why.endswith("; a is to have 0.333 of 1 worker for 3 jobs")
            keeper.open()
            for reading in (first, second, third):
                [epochs] = reading.result()
                assert [Counter(epoch) for epoch in epochs] == [NUMBERS] * 2


@pytest.mark.parametrize("service", [1, 2], indirect=True)
def test_many_jobs_at_once(service, data):
    dataset = mr.Dataset.from_tfrecords(data.paths("tfrecord", 3)).map(number_of).shuffle(50, seed=1).batch(7)
    here = Counter(n for batch in dataset.__pipeline__().read_epoch(0) for n in batch.tolist())
    for epochs in consume([dataset.distribute(service.address, tasks=6) for _ in range(6)], 3):
        for epoch in epochs:
            assert Counter(n for batch in epoch for n in batch.tolist()) == here


@pytest.fixture
def small_buffers(monkeypatch):
    """Consumers hold a mebibyte each instead of a quarter of a gibibyte."""
    monkeypatch.setitem(JobSession.__init__.__kwdefaults__, "buffer_bytes", 1 << 20)


def large(number):
    return np.full(1 << 13, number)


def numbers(elements):
    return [int(element[0]) for element in elements]


@pytest.fixture(scope="module")
def narrow_service(service_with):
    """One worker that keeps a mebibyte."""
    with service_with(0) as service:
        service.add(1, "--buffer-bytes", str(1 << 20))
        yield service


@pytest.mark.usefixtures("small_buffers")
def test_a_job_whose_consumer_has_stopped_reading_blocks_no_other(narrow_service):
    dataset = mr.Dataset.range(COUNT).map(large)
    with dataset.distribute(narrow_service.address, job_name="paused", tasks=3) as paused:
        elements = iter(paused)
        got = numbers([next(elements)])
        narrow_service.until(lambda status: any(lane["blocked_s"] for w in status["workers"] for lane in w["lanes"]))
        [[epoch]] = consume([dataset.distribute(narrow_service.address, job_name="other", tasks=3)])
        assert Counter(numbers(epoch)) == NUMBERS
        assert Counter(got + numbers(elements)) == NUMBERS


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.parametrize("deterministic", [False, True])
def test_a_consumer_that_has_stopped_reading_blocks_no_other_of_its_job(narrow_service, deterministic):
    dataset = mr.Dataset.range(COUNT).map(large)
    options: dict[str, Any] = {"job_name": "both", "num_consumers": 2, "tasks": 30, "deterministic": deterministic}
    with (
        dataset.distribute(narrow_service.address, consumer_index=0, **options) as paused,
        dataset.distribute(narrow_service.address, consumer_index=1, **options) as going,
    ):
        elements = iter(paused)
        got = numbers([next(elements)])
        theirs = numbers(going)
        assert theirs
        got += numbers(elements)
        assert Counter(got + theirs) == NUMBERS


@pytest.mark.parametrize("service", [2], indirect=True)
def test_two_jobs_of_one_pipeline(service):
    dataset = mr.Dataset.range(COUNT)
    both = [dataset.distribute(service.address, job_name=name) for name in ("one", "two")]
    assert [Counter(epoch) for [epoch] in consume(both)] == [NUMBERS, NUMBERS]


@pytest.mark.parametrize("service", [2], indirect=True)
def test_one_name_and_two_pipelines(service):
    with mr.Dataset.range(COUNT).distribute(service.address, job_name="mine") as mine:
        iter(mine)
        other = mr.Dataset.range(COUNT + 1).distribute(service.address, job_name="mine")
        with pytest.raises(mr.JobConflictError, match=r"job 'mine' exists already and differs in the pipeline"):
            iter(other)
        other = mr.Dataset.range(COUNT).distribute(service.address, job_name="mine", tasks=3)
        with pytest.raises(mr.JobConflictError, match=r"tasks \(3 here, None there\); use another job_name"):
            iter(other)
        assert Counter(mine) == NUMBERS


@pytest.mark.parametrize("service", [2], indirect=True)
def test_whoever_joins_reads_on_with_the_others(service):
    """No number of consumers was given: each takes the next index, and they share the epoch."""
    dataset = mr.Dataset.range(COUNT)
    with contextlib.ExitStack() as stack:
        readers = [dataset.distribute(service.address, job_name="open", tasks=20) for _ in range(3)]
        epochs = [iter(stack.enter_context(reader)) for reader in readers]
        assert [each["index"] for each in job_of(service.status(), "open")["consumers"]] == [0, 1, 2]
        assert Counter(number for epoch in epochs for number in epoch) == NUMBERS


NEVER_CLOSES = """
import sys
import millrace as mr

dataset = mr.Dataset.range(300).batch(10).distribute(sys.argv[1], job_name="unclosed", num_consumers=1)
batches = iter(dataset)
print(sum(len(next(batches)) for _ in range(3)), flush=True)
"""


@pytest.mark.parametrize("service", [1], indirect=True)
def test_a_script_that_ends_without_close_leaves_its_job(service, tmp_path):
    script = tmp_path / "train.py"
    script.write_text(NEVER_CLOSES)
    command = [sys.executable, "-W", "error", str(script), service.address]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "30\n", "")
    # A consumer that had only vanished would be waited for, and its job would go on in the middle of the epoch.
    service.until(lambda status: not job_of(status, "unclosed"))
    with mr.Dataset.range(300).batch(10).distribute(service.address, job_name="unclosed", num_consumers=1) as again:
        assert Counter(n for batch in again for n in batch.tolist()) == NUMBERS
