"""tf.data service's Figure 10: what it costs to prepare the data of many jobs with one pipeline, and how fast they are.

    python -m benchmarks.papers.figure10 [--jobs N ...] [--sharing {window,lockstep} ...] [--json FILE]

A: all jobs share on one service. B: the same service, and each job computes for itself. C: each job has a service of
its own; as many as this machine carries, and beyond that as many times what one costs. A service has two workers; the
pipeline reads pictures from an object store, unpacks them, and waits for most of its time, so that two cores carry
sixteen services. A job's step takes so long that one service is enough for four.

Counted are calls of the user's function, CPU seconds of all operators, and bytes that the store has sent; what workers
use besides is what it costs to serve. It fails where one of these is not the same for one job as for any number of jobs
that share, or where one of these is slower than its steps.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import math
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.papers import counting_store
from benchmarks.papers.counting_store import BUCKET, Server
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.sharing_jobs import (
    Decode,
    Job,
    Played,
    calls_in,
    cpu_s_of,
    numbers_of,
    play,
    write_pictures,
)
from benchmarks.papers.throttled import pause
from millrace import Dataset, LocalService, Sharing, Visitation
from millrace.sources import storage

QUESTION = "What does it cost to prepare the data of many jobs with one pipeline?"
JOBS = (1, 2, 4, 8, 16, 32, 64)
SERVICES = 16
"""At most at the same time; what more of them would cost is modelled."""
PROCESSES, WORKERS = 4, 2
WAYS = ("window", "lockstep")
PICTURES, BATCH, FILES = 500, 5, 10
PICTURE_BYTES = 200_000
BUFFER_BYTES = 16 << 20
"""Of a job: less than a task, so that none is over before all have come."""
WAIT_S, STEP_S = 0.018, 0.2
"""Of an element; of a job's step, which is a batch."""
EPOCHS = 3
"""The first one is not looked at for speeds."""
LATE = 1.25
"""Jobs that take so many times as long are stopped."""
CONSTANT, SPEED = 0.05, 0.95
COUNTED = {
    "calls": "calls",
    "function_s": "their CPU",
    "operators_s": "operators' CPU",
    "bytes": "bytes from the store",
}
"""What costs: by name, how it is called in the table. A worker reports operators of the job that it works for, and in B
has others behind it, so that theirs are not known there.
"""


def pipeline(pattern: str, log: str, wait_s: float = WAIT_S) -> Dataset:
    """What all jobs read."""
    batches = Dataset.from_parquet(pattern).map(Decode(log, wait_s), num_parallel_calls=None).batch(BATCH)
    return batches.with_options(buffer_bytes=BUFFER_BYTES)


def choices(sharing: str) -> dict[str, Any]:
    """Of ``distribute``."""
    if sharing == "window":
        return {"sharing": Sharing.WINDOW, "visitation": Visitation.AT_MOST_ONCE}
    return {"sharing": Sharing.LOCKSTEP} if sharing else {}


@contextlib.contextmanager
def services(count: int) -> Iterator[list[LocalService]]:
    """So many services, whose workers are there."""
    with contextlib.ExitStack() as stack:
        found = [stack.enter_context(LocalService(WORKERS, WORKERS, threads=1)) for _ in range(count)]
        for each in found:
            while len(each.status()["workers"]) < WORKERS:
                pause(0.1)
        yield found


def used_by(found: Sequence[LocalService]) -> dict[str, float]:
    """CPU seconds so far: of the workers' processes, and of operators as they report it."""
    workers_s = operators_s = elements = 0.0
    for service in found:
        status = service.status()
        workers_s += sum(cpu_s_of(worker["pid"]) for worker in status["workers"])
        operators = [row for job in status["jobs"] for row in job["operators"]]
        operators_s += sum(row["cpu_s"] for row in operators)
        elements += sum(row["elements"] for row in operators)
    return {"workers_s": workers_s, "operators_s": operators_s, "elements": elements}


def settled(found: Sequence[LocalService]) -> dict[str, float]:
    """The same, once workers have reported what they did last."""
    every = found[0].status()["heartbeat_s"]
    before = used_by(found)
    while True:
        pause(1.5 * every)
        now = used_by(found)
        if now["elements"] == before["elements"]:
            return now
        before = now


def run(store: Server, pictures: int, count: int, mode: str, sharing: str = "") -> dict[str, Any]:
    """So many jobs, in one of the three modes."""
    handle, log = tempfile.mkstemp(prefix="millrace-calls-")
    os.close(handle)
    try:
        make = functools.partial(pipeline, f"s3://{BUCKET}/*.parquet", log)
        sent = store.counts().bytes
        with services(count if mode == "C" else 1) as found:
            idle = used_by(found)
            chosen = {"seed": 1, "workers": WORKERS, "tasks": WORKERS, **choices(sharing)}
            jobs = [
                Job(f"job-{number:02}", found[number % len(found)].address, make, numbers_of, STEP_S, chosen)
                for number in range(count)
            ]
            epoch_s = pictures / BATCH * STEP_S
            count_all, span_s = functools.partial(settled, found), EPOCHS * epoch_s * LATE
            played = play(jobs, epochs=EPOCHS, processes=PROCESSES, count=count_all, span_s=span_s)
        calls, function_s = calls_in(log)
        counted = {"calls": calls, "function_s": function_s, **played.counted, "bytes": store.counts().bytes - sent}
        if mode == "B":
            del counted["operators_s"]
        return figures(played, counted, idle["workers_s"], epoch_s)
    finally:
        os.unlink(log)


