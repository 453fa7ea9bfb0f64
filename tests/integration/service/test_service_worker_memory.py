"""Workers with a limit of memory: a function that asks for more gets an error that names it, and others go on."""

import os
import subprocess
import sys

import numpy as np
import pytest

import millrace as mr

LIMIT = 640 << 20
LARGE = 7


def grown(number):
    """An array of 400 MB on top of what there is fits, two of them do not; the process says who it is."""
    arrays = [np.empty(400_000_000, np.uint8) for _ in range(2 if number == LARGE else 1)]
    return np.array([number, len(arrays), os.getpid()])


def test_whoever_asks_for_too_much_is_told_the_limit_and_the_worker_lives():
    elements = mr.Dataset.range(10)
    with mr.LocalService(1, 1, memory=LIMIT, threads=1) as service:
        with (
            elements.map(grown).distribute(service.address, job_name="raises") as first,
            pytest.raises(mr.ElementError, match=r"map\(grown\) failed on .*MemoryError") as caught,
        ):
            list(first)
        assert "a worker's process may have 640 MiB of memory (--memory, --worker-memory of a" in str(caught.value)
        with elements.map(grown).with_options(on_error="skip").distribute(service.address, job_name="skips") as second:
            rows = sorted(map(tuple, second))
        assert [number for number, *_ in rows] == [number for number in range(10) if number != LARGE]
        assert len({pid for *_, pid in rows}) == 1
        assert len(service.status()["workers"]) == 1


def test_a_limit_below_what_a_worker_takes_is_refused_with_what_it_takes():
    words = ["-m", "millrace", "worker", "--dispatcher", "127.0.0.1:1", "--memory", "64MiB"]
    ended = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False)
    assert ended.returncode != 0
    assert "before it runs anything, and needs 128 MiB more: 64 MiB of memory are too few" in ended.stderr


def test_a_service_with_too_little_for_its_workers_does_not_start():
    with pytest.raises(mr.ServiceError, match="--worker-memory is at least 256MiB"):
        mr.LocalService(1, 1, memory=100 << 20)


def test_what_workers_keep_ahead_is_bounded_as_a_service_is_told():
    large = mr.Dataset.range(2).map(lambda _: np.zeros(8 << 20, np.uint8))
    with (
        mr.LocalService(1, 1, buffer_bytes=4 << 20, threads=1) as service,
        large.distribute(service.address) as reading,
        pytest.raises(mr.errors.ElementTooLargeError, match="more than the 4,194,304 that this worker may keep"),
    ):
        list(reading)
