"""Rows of arrays on a service: one copy on a host, however many read it, and none when it is over."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.integration.service.service_driving import WAIT_S, Reading

import millrace as mr
from millrace.elements import sealed_memory
from millrace.elements.sealed_memory import MemoryLoan
from millrace.wire.control import blob_transfer

COUNT = 600
X = np.arange(COUNT * 4096, dtype=np.float32).reshape(COUNT, 4096)  # 10 MB
ARRAYS: dict[str, Any] = {"x": X, "y": np.arange(COUNT)}


def seen(element: dict[str, Any]) -> dict[str, Any]:
    """Which row it is, by either array, and who has read it."""
    return {"x": element["x"][0] / 4096, "y": element["y"], "pid": os.getpid()}


def pipeline(arrays: Any = None) -> mr.Dataset:
    return mr.Dataset.from_arrays(ARRAYS if arrays is None else arrays).map(seen).batch(10)


def rows(batches: Any) -> list[int]:
    """The rows in these batches, sorted."""
    batches = list(batches)
    assert all((batch["x"] == batch["y"]).all() for batch in batches)
    return sorted(n for batch in batches for n in batch["y"].tolist())


def held(pid: int) -> set[tuple[str, str]]:
    """(inode, name) of the arrays that a process has open or mapped."""
    found = set()
    for fd in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(OSError):
            if "memfd:millrace-" in (link := os.readlink(fd)):
                found.add((str(fd.stat().st_ino), link))
    for line in Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "memfd:millrace-" in line:
            *_, inode, name = line.split(maxsplit=5)
            found.add((inode, name))
    return found


def anonymous_kib(pid: int) -> list[int]:
    """Of each mapping of arrays in a process, how much of it is the process's own."""
    mappings = Path(f"/proc/{pid}/smaps").read_text().split("VmFlags:")
    ours = [mapping for mapping in mappings if "memfd:millrace-" in mapping]
    return [int(line.split()[1]) for each in ours for line in each.splitlines() if line.startswith("Anonymous:")]


def until_nobody_holds(pids: list[int]) -> None:
    deadline = time.monotonic() + WAIT_S
    while left := {pid: held(pid) for pid in pids if os.path.exists(f"/proc/{pid}") and held(pid)}:
        assert time.monotonic() < deadline, f"they still hold arrays: {left}"
        threading.Event().wait(0.05)


@pytest.fixture
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process is on another host than the service, which so doesn't find its memory."""
    there = property(lambda memory: MemoryLoan(memory.digest, memory.size, "elsewhere", 1 << 22, 0))
    monkeypatch.setattr(sealed_memory.SealedMemory, "loan", there)


@pytest.mark.parametrize("service", [2], indirect=True)
def test_workers_have_one_copy_between_them_and_none_when_it_is_over(service: Any) -> None:
    others = [service.dispatcher.pid, *(each.pid for each in service.workers.values())]
    with pipeline().distribute(service.address, tasks=20) as first, pipeline().distribute(service.address) as second:
        batches = iter(first)
        begun = [next(batches)]
        with iter(second) as both:
            assert rows(both) == list(range(COUNT)), "another job over the same arrays"
        assert rows([*begun, *batches]) == list(range(COUNT))
        service.until(lambda _: all(map(held, others)))
        mine = held(os.getpid())
        assert len(mine) == 2, "each dataset has copied its own arrays"
        assert set().union(*map(held, others)) <= mine
        for pid in others[1:]:
            assert set(anonymous_kib(pid)) == {0}
    until_nobody_holds([os.getpid(), *others])


@pytest.mark.parametrize("service", [1], indirect=True)
def test_arrays_are_sent_to_a_service_elsewhere(service: Any, elsewhere: None) -> None:
    with pipeline().distribute(service.address) as served:
        assert rows(served) == list(range(COUNT))
        assert [held(each.pid) for each in service.workers.values()] == [set()]


@pytest.mark.parametrize("service", [1], indirect=True)
def test_what_is_too_large_to_be_sent_is_said(service: Any, elsewhere: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blob_transfer, "MAX_SENT_BYTES", 1 << 20)
    with (
        pipeline().distribute(service.address, job_name="large") as served,
        pytest.raises(
            mr.ShippingError, match=r"the arrays of job 'large' take [\d,]+ bytes, and this service can't share"
        ),
    ):
        iter(served)


