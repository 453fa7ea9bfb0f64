"""Cachew's Figures 9 to 11 with scaling: workers, mode of the cache and batch time over time, of two jobs that share.

    python -m benchmarks.papers.timelines [--json FILE]

A training begins with one worker, on a service with a cache. The service measures (profile), keeps what pays for itself
(put), reads it (get), and looks for the number of workers in each of these modes. A second job with the same pipeline
begins when the first has kept all, and reads from its first epoch on. Beside it stand the worker hours and the time
that the same two jobs take without a cache, with as many workers as Kubernetes' autoscaler at 80 % would settle on if
all that the functions wait for were work.
"""

from __future__ import annotations

import math
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.papers.report import main
from benchmarks.papers.scaled import Model, Reading, job_of, service
from millrace.policies.scaling.hpa import TARGET

QUESTION = "Do scaling and caching find together what a training needs?"
MODEL = Model("ResNet50", 0.012, 0.048, 0.048)
ELEMENTS = 1500
EPOCHS = 4
MOST = 24
ACCELERATOR = 10.0
"""Price of a second of the consumer's accelerator, in seconds of a worker."""


def training(address: str, name: str, *, cached: bool, workers: Any) -> dict[str, Any]:
    """A job's epochs, with what was seen on the way."""
    read = MODEL.dataset(elements=ELEMENTS)
    dataset = read.autocache() if cached else read
    timeline: list[dict[str, Any]] = []
    began = time.perf_counter()
    with dataset.distribute(address, job_name=name, workers=workers, tasks=100) as served:
        for epoch in range(EPOCHS):
            reading = Reading(address, name, iter(served), MODEL.own_s)
            for _ in range(ELEMENTS // 50):
                reading.read(50)
                mode = job_of(address, name)["mode"]
                at = time.perf_counter() - began
                timeline.append({**reading.timeline[-1], "seconds": at, "mode": mode, "epoch": epoch})
        seconds = time.perf_counter() - began
        hours = sum(each["worker_hours"] for each in job_of(address, name)["spent"])
    return {"seconds": seconds, "worker_s": 3600 * hours, "timeline": timeline}


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    results: dict[str, Any] = {}
    with (
        tempfile.TemporaryDirectory(prefix="millrace-timelines-") as folder,
        service(f"1-{MOST}", "--cache-dir", folder, "--cache-bytes", "1GB") as address,
    ):
        results["first"] = training(address, "first", cached=True, workers="auto")
        results["second"] = training(address, "second", cached=True, workers="auto")
    pods = math.ceil((MODEL.read_s + MODEL.work_s) / MODEL.own_s / TARGET)
    with service(f"1-{MOST}") as address:
        results["HPA"] = training(address, "pods", cached=False, workers=pods)
    for each in results.values():
        each["cost"] = ACCELERATOR * each["seconds"] + each["worker_s"]
    rows = [["job", "seconds", "worker seconds", "cost", "modes", "workers, in turn"]]
    for name, each in results.items():
        modes = _changes([row["mode"] for row in each["timeline"]])
        counts = _changes([str(row["workers"]) for row in each["timeline"]])
        sums = [f"{each[what]:.0f}" for what in ("seconds", "worker_s", "cost")]
        rows.append([name, *sums, ", ".join(modes), ", ".join(counts)])
        print("  ".join(rows[-1]), flush=True)
    cost = (results["first"]["cost"] + results["second"]["cost"]) / (2 * results["HPA"]["cost"])
    worker_s = (results["first"]["worker_s"] + results["second"]["worker_s"]) / (2 * results["HPA"]["worker_s"])
    seconds = (results["first"]["seconds"] + results["second"]["seconds"]) / (2 * results["HPA"]["seconds"])
    figures = {"cost": cost, "worker seconds": worker_s, "seconds": seconds}
    return {"rounds": [{"service": figures}], "table": rows, "results": results}


def _changes(words: list[str]) -> list[str]:
    return [word for place, word in enumerate(words) if place == 0 or word != words[place - 1]]


if __name__ == "__main__":
    main("benchmarks.papers.timelines", QUESTION, measure)
