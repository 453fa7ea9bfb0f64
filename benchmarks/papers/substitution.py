"""Quiver's substitutable hits (section 4.6): jobs of one host that share a cache of a tenth of their data.

    python -m benchmarks.papers.substitution [--samples N] [--jobs N] [--epochs N] [--trials N] [--json FILE]

Jobs are plain torch loops in processes of their own, each with its own permutation of the same objects in each epoch.
They read from a real store through an emulated link, with a ``CachedDataset`` in one folder and a ``PrefetchSampler``
each, in the order of their own sampler or with ``look_ahead``. A job alone does the same. A step's computing is a wait
that uses no core: the link has what one job computes in two thirds of the time, and not what several do. Bytes are
those that the store has sent.

What was aimed at, in medians over trials: that of several jobs the store sends each at most 0.4 of its data in an
epoch, which takes two thirds of the time of their own order at most, and that a tenth of their reads misses the cache
at most; that a job alone has it send no more than in its own order, and takes a tenth longer at most. It fails where
one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from torch.utils.data import DataLoader, DistributedSampler

from benchmarks.far_store import FarStore, far_store
from benchmarks.machine import machine
from benchmarks.papers.deli_rank import Objects, Setting
from benchmarks.papers.report import verdict, write
from benchmarks.papers.side_by_side import run_side_by_side
from benchmarks.papers.throttled import pause
from millrace.frameworks.torch import CachedDataset, PrefetchSampler, SampleCache

QUESTION = "What does a store send where jobs share a cache of a tenth of their data, and cached samples come first?"
SHARE = 0.1
"""Of the data that the cache can hold."""
LOOK_AHEAD = 10
BATCH = 32
OBJECT_BYTES = 16 << 10
ROUND_TRIP_S = 0.020
BYTES_PER_S = 100e6 / 8
COMPUTE_S = 0.002
"""Seconds of a sample's computing."""
WAYS: Mapping[str, int | None] = {"own order": None, "look_ahead=10": LOOK_AHEAD}
MOST_SENT, MOST_TIME, MOST_MISSED, ALONE_SENT, ALONE_TIME = 0.4, 2 / 3, 0.1, 1.0, 1.1


@dataclasses.dataclass(frozen=True)
class Job:
    """One job.

    Attributes:
        folder: of the cache.
        count: objects, all of which it reads in each epoch.
        room: of them that the cache can hold.
        seed: of its permutations.
        look_ahead: of its :class:`PrefetchSampler`; None: its order is kept.
    """

    folder: str
    count: int
    room: int
    seed: int
    epochs: int
    look_ahead: int | None


def run_job(job: Job) -> None:
    """Reads all epochs once a line comes, and prints what it found."""
    setting = Setting("", pictures=False, count=job.count, rank=0, ranks=1, epochs=1, batch=BATCH, seed=0, compute_s=0)
    cache = SampleCache(max_samples=job.room, folder=job.folder, keep=True)
    cached = CachedDataset(Objects(setting), cache, name="objects")
    shuffled: Any = DistributedSampler(cached, 1, 0, seed=job.seed)
    sampler = PrefetchSampler(shuffled, cached, look_ahead=job.look_ahead)
    print("ready", flush=True)
    sys.stdin.readline()
    seconds = []
    for epoch in range(job.epochs):
        sampler.set_epoch(epoch)
        began = time.perf_counter()
        seen = np.zeros(job.count, int)
        indices = iter(sampler)
        loader = DataLoader(cached, batch_size=BATCH, sampler=_Noted(indices, seen))
        samples = 0
        for batch in loader:
            samples += len(batch)
            pause(COMPUTE_S * len(batch))
        if samples != job.count or (seen != 1).any():
            raise RuntimeError("an epoch has not each sample once")
        seconds.append(time.perf_counter() - began)
    counts = cached.stats()
    sampler.close()
    print(json.dumps({"seconds": seconds, "miss_rate": counts.miss_rate, "fetched": counts.fetched}), flush=True)


class _Noted:
    """Indices, of which each is counted."""

    def __init__(self, indices: Any, seen: Any) -> None:
        self._indices, self._seen = indices, seen

    def __iter__(self) -> Any:
        for index in self._indices:
            self._seen[index] += 1
            yield index


