"""Quiver's Figures 4 and 5: when each batch of a training is read, transformed and used up, with misses and with hits.

    python -m benchmarks.papers.micro_timeline [--batches N] [--step S] [--json FILE]

A job reads JPEG pictures like ImageNet's (:mod:`benchmarks.pictures`, each under five names) from a store behind a
link, on two workers, and finds nothing in the source cache. Then a last job reads the same, and finds everything: what
one in between, which isn't measured, has found missing is there, too. (A request that takes long is made a second time,
and if that one is answered first, the picture is not kept.) Pictures are decoded, cropped at random, resized and
mirrored, 32 of them make a batch, and a step is a wait that uses no core. Workers note for each picture when the source
has asked for it and had it, and when the function began and ended; a batch's reading is from the first of its pictures
on until it has the last.

The store is real, and the link to it is a proxy that delays, throttles and counts (`benchmarks.far_store`).

It fails where steps are less than 0.95 of the time with hits; where they are more than 0.7 of it with misses, as then
the link was nothing to wait for; or where a read of the first job was a hit, or one of the last a miss, but for one of
a hundred.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from unittest import mock

import numpy as np

import millrace as mr
from benchmarks.far_store import BUCKET, far_store
from benchmarks.papers.one_link import ROUND_TRIP_S
from benchmarks.papers.report import answer, verdict
from benchmarks.papers.throttled import pause
from benchmarks.pictures import folder_of
from millrace.client.status_query import fetch_status
from millrace.clusters.child_process import hang_up, reap, spawn, worker_environment
from millrace.sources.read_scheduler import Request
from millrace.sources.store_requests import Entry, RequestWatch
from millrace.worker import source_cache

QUESTION = "When is each batch read, transformed and used up, if the source cache has nothing and if it has all?"
LINK_BYTES_S = 4e6
"""32 Mbit/s: less than half of what steps ask for."""
PICTURES, NAMES = 256, 5
WORKERS = 2
BATCH = 32
SIDE = 224
BUFFER_BYTES = 16 << 20
"""Of each worker, and of the training: three batches."""
SHOWN = 20
MISSES, HITS = CASES = ("misses", "hits")
LEAST_BUSY, MOST_BUSY, LEAST_ALIKE = 0.95, 0.7, 0.99
_TIMES = "times_of_reads"
_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
_WAIT_S = 60.0


# -- workers -----------------------------------------------------------------------------------------------------------


def timed(tier: Callable[[source_cache.SourceCache, Request], Request]) -> Any:
    """Have a source cache note when each file was asked for and was there, in :data:`_TIMES` of its module."""
    times: dict[str, tuple[float, float]] = {}
    setattr(source_cache, _TIMES, times)

    def wrapped(cache: source_cache.SourceCache, fetch: Request) -> Request:
        inner = tier(cache, fetch)

        def read(entry: Entry, watch: RequestWatch) -> bytes:
            began = time.monotonic()
            data = inner(entry, watch)
            times.setdefault(entry.location, (began, time.monotonic()))
            return data

        return read

    return wrapped


def transform(file: Mapping[str, Any], rng: np.random.Generator) -> dict[str, Any]:
    """Decode, crop, resize and mirror a picture; with the times at which reading and this began and ended."""
    from PIL import Image

    began = time.monotonic()
    read = vars(source_cache)[_TIMES].pop(file["path"])
    picture = Image.open(io.BytesIO(file["bytes"])).convert("RGB")
    width, height = picture.size
    side = int(min(width, height) * rng.uniform(0.5, 1.0))
    left, top = int(rng.integers(width - side + 1)), int(rng.integers(height - side + 1))
    cropped = picture.resize((SIDE, SIDE), Image.Resampling.BILINEAR, (left, top, left + side, top + side))
    image = np.asarray(cropped)
    image = image[:, ::-1].copy() if rng.random() < 0.5 else image
    return {"image": image, "times": np.array([*read, began, time.monotonic()])}


# -- a training --------------------------------------------------------------------------------------------------------


def train(address: str, name: str, count: int, step_s: float) -> list[dict[str, Any]]:
    """Read an epoch, and say of each batch when it was read, transformed and used up, in seconds from the begin on."""
    dataset = mr.Dataset.from_files(f"s3://{BUCKET}/train/*.jpg").shuffle(count).map(transform)
    dataset = dataset.batch(BATCH, drop_remainder=True).with_options(buffer_bytes=BUFFER_BYTES)
    found = []
    with dataset.distribute(address, job_name=name, seed=0, progress=False) as batches:
        waits = time.monotonic()
        begin = waits
        for batch in batches.epochs(1):
            got = time.monotonic()
            pause(step_s)
            done = time.monotonic()
            found.append({**stages(batch["times"] - begin), "step": [got - begin, done - begin], "waited": got - waits})
            waits = done
    return found


def stages(times: Any) -> dict[str, Any]:
    """Sum up a batch: when reading and transforming of its elements began and ended, and the mean time of one.

    Args:
        times: float64 of shape (n, 4): begin and end of reading, and of transforming.
    """
    found: dict[str, Any] = {}
    for stage, (begins, ends) in {"read": (times[:, 0], times[:, 1]), "transform": (times[:, 2], times[:, 3])}.items():
        found[stage] = [float(begins.min()), float(ends.max())]
        found[f"{stage} of one"] = float((ends - begins).mean())
    return found


def busy(batches: Sequence[Mapping[str, Any]]) -> float:
    """Share of the time that steps take, once the first quarter of the batches is through."""
    settled = batches[len(batches) // 4 :]
    steps = sum(each["step"][1] - each["step"][0] for each in settled)
    return float(steps / (settled[-1]["step"][1] - settled[0]["step"][0] + settled[0]["waited"]))


# -- processes ---------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def service(folder: str) -> Iterator[str]:
    """A service with a source cache in a folder, and workers that note the times of reads; yields its address."""
    with contextlib.ExitStack() as stack:
        arguments = ["dispatcher", "--port", "0", "--heartbeat", "0.5", "--source-cache", folder]
        dispatcher = spawn(arguments, worker=False, stdout=subprocess.PIPE)
        stack.callback(_end, dispatcher)
        assert dispatcher.stdout is not None
        address: str = json.loads(dispatcher.stdout.readline())["address"]
        command = [sys.executable, "-m", "benchmarks.papers.micro_timeline", "worker", "--dispatcher", address]
        command += ["--threads", "1", "--buffer-bytes", str(BUFFER_BYTES), "--parent-pipe"]
        environment = worker_environment({**os.environ, "PYTHONPATH": os.pathsep.join([_ROOT, *sys.path[1:]])})
        for _ in range(WORKERS):
            stack.callback(_end, subprocess.Popen(command, stdin=subprocess.PIPE, env=environment, cwd=_ROOT))
        deadline = time.monotonic() + _WAIT_S
        while not (counts_of(address) and len(fetch_status(address)["workers"]) == WORKERS):
            if time.monotonic() > deadline:
                raise RuntimeError("the cache server or the workers did not come")
            threading.Event().wait(0.1)
        yield address


def _end(process: subprocess.Popen[bytes]) -> None:
    hang_up(process)
    reap(process)
    if process.stdout is not None:
        process.stdout.close()


def counts_of(address: str) -> dict[str, int]:
    """What the cache server has counted; empty: it is not there."""
    servers = fetch_status(address)["source_cache"]["servers"]
    return dict(servers[0]["counts"]) if servers else {}


def _settled_counts(address: str) -> dict[str, int]:
    """Wait until the cache server has reported what was asked so far."""
    pause(2 * float(fetch_status(address)["heartbeat_s"]))
    return counts_of(address)


def make_store(folder: str, count: int, pictures: int) -> None:
    """Make so many files of so many pictures."""
    os.makedirs(folder)
    made = folder_of(pictures)
    names = sorted(os.listdir(made))
    for number in range(count):
        with open(os.path.join(made, names[number % len(names)]), "rb") as file:
            data = file.read()
        with open(os.path.join(folder, f"{number:06}.jpg"), "wb") as file:
            file.write(data)


# -- what came of it ---------------------------------------------------------------------------------------------------


def aims(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What was aimed at, and what came of it."""
    rows = [
        ("hits: share of the time in steps", found[HITS]["busy"], LEAST_BUSY, 1.0),
        ("misses: share of the time in steps", found[MISSES]["busy"], 0.0, MOST_BUSY),
        ("hits: reads that were hits", found[HITS]["hits"], LEAST_ALIKE, 1.0),
        ("misses: reads that were hits", found[MISSES]["hits"], 0.0, 1 - LEAST_ALIKE),
    ]
    return [
        {"aim": aim, "value": value, "asked": f"{least:g} to {most:g}", "met": least <= value <= most}
        for aim, value, least, most in rows
    ]


