"""The reading processes of :mod:`benchmarks.papers.many_jobs`."""

from __future__ import annotations

import concurrent.futures
import threading
import time
from collections.abc import Sequence

from millrace import Dataset

ELEMENT_S = 0.010
"""That the function waits for one element; a worker calls it once at a time."""
TASK = 25
"""Elements of a task."""
TASKS = 2000
"""Of an epoch, which no job reads to its end."""


def nap(number: int) -> int:
    """What reading from afar would be."""
    threading.Event().wait(ELEMENT_S)
    return number


def read(address: str, name: str, priority: float, begins: float, ends: float) -> list[float]:
    """When each element came, of a job that begins and ends to read at these times (seconds of the system's clock)."""
    threading.Event().wait(max(0.0, begins - time.monotonic()))
    came = []
    dataset = Dataset.range(TASK * TASKS).map(nap, num_parallel_calls=None)
    with dataset.distribute(address, job_name=name, priority=priority, tasks=TASKS, seed=1) as elements:
        for _ in elements:
            came.append(time.monotonic())
            if came[-1] > ends:
                break
    return came


def read_all(address: str, jobs: Sequence[tuple[str, float, float]], ends: float) -> list[list[float]]:
    """In one process the jobs of (name, priority, beginning)."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
        found = [threads.submit(read, address, name, priority, begins, ends) for name, priority, begins in jobs]
        return [each.result() for each in found]
