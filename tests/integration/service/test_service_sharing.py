"""Jobs that share one computation in lockstep: each gets all of it, and the user's functions run once for all."""

import pickle
import subprocess
import sys
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S, job_of

import millrace as mr

COUNT = 200
NUMBERS = Counter(range(COUNT))


def noted(calls, gate):
    def note(number):
        gate.pass_through()
        return calls.note(number)

    return note


def groups(status, kind="lockstep-"):
    return [job for job in status["jobs"] if job["name"].startswith(kind)]


def members(status, kind="lockstep-"):
    return sum(len(job["consumers"]) for job in groups(status, kind))


def shared(dataset, service, name=None, **chosen):
    return dataset.distribute(
        service.address, **{"sharing": mr.Sharing.LOCKSTEP, "job_name": name, "tasks": 20, **chosen}
    )


def read(job, epochs):
    with job:
        return [list(job) for _ in range(epochs)]


def test_three_jobs_get_every_element_of_every_epoch_and_functions_run_once_for_them(service_with, calls):
    dataset = mr.Dataset.range(COUNT).shuffle(COUNT).map(calls.note)
    with service_with() as service:
        jobs = [shared(dataset, service, f"trial {number}").batch(size) for number, size in enumerate((1, 7, 64))]
        with ThreadPoolExecutor(len(jobs)) as pool:
            reading = pool.map(lambda job: read(job, 2), jobs, timeout=WAIT_S)
            service.until(lambda status: members(status) == 3)
            service.add(2)  # nothing is computed before all have come
            found = list(reading)
        for job in found:
            assert [Counter(number for batch in epoch for number in batch.tolist()) for epoch in job] == [NUMBERS] * 2
        found = calls.take()
        assert set(found) == set(NUMBERS)
        assert set(found.values()) <= {2, 3}, "the next epoch may be prepared"
        assert not groups(service.status())


READS = """
import pickle
import sys
import millrace as mr

calls = pickle.loads(bytes.fromhex(sys.argv[2]))

def note(number):
    return calls.note(number)

ds = mr.Dataset.range(200).map(note).distribute(sys.argv[1], sharing=mr.Sharing.LOCKSTEP, tasks=20)
with ds:
    print(ds.state_dict()["seed"])
    for _ in range(2):
        print(sorted(ds))
    print(ds.state_dict()["seed"])
"""


def test_two_scripts_share_although_their_functions_are_packed_into_other_bytes(service_with, calls):
    packed = pickle.dumps(calls).hex()
    with service_with() as service, ExitStack() as stack:
        scripts = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-c", "\n" * lines + READS, service.address, packed],
                    stdout=subprocess.PIPE,
                    text=True,
                )
            )
            for lines in (0, 9)
        ]
        service.until(lambda status: members(status) == 2)
        service.add(2)  # nothing is computed before both have come
        said = [script.communicate(timeout=WAIT_S)[0].splitlines() for script in scripts]
    assert said[0] == said[1]
    assert said[0][:3] == ["None", *[str(list(range(COUNT)))] * 2]
    assert said[0][3] != "None", "the seed is the group's"
    assert set(calls.take().values()) <= {2, 3}, "two epochs, and the next one may be prepared"


@pytest.mark.parametrize("service", [2], indirect=True)
def test_jobs_that_are_not_alike_do_not_share(service):
    dataset = mr.Dataset.range(COUNT)
    with (
        shared(dataset, service) as one,
        shared(dataset, service, seed=3) as seeded,
        shared(dataset.map(abs), service) as other,
    ):
        epochs = [iter(job) for job in (one, seeded, other)]
        assert sorted(len(job["consumers"]) for job in groups(service.status())) == [1, 1, 1]
        assert [Counter(epoch) for epoch in epochs] == [NUMBERS] * 3


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_name_is_one_jobs_at_a_time(service):
    dataset = mr.Dataset.range(COUNT)
    with shared(dataset, service, "twice") as one, shared(dataset, service, "twice") as other:
        first = iter(one)
        with pytest.raises(mr.ConsumerConflictError, match="job 'twice' is being read already by process"):
            iter(other)
        assert Counter(first) == NUMBERS
        one.close()
        assert Counter(other) == NUMBERS
    assert not job_of(service.status(), "twice")


WINDOW = {"sharing": mr.Sharing.WINDOW, "visitation": mr.Visitation.AT_MOST_ONCE, "window_bytes": 1 << 18}


def grown(number):
    return np.full(5000, number)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_with_a_window_who_is_slow_holds_nobody_up_and_hears_what_it_missed(service, calls, gate, keeper, capfd):
    dataset = mr.Dataset.range(COUNT).map(noted(calls, gate)).map(grown).with_options(buffer_bytes=1 << 20)
    chosen = {**WINDOW, "progress": True}
    with shared(dataset, service, **chosen) as fast, shared(dataset, service, **chosen) as slow:
        behind, ahead = iter(slow), iter(fast)
        keeper.open()
        seen = [next(behind)]
        first = list(ahead)
        seen += behind
    for reader, rows in ((ahead, first), (behind, seen)):
        numbers = Counter(int(row[0]) for row in rows)
        assert not numbers - NUMBERS
        assert numbers.total() + reader.missed == COUNT
    assert {int(row[0]) for row in [*first, *seen]} == set(NUMBERS), "nothing comes to nobody"
    assert ahead.missed < COUNT // 2 < behind.missed, "the first may miss some while the other fills its buffer"
    assert ahead.members == 2
    assert f", {behind.missed} missed" in capfd.readouterr().err


@pytest.mark.parametrize("service", [2], indirect=True)
def test_a_job_that_comes_right_after_the_last_one_has_whole_epochs(service):
    dataset = mr.Dataset.range(COUNT).map(grown).with_options(buffer_bytes=1 << 20)
    for epochs in (1, 2):
        with shared(dataset, service, **{**WINDOW, "window_bytes": 1 << 19}) as job:
            for _ in range(epochs):
                assert Counter(int(row[0]) for row in job) == NUMBERS
