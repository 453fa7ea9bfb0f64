"""Jobs that share a window, at different speeds and one after the other: who misses what, and what is computed.

    python -m benchmarks.papers.windows [--elements N] [--rounds N] [--json FILE]

Jobs of several speeds read together, and the fastest of them alone, in turns: the fastest is to be as fast as alone,
and each other one is to be told exactly how many batches it did not get. Then jobs read one after the other, each as
much as the data is, beginning with what the window of the one before has left: k jobs are to cost
k C - (k - 1) (w / D) C, where C is what one costs, and w of D bytes are kept (tf.data service 3.5). Elements are made
by waiting.
"""

from __future__ import annotations

import argparse
import functools
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from benchmarks.papers.figure10 import services
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.sharing_jobs import Job, Played, Reading, play
from benchmarks.papers.throttled import Work, made_so_far, pause
from millrace import Dataset, LocalService, Sharing, Visitation

QUESTION = "What do jobs miss that share a window at different speeds, and what do they cost one after the other?"
ELEMENTS, BATCH, ELEMENT_BYTES, ELEMENT_S = 2000, 10, 20_000, 0.005
WORKERS, KEPT = 2, 20
"""Batches that the window of each worker has room for."""
STEPS_S = (0.0, 0.05, 0.125, 0.25)
"""Of the jobs; the first reads as fast as elements are made."""
EPOCHS, ROUNDS, AFTER = 4, 3, 4
FASTEST, OFF = 0.97, 0.05
_SETTLE_S = 2.0
MESSAGE_BYTES = BATCH * ELEMENT_BYTES


def pipeline(log: str, elements: int) -> Dataset:
    """What all jobs read."""
    work = Work(log, ELEMENT_S, ELEMENT_BYTES)
    made = Dataset.range(elements).map(work, num_parallel_calls=None).batch(BATCH)
    return made.with_options(buffer_bytes=KEPT * MESSAGE_BYTES)


def numbers_of(batch: Any) -> list[int]:
    """Of a batch's elements."""
    return [int(number) for number in batch[:, 0]]


def reported_by(service: LocalService) -> dict[str, int]:
    """Batches that each member of the only group was told to have missed, once all have reported."""
    pause(1.5 * service.status()["heartbeat_s"])
    (job,) = service.status()["jobs"]
    return {member["member"]: member["skipped"] for member in job["group"]["members"]}


def together(steps_s: Sequence[float], elements: int, epochs: int) -> Played:
    """Jobs of these speeds, at the same time."""
    with tempfile.TemporaryDirectory(prefix="millrace-windows-") as folder, services(1) as [service]:
        make = functools.partial(pipeline, os.path.join(folder, "made"), elements)
        chosen = {"sharing": Sharing.WINDOW, "visitation": Visitation.AT_MOST_ONCE, "seed": 1, "workers": WORKERS}
        chosen["window_bytes"] = KEPT * MESSAGE_BYTES
        jobs = [Job(f"job-{n}", service.address, make, numbers_of, step_s, chosen) for n, step_s in enumerate(steps_s)]
        return play(jobs, epochs=epochs, processes=2, count=functools.partial(reported_by, service))


def row_of(reading: Reading, elements: int, epochs: int, reported: int) -> dict[str, Any]:
    """What a job has not got: in fact, as its iterators and the status said, and by how much those were wrong."""
    all_of_it = elements // BATCH
    off = [abs(all_of_it - len(epoch.times) - epoch.missed) for epoch in reading.epochs]
    return {
        "job": reading.name,
        "lost": epochs * all_of_it - sum(len(epoch.times) for epoch in reading.epochs),
        "told": sum(epoch.missed for epoch in reading.epochs),
        "wrong": sum(off),
        "epochs": len(reading.epochs),
        "reported": reported,
    }


def speed(reading: Reading) -> float:
    """Batches a second, from a while after it began."""
    return reading.rate(reading.began + _SETTLE_S, float("inf"))


def one_by_one(jobs: int, elements: int) -> dict[str, Any]:
    """Jobs that read one after the other."""
    with tempfile.TemporaryDirectory(prefix="millrace-windows-") as folder, services(1) as [service]:
        log = os.path.join(folder, "made")
        make = functools.partial(pipeline, log, elements)
        chosen = {"sharing": Sharing.WINDOW, "visitation": Visitation.ZERO_ONCE_OR_MORE, "seed": 1}
        chosen |= {"workers": WORKERS, "window_bytes": KEPT * MESSAGE_BYTES}
        read, made = [], []
        for number in range(jobs):
            job = Job(f"job-{number}", service.address, make, numbers_of, 0.0, chosen)
            played = play([job], epochs=1, processes=1, count=functools.partial(settled, log), stay=False)
            read.append(sum(len(epoch.elements) for epoch in played.readings[0].epochs))
            made.append(played.counted)
    return {"read": read, "made": made, "expected": expected(jobs, elements)}


