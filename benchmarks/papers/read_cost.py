"""Reads of every size from real stores, beside what the model of their cost says before.

    python -m benchmarks.papers.read_cost [--json FILE]

A store is calibrated (two seconds, with a block of its own). Then another block is written, and read in pieces of 4 KB
to 256 MB: sizes that were not calibrated, evenly spaced in their logarithm, in random order, from random places. Each
is read several times in a row, and what counts is the median of all but the first: a job reads thousands of blocks that
are about alike, while a read after one of another size also pays for the memory that it doesn't find.
``error`` is the median difference between what was predicted and what a read took, over what it took; ``learned`` is
the same for a model that hears of every size after it. The stores: a folder as it is (what was written lies in the
system's memory), the same folder read from its disk (dropped from memory before each read), and an object store: the
one whose URL is in ``MILLRACE_BENCH_STORE``, found and opened by the variables of its kind (``AWS_ENDPOINT_URL`` and so
on), else moto, an S3 server on this machine (left out with a notice where it isn't installed). moto gets a whole object
from its memory for any part of it, so that what a read takes depends on the block, which no model of sizes can tell:
there the calibration is given the time to write a block as large as is read afterwards. The folder is in ``TMPDIR``.
Memory is set up as in a worker process.
"""

from __future__ import annotations

import contextlib
import importlib.util
import math
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers.report import main
from millrace.blocks.store_benchmark import LARGEST, SMALLEST, calibrate
from millrace.blocks.stores.block_store import BlockStore, OpenBlock
from millrace.blocks.stores.file_store import FileStore
from millrace.blocks.stores.object_store import ObjectStore
from millrace.clusters.child_process import worker_environment
from millrace.policies.caching.io_cost import TransferCost
from millrace.testing.s3 import s3_bucket

QUESTION = "Does the model of what a read costs say what reads take?"
TARGET = 0.15
POINT, NAME = "read-cost", "block"
_MOTO = "object store (moto)"
READS = 60
"""Sizes that are read of a store."""
REPEATS = 6
"""Reads of each."""


def sizes(count: int, largest: int) -> list[int]:
    """Bytes, evenly spaced in the logarithm from 4 KB on, in random order; the same ones every time."""
    step = math.log(largest / SMALLEST) / (count - 1)
    found = [min(largest, round(SMALLEST * math.exp(step * number))) for number in range(count)]
    random.Random(5).shuffle(found)
    return found


def compare(store: BlockStore, *, cold: bool, seconds: float, count: int, largest: int) -> dict[str, Any]:
    """What the model says, and what ``count`` reads take; ``seconds`` is for calibration."""
    began = time.perf_counter()
    calibration = calibrate(store, seconds=seconds, largest=largest)
    took = time.perf_counter() - began
    model = calibration.cold if cold else calibration.read
    piece = np.random.default_rng(1).integers(0, 256, min(largest, 1 << 20), np.uint8).data
    with store.draft() as draft:
        for _ in range(largest // len(piece)):
            draft.write(piece)
        draft.publish(POINT, NAME)
    with contextlib.closing(store.open(POINT, NAME)) as block:
        reads = read(block, sizes(count, block.nbytes), model, cold=cold)
    store.delete(POINT, NAME)
    return {
        "calibration_s": took,
        "model": model,
        "error": error(reads, "predicted"),
        "learned": error(reads, "learned"),
        "reads": reads,
    }


def read(block: OpenBlock, of: list[int], model: TransferCost, *, cold: bool) -> list[dict[str, float]]:
    """Each size with its bytes, the seconds of a read, and what was predicted."""
    places = random.Random(6)
    learned, reads = model, []
    for size in of:
        _, *others = [_read(block, places.randrange(block.nbytes - size + 1), size, cold=cold) for _ in range(REPEATS)]
        took = statistics.median(others)
        reads.append(
            {"bytes": size, "seconds": took, "predicted": model.seconds(size), "learned": learned.seconds(size)}
        )
        learned = learned.learn(size, took)
    return reads


def _read(block: OpenBlock, start: int, size: int, *, cold: bool) -> float:
    """Seconds of one read."""
    if cold:
        block.drop()
    began = time.perf_counter()
    block.read([(start, start + size)])
    return time.perf_counter() - began


def error(reads: list[dict[str, float]], by: str) -> float:
    """Median over the reads of the relative error."""
    return statistics.median(abs(each[by] - each["seconds"]) / each["seconds"] for each in reads)


@contextlib.contextmanager
def stores() -> Iterator[dict[str, tuple[BlockStore, bool]]]:
    """Each store by name, and whether it is read from its disk."""
    with contextlib.ExitStack() as stack:
        folder = FileStore(stack.enter_context(tempfile.TemporaryDirectory(prefix="millrace-read-cost-")))
        found: dict[str, tuple[BlockStore, bool]] = {"folder": (folder, False), "folder, from disk": (folder, True)}
        if url := os.environ.get("MILLRACE_BENCH_STORE"):
            found["object store"] = ObjectStore(url), False
        elif importlib.util.find_spec("moto") is None:
            print("no object store: moto is not installed (pip install 'moto[server]')")
        else:
            found[_MOTO] = ObjectStore(stack.enter_context(s3_bucket()) + "cache"), False
        yield found


def measure(seconds: float = 2.0, count: int = READS, largest: int = LARGEST) -> Mapping[str, Any]:
    """Runs and prints."""
    results = {}
    with stores() as found:
        for name, (store, cold) in found.items():
            result = compare(
                store, cold=cold, seconds=seconds * (10 if name == _MOTO else 1), count=count, largest=largest
            )
            results[name] = {**result, "model": {"sizes": result["model"].sizes, "times": result["model"].times}}
            print(
                f"{name:20} median error {result['error']:6.1%} (target {TARGET:.0%}), learning meanwhile "
                f"{result['learned']:6.1%}; calibrated in {result['calibration_s']:.1f} s",
                flush=True,
            )
    rows = [["store", "median error", "learning meanwhile"]] + [
        [name, f"{each['error']:.1%}", f"{each['learned']:.1%}"] for name, each in results.items()
    ]
    errors = {name: {"error": each["error"], "learned": each["learned"]} for name, each in results.items()}
    return {"rounds": [errors], "table": rows, "results": results}


if __name__ == "__main__":
    wanted = worker_environment(os.environ)
    if any(os.environ.get(name) != value for name, value in wanted.items()):
        # As in a worker: by default large buffers are new memory each time, and finding that costs more than reading.
        os.execve(sys.executable, [sys.executable, "-m", "benchmarks.papers.read_cost", *sys.argv[1:]], wanted)  # noqa: S606  # itself
    main("benchmarks.papers.read_cost", QUESTION, measure)
