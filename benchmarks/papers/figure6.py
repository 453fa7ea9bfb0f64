"""Cachew's Figure 6: does the service find the knee of the curve of batch times over numbers of workers?

    python -m benchmarks.papers.figure6 [--json FILE]

Three modelled trainings with knees at about 4, 4 and 16 workers where all is computed, and at half as many where what
was read is kept. For each, the batch time is measured with numbers of workers that are fixed (the sweep, each number
after what lay ready has been read), and then a job begins with one worker and is left alone until the service has
settled. The knee is the least number of workers with which an element takes at most 3 % more than with the best. Other
policies on the same work, on hosts that compute, are in :mod:`benchmarks.papers.live_scaling`.
"""

from __future__ import annotations

import bisect
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from benchmarks.papers.report import main
from benchmarks.papers.scaled import Model, Reading, service

QUESTION = "Does the service find the least number of workers that feeds a training?"
MODELS = (
    Model("RetinaNet", 0.040, 0.075, 0.075),
    Model("ResNet50", 0.030, 0.055, 0.055),
    Model("SimCLR", 0.012, 0.090, 0.090),
)
SWEEP = {
    "RetinaNet": (1, 2, 3, 4, 5, 6, 8),
    "ResNet50": (1, 2, 3, 4, 5, 6, 8),
    "SimCLR": (1, 4, 8, 12, 14, 15, 16, 18, 22),
}
MOST = 24
SECONDS = 6.0
"""Of a measurement."""
KNEE = 1.03
LIMIT_S = 180.0


def sweep(address: str, model: Model, *, cached: bool) -> dict[int, float]:
    """Seconds of an element, by number of workers."""
    found = {}
    for workers in sorted({max(1, number // 2) if cached else number for number in SWEEP[model.name]}):
        name = f"{model.name} {cached} {workers}"
        with _dataset(model, cached).distribute(address, job_name=name, workers=workers, tasks=_TASKS) as served:
            reading = Reading(address, name, iter(served), model.own_s)
            while not reading.timeline or reading.timeline[-1]["workers"] != workers:
                reading.read(5)
            reading.empty()
            expected = max(model.own_s, (model.work_s + (0 if cached else model.read_s)) / workers)
            found[workers] = reading.read(max(20, round(SECONDS / expected)))
    return found


_TASKS = 2000
_ELEMENTS = 40_000
_FEW = 2_000


def _dataset(model: Model, cached: bool) -> Any:
    return model.dataset(cached=cached, elements=_FEW if cached else _ELEMENTS)


def knee(curve: Mapping[int, float]) -> int:
    """The least number with which an element takes at most 3 % more than with the best."""
    best = min(curve.values())
    return min(workers for workers, batch_s in curve.items() if batch_s <= KNEE * best)


def _between(curve: Mapping[int, float], workers: int) -> float:
    """Seconds of an element with any number of workers, along straight lines in 1 / workers."""
    numbers = sorted(curve)
    after = bisect.bisect_left(numbers, workers)
    if after == len(numbers):
        return curve[numbers[-1]]
    if numbers[after] == workers or after == 0:
        return curve[numbers[after]]
    low, high = numbers[after - 1], numbers[after]
    share = (1 / low - 1 / workers) / (1 / low - 1 / high)
    return curve[low] + share * (curve[high] - curve[low])


def chosen(address: str, model: Model, *, cached: bool) -> dict[str, Any]:
    """A job that is left alone, until the service has settled on a number of workers; and how fast it is then."""
    name = f"{model.name} {cached} auto"
    with _dataset(model, cached).distribute(address, job_name=name, tasks=_TASKS) as served:
        began = time.perf_counter()
        reading = Reading(address, name, iter(served), model.own_s)
        workers = reading.settle(LIMIT_S)
        seconds = time.perf_counter() - began
        batch_s = reading.read(round(SECONDS / model.own_s))
    numbers = [each["plan"] for each in reading.timeline]
    steps = [number for place, number in enumerate(numbers) if place == 0 or number != numbers[place - 1]]
    return {"workers": workers, "seconds": seconds, "batch_s": batch_s, "steps": steps, "timeline": reading.timeline}


def _kept(address: str, model: Model) -> None:
    """An epoch that keeps what it reads."""
    with _dataset(model, True).distribute(address, job_name="keeps", workers=MOST, tasks=_TASKS) as served:
        for _ in served:
            pass


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-figure6-") as folder:
        for cached in (False, True):
            for model in MODELS:
                options = ("--cache-dir", f"{folder}/{model.name}", "--cache-bytes", "1GB") if cached else ()
                with service(f"1-{MOST}", *options) as address:
                    if cached:
                        _kept(address, model)
                    curve = sweep(address, model, cached=cached)
                    ours = chosen(address, model, cached=cached)
                found = {"sweep": curve, "knee": knee(curve), "chosen": ours}
                slower = max(ours["batch_s"], _between(curve, ours["workers"]))  # it may still have lived on its stock
                found["of the best"] = slower / min(curve.values())
                results[f"{model.name}, {'source cache' if cached else 'compute'}"] = found
                print(
                    f"{model.name:10} {'source cache' if cached else 'compute':13} knee {found['knee']:2}, chosen "
                    f"{ours['workers']:2} by {ours['steps']} in {ours['seconds']:.0f} s, {found['of the best']:.3f} of "
                    "the best",
                    flush=True,
                )
    off = max(abs(each["chosen"]["workers"] - each["knee"]) for each in results.values())
    slow = max(each["of the best"] for each in results.values())
    return {"rounds": [{"service": {"off": off, "of the best": slow}}], "table": _table(results), "results": results}


def _table(results: Mapping[str, Any]) -> list[list[str]]:
    """For the page of figures."""
    rows = [["training, mode", "knee", "chosen", "numbers tried", "seconds", "batch time, of the best"]]
    for name, each in results.items():
        ours = each["chosen"]
        tried = ", ".join(map(str, ours["steps"]))
        rows.append(
            [
                name,
                str(each["knee"]),
                str(ours["workers"]),
                tried,
                f"{ours['seconds']:.0f}",
                f"{each['of the best']:.3f}",
            ]
        )
    return rows


if __name__ == "__main__":
    main("benchmarks.papers.figure6", QUESTION, measure)
