"""Cachew's Figure 8 on a service: what each mode takes as computing gets more expensive, and which one is chosen.

    python -m benchmarks.papers.figure8 [--json FILE]

Read, autocache, inflate by 2.5, sleep for t, autocache, batch. A source element takes 40 ms to read, one after the
other however many threads ask; the cache is a folder with 2.2 times the source's bandwidth, in either direction (see
:mod:`benchmarks.papers.throttled`), so that an inflated element takes 45.5 ms to read from it. The paper has 350 and
398 ms. So up to t = 40 ms reading is what is waited for and a cache of the source helps, from 45.5 ms on one of all,
and in between none. For each t every mode is forced by ``autocache(mode=...)`` and takes its time in an epoch from the
cache; then the service chooses by itself. One worker; times are of all elements but the first of an epoch.
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
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers.report import main
from benchmarks.papers.throttled import Link, pause
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
SLEEPS_MS = (0, 15, 30, 36, 43, 44, 52, 60, 80)
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


def work(sleep_s: float, element: Any) -> Any:
    """Takes its time."""
    pause(sleep_s)
    return element


def pipeline(sleep_s: float, source_mode: str, full_mode: str, count: int = ELEMENTS) -> Dataset:
    """Reads, inflates and sleeps, with a point after the source and another one at the end."""
    return (
        Dataset.from_map_style(Source(count))
        .autocache(source_mode)
        .map(inflate, num_parallel_calls=1)
        .map(functools.partial(work, sleep_s), num_parallel_calls=1)
        .autocache(full_mode)
        .batch(1)
    )


@contextlib.contextmanager
def service() -> Iterator[str]:
    """Address of a service with one worker, whose cache is throttled; a fresh one."""
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-figure8-"))
        cache = ("--cache-dir", folder, "--cache-bytes", str(CACHE_BYTES))
        dispatcher = spawn(["dispatcher", "--port", "0", *cache], worker=False, stdout=subprocess.PIPE)
        stack.callback(_stop, dispatcher)
        assert dispatcher.stdout is not None
        address: str = json.loads(dispatcher.stdout.readline())["address"]
        rate = FASTER * NBYTES / READ_S / 1e6
        command = ["-m", "benchmarks.papers.throttled", str(rate), "worker", "--dispatcher", address, "--parent-pipe"]
        environment = worker_environment({**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, *sys.path[1:]])})
        worker = subprocess.Popen([sys.executable, *command], stdin=subprocess.PIPE, env=environment, cwd=_ROOT)
        stack.callback(_stop, worker)
        yield address


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(STOP_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def epoch_s(served: Any) -> float:
    """Seconds per element of an epoch, from its first element on."""
    times = [time.perf_counter() for _ in served]
    return (times[-1] - times[0]) / (len(times) - 1)


def _job(address: str) -> dict[str, Any]:
    """What the service says of the job."""
    return next(job for job in fetch_status(address)["jobs"] if job["name"] == JOB)


def forced(sleep_s: float, mode: str) -> float:
    """Seconds per element in a mode, with the cache full.

    Raises:
        RuntimeError: it did not become full.
    """
    with service() as address, _reading(address, sleep_s, *MODES[mode]) as served:
        for _ in range(EPOCHS):
            took = epoch_s(served)
            if _job(address)["mode"] in ("compute", "get"):
                return took if mode == "compute" else epoch_s(served)
    raise RuntimeError(f"{mode} at {sleep_s} s still writes after {EPOCHS} epochs")


def chosen(sleep_s: float) -> dict[str, Any]:
    """What the service does by itself: mode, time and reason in each epoch, until it writes no more and in one more."""
    epochs: list[dict[str, Any]] = []
    with service() as address, _reading(address, sleep_s, "auto", "auto") as served:
        while len(epochs) < EPOCHS and [each["mode"] in ("compute", "get") for each in epochs[-2:]] != [True, True]:
            took, job = epoch_s(served), _job(address)
            point = FULL if job["cache"]["point"] == FULL_LABEL else SOURCE
            mode = "compute" if job["mode"] in ("compute", "profile") else point
            epochs.append({"mode": job["mode"], "of": mode, "element_s": took, "reason": job["cache"]["why"]})
    return {"chosen": epochs[-1]["of"], "chosen_s": epochs[-1]["element_s"], "epochs": epochs}


def _reading(address: str, sleep_s: float, source_mode: str, full_mode: str) -> Any:
    return pipeline(sleep_s, source_mode, full_mode).distribute(address, job_name=JOB, tasks=TASKS)


def measure(sleeps_ms: tuple[int, ...] = SLEEPS_MS) -> Mapping[str, Any]:
    """Runs and prints."""
    rows = []
    for sleep_ms in sleeps_ms:
        times = {mode: forced(sleep_ms / 1000, mode) for mode in MODES}
        found = chosen(sleep_ms / 1000)
        of_fastest = times[found["chosen"]] / min(times.values())
        rows.append({"sleep_s": sleep_ms / 1000, "element_s": times, "of_fastest": of_fastest, **found})
        each = ", ".join(f"{mode} {1000 * seconds:.1f}" for mode, seconds in times.items())
        print(f"{sleep_ms:3} ms: {each} ms; chosen: {found['chosen']}, {of_fastest:.3f} of the fastest", flush=True)
    worst = max(row["of_fastest"] for row in rows)
    modes = dict.fromkeys(row["chosen"] for row in rows)
    print(f"modes: {', '.join(modes)}; at most {worst:.3f} of the fastest (target {1 + MARGIN})")
    return {
        "modes": list(modes),
        "rounds": [{"service": {"of the fastest": worst}}],
        "table": table(rows),
        "results": rows,
    }


def table(rows: list[dict[str, Any]]) -> list[list[str]]:
    """For the page of figures: milliseconds per element."""
    head = ["t, ms", *(f"{mode}, ms" for mode in MODES), "chosen", "of the fastest"]
    return [head] + [
        [
            f"{1000 * row['sleep_s']:.0f}",
            *(f"{1000 * row['element_s'][mode]:.1f}" for mode in MODES),
            row["chosen"],
            f"{row['of_fastest']:.3f}",
        ]
        for row in rows
    ]


if __name__ == "__main__":
    main("benchmarks.papers.figure8", QUESTION, measure)
