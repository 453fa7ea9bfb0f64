"""DELI's Figures 3 and 4: a plain torch loop from a bucket, and the same with a cache and prefetching in two lines.

    python -m benchmarks.papers.deli [--workloads NAME ...] [--samples N] [--trials N] [--cifar DIR] [--json FILE]

Three ranks, as DDP divides a data set (``DistributedSampler``, seeded anew each epoch), each with a cache of its own,
read objects of a real store through an emulated link of 200 Mbit/s. A step's computing is a wait that uses no core. Of
MNIST's size it takes 0.135 of what a plain fetch of its samples took in the same trial; of CIFAR-10 ten times that, as
the paper's two models are apart (14.7 and 147.2 s, V-B). Caches hold a tenth of a rank's samples where they are
limited, as 2,048 are of the paper's 20,000. Waiting is the time inside ``next()``, over two epochs; figures of a trial
are means over ranks.

What was aimed at, in each trial's median: loading down by what the paper found; waiting at most what the link makes
necessary (all ranks' bytes over its rate, less computing), one first fetch, and 2 % of the plain loop's waiting; epochs
at most 1.1 of a local disk's, and loading at most twice of it. It fails where one is missed.
"""

from __future__ import annotations

import argparse
import dataclasses
import io
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.far_store import FarStore, far_store
from benchmarks.machine import machine
from benchmarks.papers.deli_rank import Setting
from benchmarks.papers.report import verdict, write
from benchmarks.papers.side_by_side import run_side_by_side

QUESTION = "How long does a training wait for data that it reads straight from a bucket?"
RANKS = 3
EPOCHS = 2
BATCH = 20
BYTES_PER_S = 200e6 / 8
MNIST_BYTES = 784
COMPUTED = 0.135
"""Computing of MNIST's model, of a plain fetch."""
HEAVIER = 147.2 / 14.7
"""Computing of CIFAR-10's model, of MNIST's (V-B)."""
LIMITED = 0.1
THREADS = 16
"""Fetches at a time of a :class:`PrefetchSampler`."""
UNNECESSARY = 0.02
DISK_EPOCH, DISK_LOADING = 1.1, 2.0


@dataclasses.dataclass(frozen=True)
class Workload:
    """Objects and a model.

    Attributes:
        round_trip_s: of the link.
        pictures: whether objects are pictures, or MNIST's 784 bytes.
        heavier: computing of its model, of MNIST's.
        down: share of the plain loop's loading that the paper has saved.
        samples: of each rank, unless chosen: fewer where steps are longer.
    """

    round_trip_s: float
    pictures: bool
    heavier: float
    down: float
    samples: int


WORKLOADS = {
    "MNIST, 50 ms": Workload(0.050, pictures=False, heavier=1.0, down=0.856, samples=1000),
    "CIFAR-10, 5 ms": Workload(0.005, pictures=True, heavier=HEAVIER, down=0.935, samples=1000),
    "CIFAR-10, 50 ms": Workload(0.050, pictures=True, heavier=HEAVIER, down=0.935, samples=400),
}
WAYS: Mapping[str, Mapping[str, Any]] = {
    "bucket": {},
    "disk": {"local": True},
    "unlimited cache alone": {"cache": -1},
    "full fetch": {"cache": LIMITED, "fetch_size": LIMITED, "threshold": 0},
    "50/50": {"cache": LIMITED, "fetch_size": -1},
}
OURS = "50/50"
QUICK = ("bucket", "disk", OURS)


# -- objects -----------------------------------------------------------------------------------------------------------


def make_objects(folder: str, count: int, *, pictures: bool, cifar: str = "") -> int:
    """Writes objects, CIFAR-10's own if their folder is given; returns their bytes."""
    rng = np.random.default_rng(0)
    total = 0
    for number, data in zip(range(count), _contents(rng, pictures=pictures, cifar=cifar), strict=False):
        with open(os.path.join(folder, f"{number:06d}"), "wb") as file:
            total += file.write(data)
    return total


