"""tf.data service's Figures 8 and 9 on hosts that compute: with how many workers does a service make up for itself?

    python -m benchmarks.papers.break_even [--json FILE]

A training's host has four tenths of a core, and its accelerator takes a batch of eight pictures in 12 ms. JPEG files
are decoded and shrunk in its own process (colocated), or by a service whose workers are hosts of a fifth of a core each
(:mod:`benchmarks.small_hosts`); the training's host receives batches then, which takes processor time of its own. Each
rate is measured: with data that cost nothing (``take(1).cache().repeat()``, the ideal), colocated, with each number of
workers, with a service that is left alone to choose, and colocated on a host that has the cores of all these workers as
well (equal resources). So are the cores that each uses. Costs are equation 1 with the processor time that workers were
measured to use, at 0.04 $ an hour of a core, and 4.5 $ an hour for the host with its accelerator.

It fails where a single worker is no slower than colocated or none of the numbers is faster, so that nothing could break
even; where the best number does not reach the ideal rate; and where what is chosen costs more than the least, or has
more than a worker beyond the fewest that are nearly as fast as the best.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from benchmarks.papers.live_scaling import BUFFER_BYTES, CORES, service
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import job_of
from benchmarks.papers.throttled import pause
from benchmarks.papers.timelines import shrink, write_pictures
from benchmarks.small_hosts import fleet_of, host
from millrace import Dataset
from millrace.client.status_query import fetch_status
from millrace.policies.prices import Machine, Prices, cost

QUESTION = "With how many workers does a service make up for itself, and what does it cost?"
HOST_CORES = 0.4
BATCH, STEP_S = 8, 0.012
PICTURES = 400
MOST = 6
WARM_S, MEASURE_S, LEFT_ALONE_S, LIMIT_S = 6.0, 10.0, 45.0, 60.0
PRICES, HOST = Prices(core=0.04), Machine(hour=4.5)
REACHED, OF_LEAST, WINS, NEAR = 0.95, 1.05, 1.1, 0.97
SERVICE = "a service of"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Setting(msgspec.Struct, frozen=True):
    """What a training is to read.

    Attributes:
        folder: of the pictures.
        address: of a service; empty: it computes for itself.
        ideal: the data are to cost nothing.
        workers: which the service is to have before anything is measured; 0: as many as it chooses.
        warm_s: seconds before.
    """

    folder: str
    address: str = ""
    ideal: bool = False
    workers: int = 0
    warm_s: float = WARM_S


def train(setting: Setting) -> dict[str, float]:
    """Reads at the accelerator's pace; returns batches a second, and the cores of this process."""
    made = functools.partial(shrink, os.devnull)
    batches = Dataset.from_files(f"{setting.folder}/*.jpg").map(made).repeat().batch(BATCH)
    batches = batches.with_options(buffer_bytes=BUFFER_BYTES)  # what is computed long before its time isn't needed
    if setting.ideal:
        first = batches.take(1).cache()
        list(first)
        return _measured(iter(first.repeat().prefetch(4)), setting)
    if not setting.address:
        return _measured(iter(batches), setting)
    with batches.distribute(setting.address, job_name="training") as served:
        return _measured(iter(served), setting)


def _measured(batches: Any, setting: Setting) -> dict[str, float]:
    until = time.perf_counter() + setting.warm_s
    while time.perf_counter() < until or _fewer(setting):
        if time.perf_counter() > until + LIMIT_S:
            raise RuntimeError(f"the service has no {setting.workers} workers after {LIMIT_S:g} s")
        for _ in range(10):
            next(batches)
            pause(STEP_S)
    print("measures", flush=True)
    began, before, count = time.perf_counter(), _used_s(), 0
    while time.perf_counter() - began < MEASURE_S:
        next(batches)
        pause(STEP_S)
        count += 1
    seconds = time.perf_counter() - began
    return {"batches_s": count / seconds, "host_cores": (_used_s() - before) / seconds}


def _fewer(setting: Setting) -> bool:
    """Whether the service has not got all its workers yet."""
    return bool(setting.workers) and job_of(setting.address, "training")["workers"]["observed"] < setting.workers


def _used_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def run(
    setting: Setting, cores: float = HOST_CORES, look: Callable[[], tuple[int, float]] = lambda: (0, 0.0)
) -> dict[str, Any]:
    """A training on a host of its own.

    Args:
        setting: what it reads.
        cores: of its host.
        look: workers that there are, and processor time that they have used.
    """
    command = [sys.executable, "-m", "benchmarks.papers.break_even", "--train", msgspec.json.encode(setting).decode()]
    with contextlib.ExitStack() as stack:
        fleet = fleet_of(f"millrace-fleet-{uuid.uuid4().hex[:8]}")
        stack.callback(fleet.close)
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=_ROOT)
        host(stack, fleet, "host", cores, process)
        assert process.stdout is not None
        process.stdout.readline()
        began, (workers, before) = time.perf_counter(), look()
        said = process.stdout.readline()
        worker_cores = (look()[1] - before) / (time.perf_counter() - began)
        process.communicate()
    if process.returncode:
        raise RuntimeError(f"the training of {setting} failed")
    return {**json.loads(said), "worker_cores": worker_cores, "workers": workers}


