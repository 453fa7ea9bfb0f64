"""Sixty-four jobs on one service of eight workers: does each get its share, and does any starve?

    python -m benchmarks.papers.many_jobs [--json FILE]

Each job reads as fast as it can from a pipeline of its own, whose function waits for most of its time, as if it read
from afar, so that 64 jobs and eight workers fit two cores. Jobs come at random, one after the other, in eight reading
processes; when all have been there for a while, the elements that each of them gets are counted for two minutes. Jain's
index of fairness (Jain, Chiu and Hawe, 1984) is of these counts, each over the job's priority: 1 if all are alike, 1/64
if one has all. First all jobs are alike, then every other one has twice the priority.
"""

from __future__ import annotations

import concurrent.futures
import functools
import itertools
import multiprocessing
import random
import statistics
import time
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.papers.many_readers import ELEMENT_S, TASK, nap, read_all
from benchmarks.papers.report import main
from millrace import LocalService

QUESTION = "With 64 jobs on one service, does each get its share of the workers, and does none starve?"
JOBS, WORKERS, READERS = 64, 8, 8
PAUSE_S = 0.3
"""From one job's coming to the next, on average."""
SETTLE_S, SPAN_S = 15.0, 120.0
"""After the last has come, until elements are counted; for how long."""
SIZE = {"jobs": JOBS, "workers": WORKERS, "element_s": ELEMENT_S, "task": TASK, "pause_s": PAUSE_S, "span_s": SPAN_S}


def jain(values: Sequence[float]) -> float:
    """Jain's index of fairness."""
    return sum(values) ** 2 / (len(values) * sum(value * value for value in values))


def run(priorities: Sequence[float]) -> dict[str, Any]:
    """Figures of one service with jobs of these priorities."""
    chance = random.Random(1)
    context = multiprocessing.get_context("spawn")
    with (
        LocalService(WORKERS, WORKERS, threads=1) as service,
        concurrent.futures.ProcessPoolExecutor(READERS, context) as readers,
    ):
        list(readers.map(nap, range(READERS)))  # they are there
        came = time.monotonic() + 1.0
        jobs = []
        for number, priority in enumerate(priorities):
            jobs.append((f"job-{number:02}", priority, came))
            came += chance.expovariate(1.0 / PAUSE_S)
        first, last = came + SETTLE_S, came + SETTLE_S + SPAN_S
        parts = [jobs[number::READERS] for number in range(READERS)]
        found = readers.map(functools.partial(read_all, service.address, ends=last), parts)
        times = {
            job[0]: each for part, rows in zip(parts, found, strict=True) for job, each in zip(part, rows, strict=True)
        }
    return _figures(jobs, times, first, last)


def _figures(
    jobs: Sequence[tuple[str, float, float]], times: Mapping[str, list[float]], first: float, last: float
) -> dict[str, Any]:
    rates, waits, begins = {}, {}, {}
    for name, _, came in jobs:
        counted = [at for at in times[name] if first <= at < last]
        rates[name] = len(counted) / (last - first)
        edges = [first, *counted, last]
        waits[name] = max(after - before for before, after in itertools.pairwise(edges))
        begins[name] = times[name][0] - came
    weights = {name: priority for name, priority, _ in jobs}
    high, low = max(weights.values()), min(weights.values())
    mean = {
        priority: statistics.fmean(rates[name] for name in rates if weights[name] == priority)
        for priority in (high, low)
    }
    return {
        "jain": jain([rates[name] / weights[name] for name in rates]),
        "ratio": mean[high] / mean[low],
        "least": min(rates[name] / weights[name] for name in rates)
        / statistics.fmean(rates[name] / weights[name] for name in rates),
        "wait_s": max(waits.values()),
        "first_s": max(begins.values()),
        "used": sum(rates.values()) * ELEMENT_S / WORKERS,
        "rates": rates,
        "priorities": weights,
    }


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    found = {}
    for name, priorities in (("64 alike", [1.0] * JOBS), ("32 of twice the priority", [2.0, 1.0] * (JOBS // 2))):
        found[name] = run(priorities)
        print(name + ":", ", ".join(f"{key} {value:.3g}" for key, value in found[name].items() if key[-1] != "s"))
        print(f"  at most {found[name]['wait_s']:.1f} s without an element", flush=True)
    alike, two = found.values()
    rounds = [{"alike": {"jain": alike["jain"]}, "two": {"jain": two["jain"], "ratio": two["ratio"]}}]
    return {"size": SIZE, "rounds": rounds, "table": _table(found), "results": found}


def _table(found: Mapping[str, Any]) -> list[list[str]]:
    """For the page of figures."""
    rows = [
        [
            "jobs",
            "Jain's index",
            "mean rate, high over low priority",
            "the least, of the mean for its priority",
            "longest without an element",
            "first element after, at most",
            "of the workers' time",
        ]
    ]
    for name, each in found.items():
        rows.append(
            [
                name,
                f"{each['jain']:.3f}",
                f"{each['ratio']:.2f}" if len(set(each["priorities"].values())) > 1 else "",
                f"{each['least']:.2f}",
                f"{each['wait_s']:.1f} s",
                f"{each['first_s']:.1f} s",
                f"{each['used']:.0%}",
            ]
        )
    return rows


if __name__ == "__main__":
    main("benchmarks.papers.many_jobs", QUESTION, measure)