def settled(log: str) -> int:
    """How many elements were made, once no more are."""
    before = -1
    while before != (now := len(made_so_far(log))):
        before = now
        pause(1.0)
    return now


def expected(jobs: int, elements: int) -> float:
    """Elements that are made for jobs one after the other: tf.data service's formula."""
    kept = WORKERS * KEPT * BATCH / elements
    return elements * (jobs - (jobs - 1) * kept)


def measure(elements: int, rounds: int, ways: Sequence[str]) -> dict[str, Any]:
    """Runs and prints."""
    found: dict[str, Any] = {"together": [], "one by one": None}
    for number in range(rounds if "together" in ways else 0):
        runs: dict[str, Callable[[], Played]] = {
            "alone": functools.partial(together, STEPS_S[:1], elements, EPOCHS),
            "together": functools.partial(together, STEPS_S, elements, EPOCHS),
        }
        played = {name: runs[name]() for name in sorted(runs, reverse=bool(number % 2))}
        fastest = {name: speed(each.readings[0]) for name, each in played.items()}
        told = played["together"].counted
        rows = [row_of(reading, elements, EPOCHS, told.get(reading.name, 0)) for reading in played["together"].readings]
        found["together"].append({"fastest": fastest, "of alone": fastest["together"] / fastest["alone"], "jobs": rows})
        print(found["together"][-1], flush=True)
    if "one by one" in ways:
        found["one by one"] = one_by_one(AFTER, elements)
        print(found["one by one"], flush=True)
    return report(found, elements)


def report(found: Mapping[str, Any], elements: int) -> dict[str, Any]:
    """What is written of all runs."""
    aims: list[dict[str, Any]] = []
    figures: list[dict[str, Any]] = []
    rows = [["", "job", "time of a step, ms", "batches that it did not get", "that it was told of"]]
    if found["together"]:
        figures = [{"fastest": {"of alone": each["of alone"]}} for each in found["together"]]
        fastest = statistics.median(each["of alone"] for each in found["together"])
        wrong = sum(row["wrong"] for each in found["together"] for row in each["jobs"])
        aims += [
            {"aim": "the fastest job's rate, of that alone", "value": fastest, "asked": f">= {FASTEST}"}
            | {"met": fastest >= FASTEST},
            {"aim": "batches lost and not told of, or told of and not lost", "value": wrong, "asked": "0"}
            | {"met": wrong == 0},
        ]
        for step_s, row in zip(STEPS_S, found["together"][-1]["jobs"], strict=True):
            rows.append(["together", row["job"], f"{1e3 * step_s:.0f}", str(row["lost"]), str(row["told"])])
    after = found["one by one"]
    if after:
        rows.append(["one after the other", f"{len(after['read'])} jobs", "0", "", ""])
        off = abs(after["made"][-1] / after["expected"] - 1)
        short = sum(abs(elements - each) for each in after["read"])
        figures = [*(figures or [{}])]
        figures[0] = {**figures[0], "one after the other": {"off": off}}
        aims += [
            {"aim": "elements made for jobs one after the other, off the formula by", "value": off}
            | {"asked": f"<= {OFF}", "met": off <= OFF},
            {"aim": "elements by which these jobs read more or less than the data", "value": short, "asked": "0"}
            | {"met": short == 0},
        ]
    return {
        "modelled": f"an element's time ({ELEMENT_S} s) and jobs' steps, which are waits",
        "size": {"elements": elements, "batch": BATCH, "window": KEPT, "workers": WORKERS, "epochs": EPOCHS},
        "rounds": figures,
        "table": rows,
        "aims": aims,
        "results": found,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.windows", description=QUESTION)
    parser.add_argument("--elements", type=int, default=ELEMENTS, help=f"in the data (default {ELEMENTS})")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help=f"of jobs together and alone (default {ROUNDS})")
    both = ["together", "one by one"]
    parser.add_argument("--only", nargs="+", choices=both, default=both, metavar="WAY", help="of: " + "; ".join(both))

    def run(options: argparse.Namespace) -> dict[str, Any]:
        return measure(options.elements, options.rounds, options.only)

    return verdict(answer(parser, run, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
