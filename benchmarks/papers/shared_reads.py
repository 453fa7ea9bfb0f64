"""OneAccess's Table 3: what jobs on the same data read from a store, apart and sharing.

    python -m benchmarks.papers.shared_reads [--jobs N ...] [--pictures N] [--epochs N] [--json FILE]

Pictures of CIFAR-10's size lie in Parquet files in an object store, which counts what it sends, at the other end of a
link of 1 Gbit/s and a millisecond. Jobs shuffle and scale them, read some epochs in batches, each as fast as it can,
and leave; either each computes for itself, or all together. What is read ahead of the end, of an epoch that nobody
reads any more, counts in both cases. I/O time is that of all requests together, from when each was sent to the last
byte of its answer. It fails where two jobs that share don't read 49 % less than apart in bytes and in time (half is the
bound), and eight 87 % less.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import os
import sys
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.far_store import Link, link
from benchmarks.papers import counting_store
from benchmarks.papers.counting_store import BUCKET, Counts, Server
from benchmarks.papers.figure10 import WAYS, choices, services
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.sharing_jobs import Job, numbers_of, play
from benchmarks.papers.throttled import pause
from millrace import Dataset
from millrace.sources import storage

QUESTION = "What do jobs on the same data read from a store?"
JOBS = (2, 8)
LESS = {2: 0.49, 8: 0.87}
"""By number of jobs, the part of what they read apart that they are not to read together."""
PICTURES, SHAPE, FILES, BATCH = 10_000, (32, 32, 3), 10, 125
ROWS = 250
"""Of a row group, which is read as a whole. Tasks, of whole batches, begin with one here: a row group that two tasks
have some of is read twice if two workers make these, as where jobs share all workers, and once by a single one."""
BUFFER_BYTES = 16 << 20
"""Of a job: less than a task of all the pictures, so that none is over before all have come."""
EPOCHS, PROCESSES, TASKS = 40, 2, 4
ROUND_TRIP_S, BYTES_PER_S = 0.001, 125e6
"""Of the link to the store, as to another host of a data center."""
_QUIET_S = 3.0
"""Nothing was read for so long: nothing more is."""


def write_data(folder: str, count: int) -> None:
    """Pictures in files."""
    rng = np.random.default_rng(0)
    size = int(np.prod(SHAPE))
    for file in range(FILES):
        numbers = range(file * count // FILES, (file + 1) * count // FILES)
        table = pa.table({"number": list(numbers), "picture": [rng.bytes(size) for _ in numbers]})
        pq.write_table(table, os.path.join(folder, f"{file}.parquet"), row_group_size=ROWS, compression="none")


def scale(row: Any) -> Any:
    """A picture as numbers."""
    pixels = np.frombuffer(row["picture"], np.uint8).reshape(SHAPE)
    return {"number": row["number"], "picture": pixels.astype(np.float32) / 255}


def pipeline(pattern: str, count: int) -> Dataset:
    """What each job reads."""
    batches = Dataset.from_parquet(pattern).shuffle(count // 10, seed=1).map(scale).batch(BATCH)
    return batches.with_options(buffer_bytes=BUFFER_BYTES)


def settled(store: Server) -> Counts:
    """What the store was asked, once workers have stopped to read ahead."""
    before = store.counts()
    while True:
        pause(_QUIET_S)
        now = store.counts()
        if now == before:
            return now
        before = now


def run(store: Server, far: Link, pictures: int, epochs: int, jobs: int, sharing: str) -> dict[str, Any]:
    """Bytes and requests of so many jobs, and the time of these."""
    before = store.counts()
    far.reset()
    make = functools.partial(pipeline, f"s3://{BUCKET}/*.parquet", pictures)
    with services(1) as [service]:
        chosen = {"seed": 1, "tasks": TASKS, **choices(sharing)}
        each = [Job(f"job-{number}", service.address, make, numbers_of, 0.0, chosen) for number in range(jobs)]
        played = play(each, epochs=epochs, processes=PROCESSES, count=functools.partial(settled, store), stay=False)
    used = played.counted - before
    read = [epoch for reading in played.readings for epoch in reading.epochs]
    return {
        "bytes": used.bytes,
        "requests": used.reads,
        "seconds": far.request_s,
        "elements": sum(len(epoch.elements) for epoch in read),
        "twice": sum(len(epoch.elements) - len(set(epoch.elements)) for epoch in read),
        "short": sum(pictures - len(set(epoch.elements)) for epoch in read),
    }


def measure(numbers: Sequence[int], pictures: int, epochs: int) -> dict[str, Any]:
    """Runs and prints."""
    found: dict[int, dict[str, dict[str, Any]]] = {}
    with contextlib.ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-pictures-"))
        store = stack.enter_context(counting_store.server())
        write_data(folder, pictures)
        far = stack.enter_context(link(store.port, ROUND_TRIP_S, BYTES_PER_S))
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                storage.write(f"s3://{BUCKET}/{name}", file)
        os.environ["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{far.port}"  # the store puts back what there was
        for jobs in numbers:
            found[jobs] = {}
            for way in ("apart", *WAYS):
                found[jobs][way] = run(store, far, pictures, epochs, jobs, "" if way == "apart" else way)
                print(f"{jobs} jobs, {way:9}", *(f"{key} {value:,}" for key, value in found[jobs][way].items()))
                sys.stdout.flush()
    return report(found)


def report(found: Mapping[int, Mapping[str, Mapping[str, Any]]]) -> dict[str, Any]:
    """What is written of all runs."""
    aims: list[dict[str, Any]] = []
    head = ["jobs", "", "bytes", "requests", "I/O, s", "bytes less than apart", "I/O time less than apart"]
    rows, figures = [[*head, "elements that jobs missed"]], {}
    for jobs, ways in found.items():
        for way, each in ways.items():
            less = {key: 1 - each[key] / ways["apart"][key] for key in ("bytes", "seconds")}
            row = [str(jobs), way, f"{each['bytes']:,}", f"{each['requests']:,}", f"{each['seconds']:,.0f}"]
            shown = ("" if way == "apart" else f"{value:.1%}" for value in less.values())
            rows.append([*row, *shown, f"{each['short']:,}"])
            if way == "apart":
                continue
            figures[f"{jobs} jobs, {way}"] = less
            asked = LESS.get(jobs, 0.98 * (1 - 1 / jobs))
            aims += [
                {"aim": f"{jobs} jobs, {way}: {what} less than apart", "value": less[key]}
                | {"asked": f">= {asked}", "met": less[key] >= asked}
                for key, what in (("bytes", "bytes"), ("seconds", "I/O time"))
            ]
        exact = sum(each["twice"] + each["short"] for way, each in ways.items() if way != "window")
        aims.append(
            {"aim": f"{jobs} jobs: elements lost or doubled, apart and in lockstep", "value": exact, "asked": "0"}
            | {"met": exact == 0}
        )
    return {"modelled": "the link (a proxy)", "rounds": [figures], "table": rows, "aims": aims, "results": found}


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.shared_reads", description=QUESTION)
    parser.add_argument("--jobs", nargs="+", type=int, default=list(JOBS), metavar="N")
    parser.add_argument("--pictures", type=int, default=PICTURES, help=f"in the data (default {PICTURES})")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"that each job reads (default {EPOCHS})")

    def run(options: argparse.Namespace) -> dict[str, Any]:
        return measure(options.jobs, options.pictures, options.epochs)

    return verdict(answer(parser, run, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
