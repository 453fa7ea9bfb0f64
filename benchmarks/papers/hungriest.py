"""Quiver's Figure 6 by the clock: three trainings of different hunger, each on data of its own, share a source cache.

    python -m benchmarks.papers.hungriest [--objects N] [--seconds N] [--json FILE]

Each training takes objects of a bucket as fast as its steps allow, epoch after epoch, for a given time: one more than
the link carries, one less than half of that, and one next to nothing. Data sets are equally large. With a source cache
that holds nothing, 13, 45 and 90 % of all three together, and all of them. Nobody is told who gains: the service
measures it (`control/caching/source_probes.py`), and gives room. Speeds are those of the last part of the time, when
that is done.

The best placement is that of a fluid model: each subset of data sets that fits is tried, with the speed of each
training that was measured when all is cached, and the link's. How much faster all are than without a cache, on average,
is compared with it.

It fails where that is less than 0.9 of the best, where the hungriest has no room though a data set fits, or where a
training does not get each object once an epoch.
"""

from __future__ import annotations

import argparse
import itertools
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np

import millrace as mr
from benchmarks.far_store import BUCKET, FarStore, far_store
from benchmarks.papers.fluid_cache import Training, speeds
from benchmarks.papers.one_link import LINK_BYTES_S, ROUND_TRIP_S, await_cache, make_objects
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.small_cache import object_of
from millrace.policies.caching.kept_chunks import FILLED

QUESTION = "Who gets room in a source cache that three trainings share, and what do they gain by it?"
RATES = {"hungry": 1000.0, "moderate": 80.0, "sated": 20.0}
"""Objects a second that a training's steps take, one after the other: what it waits is lost to it."""
SHARES = {"nothing": 0.0, "13%": 0.13, "45%": 0.45, "90%": 0.9, "all": 1.3}
"""Share of the data of all three that the cache may hold."""
OBJECT_BYTES = 100_000
BATCH = 4
BUFFER_BYTES = 4 << 20
SETTLED = 0.6
"""Share of the time after which speeds count."""
LEAST = 0.9


def train(service: mr.LocalService, name: str, case: str, count: int, seconds: float) -> dict[str, float]:
    """Reads as a training does, for so many seconds; returns its speed in the last part of them.

    Raises:
        RuntimeError: it did not get each object once an epoch.
    """
    dataset = mr.Dataset.from_files(f"s3://{BUCKET}/{name}/*.bin").map(object_of).shuffle(count).batch(BATCH)
    dataset = dataset.with_options(buffer_bytes=2 * BUFFER_BYTES)
    began, epochs, rate = time.perf_counter(), 0, RATES[name]
    came: list[tuple[float, int]] = []
    with dataset.distribute(service.address, job_name=f"{name}-{case}", progress=False) as batches:
        while time.perf_counter() - began < seconds:
            sizes = list[Any]()
            for batch in batches:
                threading.Event().wait(len(batch["size"]) / rate)
                sizes.append(batch["size"].copy())
                came.append((time.perf_counter() - began, len(batch["size"])))
                if came[-1][0] > seconds:
                    break
            read = np.sort(np.concatenate(sizes))
            whole = np.arange(OBJECT_BYTES, OBJECT_BYTES + count)
            if len(read) == count and not np.array_equal(read, whole):
                raise RuntimeError(f"{name} got other objects than there are")
            if len(np.unique(read)) < len(read):
                raise RuntimeError(f"{name} got an object twice in an epoch")
            epochs += len(read) == count
    counted = sum(each for at, each in came if SETTLED * seconds <= at <= seconds)
    return {"objects_s": counted / ((1 - SETTLED) * seconds), "epochs": epochs}


def rooms_of(service: mr.LocalService) -> dict[str, Any]:
    """Room of each training's data, what was measured of it, and why, as the status says."""
    return {
        job.partition("-")[0]: {"room": each["room"], "why": each["why"], **times}
        for each in service.status()["source_cache"]["rooms"]
        for job, times in each["jobs"].items()
    }