def _contents(rng: np.random.Generator, *, pictures: bool, cifar: str) -> Iterator[bytes]:
    if cifar:
        paths = sorted(os.path.join(place, name) for place, _, names in os.walk(cifar) for name in names)
        for index in rng.permutation(len(paths)):
            with open(paths[index], "rb") as file:
                yield file.read()
        return
    while True:
        if not pictures:
            yield rng.integers(0, 256, MNIST_BYTES, np.uint8).tobytes()
            continue
        from PIL import Image

        made = io.BytesIO()
        coarse = rng.integers(0, 256, (8, 8, 3), np.uint8)
        Image.fromarray(coarse).resize((32, 32)).save(made, "JPEG", quality=90)
        yield made.getvalue()


# -- ranks -------------------------------------------------------------------------------------------------------------


def run_ranks(store: FarStore, setting: Setting) -> dict[str, Any]:
    """Runs all ranks at once; what they found by epoch, and what the store was asked for."""
    told = (json.dumps(dataclasses.asdict(dataclasses.replace(setting, rank=rank))) for rank in range(setting.ranks))
    found = run_side_by_side(store, [[sys.executable, "-m", "benchmarks.papers.deli_rank", each] for each in told])
    share = setting.count // setting.ranks
    for epochs in found:
        if [epoch["samples"] for epoch in epochs] != [share] * setting.epochs:
            raise RuntimeError("an epoch of a rank has not all samples")
    epochs = [
        {name: statistics.mean(each[epoch][name] for each in found) for name in found[0][epoch]}
        for epoch in range(setting.epochs)
    ]
    return {"epochs": epochs, "requests": store.link.requests, "sent": store.link.sent}


def way_of(setting: Setting, way: Mapping[str, Any]) -> Setting:
    """The setting of a way; shares of a rank's samples become numbers."""
    share = setting.count // setting.ranks
    values: Any = {
        name: max(1, round(value * share)) if isinstance(value, float) else value for name, value in way.items()
    }
    return dataclasses.replace(setting, **values)


def run_trial(workload: Workload, trial: int, options: argparse.Namespace) -> dict[str, Any]:
    """All ways once, the plain bucket first, as it says how long computing takes."""
    with tempfile.TemporaryDirectory(prefix="millrace-deli-") as root:
        folder = os.path.join(root, "objects")
        os.mkdir(folder)
        share = options.samples or workload.samples
        count = share * options.ranks
        size = make_objects(folder, count, pictures=workload.pictures, cifar=options.cifar if workload.pictures else "")
        setting = Setting(folder, workload.pictures, count, 0, options.ranks, EPOCHS, BATCH, trial, 0.0)
        with far_store(folder, workload.round_trip_s, BYTES_PER_S) as store:
            probe = run_ranks(
                store, dataclasses.replace(setting, epochs=1, count=min(count, 10 * options.ranks * BATCH))
            )
            fetch_s = probe["epochs"][0]["waited"] / probe["epochs"][0]["samples"]
            setting = dataclasses.replace(setting, compute_s=COMPUTED * workload.heavier * fetch_s)
            found: dict[str, Any] = {}
            for name, way in options.ways.items():
                chosen = way_of(setting, way)
                result = run_ranks(store, chosen)
                epochs = result["epochs"]
                found[name] = {
                    "loading": statistics.mean(epoch["waited"] for epoch in epochs),
                    "epoch": statistics.mean(epoch["seconds"] for epoch in epochs),
                    "miss_rate": statistics.mean(epoch.get("miss_rate", 1.0) for epoch in epochs),
                    **result,
                }
                rate = "" if name in ("bucket", "disk") else f", {found[name]['miss_rate']:.0%} missed"
                print(
                    f"  {name:24} waited {found[name]['loading']:7.2f} s of {found[name]['epoch']:7.2f} s{rate}",
                    flush=True,
                )
            fetched = max(1, round(LIMITED * share / 2))
            link_s = size / BYTES_PER_S
            return {
                "server": store.server,
                "fetch_s": fetch_s,
                "compute_s": setting.compute_s * share,
                "bytes": size,
                "bound": max(0.0, link_s - setting.compute_s * share) + fetched * fetch_s / THREADS,
                "ways": found,
            }


