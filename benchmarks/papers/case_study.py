"""OneAccess's case study (2.1): an experiment of 35 jobs, nine at a time, with and without one layer for all of them.

    python -m benchmarks.papers.case_study [--jobs N] [--together N] [--pictures N] [--epochs N] [--json FILE]

The paper takes from a month of a cluster's hyper-parameter searches that an experiment has 35 jobs on the same data,
nine of which run at a time, and concludes that one layer saves 89 % of their I/O (nine read together) and 97 % of their
preprocessing (it is done once). Here the jobs run: first each for itself, but only some of them, as all do the same and
have nothing in common: what these use is multiplied; then all of them, and those that run together share a window,
and a cache keeps what was made for those that come later, one that the user writes, or an autocache that the service
judges. Source and cache lie in one object store, which counts every byte that it sends; the user's function counts its
calls. It fails where an autocache saves less than in the paper, or has more than 1.05 passes over the data computed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from benchmarks.papers import counting_store
from benchmarks.papers.counting_store import BUCKET, Server
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.shared_reads import SHAPE, settled, write_data
from millrace import Dataset, LocalService, Sharing, Visitation
from millrace.sources import storage

QUESTION = "What does one layer for all jobs of an experiment save of their reads and of their preprocessing?"
JOBS, TOGETHER, EPOCHS, PICTURES = 35, 9, 1, 32_000
ALONE = 5
"""Jobs of those that run each for itself that are measured."""
TASKS, CROP = 128, 28
"""Tasks of an epoch, a row group each, and the side of what is cropped."""
CORE_S = 0.002
"""Seconds of processor time that a picture takes to prepare."""
BUFFER_BYTES = 16 << 20
CACHE_BYTES = 1 << 30
IO, PREPROCESSING, PASSES = 0.89, 0.97, 1.05
"""Parts that are saved in the paper, and the most passes that may be computed."""
SHARED = {"sharing": Sharing.WINDOW, "visitation": Visitation.ZERO_ONCE_OR_MORE}
APART, CACHE, ONE_LAYER = "each for itself", "one layer with a cache", "one layer with an autocache"


class Crop:
    """Crops a picture at its centre, takes a certain processor time for it, and leaves a byte in a file for each call.

    Args:
        log: the file, to which all processes append.
    """

    def __init__(self, log: str) -> None:
        self._log = log

    def __call__(self, row: Any) -> Any:
        """The picture, and its number."""
        until = time.thread_time() + CORE_S
        at = (SHAPE[0] - CROP) // 2
        picture = np.frombuffer(row["picture"], np.uint8).reshape(SHAPE)[at : at + CROP, at : at + CROP]
        while time.thread_time() < until:
            np.sort(picture, axis=None)
        with open(self._log, "ab", buffering=0) as file:
            file.write(b".")
        return {"number": row["number"], "picture": np.ascontiguousarray(picture)}


def pipeline(log: str, pictures: int, way: str) -> Dataset:
    """What each job reads."""
    prepared = Dataset.from_parquet(f"s3://{BUCKET}/data/*.parquet").map(Crop(log))
    prepared = {APART: prepared, CACHE: prepared.cache(), ONE_LAYER: prepared.autocache()}[way]
    return prepared.shuffle(pictures // 10).with_options(buffer_bytes=BUFFER_BYTES)


def train(address: str, dataset: Dataset, name: str, epochs: int, choices: Mapping[str, Any]) -> list[int]:
    """A job; returns how many elements each of its epochs had."""
    with dataset.distribute(address, job_name=name, tasks=TASKS, **choices) as served:
        return [sum(1 for _ in served) for _ in range(epochs)]


def run(store: Server, options: argparse.Namespace, way: str) -> dict[str, Any]:
    """What all jobs of an experiment use."""
    choices = {} if way == APART else SHARED
    with tempfile.NamedTemporaryFile() as log:
        dataset = pipeline(log.name, options.pictures, way)
        before, began = store.counts(), time.perf_counter()
        place = f"s3://{BUCKET}/kept/{way.replace(' ', '-')}"
        count = min(ALONE, options.jobs) if way == APART else options.jobs
        with (
            LocalService(2, 2, threads=1, cache_dir=place, cache_bytes=CACHE_BYTES) as service,
            ThreadPoolExecutor(options.together) as pool,
        ):
            jobs = [
                pool.submit(train, service.address, dataset, f"job-{number}", options.epochs, choices)
                for number in range(count)
            ]
            elements = [count for job in jobs for count in job.result()]
            seconds = time.perf_counter() - began
            used = settled(store) - before
        return {
            "jobs": count,
            "bytes": used.bytes,
            "calls": os.path.getsize(log.name),
            "seconds": seconds,
            "elements": sum(elements),
            "shortest": min(elements),
        }


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Both ways, a table, and what was aimed at."""
    found = {}
    with tempfile.TemporaryDirectory(prefix="millrace-pictures-") as folder, counting_store.server() as store:
        write_data(folder, options.pictures)
        for name in os.listdir(folder):
            with open(os.path.join(folder, name), "rb") as file:
                storage.write(f"s3://{BUCKET}/data/{name}", file)
        for way in (APART, CACHE, ONE_LAYER):
            found[way] = run(store, options, way)
            print(f"{way}:", *(f"{key} {value:,.0f}" for key, value in found[way].items()), flush=True)
    return report(found, options.pictures)


