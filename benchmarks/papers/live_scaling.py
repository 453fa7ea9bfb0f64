"""Policies that scale a service, each on the same work, on hosts that really compute (Cachew 6.1, tf.data service 4.2).

    python -m benchmarks.papers.live_scaling [--json FILE]

A fleet of up to eight small hosts, each a worker with a quota of a fifth of a core (:mod:`benchmarks.small_hosts`). A
training takes an element in a certain time. An element costs processor time, which is computed; or a store's answer,
which is waited for; or both. First the rate with each number of workers: the knee is the fewest with which the training
gets nearly what it gets with the best. Then millrace's own policy, Cachew's (as published, and as in its released
code) and the rule of Kubernetes' autoscaler (80 % of the processor time that a host may use, as measured) scale the
service by themselves, until they have settled.
What Kubernetes' rule sees is what workers measure of their own processes; nothing is assumed of it.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import itertools
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import HEARTBEAT_S, LOOK, NBYTES, Reading, dispatcher, job_of
from benchmarks.papers.throttled import pause
from benchmarks.small_hosts import Fleet, fleet_of
from millrace import Dataset

QUESTION = "Which policy gives a training the workers that it needs, where hosts compute, wait, or do both?"
CORES = 0.2
MOST = 8
OWN_S = 0.005
"""Seconds of an element that the training takes."""
MEASURE_S = 6.0
LIMIT_S = 160.0
"""Seconds for a policy to settle; then it counts with what it has."""
QUIET_S = 35.0
"""Seconds without a change after which a policy has settled that does not say so: two looks of Kubernetes' rule."""
BUFFER_BYTES = 256 << 10
"""That a worker computes ahead at most, a second or two of its work, as the usual 256 MiB are of large pictures: the
processor time of what is computed long before its time says nothing of what the training needs."""
NEAR = 0.97
"""Of the best rate, at the knee."""
REACHED = 0.95
"""Of the rate at the best number of workers, by millrace's policy, with at most one worker beyond the knee."""


class Cost(NamedTuple):
    """Cost of an element.

    Attributes:
        core_s: seconds of processor time.
        wait_s: seconds that its store takes.
    """

    core_s: float
    wait_s: float

    def dataset(self) -> Dataset:
        """A pipeline of such elements, one at a time."""
        made = Dataset.range(1_000_000).map(functools.partial(_make, self.core_s, self.wait_s), num_parallel_calls=1)
        return made.with_options(buffer_bytes=BUFFER_BYTES)


WORKS = {
    "computes": Cost(0.0040, 0.0),
    "waits": Cost(0.0, 0.022),
    "does both": Cost(0.0020, 0.011),
}
POLICIES = {
    "millrace": ("millrace", 1),
    "Cachew": ("cachew", 1),
    "Cachew, its code": ("cachew-released", 1),
    "Kubernetes, from 1": ("hpa", 1),
    "Kubernetes, from 2": ("hpa", 2),
}


