"""The mode of a job's cache changes: is the new number of workers looked for from the old one on, or from one worker?

    python -m benchmarks.papers.mode_change [--json FILE]

Cachew goes back to one worker when a job's execution mode changes (4.3); millrace looks on from the number that the job
has. Both are played with millrace's own policy over random jobs in virtual time (modelled: no process runs). A job is
left alone until its number is settled; then reading from a cache, writing to it, or computing again makes an element
cheaper or dearer for its workers, and the next elements are counted: the time that they take, and what they cost with
the training host at the prices that the service assumes when it is told none.
"""

from __future__ import annotations

import math
import random
import statistics
import sys
from collections.abc import Mapping
from typing import Any

import msgspec

from benchmarks.papers.report import main
from millrace.policies.prices import USUAL
from millrace.policies.scaling import autoscale
from millrace.policies.scaling.autoscale import Scale, look_elements, pause_elements
from millrace.simulation.scaling import LIMITS
from millrace.simulation.scaling_workloads import Workload, workload

QUESTION = "Is it better to go on from the number of workers that a job has when the mode of its cache changes?"
CHANGES: dict[str, tuple[float, float]] = {
    "compute to put": (1.0, 1.5),
    "put to get": (0.02, 0.8),
    "get to compute": (1.25, 50.0),
}
"""By so much the work for an element becomes more, between these two."""
ELEMENTS = (2_000, 20_000)
"""That are read after the change: little more than it takes to settle, and an epoch."""
JOBS = 1_000
_LOOKS = 60
"""Before the change."""
_RATES = USUAL.rates(consumers=1, accelerators=1)
TRAINING = _RATES.training / _RATES.worker
"""Price of a second of the training host with one accelerator, in seconds of a worker."""
CHEAP_TRAINING = 10.0
"""The same where accelerators are cheap."""


class FullClusterRun(msgspec.Struct, frozen=True):
    """Seconds that the elements after a change took, and seconds of workers in them."""

    seconds: float
    worker_seconds: float

    def cost(self, training: float) -> float:
        """In seconds of a worker, where a second of the training host costs ``training`` of these."""
        return self.worker_seconds + training * self.seconds


def settled(job: Workload, rng: random.Random) -> int:
    """The number of workers of a job that was left alone."""
    scale = autoscale.begin(1, LIMITS).value
    for _ in range(_LOOKS):
        scale = autoscale.step(scale, job.look(scale.workers, rng), LIMITS).value
    return scale.workers


def after(job: Workload, first: int, elements: int, rng: random.Random) -> FullClusterRun:
    """The next elements of a job that begins with ``first`` workers."""
    scale: Scale = autoscale.begin(first, LIMITS).value
    seconds = worker_seconds = 0.0
    left = elements
    while left > 0:
        workers, batch_s = scale.workers, job.batch_s(scale.workers)
        waits = 1 - job.own_s / batch_s
        count = min(left, pause_elements(waits, batch_s) + look_elements(waits, batch_s))
        left -= count
        seconds += count * batch_s
        worker_seconds += count * batch_s * workers
        scale = autoscale.step(scale, job.look(workers, rng), LIMITS).value
    return FullClusterRun(seconds, worker_seconds)


def compare(seed: int, factors: tuple[float, float], elements: int) -> tuple[FullClusterRun, FullClusterRun]:
    """One job: from the number that it has on, and from one worker on."""
    rng = random.Random(seed)
    job = workload(rng)
    had = settled(job, rng)
    factor = math.exp(rng.uniform(*map(math.log, factors)))
    changed = msgspec.structs.replace(job, work_s=factor * job.work_s)
    return after(changed, had, elements, random.Random(seed)), after(changed, 1, elements, random.Random(seed))


def measure(jobs: int = JOBS) -> Mapping[str, Any]:
    """Plays and prints."""
    table = [
        [
            "change",
            "elements",
            "time from 1, of going on",
            "cost from 1, of going on",
            "the same, a training host at ten workers' price",
            "going on costs more in",
        ]
    ]
    rounds: dict[str, dict[str, float]] = {}
    for name, factors in CHANGES.items():
        for elements in ELEMENTS:
            played = [compare(seed, factors, elements) for seed in range(jobs)]
            time = _geometric([one.seconds / on.seconds for on, one in played])
            cost, cheap = (
                _geometric([one.cost(training) / on.cost(training) for on, one in played])
                for training in (TRAINING, CHEAP_TRAINING)
            )
            worse = sum(on.cost(TRAINING) > 1.01 * one.cost(TRAINING) for on, one in played) / jobs
            figures = {"time": time, "cost": cost, "cost, cheap accelerators": cheap, "worse": worse}
            rounds[f"{name}, {elements:,} elements"] = figures
            shown = [f"{each:.2f}" for each in (time, cost, cheap)]
            table.append([name, f"{elements:,}", *shown, f"{100 * worse:.0f} % of jobs"])
            print("  ".join(table[-1]), flush=True)
    rounds["the worst of these"] = {key: min(each[key] for each in rounds.values()) for key in ("time", "cost")}
    missed = [name for name, figures in rounds.items() if figures["time"] < 1 or figures["cost"] < 1]
    return {"rounds": [rounds], "table": table, "jobs": jobs, "missed": missed}


def _geometric(ratios: list[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


if __name__ == "__main__":
    if found := main("benchmarks.papers.mode_change", QUESTION, measure)["missed"]:
        sys.exit(f"going back to one worker was better after: {'; '.join(found)}")
