"""A client that is bound by receiving, on hosts that compute: does a service stop where more workers bring nothing?

    python -m benchmarks.papers.receiving [--json FILE]

A training that adds up its records, and does nothing else, reads them as fast as its own host, a small one
(:mod:`benchmarks.small_hosts`), can receive them. Workers are hosts of a fifth of a core each, and a record costs them
more than it costs the client. The client always waits, with any number of workers, so that its waiting says nothing of
how many there should be. Each rate is measured with numbers of workers that are fixed; then the service is left alone.
Who looks whether it has settled is not the client, whose host that would take time from.
It fails where that ends with less than 0.95 of the best rate, with more than a worker beyond the fewest that are nearly
as fast as the best, or where even the most workers find the client's host with processor time to spare, so that it was
not bound by receiving at all.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.papers.live_scaling import NEAR, REACHED, fleet_how, knee, service
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.throttled import pause
from benchmarks.small_hosts import fleet_of, host
from millrace import Dataset
from millrace.client.status_query import fetch_status

QUESTION = "Does a service stop where a client can receive no more?"
HOST_CORES = 0.1
MOST = 9
RECORD_BYTES, WORK_S = 100_000, 0.0001
"""Of a record: its size, and the processor time that a worker works on it."""
BATCH = 32
BUFFER_BYTES = 32 << 20
"""Of a worker: a second of its work at least."""
RECORDS, TASKS = 20_000_000, 20_000
"""Of the pipeline: a task is a second of a worker, so that workers that are too many have soon done their last one."""
MEASURE_S, LIMIT_S, LOOK_S = 8.0, 120.0, 0.5
FILL_S = 20.0
"""After which the buffers of the client and of its workers are full. Until then their memory is still being made and
mapped, which a training has behind it after its first seconds, and costs more where more workers have more of it."""
BOUND = 0.85
"""Of its host, which a client uses that is bound by receiving."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def record(number: int) -> Any:
    """A record, which takes some work."""
    row = np.full(RECORD_BYTES // 8, number)
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        np.sort(row[:64])
    return row


def train(address: str) -> dict[str, float]:
    """Reads as fast as it can, and measures when it is told to; returns records a second, and cores of this process."""
    told = threading.Event()
    threading.Thread(target=_hear, args=(told,), daemon=True).start()
    with Dataset.range(RECORDS).map(record).distribute(address, job_name="reads", tasks=TASKS) as served:
        elements = iter(served)
        while not told.is_set():
            _read(elements, LOOK_S)
        began, used_s = time.perf_counter(), _used_s()
        count = _read(elements, MEASURE_S)
        seconds = time.perf_counter() - began
        return {"records": count / seconds, "host_cores": (_used_s() - used_s) / seconds}


def _hear(told: threading.Event) -> None:
    sys.stdin.readline()
    told.set()


def _read(elements: Any, seconds: float) -> int:
    until, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for _ in range(BATCH):
            next(elements).sum()
        count += BATCH
    return count


def settle(address: str, workers: int) -> list[dict[str, Any]]:
    """Waits until so many workers are there, or as many as the service has settled for; returns what it has said."""
    began, said = time.perf_counter(), list[dict[str, Any]]()
    while time.perf_counter() - began < LIMIT_S:
        pause(LOOK_S)
        jobs = [job for job in fetch_status(address)["jobs"] if job["name"] == "reads"]
        for job in jobs:
            now = {key: job["workers"].get(key) for key in ("observed", "plan", "phase", "why")}
            if not said or any(said[-1][key] != each for key, each in now.items()):
                said.append({"at_s": round(time.perf_counter() - began, 1), **now})
        if (
            said
            and said[-1]["observed"] == (workers or said[-1]["plan"])
            and (workers or said[-1]["phase"] == "settled")
        ):
            break
    return said


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def on_service(workers: int) -> dict[str, Any]:
    """A training, on a host of its own, on a service with so many workers; 0: as many as it chooses."""
    with contextlib.ExitStack() as stack:
        buffers = ("--buffer-bytes", str(BUFFER_BYTES))
        address, fleet = stack.enter_context(service(f"{workers or 1}-{workers or MOST}", workers or 1, *buffers))
        hosts = fleet_of(f"millrace-fleet-{uuid.uuid4().hex[:8]}")
        stack.callback(hosts.close)
        command = [sys.executable, "-m", "benchmarks.papers.receiving", "--train", address]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        host(stack, hosts, "host", HOST_CORES, process)
        timeline = settle(address, workers)
        pause(FILL_S)
        used_s, began = fleet.used_s(), time.perf_counter()
        said, _ = process.communicate("measure\n")
        if process.returncode:
            raise RuntimeError("the training failed")
        cores = (fleet.used_s() - used_s) / (time.perf_counter() - began)
        return {**json.loads(said), "worker_cores": cores, "workers": timeline[-1]["observed"], "timeline": timeline}


def measure(_options: argparse.Namespace) -> Mapping[str, Any]:
    """All figures, a table, and what was aimed at."""
    found = {}
    for workers in (*range(1, MOST + 1), 0):
        name = str(workers) if workers else "chosen"
        found[name] = on_service(workers)
        print(name, {key: round(each, 3) for key, each in found[name].items() if key != "timeline"}, flush=True)
        if not workers:
            print(*(row for row in found[name]["timeline"]), sep="\n", flush=True)
    return {
        "modelled": "hosts: quotas of one machine's cores",
        "hosts": fleet_how(),
        "results": found,
        "table": table(found),
        "aims": aims(found),
    }


def table(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """For the page."""
    best = max(each["records"] for each in found.values())
    rows = [["workers", "records/s", "of the best", "cores of the client's host", "cores of workers"]]
    for name, each in found.items():
        shown = f"{each['workers']}, chosen" if name == "chosen" else name
        cores = [f"{each['host_cores']:.2f} of {HOST_CORES}", f"{each['worker_cores']:.2f}"]
        rows.append([shown, f"{each['records']:,.0f}", f"{each['records'] / best:.2f}", *cores])
    return rows


def aims(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """That the client was bound by receiving, and where the service has stopped."""
    fixed = {int(name): each for name, each in found.items() if name != "chosen"}
    ours, rates = found["chosen"], {workers: each["records"] for workers, each in fixed.items()}
    share, beyond = ours["records"] / max(rates.values()), ours["workers"] - knee(rates)
    used = fixed[max(fixed)]["host_cores"] / HOST_CORES
    return [
        {"aim": "the client's host, used with the most workers", "value": used, "asked": f">= {BOUND}"}
        | {"met": used >= BOUND},
        {"aim": "rate, of the best", "value": share, "asked": f">= {REACHED}", "met": share >= REACHED},
        {"aim": f"workers beyond the fewest with {NEAR} of the best rate", "value": beyond, "asked": "<= 1"}
        | {"met": beyond <= 1},
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    if arguments is None and sys.argv[1:2] == ["--train"]:
        print(json.dumps(train(sys.argv[2])), flush=True)
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.receiving", description=QUESTION)
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
