"""What experiments about numbers of workers have in common: modelled pipelines and consumers, on real processes.

A pipeline waits for its store, works on what it got, and hands on arrays of 4 KB; a consumer takes an element in a
certain time. All of that is waiting, so that two cores carry many workers.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.throttled import pause
from millrace import Dataset
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn

NBYTES = 4 << 10
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_GOLDEN = (math.sqrt(5) - 1) / 2
HEARTBEAT_S = 0.5
LOOK = 100
"""Elements between two looks at the service: a look takes some hundredths of a second of the training's time."""
MOST, LIMIT_S, SECONDS = 16, 120.0, 8.0
"""Of a service that is left alone: its workers, and seconds until it has settled and of the measurement then."""


class Model(NamedTuple):
    """A training, in seconds of an element.

    Attributes:
        name: of the model that it stands for.
        own_s: the consumer's.
        read_s: that a worker waits for the source.
        work_s: that it works then.
        spread: by which share of each of both elements differ at most; they have it on average.
    """

    name: str
    own_s: float
    read_s: float
    work_s: float
    spread: float = 0.0

    def dataset(self, *, cached: bool = False, elements: int = 1_000_000, calls: int = 1) -> Dataset:
        """The pipeline; ``cached``: with what was read kept; ``calls``: elements that it works on at a time."""
        read = Dataset.range(elements).map(functools.partial(_read, self.read_s, self.spread), num_parallel_calls=calls)
        kept = read.cache() if cached else read
        return kept.map(functools.partial(_work, self.work_s, self.spread), num_parallel_calls=calls)


def _read(seconds: float, spread: float, number: int) -> Any:
    pause(seconds * _share(spread, number * _GOLDEN))
    return np.full(NBYTES // 8, number)


def _work(seconds: float, spread: float, element: Any) -> Any:
    pause(seconds * _share(spread, int(element[0]) * math.sqrt(2)))
    return element


def _share(spread: float, place: float) -> float:
    """Of the mean: the fractions of these places are as good as even, over any few elements that follow each other."""
    return 1 + spread * (2 * (place % 1) - 1)


@contextlib.contextmanager
def dispatcher(command: Sequence[str], module: str = "") -> Iterator[str]:
    """A dispatcher that a command of millrace starts, or of another module, and its workers; yields its address."""
    extra = {"PYTHONPATH": _ROOT} if module else None
    process = spawn(command, worker=False, module=module, stdout=subprocess.PIPE, extra=extra)
    assert process.stdout is not None
    try:
        yield json.loads(process.stdout.readline())["address"]
    finally:
        hang_up(process)
        reap(process)
        process.stdout.close()


def service(workers: str, *options: str) -> contextlib.AbstractContextManager[str]:
    """A service on this machine, whose jobs begin with one worker as on a cluster; yields its address."""
    arguments = ["--port", "0", "--threads", "1", "--heartbeat", str(HEARTBEAT_S), *options]
    return dispatcher(["dispatcher", *arguments, "--local-workers", workers, "--first-workers", "1"])


def job_of(address: str, name: str) -> dict[str, Any]:
    """What the service says of a job."""
    found: dict[str, Any] = next(job for job in fetch_status(address)["jobs"] if job["name"] == name)
    return found


class Reading:
    """A consumer that reads elements at its own pace, and looks at how many workers there are meanwhile.

    Args:
        address: of the service.
        name: of the job.
        elements: an iterator.
        own_s: seconds of an element.
    """

    def __init__(self, address: str, name: str, elements: Iterator[Any], own_s: float) -> None:
        self._address, self._name, self._elements, self.own_s = address, name, elements, own_s
        self.timeline: list[dict[str, Any]] = []
        self._began = time.perf_counter()

    def read(self, count: int) -> float:
        """Reads so many, and returns seconds of one."""
        batch_s = self.timed(count)
        job = job_of(self._address, self._name)
        workers = job["workers"]
        self.timeline.append(
            {
                "seconds": time.perf_counter() - self._began,
                "workers": workers["observed"],
                "plan": workers["plan"],
                "batch_s": batch_s,
                "why": workers["why"],
                "mode": job["mode"],
                "settled": workers.get("phase") == "settled" and workers["plan"] == workers["observed"],
            }
        )
        return batch_s

    def timed(self, count: int) -> float:
        """Reads so many without a look at the service, which takes its time, and returns seconds of one."""
        began = time.perf_counter()
        for _ in range(count):
            next(self._elements)
            pause(self.own_s)
        return (time.perf_counter() - began) / count

    def empty(self) -> None:
        """Reads for a second as fast as it can: what comes after that is made after that."""
        until = time.perf_counter() + 1.0
        while time.perf_counter() < until:
            next(self._elements)

    def settle(self, limit_s: float) -> int:
        """Reads until the number of workers is found, and returns it.

        Raises:
            RuntimeError: it isn't in that time.
        """
        until = time.perf_counter() + limit_s
        while time.perf_counter() < until:
            self.read(LOOK)
            if self.timeline[-1]["settled"]:
                return int(self.timeline[-1]["plan"])
        raise RuntimeError(f"no number of workers was settled on in {limit_s:g} s: {self.timeline[-5:]}")


def settled(dataset: Dataset, tasks: int, own_s: float) -> dict[str, Any]:
    """A consumer on a service that is left alone until it has settled; how fast it is then."""
    with (
        service(f"1-{MOST}") as address,
        dataset.distribute(address, job_name="reads", tasks=tasks) as served,
    ):
        reading = Reading(address, "reads", iter(served), own_s)
        workers = reading.settle(LIMIT_S)
        return {"workers": workers, "batch_s": reading.read(round(SECONDS / own_s)), "timeline": reading.timeline}