@pytest.mark.parametrize("service", [1], indirect=True)
def test_no_rows_and_ranks_and_copies_in_other_processes(service: Any) -> None:
    empty = {name: array[:0] for name, array in ARRAYS.items()}
    with pipeline(empty).distribute(service.address) as served:
        assert list(served) == []
    ranks = [
        pipeline({name: array.copy() for name, array in ARRAYS.items()}).distribute(
            service.address, job_name="ranks", num_consumers=2, consumer_index=rank
        )
        for rank in range(2)
    ]
    with contextlib.ExitStack() as stack:
        readings = [stack.enter_context(Reading([rank])) for rank in ranks]
        got = [element for reading in readings for epochs in reading.result() for epoch in epochs for element in epoch]
    assert rows(got) == list(range(COUNT))
    with (
        pipeline().distribute(service.address) as served,
        multiprocessing.get_context("spawn").Pool(1) as pool,
    ):
        assert pool.apply(rows_to_the_end, (served,)) == list(range(COUNT))
        assert pool.apply(peeked, (served,)) == list(range(10))


def rows_to_the_end(served: mr.DistributedDataset) -> list[int]:
    """All rows, read by a process that may be ended after that: its job must not wait for it."""
    with served:
        return rows(served)


def peeked(served: mr.DistributedDataset) -> list[int]:
    return rows(served.peek(1))


@pytest.mark.parametrize("service", [1], indirect=True)
def test_a_job_over_other_arrays_is_another_job(service: Any) -> None:
    other = {**ARRAYS, "y": ARRAYS["y"][::-1].copy()}
    with pipeline().distribute(service.address, job_name="mine", num_consumers=1) as served:
        batches = iter(served)
        begun, state = [next(batches)], batches.state_dict()
        with (
            pipeline(other).distribute(service.address, job_name="mine", num_consumers=1) as changed,
            pytest.raises(mr.JobConflictError, match="mine"),
        ):
            iter(changed)
    with pipeline(other).distribute(service.address) as changed, pytest.raises(mr.StateError, match="other operators"):
        changed.load_state_dict(state)
    with pipeline({name: array.copy() for name, array in ARRAYS.items()}).distribute(service.address) as again:
        again.load_state_dict(state)
        assert rows([*begun, *again]) == list(range(COUNT))


TRAINING = """
import sys
import numpy as np
import millrace as mr

X = np.arange(600 * 4096, dtype=np.float32).reshape(600, 4096)
dataset = mr.Dataset.from_arrays({"x": X, "y": np.arange(600)}).batch(10)
served = dataset.distribute(*sys.argv[1:], job_name="training", num_consumers=1, workers=1)
batches = iter(served)
next(batches)
print([each["pid"] for each in served.status()["workers"]], flush=True)
sys.stdin.read()
"""


@contextlib.contextmanager
def training(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A training in a process of its own that has read one batch, and its workers."""
    process = subprocess.Popen(
        [sys.executable, "-c", TRAINING, *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with process:
        assert process.stdout is not None
        workers = [int(pid) for pid in process.stdout.readline().strip("[]\n").split(",")]
        assert all(map(held, workers))
        yield process, workers


@pytest.mark.parametrize("ending", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_training_that_was_ended(ending: signal.Signals) -> None:
    with training() as (process, workers):
        process.send_signal(ending)
    until_nobody_holds(workers)  # what has no name and no user is gone


def test_workers_that_come_late_have_the_arrays_whoever_has_ended(service_with: Any, tmp_path: Path) -> None:
    with service_with(1, work_dir=tmp_path / "work") as service, contextlib.ExitStack() as stack:
        process, _ = stack.enter_context(training(service.address))
        lent_by_it = held(service.dispatcher.pid)
        served = stack.enter_context(pipeline().distribute(service.address, job_name="mine", tasks=20))
        assert rows(served) == list(range(COUNT))
        process.kill()
        process.wait()
        service.kill("w0")
        service.add()
        assert rows(served) == list(range(COUNT))
        service.until(lambda _: held(service.workers["w1"].pid) == lent_by_it != held(os.getpid()))
        service.restart_dispatcher()
        service.kill("w1")
        service.add()  # it waits until this process has lent its own
        assert rows(served) == list(range(COUNT))
        service.until(lambda _: held(service.workers["w2"].pid) == held(os.getpid()))
