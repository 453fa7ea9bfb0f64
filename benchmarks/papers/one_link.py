"""Quiver's Table 3 and Figure 3: several jobs, one data set in a store behind one link.

    python -m benchmarks.papers.one_link [--objects N] [--object-bytes N] [--jobs N] [--json FILE]

The jobs begin in one moment, each in an order of its own, and each has a worker. Three times: without a source cache;
with one that is empty, so that each object is fetched once for all; and once more, with all that was fetched. Nothing
is decoded, so that two cores carry it: elements are the sizes of objects. The store is real, and the link to it is a
proxy that delays, throttles and counts (`benchmarks.far_store`). Bytes are those that the store has sent, the listing
of each job and second requests included. Times begin with the jobs: what a store takes to list its objects, and jobs to
begin, is in them, and how long that was is said ("first batch").

It fails where the empty cache has the store send more than 1.02 times the data, where the jobs together get less then
than 0.9 of what one copy over the link gives to all of them, or where a job does not get each object once.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from unittest import mock

import numpy as np

import millrace as mr
from benchmarks.far_store import BUCKET, FarStore, far_store
from benchmarks.papers.report import answer, verdict

QUESTION = "What do several jobs take of one link to a store, without a source cache and with one?"
OBJECT_BYTES = 300_000
LINK_BYTES_S = 25e6
"""200 Mbit/s."""
ROUND_TRIP_S = 0.005
MOST_BYTES = 1.02
LEAST_SHARE = 0.9
_CACHE_S = 60.0


def make_objects(folder: str, count: int, object_bytes: int) -> None:
    """Writes objects of random bytes, each of another size, so that an epoch's sum tells whether one came twice."""
    rng = np.random.default_rng(0)
    os.makedirs(folder)
    for number in range(count):
        with open(os.path.join(folder, f"{number:06d}.bin"), "wb") as file:
            file.write(rng.bytes(object_bytes + number))


def read_together(service: mr.LocalService, jobs: int, count: int, name: str, object_bytes: int) -> tuple[float, float]:
    """Reads an epoch with each of so many jobs, all at once; returns when the last is done, and the first batch came.

    Both are seconds.

    Raises:
        RuntimeError: a job did not get each object once.
    """
    ready, first = threading.Barrier(jobs + 1), list[float]()

    def train(number: int) -> None:
        dataset = mr.Dataset.from_files(f"s3://{BUCKET}/train/*.bin").map(size_of).shuffle(count).batch(100)
        batches = dataset.distribute(service.address, job_name=f"{name}-{number}", seed=number, progress=False)
        ready.wait()
        came: list[np.ndarray[Any, Any]] = []
        for batch in batches.epochs(1):
            if not came:
                first.append(time.perf_counter())
            came.append(batch)
        sizes = np.sort(np.concatenate(came))
        if not np.array_equal(sizes, np.arange(object_bytes, object_bytes + count)):
            raise RuntimeError(f"job {number} got {len(sizes)} objects of {count}, or others")

    with ThreadPoolExecutor(jobs) as pool:
        running = [pool.submit(train, number) for number in range(jobs)]
        ready.wait()
        began = time.perf_counter()
        for each in running:
            each.result()
        return time.perf_counter() - began, min(first) - began


def size_of(file: Mapping[str, Any]) -> int:
    """Size of an object, in bytes."""
    return len(file["bytes"])


def measured(
    store: FarStore, count: int, size: int, jobs: int, read: Callable[[], tuple[float, float]]
) -> dict[str, float]:
    """Reads, and returns seconds, bytes that the store has sent, and what all jobs together got."""
    store.link.reset()
    seconds, first_s = read()
    return {
        "seconds": seconds,
        "first_s": first_s,
        "sent": store.link.sent,
        "copies": store.link.sent / size,
        "requests": store.link.requests,
        "objects_s": jobs * count / seconds,
        "of_one_copy": size / store.link.bytes_per_s / seconds,
    }


