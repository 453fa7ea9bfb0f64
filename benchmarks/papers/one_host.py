"""Sixteen jobs on one host that share batches of 9.6 MB: what memory they take, and how fast each reads.

    python -m benchmarks.papers.one_host [--jobs N] [--seconds S] [--batches N] [--sharing WAY ...] [--json FILE]

Jobs are processes that read what one worker puts together, and look at a byte of each page: as fast as they can, for
how fast each is; and paced, so that the worker is ahead of one job as of many, for memory. Then the proportional set
sizes (PSS, in which memory that several processes share counts once) of them, the worker and the dispatcher are added
up; what as many jobs take that read elements of next to no size is subtracted. It fails where all jobs together take
more than 1.3 times what one job takes.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Self

from benchmarks import handover
from benchmarks.memory import field_of, tree
from benchmarks.papers.figure10 import WAYS, choices
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.sharing_jobs import Job, play
from millrace import Dataset, LocalService

QUESTION = "What memory do jobs take that share batches on one host, and how fast does each read?"
JOBS, SECONDS, BATCHES = 16, 15.0, 4
MOST = 1.3
_COUNT = 10**7
"""Of an epoch, which no job reads to its end."""
_SETTLE_S = 3.0
_EVERY_S = 0.5
STEP_S = 0.25
"""Of paced jobs."""


def small(number: int) -> int:
    """An element of next to no size."""
    return number


def pipeline(seconds: float, buffer_bytes: int, *, large: bool) -> Dataset:
    """What all jobs read."""
    few = Dataset.range(int(seconds / STEP_S)).map(small)
    batches = Dataset.range(_COUNT).map(handover.picture).batch(handover.BATCH)
    return (batches if large else few).with_options(buffer_bytes=buffer_bytes)


def look(batch: Any) -> list[int]:
    """A byte of every page."""
    return [int(batch.reshape(-1)[:: handover.PAGE].sum())]


def glance(_: Any) -> list[int]:
    """Nothing."""
    return []


class Observer:
    """Adds up the memory of this process's descendants, again and again."""

    def __init__(self) -> None:
        self.samples: list[int] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._observe, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()

    def _observe(self) -> None:
        while not self._over.wait(_EVERY_S):
            pids = set(tree(os.getpid())) - {os.getpid()}
            self.samples.append(sum(field_of(f"/proc/{pid}/smaps_rollup", "Pss:") for pid in pids))


def run(jobs: int, seconds: float, buffer_bytes: int, sharing: str, step_s: float, *, large: bool) -> dict[str, float]:
    """Bytes that so many jobs and their service take at most, and GB/s of each."""
    with LocalService(1, 1, threads=1) as service:
        make = functools.partial(pipeline, seconds, buffer_bytes, large=large)
        chosen = {"seed": 1, "workers": 1, "tasks": 1, **choices(sharing)}
        see = look if large else glance
        each = [Job(f"job-{n}", service.address, make, see, step_s, chosen) for n in range(jobs)]
        with Observer() as observer:
            played = play(each, epochs=1, processes=jobs, span_s=seconds)
    rates = [reading.rate(reading.began + _SETTLE_S, reading.began + seconds) for reading in played.readings]
    gb_s = [rate * handover.BYTES / 1e9 for rate in rates]
    missed = sum(epoch.missed for reading in played.readings for epoch in reading.epochs)
    return {
        "held": max(observer.samples),
        "slowest": min(gb_s),
        "median": statistics.median(gb_s),
        "fastest": max(gb_s),
        "missed": missed,
    }


def measure(jobs: int, seconds: float, buffer_bytes: int, ways: Sequence[str]) -> dict[str, Any]:
    """Runs and prints."""
    found: dict[str, dict[int, dict[str, float]]] = {}
    for way in ways:
        found[way] = {}
        for count in (1, jobs):
            empty, paced = (run(count, seconds, buffer_bytes, way, STEP_S, large=large) for large in (False, True))
            full = run(count, seconds, buffer_bytes, way, 0.0, large=True)
            memory = {"empty": empty["held"], "paced": paced["held"], "beyond": paced["held"] - empty["held"]}
            found[way][count] = {**full, **memory}
            print(way, count, found[way][count], flush=True)
    return report(found)


def report(found: Mapping[str, Mapping[int, Mapping[str, float]]]) -> dict[str, Any]:
    """What is written of all runs."""
    head = ["", "jobs", "MiB beyond those without data", "of one job's", "GB/s of a job", "slowest", "fastest"]
    rows, figures, aims = [[*head, "all jobs, GB/s"]], {}, []
    for way, runs in found.items():
        alone = runs[min(runs)]["beyond"]
        for count, each in runs.items():
            row = [way, str(count), f"{each['beyond'] / (1 << 20):,.0f}", f"{each['beyond'] / alone:.2f}"]
            row += [f"{each[name]:.2f}" for name in ("median", "slowest", "fastest")]
            rows.append([*row, f"{each['median'] * count:.2f}"])
        ratio = runs[max(runs)]["beyond"] / alone
        figures[way] = {"memory": ratio}
        aims.append(
            {"aim": f"memory of {max(runs)} jobs, {way}, of one's", "value": ratio, "asked": f"<= {MOST}"}
            | {"met": ratio <= MOST}
        )
    return {
        "modelled": f"steps of paced jobs (waits of {STEP_S} s)",
        "rounds": [figures],
        "table": rows,
        "aims": aims,
        "results": found,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.one_host", description=QUESTION)
    parser.add_argument("--jobs", type=int, default=JOBS, metavar="N", help=f"beside one (default {JOBS})")
    parser.add_argument("--seconds", type=float, default=SECONDS, help=f"that each run takes (default {SECONDS:g})")
    parser.add_argument("--batches", type=int, default=BATCHES, help=f"that a job may have ahead (default {BATCHES})")
    parser.add_argument("--sharing", nargs="+", choices=WAYS, default=list(WAYS), help="both as a rule")

    def run(options: argparse.Namespace) -> dict[str, Any]:
        return measure(options.jobs, options.seconds, options.batches * handover.BYTES, options.sharing)

    return verdict(answer(parser, run, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
