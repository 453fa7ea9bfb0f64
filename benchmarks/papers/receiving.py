"""A client that is bound by receiving, on hosts that compute: does a service stop where more workers bring nothing?

    python -m benchmarks.papers.receiving [--json FILE]

A training that adds up its records, and does nothing else, reads them as fast as its own host, a small one
(:mod:`benchmarks.small_hosts`), can receive them. Workers are hosts of a fifth of a core each, and a record costs them
more than it costs the client. The client always waits, with any number of workers, so that its waiting says nothing of
how many there should be. Each rate is measured with numbers of workers that are fixed; then the service is left alone.
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
import time
import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import numpy as np

from benchmarks.papers.live_scaling import NEAR, REACHED, fleet_how, knee, service
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import job_of
from benchmarks.small_hosts import fleet_of, host
from millrace import Dataset

QUESTION = "Does a service stop where a client can receive no more?"
HOST_CORES = 0.1
MOST = 6
RECORD_BYTES, WORK_S = 100_000, 0.0001
"""Of a record: its size, and the processor time that a worker works on it."""
BATCH = 32
BUFFER_BYTES = 32 << 20
"""Of a worker: a second of its work at least."""
MEASURE_S, LIMIT_S = 8.0, 90.0
BOUND = 0.85
"""Of its host, which a client uses that is bound by receiving."""
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Setting(msgspec.Struct, frozen=True):
    """What a training reads.

    Attributes:
        address: of the service.
        workers: which that is to have; 0: as many as it chooses.
    """

    address: str
    workers: int = 0


def record(number: int) -> Any:
    """A record, which takes some work."""
    row = np.full(RECORD_BYTES // 8, number)
    until = time.thread_time() + WORK_S
    while time.thread_time() < until:
        np.sort(row[:64])
    return row


def train(setting: Setting) -> dict[str, Any]:
    """Reads as fast as it can, once the workers are there; returns records a second, and the cores of this process."""
    records = Dataset.range(1_000_000_000).map(record)
    with records.distribute(setting.address, job_name="reads", tasks=20_000) as served:
        elements = iter(served)
        began = time.perf_counter()
        while not _ready(setting) and time.perf_counter() - began < LIMIT_S:
            _read(elements, 0.5)
        settled_s = time.perf_counter() - began
        _read(elements, 2.0)
        began, used_s = time.perf_counter(), _used_s()
        count = _read(elements, MEASURE_S)
        seconds = time.perf_counter() - began
        workers = job_of(setting.address, "reads")["workers"]
        return {
            "records": count / seconds,
            "host_cores": (_used_s() - used_s) / seconds,
            "workers": workers["observed"],
            "why": workers["why"],
            "settled_s": settled_s,
        }


def _read(elements: Any, seconds: float) -> int:
    until, count = time.perf_counter() + seconds, 0
    while time.perf_counter() < until:
        for _ in range(BATCH):
            next(elements).sum()
        count += BATCH
    return count


def _ready(setting: Setting) -> bool:
    workers = job_of(setting.address, "reads")["workers"]
    if setting.workers:
        return bool(workers["observed"] >= setting.workers)
    return bool(workers.get("phase") == "settled" and workers["plan"] == workers["observed"])


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
        setting = msgspec.json.encode(Setting(address, workers)).decode()
        command = [sys.executable, "-m", "benchmarks.papers.receiving", "--train", setting]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        host(stack, hosts, "host", HOST_CORES, process)
        used_s, began = fleet.used_s(), time.perf_counter()
        said, _ = process.communicate()
        if process.returncode:
            raise RuntimeError("the training failed")
        cores = (fleet.used_s() - used_s) / (time.perf_counter() - began)
        return {**json.loads(said), "worker_cores": cores}


def measure(_options: argparse.Namespace) -> Mapping[str, Any]:
    """All figures, a table, and what was aimed at."""
    found = {}
    for workers in (*range(1, MOST + 1), 0):
        name = str(workers) if workers else "chosen"
        found[name] = on_service(workers)
        print(name, {key: each if isinstance(each, str) else round(each, 3) for key, each in found[name].items()})
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
        print(json.dumps(train(msgspec.json.decode(sys.argv[2], type=Setting))), flush=True)
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.receiving", description=QUESTION)
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
