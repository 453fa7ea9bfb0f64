"""Local workers, inside the training host, on a service whose other workers were started by hand."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_driving import Service, job_of, wait_until_gone

import millrace as mr
from millrace.errors import ServiceError
from millrace.wire.address import own_host

COUNT = 400
TASKS = 40
LOCAL = 2


class At:
    """Says in which process it was, and waits at a gate on its way."""

    def __init__(self, gate=None, stops=(), *, pure=False):
        self.gate, self.stops, self.pure = gate, frozenset(stops), pure

    def __call__(self, number):
        if number in self.stops:
            self.gate.pass_through()
        return np.array([number, 0 if self.pure else os.getpid()])


def read(elements):
    """Numbers, and the processes that they come from."""
    pairs = [element.tolist() for element in elements]
    return sorted(number for number, _ in pairs), {pid for _, pid in pairs}


def local_pids(service, count=LOCAL):
    """Processes of the local workers, as soon as so many are there."""

    def found(status):
        pids = {worker["pid"] for worker in status["workers"] if worker["local"]}
        return pids if len(pids) == count else None

    return service.until(found)


@pytest.fixture
def by_hand():
    with Service(2) as running:
        yield running


def remote_pids(service):
    return {process.pid for process in service.workers.values()}


def test_local_work_is_done_here_alone(by_hand):
    dataset = mr.Dataset.range(COUNT).map(At())
    with dataset.distribute(
        by_hand.address, job_name="ours", target_workers="local", local_workers=LOCAL, tasks=TASKS
    ) as served:
        numbers, pids = read(served)
        local = local_pids(by_hand)
        assert numbers == list(range(COUNT))
        assert pids <= local
        status = by_hand.status()
        where = job_of(status, "ours")["where"]
        assert (where["target"], where["local"], where["remote"]) == ("local", LOCAL, 0)
        assert "local workers alone" in where["why"]
        assert status["fleet"]["observed"] == 2
    for pid in local:
        wait_until_gone(pid)


def test_remote_work_is_done_by_the_service_alone(by_hand):
    dataset = mr.Dataset.range(COUNT).map(At())
    with dataset.distribute(by_hand.address, job_name="ours", target_workers="remote", tasks=TASKS) as served:
        numbers, pids = read(served)
        assert numbers == list(range(COUNT))
        assert pids <= remote_pids(by_hand)
        assert not any(worker["local"] for worker in by_hand.status()["workers"])


@pytest.mark.parametrize("target", ["auto", "any"])
def test_both_do_what_there_is(by_hand, gate, keeper, target):
    """The gate is in the first task: nobody is through before local workers are there."""
    dataset = mr.Dataset.range(COUNT).map(At(gate, range(COUNT)))
    with dataset.distribute(
        by_hand.address, job_name="ours", target_workers=target, local_workers=LOCAL, tasks=TASKS
    ) as served:
        elements = iter(served)
        local = local_pids(by_hand)
        came: set[int] = set()
        while not (came & local and (came - local or target == "auto")):
            came.add(keeper.wait())
        keeper.open()
        numbers, pids = read(elements)
        assert numbers == list(range(COUNT))
        assert pids <= local | remote_pids(by_hand)
        assert pids & local


def test_a_local_worker_that_is_killed_is_replaced_and_nothing_comes_twice(by_hand, gate, keeper):
    dataset = mr.Dataset.range(COUNT).map(At(gate, range(5, COUNT, 10), pure=True))
    with dataset.distribute(by_hand.address, target_workers="local", local_workers=LOCAL, tasks=TASKS) as served:
        elements = iter(served)
        before = local_pids(by_hand)
        killed = keeper.wait()
        assert killed in before
        os.kill(killed, signal.SIGKILL)
        wait_until_gone(killed)
        keeper.open()
        numbers, _ = read(elements)
        assert numbers == list(range(COUNT))
        by_hand.until(lambda status: killed not in {worker["pid"] for worker in status["workers"]})
        assert killed not in local_pids(by_hand)


def test_batches_of_local_workers_are_looked_at_where_they_were_written(by_hand):
    dataset = mr.Dataset.range(64).map(image).batch(16)
    with dataset.distribute(by_hand.address, target_workers="local", local_workers=1) as served:
        for batch in served:
            assert "memfd:" in mapping_at(batch.ctypes.data)


def image(number):
    return np.full((256, 256), number, np.uint8)


def mapping_at(address):
    for line in Path("/proc/self/maps").read_text().splitlines():
        start, stop = (int(each, 16) for each in line.split()[0].split("-"))
        if start <= address < stop:
            return line
    raise AssertionError(hex(address))


def test_a_dispatcher_that_comes_back_knows_which_workers_are_local(tmp_path, gate, keeper):
    dataset = mr.Dataset.range(COUNT).map(At(gate, [COUNT // 2], pure=True))
    options: Any = {"job_name": "ours", "target_workers": "local", "local_workers": LOCAL, "tasks": TASKS}
    with Service(1, work_dir=tmp_path / "service") as service, dataset.distribute(service.address, **options) as served:
        elements = iter(served)
        local = local_pids(service)
        keeper.wait()
        service.restart_dispatcher()
        assert local_pids(service) == local
        keeper.open()
        numbers, _ = read(elements)
        assert numbers == list(range(COUNT))


def test_a_forked_child_leaves_local_workers_to_its_parent(by_hand):
    dataset = mr.Dataset.range(COUNT).map(At())
    with dataset.distribute(by_hand.address, target_workers="local", local_workers=LOCAL, tasks=TASKS) as served:
        elements = iter(served)
        local = local_pids(by_hand)
        child = os.fork()
        if child == 0:
            served.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        numbers, _ = read(elements)
        assert numbers == list(range(COUNT))
        assert local_pids(by_hand) == local


def test_local_workers_listen_where_the_dispatcher_sees_their_host():
    assert own_host("grpc://127.0.0.1:5050") == "127.0.0.1"
    with pytest.raises(ServiceError, match=r"no-such-host\.invalid:5050 cannot be reached from this host"):
        own_host("no-such-host.invalid:5050")


TRAINING = """
import sys, threading
import millrace as mr

def slow(number):
    threading.Event().wait(0.01)
    return number

dataset = mr.Dataset.range(10**6).map(slow)
elements = iter(dataset.distribute(sys.argv[1], target_workers="local", local_workers=2))
next(elements)
print("reading", flush=True)
sys.stdin.readline()
if sys.argv[2] == "reads":
    for _ in elements:
        pass
elif sys.argv[2] == "drops":
    del elements
    sys.stdin.read()
"""


@pytest.mark.parametrize("end", ["killed", "returns", "drops"])
def test_however_the_training_ends_its_local_workers_do(by_hand, end):
    what = "reads" if end == "killed" else end
    process = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", TRAINING, by_hand.address, what],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == b"reading\n"
        local = local_pids(by_hand)
        assert process.stdin is not None
        process.stdin.write(b"go on\n")
        process.stdin.flush()
        if end == "killed":
            process.kill()
        for pid in local:
            wait_until_gone(pid)
    finally:
        process.kill()
        process.communicate()


def test_where_no_local_worker_can_be_started_the_others_do_the_work(by_hand, monkeypatch, caplog):
    started = threading.Event()

    def spawn(*arguments, **options):
        started.set()
        raise OSError("no more processes")

    monkeypatch.setattr("millrace.clusters.respawned_processes.spawn", spawn)
    with mr.Dataset.range(10).distribute(by_hand.address, local_workers=1) as served:
        assert sorted(served) == list(range(10))
        assert started.wait(20.0)
    assert "no more processes" in caplog.text