def on_service(folder: str, workers: int) -> dict[str, Any]:
    """A training on a service with so many workers; 0: as many as it chooses."""
    with service(f"{workers or 1}-{workers or MOST}", workers or 1) as (address, fleet):
        warm_s = WARM_S if workers else LEFT_ALONE_S
        setting = Setting(folder, address, workers=workers, warm_s=warm_s)
        return run(setting, look=lambda: (len(fetch_status(address)["workers"]), fleet.used_s()))


def measure(_options: argparse.Namespace) -> Mapping[str, Any]:
    """All figures, a table, and what was aimed at."""
    found: dict[str, dict[str, Any]] = {}

    def add(name: str, each: dict[str, Any]) -> None:
        found[name] = {**each, "cost": cost_of(each)}
        print(name, {key: round(value, 3) for key, value in found[name].items()}, flush=True)

    with tempfile.TemporaryDirectory(prefix="millrace-break-even-") as folder:
        write_pictures(folder, PICTURES)
        add("ideal", run(Setting(folder, ideal=True)))
        add("colocated", run(Setting(folder)))
        for workers in range(1, MOST + 1):
            add(f"{SERVICE} {workers}", on_service(folder, workers))
        add("a service that chooses", on_service(folder, 0))
        chosen = found["a service that chooses"]["workers"]
        add("colocated, equal resources", run(Setting(folder), HOST_CORES + chosen * CORES))
    return {
        "modelled": "the accelerator's step (a wait), and hosts: quotas of one machine's cores",
        "results": found,
        "table": table(found),
        "aims": aims(found),
    }


def cost_of(each: Mapping[str, float]) -> float:
    """Dollars for a million pictures, by equation 1."""
    seconds = 1e6 / BATCH / each["batches_s"]
    return cost(seconds, 1, Machine(cores=each["worker_cores"]), 1, HOST, PRICES).total


def table(found: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """For the page."""
    head = ["data by", "workers", "pictures/s", "of the ideal", "times as fast as colocated"]
    rows = [[*head, "cores of the host", "cores of workers", "$ for a million pictures"]]
    ideal, colocated = found["ideal"]["batches_s"], found["colocated"]["batches_s"]
    for name, each in found.items():
        rate = each["batches_s"]
        figures = [f"{BATCH * rate:.0f}", f"{rate / ideal:.2f}", f"{rate / colocated:.2f}"]
        used = [f"{each['host_cores']:.2f}", f"{each['worker_cores']:.2f}", f"{each['cost']:.2f}"]
        rows.append([name, str(each["workers"]), *figures, *used])
    return rows


def aims(found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """That too few workers lose and enough win, what the best reach, and what is chosen."""
    colocated, ideal, chosen = (found[name] for name in ("colocated", "ideal", "a service that chooses"))
    fixed = [each for name, each in found.items() if name.startswith(SERVICE)]
    most = max(each["batches_s"] for each in fixed)
    one, best = fixed[0]["batches_s"] / colocated["batches_s"], most / ideal["batches_s"]
    dear = chosen["cost"] / min(each["cost"] for each in fixed)
    beyond = chosen["workers"] - min(each["workers"] for each in fixed if each["batches_s"] >= NEAR * most)
    wins = most / colocated["batches_s"]
    return [
        {"aim": "pictures/s of one worker, of colocated", "value": one, "asked": "< 1", "met": one < 1},
        {"aim": "pictures/s of the best number of workers, of colocated", "value": wins, "asked": f">= {WINS}"}
        | {"met": wins >= WINS},
        {"aim": "pictures/s of the best number of workers, of the ideal", "value": best, "asked": f">= {REACHED}"}
        | {"met": best >= REACHED},
        {"aim": "cost of the number that is chosen, of the least", "value": dear, "asked": f"<= {OF_LEAST}"}
        | {"met": dear <= OF_LEAST},
        {"aim": "workers that are chosen, beyond the knee", "value": beyond, "asked": "<= 1", "met": beyond <= 1},
    ]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    if arguments is None and sys.argv[1:2] == ["--train"]:
        print(json.dumps(train(msgspec.json.decode(sys.argv[2], type=Setting))), flush=True)
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.break_even", description=QUESTION)
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
