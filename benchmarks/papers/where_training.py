"""The trainings of :mod:`benchmarks.papers.where`, each a process in a network namespace of its own.

python -m benchmarks.papers.where_training ADDRESS JOB TARGET LOCAL SECONDS
"""

from __future__ import annotations

import functools
import json
import sys
import time
import warnings
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.throttled import pause
from millrace import Dataset

LAST = 1 / 3
"""Of the time, over which the rate is taken: until then the service has found what it looks for."""


class Job(NamedTuple):
    """A training: bytes of an element, seconds that a worker takes to make one, and seconds in which it is used up."""

    nbytes: int
    make_s: float
    own_s: float


JOBS = {"inflates": Job(1_000_000, 0.020, 0.005), "computes": Job(4_000, 0.100, 0.010)}


def make(job: Job, number: int) -> Any:
    """An element."""
    pause(job.make_s)
    return np.full(job.nbytes // 8, number)


def train(address: str, name: str, target: str, local: int, seconds: float) -> dict[str, Any]:
    """Reads for so long; what was had, and where it was made."""
    job = JOBS[name]
    dataset = Dataset.range(1_000_000).map(functools.partial(make, job), num_parallel_calls=1)
    came: list[float] = []
    options: dict[str, Any] = {"target_workers": target, "local_workers": local or None}
    with (
        warnings.catch_warnings(record=True) as said,
        dataset.distribute(address, job_name=f"{name}-{target}", tasks=100_000, **options) as elements,
    ):
        warnings.simplefilter("always")
        began = time.perf_counter()
        for _ in elements:
            came.append(time.perf_counter() - began)
            if came[-1] > seconds:
                break
            pause(job.own_s)
        (status,) = elements.status()["jobs"]
    by_seconds = [sum(at <= moment < at + 5 for moment in came) / 5 for at in range(0, round(seconds), 5)]
    rate = sum(moment > (1 - LAST) * seconds for moment in came) / (LAST * seconds)
    where = {key: status["where"][key] for key in ("local", "remote", "why")}
    history = [[each["workers"], each["why"]] for each in status["workers"]["history"]]
    told = sorted({str(each.message) for each in said})
    return {"elements": len(came), "rate": rate, "rates": by_seconds, **where, "history": history, "warnings": told}


if __name__ == "__main__":
    where, which, how, count, duration = sys.argv[1:]
    print(json.dumps(train(where, which, how, int(count), float(duration))), flush=True)