def run_jobs(store: FarStore, count: int, jobs: int, epochs: int, look_ahead: int | None, trial: int) -> dict[str, Any]:
    """Runs jobs side by side; seconds of an epoch, and for each job and epoch what the store has sent."""
    kept = max(1, round(SHARE * count))
    with tempfile.TemporaryDirectory(prefix="millrace-substitution-") as folder:
        told = (Job(folder, count, kept, 1000 * trial + number, epochs, look_ahead) for number in range(jobs))
        command = [sys.executable, "-m", "benchmarks.papers.substitution", "--job"]
        answers = run_side_by_side(store, [[*command, json.dumps(vars(job))] for job in told])
    parts = jobs * epochs
    return {
        "seconds": statistics.mean(second for answer in answers for second in answer["seconds"]),
        "sent": store.link.sent / parts / (count * OBJECT_BYTES),
        "requests": store.link.requests / parts / count,
        "miss_rate": answers[-1]["miss_rate"],  # of all jobs, or nearly so: they share the counters
    }


def run_trial(options: argparse.Namespace, trial: int) -> dict[str, Any]:
    """All ways once."""
    with tempfile.TemporaryDirectory(prefix="millrace-substitution-") as root:
        folder = os.path.join(root, "objects")
        os.mkdir(folder)
        rng = np.random.default_rng(0)
        for number in range(options.samples):
            with open(os.path.join(folder, f"{number:06d}"), "wb") as file:
                file.write(rng.bytes(OBJECT_BYTES))
        found: dict[str, Any] = {}
        with far_store(folder, ROUND_TRIP_S, BYTES_PER_S) as store:
            for jobs in (1, options.jobs):
                for name, look_ahead in WAYS.items():
                    way = f"{jobs} x {name}"
                    found[way] = run_jobs(store, options.samples, jobs, options.epochs, look_ahead, trial)
                    print(
                        f"  {way:20} {found[way]['seconds']:6.2f} s an epoch, {found[way]['sent']:.3f} of the data "
                        f"sent for each, {found[way]['miss_rate']:.1%} of reads missed",
                        flush=True,
                    )
        return found


def aims(jobs: int, trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it: medians over trials."""
    own, ours = WAYS

    def median(way: str, name: str) -> float:
        return float(statistics.median(trial[way][name] for trial in trials))

    def against(count: int, name: str) -> float:
        ratios = (trial[f"{count} x {ours}"][name] / trial[f"{count} x {own}"][name] for trial in trials)
        return float(statistics.median(ratios))

    rows = (
        (f"{jobs} jobs: sent for each, of its data", median(f"{jobs} x {ours}", "sent"), MOST_SENT),
        (f"{jobs} jobs: an epoch, of one in own order", against(jobs, "seconds"), MOST_TIME),
        (f"{jobs} jobs: reads that missed", median(f"{jobs} x {ours}", "miss_rate"), MOST_MISSED),
        ("a job alone: sent, of own order", against(1, "sent"), ALONE_SENT),
        ("a job alone: an epoch, of one in own order", against(1, "seconds"), ALONE_TIME),
    )
    return [
        {"aim": aim, "value": value, "asked": f"<= {most:.2f}", "met": bool(value <= most)} for aim, value, most in rows
    ]


def table(trials: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """A row for each way, medians over trials."""
    header = ["jobs x order", "seconds of an epoch", "bytes sent for each job, of its data", "reads that missed"]
    rows = []
    for way in trials[0]:
        seconds, sent, missed = (
            statistics.median(trial[way][name] for trial in trials) for name in ("seconds", "sent", "miss_rate")
        )
        rows.append([way, f"{seconds:.1f}", f"{sent:.2f}", f"{missed:.1%}"])
    return [header, *rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.substitution", description=QUESTION)
    parser.add_argument("--samples", type=int, default=4000, help="objects of 16 KiB")
    parser.add_argument("--jobs", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="little of everything, for tests: nothing is aimed at")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.job:
        run_job(Job(**json.loads(options.job)))
        return 0
    if options.quick:
        options.samples, options.jobs, options.epochs, options.trials = 3 * BATCH, 2, 1, 1
    on, trials = machine(), []
    for trial in range(options.trials):
        print(f"trial {trial + 1} of {options.trials}", flush=True)
        trials.append(run_trial(options, trial))
    met = aims(options.jobs, trials)
    found = {"modelled": "the link (a proxy), and computing (a wait)", "results": trials}
    found |= {"aims": met, "table": table(trials)}
    write(options.json, "benchmarks.papers.substitution", QUESTION, arguments, on, found)
    missed = verdict(met)
    return 0 if options.quick else missed


if __name__ == "__main__":
    sys.exit(main())
