"""Cachew's Figures 2 and 8: what each mode takes as computing gets more expensive, and which one is chosen.

    python -m benchmarks.papers.figure8 [--json FILE]

Read, autocache, inflate by 2.5, compute for t, autocache, batch. A source element takes 40 ms to read, one after the
other however many threads ask; the cache is a folder with 2.2 times the source's bandwidth, in either direction (see
:mod:`benchmarks.papers.throttled`), so that an inflated element takes 45.5 ms to read from it. The paper has 350 and
398 ms. The worker is a small host of half a core (:mod:`benchmarks.small_hosts`), so that it computes for t with t / 2
of processor time, and whatever else an element costs takes its time, too. For each t every mode is forced by
``autocache(mode=...)`` and takes its time in an epoch from the cache; then the service chooses by itself, and takes its
own. Last, a training that needs longer for an element than any mode, which no cache makes faster. Times are of all
elements but the first of an epoch.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.report import main
from benchmarks.papers.throttled import Link, pause
from benchmarks.small_hosts import fleet_of, host
from millrace import Dataset
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import STOP_S, spawn, worker_environment

QUESTION = (
    "Is the mode that is chosen the fastest, whatever computing costs, on a service with a slow source and cache?"
)
NBYTES = 2_000_000
READ_S = 0.040
INFLATED = 2.5
FASTER = 2.2
CORES = 0.5
"""Of the worker's host."""


class Point(NamedTuple):
    """What an element takes, in milliseconds: the worker to compute, and the training."""

    compute_ms: int
    own_ms: int = 0