def _make(core_s: float, wait_s: float, number: int) -> Any:
    if wait_s:
        pause(wait_s)
    row = np.full(NBYTES // 8, number)
    until = time.thread_time() + core_s
    while time.thread_time() < until:
        np.sort(row)
    return row


@contextlib.contextmanager
def service(workers: str, first: int, *options: str) -> Iterator[tuple[str, Fleet]]:
    """A service whose workers are small hosts; yields its address, and the fleet."""
    name = f"millrace-fleet-{uuid.uuid4().hex[:8]}"
    fleet = fleet_of(name)
    command = [name, str(CORES), "dispatcher", "--port", "0", "--threads", "1", "--heartbeat", str(HEARTBEAT_S)]
    command += ["--buffer-bytes", str(BUFFER_BYTES), "--local-workers", workers, "--first-workers", str(first)]
    command += [*options, "--parent-pipe"]
    try:
        with dispatcher(command, "benchmarks.small_hosts") as address:
            yield address, fleet
    finally:
        fleet.close()


def measured(reading: Reading, fleet: Fleet) -> dict[str, float]:
    """Rate of the training from now on, and the processor time that its fleet takes for it."""
    began, used_s, count = time.perf_counter(), fleet.used_s(), 0
    while (seconds := time.perf_counter() - began) < MEASURE_S:
        reading.timed(25)
        count += 25
    return {"elements": count / seconds, "cores": (fleet.used_s() - used_s) / seconds}


@contextlib.contextmanager
def reading_with(work: Cost, workers: int, own_s: float = OWN_S) -> Iterator[tuple[Reading, Fleet]]:
    """A training on a fixed number of workers, which have been reading for a while."""
    with (
        service(f"{workers}-{workers}", workers) as (address, fleet),
        work.dataset().distribute(address, job_name="reads", tasks=400) as served,
    ):
        reading = Reading(address, "reads", iter(served), own_s)
        until = time.perf_counter() + 2.0
        while time.perf_counter() < until or job_of(address, "reads")["workers"]["observed"] < workers:
            reading.read(10)
        reading.empty()
        yield reading, fleet


def with_workers(work: Cost, workers: int) -> dict[str, float]:
    """The same of a fixed number of workers."""
    with reading_with(work, workers) as (reading, fleet):
        return measured(reading, fleet)


def scaled(work: Cost, policy: str, first: int) -> dict[str, Any]:
    """The same of a service that is left alone until it has settled."""
    with (
        service(f"1-{MOST}", first, "--scaling-policy", policy) as (address, fleet),
        work.dataset().distribute(address, job_name="reads", tasks=400) as served,
    ):
        reading = Reading(address, "reads", iter(served), OWN_S)
        began = changed = time.perf_counter()
        number, plan, used_s, host_s, before = 0, 0, fleet.used_s(), 0.0, began
        changes: list[dict[str, Any]] = []
        looks: list[dict[str, float]] = []
        while (now := time.perf_counter()) - began < LIMIT_S:
            each_s = reading.timed(LOOK)
            looks.append({"seconds": time.perf_counter() - began, "elements": 1 / each_s})
            workers = job_of(address, "reads")["workers"]
            host_s += workers["observed"] * (time.perf_counter() - before)
            before = time.perf_counter()
            if workers["plan"] != plan:
                plan = workers["plan"]
                changes.append({"seconds": now - began, "plan": plan, "workers": number, "why": workers["why"]})
            if workers["observed"] != number:
                number, changed = workers["observed"], now
            calm = now - changed >= QUIET_S if policy == "hpa" else workers.get("phase") == "settled"
            if calm and workers["plan"] == workers["observed"]:
                break
        found = {"settled_s": time.perf_counter() - began, "host_s": host_s, "core_s": fleet.used_s() - used_s}
        found |= measured(reading, fleet)
        workers = job_of(address, "reads")["workers"]
        return {"workers": workers["observed"], **found, "why": workers["why"], "changes": changes, "looks": looks}


def reached_s(looks: Sequence[dict[str, float]], rate: float) -> float | None:
    """Seconds until a training first read at a rate for two looks in a row, at the end of the first; None: never."""
    for first, second in itertools.pairwise(looks):
        if min(first["elements"], second["elements"]) >= rate:
            return first["seconds"]
    return None


def knee(rates: dict[int, float]) -> int:
    """The fewest workers with which the rate is near the best."""
    return min(workers for workers, rate in rates.items() if rate >= NEAR * max(rates.values()))


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """All figures, a table, and what was aimed at."""
    numbers = range(1, MOST + 1)
    found: dict[str, Any] = {}
    for name in options.works:
        work = WORKS[name]
        fixed = {workers: with_workers(work, workers) for workers in numbers}
        print(name, {workers: round(each["elements"], 1) for workers, each in fixed.items()}, flush=True)
        policies = {}
        for policy, (kind, first) in POLICIES.items():
            policies[policy] = scaled(work, kind, first)
            short = {key: each for key, each in policies[policy].items() if key not in ("changes", "looks")}
            print(f"  {policy}: {short}", flush=True)
        rates = {workers: each["elements"] for workers, each in fixed.items()}
        best = max(rates.values())
        for each in policies.values():
            each["reached_s"] = reached_s(each["looks"], REACHED * best)
        found[name] = {"fixed": fixed, "knee": knee(rates), "best": best, "policies": policies}
    return {
        "modelled": "the training (a wait), the store's answer (a wait), and hosts: quotas of one machine's cores",
        "hosts": fleet_how(),
        "works": found,
        "table": table(found),
        "aims": aims(found),
    }


def fleet_how() -> str:
    """How the processor time of hosts is bounded here."""
    fleet = fleet_of(f"millrace-fleet-{uuid.uuid4().hex[:8]}")
    fleet.close()
    return fleet.how


def table(found: dict[str, Any]) -> list[list[str]]:
    """For the page: what each policy settled on."""
    rows = [["an element", "knee", "policy", "workers", "of the best rate", "cores used"]]
    rows[0] += [f"seconds to {100 * REACHED:.0f} % of the best rate", "seconds to settle"]
    for name, work in found.items():
        for policy, each in work["policies"].items():
            share, cores = each["elements"] / work["best"], each["cores"]
            figures = [str(each["workers"]), f"{share:.2f}", f"{cores:.2f}"]
            reached = "never" if each["reached_s"] is None else f"{each['reached_s']:.0f}"
            figures += [reached, f"{each['settled_s']:.0f}"]
            rows.append([name, str(work["knee"]), policy, *figures])
    return rows


def aims(found: dict[str, Any]) -> list[dict[str, Any]]:
    """What millrace's own policy was to reach."""
    rows = []
    for name, work in found.items():
        ours = work["policies"]["millrace"]
        share, beyond = ours["elements"] / work["best"], ours["workers"] - work["knee"]
        rows += [
            {"aim": f"{name}: rate, of the best", "value": share, "asked": REACHED, "met": share >= REACHED},
            {"aim": f"{name}: workers beyond the knee", "value": beyond, "asked": 1, "met": beyond <= 1},
        ]
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.live_scaling", description=QUESTION)
    parser.add_argument("--works", nargs="+", choices=WORKS, default=list(WORKS), help="default: all")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
