"""Cachew's Figures 9 to 11 on hosts that compute: workers, mode of the cache and batch time of two jobs that share.

    python -m benchmarks.papers.timelines [--json FILE]

Pictures lie in an object store behind a link. Their pipeline reads, decodes and shrinks them, and says ``autocache``
behind each of both; what is kept lies on the local disk. A service of up to eight small hosts, each a worker with a
quota of a fifth of a core (:mod:`benchmarks.small_hosts`), begins with one, measures what a cache would gain (profile),
keeps what pays for itself (put), reads it (get), and looks for the number of workers in each of these modes. When the
first training has ended, a second one with the same pipeline takes twice as many pictures a second. Beside it the same
two trainings without a cache, on a service that is scaled by the rule of Kubernetes' autoscaler (80 % of the processor
time that a host may use, as measured), and with the cache, by Cachew's rule.

It fails where both trainings together cost more with millrace than with Kubernetes' rule, and where the second one
decodes or takes longer than its steps by more than a quarter.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.far_store import BUCKET, far_store
from benchmarks.papers.live_scaling import MOST, service
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.scaled import Reading, job_of
from millrace import Dataset

QUESTION = "Do scaling and caching find together what a training needs?"
PICTURES, SIDE, SHRUNK = 1500, 256, 32
ROUND_TRIP_S, BYTES_PER_S = 0.005, 25e6
EPOCHS = 6
PACES_S = {"first": 0.006, "second": 0.003}
"""Seconds of a picture that each training takes."""
WAYS = {"millrace": ("millrace", True), "Cachew's rule": ("cachew", True), "Kubernetes' rule": ("hpa", False)}
"""By name: the policy that scales, and whether there is a cache."""
ACCELERATOR = 10.0
"""Price of a second of the training's accelerator, in seconds of a worker."""
LOOK = 150
"""Pictures between two looks."""


def write_pictures(folder: str, count: int) -> None:
    """JPEG files of coloured clouds, of which the colours change slowly from one pixel to the next."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(count):
        clouds = Image.fromarray(rng.integers(0, 256, (16, 16, 3), np.uint8)).resize(
            (SIDE, SIDE), Image.Resampling.BICUBIC
        )
        clouds.save(os.path.join(folder, f"{number:05d}.jpg"), quality=90)


def shrink(log: str, file: Any) -> Any:
    """Decode a picture, make it smaller, and leave a byte in a file."""
    from PIL import Image

    picture = Image.open(io.BytesIO(file["bytes"])).convert("RGB")
    with open(log, "ab") as decoded:
        decoded.write(b".")
    return np.asarray(picture.resize((SHRUNK, SHRUNK), Image.Resampling.BICUBIC))


def pipeline(log: str, *, cached: bool) -> Dataset:
    """What both trainings read."""
    files, made = Dataset.from_files(f"s3://{BUCKET}/*.jpg"), functools.partial(shrink, log)
    return files.autocache().map(made).autocache() if cached else files.map(made)


def training(address: str, name: str, log: str, *, cached: bool) -> dict[str, Any]:
    """A training's epochs, with what was seen on the way."""
    timeline: list[dict[str, Any]] = []
    before = os.path.getsize(log)
    began = time.perf_counter()
    with pipeline(log, cached=cached).distribute(address, job_name=name, tasks=60) as served:
        for epoch in range(EPOCHS):
            reading = Reading(address, name, iter(served), PACES_S[name])
            for _ in range(PICTURES // LOOK):
                reading.read(LOOK)
                timeline.append({**reading.timeline[-1], "seconds": time.perf_counter() - began, "epoch": epoch})
        seconds = time.perf_counter() - began
        worker_s = 3600 * sum(each["worker_hours"] for each in job_of(address, name)["spent"])
    return {
        "seconds": seconds,
        "worker_s": worker_s,
        "cost": ACCELERATOR * seconds + worker_s,
        "decoded": os.path.getsize(log) - before,
        "timeline": timeline,
    }


@contextlib.contextmanager
def store() -> Iterator[None]:
    """A store of the pictures, which this process and those that it starts know."""
    with tempfile.TemporaryDirectory(prefix="millrace-timelines-") as root:
        folder = os.path.join(root, "pictures")
        os.makedirs(folder)
        write_pictures(folder, PICTURES)
        with far_store(folder, ROUND_TRIP_S, BYTES_PER_S) as far, mock.patch.dict(os.environ, far.far):
            yield


def run(policy: str, *, cached: bool) -> dict[str, Any]:
    """Both trainings, one after the other, on a service of their own."""
    with tempfile.TemporaryDirectory(prefix="millrace-timelines-") as folder:
        log = os.path.join(folder, "decoded")
        Path(log).touch()
        options = ["--cache-dir", os.path.join(folder, "cache"), "--cache-bytes", "1GB"] if cached else []
        with service(f"1-{MOST}", 1, "--scaling-policy", policy, *options) as (address, fleet):
            found: dict[str, Any] = {name: training(address, name, log, cached=cached) for name in PACES_S}
            return {**found, "core_s": fleet.used_s()}


def measure(_options: argparse.Namespace) -> Mapping[str, Any]:
    """All figures, a table, and what was aimed at."""
    results: dict[str, dict[str, Any]] = {}
    with store():
        for way, (policy, cached) in WAYS.items():
            results[way] = run(policy, cached=cached)
            for row in table({way: results[way]})[1:]:
                print("  ".join(row), flush=True)
    return {
        "modelled": "the training (a wait), the link (a proxy), and hosts: quotas of one machine's cores",
        "table": table(results),
        "results": results,
        "aims": aims(results),
    }


def table(results: Mapping[str, Mapping[str, Any]]) -> list[list[str]]:
    """For the page."""
    rows = [["scaled by", "training", "seconds", "worker seconds", "cost", "decoded", "modes", "workers, in turn"]]
    for way, found in results.items():
        for name in PACES_S:
            each = found[name]
            modes = _changes([row["mode"] for row in each["timeline"]])
            counts = _changes([str(row["workers"]) for row in each["timeline"]])
            sums = [f"{each[what]:.0f}" for what in ("seconds", "worker_s", "cost", "decoded")]
            rows.append([way, name, *sums, ", ".join(modes), ", ".join(counts)])
    return rows


def aims(results: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Cost beside Kubernetes' rule, what the second training decodes, and how soon it is over."""
    costs = {way: sum(found[name]["cost"] for name in PACES_S) for way, found in results.items()}
    cost = costs["millrace"] / costs["Kubernetes' rule"]
    second = results["millrace"]["second"]
    slower = second["seconds"] / (EPOCHS * PICTURES * PACES_S["second"])
    return [
        {"aim": "cost of both, of that with Kubernetes' rule", "value": cost, "asked": "<= 1", "met": cost <= 1},
        {"aim": "pictures that the second training has decoded", "value": second["decoded"], "asked": "0"}
        | {"met": second["decoded"] == 0},
        {"aim": "time of the second training, of its steps alone", "value": slower, "asked": "<= 1.25"}
        | {"met": slower <= 1.25},
    ]


def _changes(words: Sequence[str]) -> list[str]:
    return [word for place, word in enumerate(words) if place == 0 or word != words[place - 1]]


def main(arguments: Sequence[str] | None = None) -> int:
    """The command; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.timelines", description=QUESTION)
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
