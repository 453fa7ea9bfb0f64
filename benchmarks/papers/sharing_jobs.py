"""Jobs that the experiments about sharing read: several a process, each at its own pace, and what they use meanwhile.

A job waits for as long as a training step would take, and notes when each batch came, which elements it has, and how
many it was told to have missed. All join, then all begin to read, and all stay until everything was counted.
"""

from __future__ import annotations

import concurrent.futures
import multiprocessing
import multiprocessing.connection
import os
import resource
import struct
import threading
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.papers.throttled import pause
from millrace import Dataset

_WAIT_S = 900.0
"""Who has not come to where all meet by then has failed."""
_LEAVE_S = 60.0
_CALL = struct.Struct("<d")
_LEVELS = 16
"""Of a pixel, so that pictures are half as large when they are compressed."""


class Job(NamedTuple):
    """A training.

    Attributes:
        name: its own.
        address: of its service.
        make: its pipeline.
        look: numbers of a batch's elements.
        step_s: that a step takes; 0: it reads as fast as it can.
        choices: for ``distribute``.
    """

    name: str
    address: str
    make: Callable[[], Dataset]
    look: Callable[[Any], list[int]]
    step_s: float
    choices: Mapping[str, Any]


class Epoch(NamedTuple):
    """What a job has read of an epoch.

    Attributes:
        number: the service's.
        times: when each batch came, in seconds of the system's clock.
        elements: their numbers, in the order in which they came.
        missed: batches that the job was told not to get.
        ended: it was read to its end.
    """

    number: int
    times: list[float]
    elements: list[int]
    missed: int
    ended: bool


class Reading(NamedTuple):
    """What a job has read, from when on."""

    name: str
    began: float
    epochs: list[Epoch]

    def rate(self, since: float, until: float) -> float:
        """Batches a second between two times, or until it had read all that it was to read."""
        times = [at for epoch in self.epochs for at in epoch.times]
        end = min(until, times[-1]) if self.epochs[-1].ended else until
        return sum(since < at <= end for at in times) / (end - since)


class Played(NamedTuple):
    """What all jobs have read, in the order of the jobs, the CPU seconds of their processes, and what was counted."""

    readings: list[Reading]
    cpu_s: float
    counted: Any


def play(
    jobs: Sequence[Job],
    *,
    epochs: int,
    processes: int,
    count: Callable[[], Any] = lambda: None,
    span_s: float = float("inf"),
    stay: bool = True,
) -> Played:
    """Has all jobs read.

    Args:
        jobs: that begin at the same time.
        epochs: each reads its service's epochs below this number.
        processes: they are dealt over.
        count: is called when all jobs have read everything.
        span_s: they stop after so many seconds.
        stay: they are still there then; else each leaves as soon as it has read everything.

    Raises:
        RuntimeError: a job failed.
    """
    context = multiprocessing.get_context("spawn")
    parts = [part for part in (jobs[number::processes] for number in range(processes)) if part]
    barrier, results = context.Barrier(len(jobs) + len(parts) + 1), context.Queue()
    arguments = (epochs, span_s, stay, barrier, results)
    children = [context.Process(target=_read_all, args=(part, *arguments), daemon=True) for part in parts]
    for child in children:
        child.start()
    threading.Thread(target=_watch, args=(children, barrier), daemon=True).start()
    counted = None
    try:
        barrier.wait(_WAIT_S)
        barrier.wait(_WAIT_S)
        counted = count()
        barrier.wait(_WAIT_S)
    except threading.BrokenBarrierError:
        pass  # who broke it says why
    except BaseException:
        barrier.abort()
        raise
    said = [results.get(timeout=_LEAVE_S) for _ in children]
    for child in children:
        child.join()
    failures = [each for each, _ in said if isinstance(each, str)]
    if failures:
        raise RuntimeError("\n".join(failures))
    readings = {reading.name: reading for each, _ in said for reading in each}
    return Played([readings[job.name] for job in jobs], sum(cpu_s for _, cpu_s in said), counted)


def _watch(children: Sequence[Any], barrier: Any) -> None:
    """Has nobody wait for a process that has failed."""
    left = {child.sentinel: child for child in children}
    while left:
        for sentinel in multiprocessing.connection.wait(list(left)):
            child = left.pop(sentinel)
            child.join()
            if child.exitcode:
                barrier.abort()