def measure(options: argparse.Namespace) -> dict[str, Any]:
    """Runs it as the options say."""
    count = options.batches * BATCH
    found: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="millrace-timeline-") as root:
        make_store(os.path.join(root, "store", "train"), count, options.pictures)
        with contextlib.ExitStack() as stack:
            store = stack.enter_context(far_store(os.path.join(root, "store"), ROUND_TRIP_S, LINK_BYTES_S))
            stack.enter_context(mock.patch.dict(os.environ, store.far))
            address = stack.enter_context(service(os.path.join(root, "cache")))
            before = _settled_counts(address)
            for case in CASES:
                if case == HITS:
                    train(address, "fill", count, 0.0)
                    before = _settled_counts(address)
                store.link.reset()
                batches = train(address, case, count, options.step)
                after = _settled_counts(address)
                asked = {name: after[name] - before[name] for name in ("hits", "joined", "misses")}
                found[case] = {
                    "busy": busy(batches),
                    "hits": asked["hits"] / sum(asked.values()),
                    "sent": store.link.sent,
                    "batches": batches,
                }
            server = store.server
    head = [
        "",
        "ms of a batch",
        "of these in the step",
        "ms to read a picture",
        "ms to transform one",
        "reads that hit",
    ]
    table = [head]
    for case, each in found.items():
        settled = each["batches"][options.batches // 4 :]
        batch_s = float(np.mean([batch["step"][1] - batch["step"][0] + batch["waited"] for batch in settled]))
        ones = [float(np.mean([batch[f"{stage} of one"] for batch in settled])) for stage in ("read", "transform")]
        row = [case, f"{1e3 * batch_s:.0f}", f"{each['busy']:.2f}", *(f"{1e3 * one:.1f}" for one in ones)]
        table.append([*row, f"{each['hits']:.0%}"])
        print("  ".join(table[-1]), flush=True)
    return {
        "modelled": f"the link: {ROUND_TRIP_S * 1000:.0f} ms, {LINK_BYTES_S * 8 / 1e6:.0f} Mbit/s, by a proxy; steps:"
        f" waits of {options.step:g} s",
        "server": server,
        "batches": options.batches,
        "rounds": [{case: {"busy": each["busy"]} for case, each in found.items()}],
        "results": found,
        "table": table,
        "aims": aims(found),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.micro_timeline", description=QUESTION)
    parser.add_argument("--batches", type=int, default=PICTURES * NAMES // BATCH)
    parser.add_argument("--step", type=float, default=0.4, help="seconds of a step")
    parser.add_argument("--pictures", type=int, default=PICTURES, help="different ones")
    return verdict(answer(parser, measure, arguments)["aims"])


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        source_cache.SourceCache.tier = timed(source_cache.SourceCache.tier)  # type: ignore[method-assign]
        from millrace.cli import main as millrace

        sys.exit(millrace(sys.argv[1:]))
    sys.exit(main())
