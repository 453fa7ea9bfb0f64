"""What a worker keeps of jobs that are over: none of their memory, none of their modules."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import millrace as mr

MIB = 1 << 20
WAIT_S = 60.0
ROOM_MIB = 96
"""Of which 64 are what glibc keeps of an arena that is not the first."""


@pytest.fixture(scope="module")
def embedded() -> Iterator[mr.LocalService]:
    with mr.LocalService(max_workers=1) as service:
        yield service


def run(embedded: mr.LocalService, dataset: mr.Dataset, name: str) -> None:
    with dataset.distribute(embedded.address, job_name=name) as served:
        for _ in served:
            pass


def anonymous_mib(embedded: mr.LocalService) -> float:
    """Memory of the worker's own, in MiB."""
    (worker,) = embedded.status()["workers"]
    lines = Path(f"/proc/{worker['pid']}/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith("RssAnon"))) / 1024


def wait_until_no_more_than(embedded: mr.LocalService, most_mib: float) -> None:
    deadline = time.monotonic() + WAIT_S
    while (now := anonymous_mib(embedded)) > most_mib:
        if time.monotonic() > deadline:
            pytest.fail(f"the idle worker has {now:.0f} MiB of its own, and {most_mib:.0f} would be enough")
        threading.Event().wait(0.1)


def window(count: int, size: int) -> mr.Dataset:
    """Holds ``count`` elements of ``size`` bytes, all in one heap."""
    dataset = mr.Dataset.range(3 * count).map(lambda n: np.full(size + n, n % 256, np.uint8)).map(lambda a: a.copy())
    return dataset.filter(lambda a: True).shuffle(count, seed=1).map(len).with_options(buffer_bytes=1 << 30)


def test_what_jobs_held_goes_back_when_they_are_over(embedded: mr.LocalService) -> None:
    run(embedded, window(10, MIB), "small")
    small = anonymous_mib(embedded)
    for number in range(4):
        run(embedded, window(300, MIB + 4096 * number), f"large-{number}")
    wait_until_no_more_than(embedded, small + ROOM_MIB)


def test_the_users_modules_go_with_the_last_job(
    embedded: mr.LocalService, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "of_this_job.py").write_text(
        f"import numpy as np\nWEIGHTS = np.ones({256 * MIB}, np.uint8)\ndef look(n):\n    return n + WEIGHTS[n]\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    import of_this_job  # type: ignore[import-not-found]

    run(embedded, window(10, MIB), "before")
    small = anonymous_mib(embedded)
    run(embedded, mr.Dataset.range(10).map(of_this_job.look), "with a module")
    wait_until_no_more_than(embedded, small + ROOM_MIB)