POINTS = (*map(Point, (0, 10, 20, 30, 40, 50, 60, 80)), Point(20, own_ms=70))
ELEMENTS = 120
"""Of an epoch."""
TASKS = 3
JOB = "figure8"
MARGIN = 0.03
CACHE_BYTES = 20 << 30
SOURCE, FULL = "source cache", "full cache"
FULL_LABEL = "map(partial(work))"
EPOCHS = 8
"""At most, until a cache is full."""
MODES = {"compute": ("compute", "compute"), SOURCE: ("cache", "compute"), FULL: ("compute", "cache")}
"""What is said of both points."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


@functools.cache
def _link() -> Link:
    """Of this process, to the source."""
    return Link(NBYTES / READ_S)


class Source:
    """A map-style dataset behind a link."""

    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Any:
        _link().take(NBYTES)
        return np.full(NBYTES, index % 256, np.uint8)


def inflate(element: Any) -> Any:
    """Two and a half times the bytes."""
    return np.resize(element, int(INFLATED * NBYTES))


def work(cpu_s: float, element: Any) -> Any:
    """Computes for so long."""
    row = np.arange(512)
    until = time.thread_time() + cpu_s
    while time.thread_time() < until:
        np.sort(row)
    return element


def pipeline(compute_s: float, source_mode: str, full_mode: str, count: int = ELEMENTS) -> Dataset:
    """Reads, inflates and computes, with a point after the source and another one at the end."""
    return (
        Dataset.from_map_style(Source(count))
        .autocache(source_mode)
        .map(inflate, num_parallel_calls=1)
        .map(functools.partial(work, CORES * compute_s), num_parallel_calls=1)
        .autocache(full_mode)
        .batch(1)
    )


@contextlib.contextmanager
def service() -> Iterator[str]:
    """Address of a service with one worker, a small host whose cache is throttled; a fresh one."""
    with contextlib.ExitStack() as stack:
        fleet = fleet_of(f"millrace-fleet-{uuid.uuid4().hex[:8]}")
        stack.callback(fleet.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-figure8-"))
        cache = ("--cache-dir", folder, "--cache-bytes", str(CACHE_BYTES))
        dispatcher = spawn(["dispatcher", "--port", "0", *cache], worker=False, stdout=subprocess.PIPE)
        stack.callback(_stop, dispatcher)
        assert dispatcher.stdout is not None
        address: str = json.loads(dispatcher.stdout.readline())["address"]
        rate = FASTER * NBYTES / READ_S / 1e6
        command = ["-m", "benchmarks.papers.throttled", str(rate), "worker", "--dispatcher", address, "--parent-pipe"]
        environment = worker_environment({**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, *sys.path[1:]])})
        command = [sys.executable, *command]
        worker = subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=_ROOT, text=True)
        host(stack, fleet, "worker", CORES, worker)
        stack.callback(_stop, worker)
        yield address


def _stop(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def epoch_s(served: Any, own_s: float) -> float:
    """Seconds per element of an epoch, from its first element on, of a training that takes so long for one."""
    times = []
    for _ in served:
        times.append(time.perf_counter())
        if own_s:
            pause(own_s)
    return (times[-1] - times[0]) / (len(times) - 1)


def _job(address: str) -> dict[str, Any]:
    """What the service says of the job."""
    return next(job for job in fetch_status(address)["jobs"] if job["name"] == JOB)


def forced(point: Point, mode: str) -> float:
    """Seconds per element in a mode, with the cache full.

    Raises:
        RuntimeError: it did not become full.
    """
    with service() as address, _reading(address, point, *MODES[mode]) as served:
        for _ in range(EPOCHS):
            took = epoch_s(served, point.own_ms / 1000)
            if _job(address)["mode"] in ("compute", "get"):
                return took if mode == "compute" else epoch_s(served, point.own_ms / 1000)
    raise RuntimeError(f"{mode} at {point} still writes after {EPOCHS} epochs")


def chosen(point: Point) -> dict[str, Any]:
    """What the service does by itself: mode, time and reason in each epoch, until it writes no more and in one more."""
    epochs: list[dict[str, Any]] = []
    with service() as address, _reading(address, point, "auto", "auto") as served:
        while len(epochs) < EPOCHS and [each["mode"] in ("compute", "get") for each in epochs[-2:]] != [True, True]:
            took, job = epoch_s(served, point.own_ms / 1000), _job(address)
            cached = FULL if job["cache"]["point"] == FULL_LABEL else SOURCE
            mode = "compute" if job["mode"] in ("compute", "profile") else cached
            epochs.append({"mode": job["mode"], "of": mode, "element_s": took, "reason": job["cache"]["why"]})
    return {"chosen": epochs[-1]["of"], "chosen_s": epochs[-1]["element_s"], "epochs": epochs}


def _reading(address: str, point: Point, source_mode: str, full_mode: str) -> Any:
    return pipeline(point.compute_ms / 1000, source_mode, full_mode).distribute(address, job_name=JOB, tasks=TASKS)


def measure(points: tuple[Point, ...] = POINTS) -> Mapping[str, Any]:
    """Runs and prints."""
    rows = []
    for point in points:
        times = {mode: forced(point, mode) for mode in MODES}
        found = chosen(point)
        of_fastest = times[found["chosen"]] / min(times.values())
        rows.append({**point._asdict(), "element_s": times, "of_fastest": of_fastest, **found})
        print("  ".join(table(rows)[-1]), flush=True)
    worst = max(row["of_fastest"] for row in rows)
    modes = dict.fromkeys(row["chosen"] for row in rows)
    print(f"modes: {', '.join(modes)}; at most {worst:.3f} of the fastest (target {1 + MARGIN})")
    return {
        "modelled": "the source's and the cache's links (waits), the training (a wait), and the worker's host: a quota "
        "of one machine's cores",
        "modes": list(modes),
        "rounds": [{"service": {"of the fastest": worst}}],
        "table": table(rows),
        "results": rows,
    }


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """For the page of figures: milliseconds per element."""
    modes = [f"{mode}, ms" for mode in MODES]
    head = ["t, ms", "a training's own ms", *modes, "chosen", "its own time, ms", "the mode, of the fastest"]
    return [head] + [
        [
            str(row["compute_ms"]),
            str(row["own_ms"]),
            *(f"{1000 * row['element_s'][mode]:.1f}" for mode in MODES),
            row["chosen"],
            f"{1000 * row['chosen_s']:.1f}",
            f"{row['of_fastest']:.3f}",
        ]
        for row in rows
    ]


if __name__ == "__main__":
    main("benchmarks.papers.figure8", QUESTION, measure)
