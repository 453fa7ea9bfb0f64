"""Quiver's Figure 7: several jobs share a source cache of a tenth of their data, read in chunks.

    python -m benchmarks.papers.small_cache [--objects N] [--rate N] [--json FILE]

Four jobs begin together, each in an order of its own, and three more when these are in the midst of their first epoch.
Each takes so many objects a second at most (a training's steps), all equally many, or one half of them half as many.
With a source cache that holds everything (and does, from a run before), with one of a tenth of the data, and where
speeds are equal also without one. Nothing is decoded: elements are the objects' bytes, of which each worker may have
4 MiB ready, and each training 8 MiB, as they could else be as far ahead as these small data are long. The store is
real, and the link to it is a proxy that delays, throttles and counts (`benchmarks.far_store`). Bytes are those that the
store has sent, listings included. Which chunks lie on the disk of the cache server is read from its index, all the
time.

It fails where jobs with the small cache get less than 0.9 of what they get with the full one, where more than two
chunks are kept at any time, or where a job does not get each object once an epoch.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np

import millrace as mr
from benchmarks.far_store import BUCKET, FarStore, far_store
from benchmarks.papers.one_link import LINK_BYTES_S, ROUND_TRIP_S, await_cache, make_objects
from benchmarks.papers.report import answer, verdict

QUESTION = "Does a source cache of a tenth of the data serve several jobs as one of all data does?"
FIRST, LATER = 4, 3
OBJECT_BYTES = 100_000
EPOCHS = 2
BATCH = 4
BUFFER_BYTES = 4 << 20
SHARE = 0.1
CASES = {"all": 1.3, "a tenth": SHARE, "none": 0.0}
"""Share of the data that the cache may hold."""
LEAST = 0.9
_LOOK_S = 0.1


def object_of(file: Mapping[str, Any]) -> dict[str, Any]:
    """Bytes of an object, as many of each, and their number."""
    data = np.frombuffer(file["bytes"], np.uint8)
    return {"bytes": data[:OBJECT_BYTES], "size": np.int64(len(data))}


def read(service: mr.LocalService, number: int, count: int, rate: float, name: str) -> dict[str, float]:
    """Reads some epochs as a training does that takes ``rate`` objects a second at most.

    Raises:
        RuntimeError: it did not get each object once an epoch.
    """
    dataset = mr.Dataset.from_files(f"s3://{BUCKET}/train/*.bin").map(object_of).shuffle(count).batch(BATCH)
    dataset = dataset.with_options(buffer_bytes=2 * BUFFER_BYTES)
    epochs = EPOCHS if number < FIRST else 1
    began = time.perf_counter()
    with dataset.distribute(service.address, job_name=f"{name}-{number}", seed=number, progress=False) as batches:
        due, sizes = 0.0, list[Any]()
        for batch in batches.epochs(epochs):
            due = due or time.perf_counter()
            threading.Event().wait(max(0.0, due - time.perf_counter()))
            due = max(due, time.perf_counter() - 1.0) + len(batch["size"]) / rate  # what is late by less is caught up
            sizes.append(batch["size"].copy())
    there = np.repeat(np.arange(OBJECT_BYTES, OBJECT_BYTES + count), epochs)
    if not np.array_equal(np.sort(np.concatenate(sizes)), there):
        raise RuntimeError(f"job {number} got other objects than there are")
    seconds = time.perf_counter() - began
    return {"seconds": seconds, "objects_s": epochs * count / seconds}


@contextlib.contextmanager
def watched(service: mr.LocalService, folder: str) -> Iterator[list[dict[str, Any]]]:
    """Lists the chunks that lie on the disk, and those that jobs read, again and again."""
    over, seen = threading.Event(), list[dict[str, Any]]()
    began = time.perf_counter()

    def look() -> None:
        index = os.path.join(folder, "index.db")
        while not over.wait(_LOOK_S):
            labels: list[int] = []
            if os.path.exists(index):
                with contextlib.closing(sqlite3.connect(f"file:{index}?mode=ro", uri=True)) as base:
                    rows = base.execute("select distinct label from segments where label != x''").fetchall()
                labels = sorted(int.from_bytes(label[-4:], "big") for (label,) in rows)
            told = service.status()["source_cache"]["data"]
            jobs = told[0]["jobs"] if told else {}
            seen.append({"at": round(time.perf_counter() - began, 2), "kept": labels, "jobs": jobs})

    thread = threading.Thread(target=look)
    thread.start()
    try:
        yield seen
    finally:
        over.set()
        thread.join()


def run(store: FarStore, folder: str, share: float, count: int, rates: Sequence[float], name: str) -> dict[str, Any]:
    """Measures one case; ``share``: of the data that the cache holds, 0: there is none."""
    size = count * OBJECT_BYTES + count * (count - 1) // 2
    cache: dict[str, Any] = {"source_cache": folder, "source_cache_bytes": int(share * size)} if share else {}
    jobs = FIRST + LATER
    with mr.LocalService(jobs, jobs, threads=1, buffer_bytes=BUFFER_BYTES, **cache) as service:
        if share:
            await_cache(service)
        if share >= 1:
            read(service, 0, count, 1e9, f"{name}-warm")
        store.link.reset()
        with watched(service, folder) as seen, ThreadPoolExecutor(jobs) as pool:
            running = [pool.submit(read, service, number, count, rates[number], name) for number in range(FIRST)]
            threading.Event().wait(count / max(rates) / 2)
            running += [pool.submit(read, service, number, count, rates[number], name) for number in range(FIRST, jobs)]
            found = [each.result() for each in running]
        epochs = FIRST * EPOCHS + LATER
        return {
            "jobs": found,
            "objects_s": sum(each["objects_s"] for each in found),
            "copies": store.link.sent / size,
            "epochs": epochs,
            "most_kept": max((len(each["kept"]) for each in seen), default=0),
            "timeline": seen,
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs it as the options say."""
    count, rate, jobs = options.objects, options.rate, FIRST + LATER
    speeds = {"equal speeds": [rate] * jobs, "different speeds": [rate / (1 + number % 2) for number in range(jobs)]}
    found: dict[str, Any] = {}
    table = [["", "cache", "objects/s, all jobs", "of the full cache", "copies from the store", "chunks kept at most"]]
    with tempfile.TemporaryDirectory(prefix="millrace-small-") as root:
        make_objects(os.path.join(root, "store", "train"), count, OBJECT_BYTES)
        with (
            far_store(os.path.join(root, "store"), ROUND_TRIP_S, LINK_BYTES_S) as store,
            mock.patch.dict(os.environ, store.far),
        ):
            for speed, rates in speeds.items():
                cases: dict[str, Any] = {}
                for case, share in CASES.items() if speed == "equal speeds" else [*CASES.items()][:2]:
                    name = f"{speed} {case}".replace(" ", "-")
                    cases[case] = run(store, os.path.join(root, name), share, count, rates, name)
                    row = [speed, case, f"{cases[case]['objects_s']:.0f}", f"{_of_full(cases, case):.2f}"]
                    table.append([*row, f"{cases[case]['copies']:.2f}", str(cases[case]["most_kept"])])
                    print("  ".join(table[-1]), flush=True)
                found[speed] = cases
            server = store.server
    return {
        "modelled": f"the link: {ROUND_TRIP_S * 1000:.0f} ms, {LINK_BYTES_S * 8 / 1e6:.0f} Mbit/s, by a proxy; steps of"
        f" trainings: {rate:g} objects a second at most",
        "server": server,
        "objects": count,
        "rate": rate,
        "results": found,
        "table": table,
        "aims": aims(found),
    }


def _of_full(cases: Mapping[str, Any], case: str) -> float:
    return float(cases[case]["objects_s"] / cases["all"]["objects_s"])


def aims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    rows = []
    for speed, cases in found.items():
        share, most = _of_full(cases, "a tenth"), cases["a tenth"]["most_kept"]
        rows.append((f"{speed}: throughput with a tenth, of that with all", share, share >= LEAST, LEAST))
        rows.append((f"{speed}: chunks kept at any time", most, 0 < most <= 2, 2))
    return [{"aim": aim, "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.small_cache", description=QUESTION)
    parser.add_argument("--objects", type=int, default=1600)
    parser.add_argument("--rate", type=float, default=60.0, help="objects a second that a training takes at most")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