def report(found: Mapping[str, Mapping[str, Any]], pictures: int) -> dict[str, Any]:
    """What is written of all ways."""
    one = found[ONE_LAYER]
    times = one["jobs"] / found[APART]["jobs"]
    apart = {key: found[APART][key] * times for key in ("bytes", "calls", "seconds")}
    io, work = 1 - one["bytes"] / apart["bytes"], 1 - one["calls"] / apart["calls"]
    passes = one["calls"] / pictures
    rows = [["", "bytes from the store", "calls of the function", "passes computed", "seconds"]]
    for way, each in {**found, APART: apart}.items():
        figures = [f"{each['bytes']:,.0f}", f"{each['calls']:,.0f}", f"{each['calls'] / pictures:.2f}"]
        rows.append([way, *figures, f"{each['seconds']:.0f}"])
    for way in (CACHE, ONE_LAYER):
        rest = {key: 1 - found[way][key] / apart[key] for key in ("bytes", "calls", "seconds")}
        rows.append([f"saved by {way}", f"{rest['bytes']:.1%}", f"{rest['calls']:.1%}", "", f"{rest['seconds']:.0%}"])
    return {
        "modelled": "what preparing a picture costs (two milliseconds of processor time, which is computed); of the "
        f"{one['jobs']} jobs that run each for itself {found[APART]['jobs']} are measured, and their use multiplied",
        "results": found,
        "table": rows,
        "aims": [
            {"aim": "bytes that need not be read", "value": io, "asked": f">= {IO}", "met": round(io, 2) >= IO},
            {
                "aim": "calls that need not be made",
                "value": work,
                "asked": f">= {PREPROCESSING}",
                "met": round(work, 2) >= PREPROCESSING,
            },
            {"aim": "passes that are computed", "value": passes, "asked": f"<= {PASSES}", "met": passes <= PASSES},
            {
                "aim": "elements of the shortest epoch, of all",
                "value": one["shortest"] / pictures,
                "asked": "1",
                "met": one["shortest"] == pictures,
            },
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.case_study", description=QUESTION)
    parser.add_argument("--jobs", type=int, default=JOBS, help="default: %(default)s")
    parser.add_argument("--together", type=int, default=TOGETHER, help="at a time (default: %(default)s)")
    parser.add_argument("--pictures", type=int, default=PICTURES, help="in the data (default: %(default)s)")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help="of each job (default: %(default)s)")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    sys.exit(main())