def _read_all(jobs: Sequence[Job], epochs: int, span_s: float, stay: bool, barrier: Any, results: Any) -> None:
    """Reads some jobs in this process, each on a thread."""
    with concurrent.futures.ThreadPoolExecutor(len(jobs)) as threads:
        reading = [threads.submit(_read, job, epochs, span_s, stay, barrier) for job in jobs]
        cpu_s = []
        try:
            for _ in range(2):
                barrier.wait(_WAIT_S)
                cpu_s.append(own_cpu_s())
            barrier.wait(_WAIT_S)
        except threading.BrokenBarrierError:
            pass
        errors = [error for each in reading if (error := each.exception()) is not None]
        first = [each for each in errors if not isinstance(each, threading.BrokenBarrierError)] or errors
        found = repr(first[0]) if first else [each.result() for each in reading]
    results.put((found, 0.0 if first else cpu_s[1] - cpu_s[0]))


def _read(job: Job, epochs: int, span_s: float, stay: bool, barrier: Any) -> Reading:
    try:
        dataset = job.make()
        with dataset.distribute(job.address, job_name=job.name, **job.choices) as served:
            batches = iter(served)
            barrier.wait(_WAIT_S)
            began, found = time.monotonic(), []
            while True:
                found.append(_epoch(job, batches, began + span_s))
                if not found[-1].ended or found[-1].number + 1 >= epochs:
                    break
                batches = iter(served)
            if stay:
                barrier.wait(_WAIT_S)
                barrier.wait(_WAIT_S)
        if not stay:
            barrier.wait(_WAIT_S)
            barrier.wait(_WAIT_S)
        return Reading(job.name, began, found)
    except BaseException:
        barrier.abort()
        raise


def _epoch(job: Job, batches: Any, until: float) -> Epoch:
    number, times, elements, ended = batches.state_dict()["epoch"], [], [], True
    for batch in batches:
        times.append(time.monotonic())
        elements += job.look(batch)
        if job.step_s:
            pause(job.step_s)
        if times[-1] > until:
            ended = False
            break
    return Epoch(number, times, elements, batches.missed, ended)


def own_cpu_s() -> float:
    """CPU seconds of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def cpu_s_of(pid: int) -> float:
    """CPU seconds of another process so far."""
    with open(f"/proc/{pid}/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


# -- pictures ----------------------------------------------------------------------------------------------------------


class Decode:
    """Unpacks a picture, and leaves a word that it did, and how long that took.

    Args:
        log: a file that all processes append to.
        wait_s: that it waits besides, as for something far away.
    """

    def __init__(self, log: str, wait_s: float) -> None:
        self._log, self._wait_s = log, wait_s

    def __call__(self, row: Any) -> Any:
        """The picture, with its number."""
        began = time.thread_time()
        pixels = np.frombuffer(zlib.decompress(row["picture"]), np.uint8)
        took = time.thread_time() - began
        if self._wait_s:
            pause(self._wait_s)
        with open(self._log, "ab") as file:
            file.write(_CALL.pack(took))  # one short write, which is not torn
        return {"number": row["number"], "pixels": pixels}


def calls_in(log: str) -> tuple[int, float]:
    """How often the function was called so far, and its CPU seconds."""
    with open(log, "rb") as file:
        calls = np.frombuffer(file.read(), "<f8")
    return len(calls), float(calls.sum())


def numbers_of(batch: Any) -> list[int]:
    """Of a batch of pictures."""
    return [int(number) for number in batch["number"]]


def write_pictures(folder: str, count: int, nbytes: int, files: int) -> None:
    """Parquet files with compressed pictures, numbered from 0 on, of so many bytes when they are unpacked."""
    rng = np.random.default_rng(0)
    for file in range(files):
        numbers = range(file * count // files, (file + 1) * count // files)
        pictures = [zlib.compress(rng.integers(0, _LEVELS, nbytes, np.uint8).tobytes(), 1) for _ in numbers]
        table = pa.table({"number": list(numbers), "picture": pictures})
        pq.write_table(table, os.path.join(folder, f"{file:03}.parquet"), compression="none")