def await_cache(service: mr.LocalService) -> dict[str, Any]:
    """Wait until the cache server is there; return what it says."""
    deadline = time.monotonic() + _CACHE_S
    while not (servers := service.status()["source_cache"]["servers"]):
        if time.monotonic() > deadline:
            raise RuntimeError("the cache server did not come")
        threading.Event().wait(0.1)
    found: dict[str, Any] = servers[0]
    return found


def run(store: FarStore, root: str, count: int, jobs: int, object_bytes: int) -> dict[str, Any]:
    """Measures the three cases."""
    size = count * object_bytes + count * (count - 1) // 2

    def read(service: mr.LocalService, name: str) -> tuple[float, float]:
        return read_together(service, jobs, count, name, object_bytes)

    found: dict[str, Any] = {}
    with mock.patch.dict(os.environ, store.far):
        with mr.LocalService(jobs, jobs, threads=1) as service:
            found["no cache"] = measured(store, count, size, jobs, lambda: read(service, "bare"))
        with mr.LocalService(jobs, jobs, threads=1, source_cache=os.path.join(root, "cache")) as service:
            await_cache(service)
            for case in ("empty cache", "full cache"):
                name = case.partition(" ")[0]
                found[case] = measured(store, count, size, jobs, lambda: read(service, name))  # noqa: B023
            threading.Event().wait(2 * service.status()["heartbeat_s"])  # its counts come with its next report
            found["counts"] = await_cache(service)["counts"]
    return found


def aims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    empty, bare = found["empty cache"], found["no cache"]
    rows = (
        (
            "empty cache: bytes from the store, of the data set",
            empty["copies"],
            empty["copies"] <= MOST_BYTES,
            MOST_BYTES,
        ),
        (
            "empty cache: all jobs together, of what one copy over the link gives",
            empty["of_one_copy"],
            empty["of_one_copy"] >= LEAST_SHARE,
            LEAST_SHARE,
        ),
        (
            "without a cache: bytes from the store, of the data set",
            bare["copies"],
            bare["copies"] > MOST_BYTES,
            MOST_BYTES,
        ),
    )
    return [{"aim": aim, "value": value, "asked": asked, "met": met} for aim, value, met, asked in rows]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs it as the options say."""
    with tempfile.TemporaryDirectory(prefix="millrace-link-") as root:
        make_objects(os.path.join(root, "store", "train"), options.objects, options.object_bytes)
        with far_store(os.path.join(root, "store"), ROUND_TRIP_S, LINK_BYTES_S) as store:
            found = run(store, root, options.objects, options.jobs, options.object_bytes)
            server = store.server
    table = [
        [
            "",
            "seconds",
            "first batch, s",
            "bytes from the store, of the data set",
            "objects/s, all jobs",
            "of one copy over the link",
        ]
    ]
    for case in ("no cache", "empty cache", "full cache"):
        each = found[case]
        row = [case, f"{each['seconds']:.1f}", f"{each['first_s']:.1f}", f"{each['copies']:.3f}"]
        table.append([*row, f"{each['objects_s']:,.0f}", f"{each['of_one_copy']:.2f}"])
        print("  ".join(table[-1]), flush=True)
    return {
        "modelled": f"the link: {ROUND_TRIP_S * 1000:.0f} ms, {LINK_BYTES_S * 8 / 1e6:.0f} Mbit/s, by a proxy",
        "server": server,
        "jobs": options.jobs,
        "objects": options.objects,
        "object_bytes": options.object_bytes,
        "rounds": [found],
        "table": table,
        "aims": aims(found),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.one_link", description=QUESTION)
    parser.add_argument("--objects", type=int, default=6000)
    parser.add_argument("--object-bytes", type=int, default=OBJECT_BYTES, help="of the first one; others have more")
    parser.add_argument("--jobs", type=int, default=7)
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