# -- what came of it ---------------------------------------------------------------------------------------------------


def aims(name: str, trials: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it: medians over trials."""

    def median(value: Callable[[Any, Any], float]) -> float:
        return statistics.median(value(trial, trial["ways"]) for trial in trials)

    down = median(lambda trial, ways: 1 - ways[OURS]["loading"] / ways["bucket"]["loading"])
    above = median(
        lambda trial, ways: (ways[OURS]["loading"] - trial["bound"]) / ways["bucket"]["loading"],
    )
    epoch = median(lambda trial, ways: ways[OURS]["epoch"] / ways["disk"]["epoch"])
    loading = median(lambda trial, ways: ways[OURS]["loading"] / ways["disk"]["loading"])
    rows = (
        ("loading, less than the plain bucket's by", down, down >= WORKLOADS[name].down, f">= {WORKLOADS[name].down}"),
        ("waiting above the bound, of the plain bucket's", above, above <= UNNECESSARY, f"<= {UNNECESSARY}"),
        ("epoch, of a local disk's", epoch, epoch <= DISK_EPOCH, f"<= {DISK_EPOCH}"),
        ("loading, of a local disk's", loading, loading <= DISK_LOADING, f"<= {DISK_LOADING}"),
    )
    return [{"aim": f"{name}: {aim}", "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs and prints."""
    results: dict[str, list[dict[str, Any]]] = {}
    for name in options.workloads:
        for trial in range(options.trials):
            print(f"{name}, trial {trial + 1} of {options.trials}", flush=True)
            results.setdefault(name, []).append(run_trial(WORKLOADS[name], trial, options))
    met = [row for name, trials in results.items() for row in aims(name, trials)]
    heads = ["", *options.ways]
    table = [heads]
    for name, trials in results.items():
        ways = [statistics.median(trial["ways"][way]["loading"] for trial in trials) for way in options.ways]
        table.append([f"{name}: seconds of an epoch spent loading", *(f"{each:.2f}" for each in ways)])
        shares = [statistics.median(trial["ways"][way]["miss_rate"] for trial in trials) for way in options.ways]
        rates = [
            "" if way in ("bucket", "disk") else f"{each:.0%}" for way, each in zip(options.ways, shares, strict=True)
        ]
        table.append([f"{name}: reads that missed the cache", *rates])
    rounds = [
        {
            way: {f"{name}, loading": results[name][trial]["ways"][way]["loading"] for name in results}
            for way in options.ways
        }
        for trial in range(options.trials)
    ]
    modelled = "the link (a proxy), and computing (a wait)"
    return {"modelled": modelled, "rounds": rounds, "table": table, "aims": met, "results": results}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.deli", description=QUESTION)
    parser.add_argument("--workloads", nargs="+", choices=WORKLOADS, default=list(WORKLOADS), metavar="NAME")
    parser.add_argument(
        "--samples", type=int, default=0, help="of each rank (default 1000, and 400 of CIFAR-10 at 50 ms)"
    )
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--cifar", default="", metavar="DIR", help="CIFAR-10's pictures; else some are made")
    parser.add_argument("--ranks", type=int, default=RANKS)
    parser.add_argument("--quick", action="store_true", help="little of everything, for tests: nothing is aimed at")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    options.ways = {name: WAYS[name] for name in WAYS if not options.quick or name in QUICK}
    if options.quick:
        options.samples, options.trials, options.ranks = 2 * BATCH, 1, 1
    on = machine()
    found = measure(options)
    write(options.json, "benchmarks.papers.deli", QUESTION, arguments, on, found)
    missed = verdict(found["aims"])
    return 0 if options.quick else missed


if __name__ == "__main__":
    sys.exit(main())