def run(store: FarStore, folder: str, case: str, count: int, seconds: float) -> dict[str, Any]:
    """Measures one case."""
    size = len(RATES) * (count * OBJECT_BYTES + count * (count - 1) // 2)
    share = SHARES[case]
    cache: dict[str, Any] = {"source_cache": folder, "source_cache_bytes": int(share * size)} if share else {}
    with mr.LocalService(len(RATES), len(RATES), threads=1, buffer_bytes=BUFFER_BYTES, **cache) as service:
        if share:
            await_cache(service)
        store.link.reset()
        with ThreadPoolExecutor(len(RATES)) as pool:
            running = {name: pool.submit(train, service, name, case.strip("%"), count, seconds) for name in RATES}
            threading.Event().wait(SETTLED * seconds)
            rooms = rooms_of(service)
            found = {name: each.result() for name, each in running.items()}
        return {"trainings": found, "rooms": rooms, "sent": store.link.sent, "cache_bytes": int(share * size)}


def best(found: Mapping[str, Any], case: str, size: int) -> float:
    """Mean speed over that without a cache of the best placement that fits, in the fluid model."""
    trainings = [
        Training(name, name, OBJECT_BYTES, 1 / each["objects_s"], 1) for name, each in found["all"]["trainings"].items()
    ]
    without = speeds(trainings, LINK_BYTES_S)
    room = found[case]["cache_bytes"] * FILLED
    placed = [
        statistics.fmean(with_cache[name] / without[name] for name in RATES)
        for number in range(len(RATES) + 1)
        for kept in itertools.combinations(RATES, number)
        if len(kept) * size <= room
        for with_cache in [speeds(trainings, LINK_BYTES_S, hits=dict.fromkeys(kept, 1.0))]
    ]
    return max(placed, default=1.0)


def faster(found: Mapping[str, Any], case: str) -> float:
    """Mean speed of the trainings over that without a cache."""
    bare = found["nothing"]["trainings"]
    return statistics.fmean(found[case]["trainings"][name]["objects_s"] / bare[name]["objects_s"] for name in RATES)


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs it as the options say."""
    count, found = options.objects, dict[str, Any]()
    size = count * OBJECT_BYTES + count * (count - 1) // 2
    with tempfile.TemporaryDirectory(prefix="millrace-hungry-") as root:
        for name in RATES:
            make_objects(os.path.join(root, "store", name), count, OBJECT_BYTES)
        with (
            far_store(os.path.join(root, "store"), ROUND_TRIP_S, LINK_BYTES_S) as store,
            mock.patch.dict(os.environ, store.far),
        ):
            for case in SHARES:
                found[case] = run(store, os.path.join(root, f"cache{len(found)}"), case, count, options.seconds)
                print(
                    case,
                    {name: round(each["objects_s"]) for name, each in found[case]["trainings"].items()},
                    flush=True,
                )
            server = store.server
    table = [
        ["cache", *(f"{name}: room" for name in RATES), *(f"{name}, objects/s" for name in RATES), "faster", "best"]
    ]
    for case, each in found.items():
        given = [each["rooms"].get(name, {}).get("room", "-") for name in RATES]
        rates = [f"{each['trainings'][name]['objects_s']:.0f}" for name in RATES]
        table.append([case, *given, *rates, f"{faster(found, case):.2f}", f"{best(found, case, size):.2f}"])
        print("  ".join(table[-1]), flush=True)
    return {
        "modelled": f"the link: {ROUND_TRIP_S * 1000:.0f} ms, {LINK_BYTES_S * 8 / 1e6:.0f} Mbit/s, by a proxy; steps of"
        f" trainings: {', '.join(f'{rate:g}' for rate in RATES.values())} objects a second at most; the best placement",
        "server": server,
        "objects": count,
        "seconds": options.seconds,
        "results": found,
        "table": table,
        "aims": aims(found, size),
    }


def aims(found: Mapping[str, Any], size: int) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    rows = list[tuple[str, float, bool, float]]()
    for case in [case for case in SHARES if case not in {"nothing", "all"}]:
        share = faster(found, case) / best(found, case, size)
        rows.append((f"{case}: mean speed, of the best placement's", share, share >= LEAST, LEAST))
        rooms = {name: each["room"] for name, each in found[case]["rooms"].items()}
        if found[case]["cache_bytes"] * FILLED >= size:
            has = rooms.get("hungry") == "full"
            rows.append((f"{case}: the hungriest has room", float(has), has, 1.0))
    return [{"aim": aim, "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.hungriest", description=QUESTION)
    parser.add_argument("--objects", type=int, default=600, help="of each data set")
    parser.add_argument("--seconds", type=float, default=120.0, help="of each case")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