def figures(played: Played, counted: Mapping[str, float], idle_s: float, epoch_s: float) -> dict[str, Any]:
    """What came of a run.

    ``served_us`` and ``read_us`` are CPU microseconds for each batch of each reader: what workers use beside operators,
    and what the jobs' processes use.

    Args:
        played: what jobs have read.
        counted: by all workers.
        idle_s: CPU seconds of workers before the first job came.
        epoch_s: that an epoch takes if nobody has to wait.
    """
    speeds = [
        STEP_S * reading.rate(reading.began + epoch_s, reading.began + EPOCHS * epoch_s * LATE)
        for reading in played.readings
    ]
    batches = sum(len(epoch.times) for reading in played.readings for epoch in reading.epochs)
    beside_s = counted["workers_s"] - idle_s - counted.get("operators_s", math.nan)
    return {
        **{name: counted.get(name) for name in COUNTED},
        "batches": batches,
        "missed": sum(epoch.missed for reading in played.readings for epoch in reading.epochs),
        "speed": min(speeds),
        "mean_speed": sum(speeds) / len(speeds),
        "served_us": None if math.isnan(beside_s) else 1e6 * beside_s / batches,
        "read_us": 1e6 * played.cpu_s / batches,
    }


def modelled(known: Mapping[int, Mapping[str, Any]], count: int) -> dict[str, Any]:
    """As many services as were not run: each costs what it did when most of them ran."""
    most = max(known)
    return {
        **known[most],
        **{name: known[most][name] * count / most for name in (*COUNTED, "batches")},
        "modelled": True,
    }


def cost(found: Mapping[str, Any], alone: Mapping[str, Any], count: int, name: str) -> float | None:
    """What so many jobs need for as many steps each, of what one job alone needs; None: it is not known."""
    if found[name] is None:
        return None
    return float(found[name] / found["batches"] / (alone[name] / alone["batches"]) * count)


def off(found: Mapping[int, Mapping[str, Any]], name: str) -> float:
    """By how much what was counted differs, at most, from that of one job."""
    alone = found[min(found)][name]
    return float(max(abs(each[name] / alone - 1) for each in found.values()))


def shared(name: str) -> str:
    """Mode A, by the way in which jobs share."""
    return f"A, {name}"


def measure(numbers: Sequence[int], ways: Sequence[str], pictures: int) -> dict[str, Any]:
    """Runs and prints."""
    found: dict[str, dict[int, dict[str, Any]]] = {mode: {} for mode in (*map(shared, ways), "B", "C")}
    with tempfile.TemporaryDirectory(prefix="millrace-pictures-") as folder, counting_store.server() as store:
        write_pictures(folder, pictures, PICTURE_BYTES, FILES)
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                storage.write(f"s3://{BUCKET}/{name}", file)
        for count in numbers:
            for mode, each in found.items():
                if mode == "C" and count > SERVICES:
                    each[count] = modelled(each, count)
                else:
                    each[count] = run(store, pictures, count, mode[0], mode[3:])
                print(
                    f"{mode:12} {count:3}",
                    *(f"{key} {value or 0:.4g}" for key, value in each[count].items()),
                    flush=True,
                )
    return report(found)


def report(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> dict[str, Any]:
    """What is written of all runs."""
    aims, figures = [], {}
    for mode in [mode for mode in found if mode[0] == "A"]:
        offs = {name: off(found[mode], name) for name in COUNTED}
        slowest = min(each["speed"] for each in found[mode].values())
        figures[mode] = {**offs, "speed": slowest}
        aims += [
            {"aim": f"{mode}: {name}, off those of one job by", "value": value, "asked": f"<= {CONSTANT}"}
            | {"met": value <= CONSTANT}
            for name, value in offs.items()
        ]
        aims.append(
            {"aim": f"{mode}: speed of the slowest job, of its steps", "value": slowest, "asked": f">= {SPEED}"}
            | {"met": slowest >= SPEED}
        )
    return {
        "modelled": f"a job's step (a wait of {STEP_S} s), most of an element's time (a wait of {WAIT_S} s), and more "
        f"than {SERVICES} services at a time",
        "rounds": [figures],
        "table": table(found),
        "aims": aims,
        "results": found,
    }


def table(found: Mapping[str, Mapping[int, Mapping[str, Any]]]) -> list[list[str]]:
    """For the page of figures."""
    head = ["", "jobs", *COUNTED.values(), "speed, of the steps", "slowest job's"]
    rows = [[*head, "serving, us of a batch and reader", "reading, us of a batch"]]
    for mode, runs in found.items():
        alone = runs[min(runs)]
        for count, each in runs.items():
            row = [mode, f"{count}, modelled" if each.get("modelled") else str(count)]
            row += [_cell(cost(each, alone, count, name), 3) for name in COUNTED]
            row += [f"{each[name]:.3f}" for name in ("mean_speed", "speed")]
            rows.append([*row, *(_cell(each[name], 0) for name in ("served_us", "read_us"))])
    return rows


def _cell(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:,.{digits}f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.figure10", description=QUESTION)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS), metavar="N")
    parser.add_argument("--sharing", nargs="*", choices=WAYS, default=list(WAYS), help="of A; both as a rule")
    parser.add_argument("--pictures", type=int, default=PICTURES, help=f"of an epoch (default {PICTURES})")

    def run(options: argparse.Namespace) -> dict[str, Any]:
        return measure(options.jobs, options.sharing, options.pictures)

    return verdict(answer(parser, run, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
