"""tf.data service 4.2, another region: pictures from a bucket that is 50 ms away, decoded by the training or a service.

    python -m benchmarks.papers.cross_region [--json FILE]

Pictures lie in a real store behind a link of 200 Mbit/s, and of 50 ms or none. A pipeline reads and decodes them: with
the user's own function, which asks for one after the other, or with ``from_files``, which reads ahead. It runs in the
training's process (colocated), or on a service that begins with one worker and is left alone until it has settled. A
training that takes 20 ms for a picture is ideally as fast as that. It fails where a service on the far bucket doesn't
reach 0.97 of the ideal rate. The link and the training's computing (a wait) are modelled; store, reading and decoding
are real.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import io
import os
import sys
import tempfile
import time
from collections.abc import Iterable, Mapping
from typing import Any
from unittest import mock

import numpy as np

from benchmarks.far_store import BUCKET, far_store
from benchmarks.machine import machine
from benchmarks.papers.report import verdict, write
from benchmarks.papers.scaled import SECONDS, settled
from benchmarks.papers.throttled import pause
from millrace import Dataset

QUESTION = "Does a training reach its ideal rate with pictures in another region?"
ROUND_TRIP_S = 0.050
BYTES_PER_S = 200e6 / 8
OWN_S = 0.020
FILES, EPOCHS, TASKS = 400, 30, 400
SIDE = 160
REACHED = 0.97
NEAR, FAR = "near", f"{1000 * ROUND_TRIP_S:.0f} ms away"


@functools.cache
def client(_endpoint: str) -> Any:
    """Client of the store that the environment tells of; one for all threads of a process."""
    from obstore.store import S3Store

    return S3Store(BUCKET)


def decode(data: Any) -> Any:
    """Pixels of a picture, or of an element that has its bytes."""
    from PIL import Image

    encoded = data["bytes"] if isinstance(data, dict) else data
    return np.asarray(Image.open(io.BytesIO(encoded)).convert("RGB"))


def fetch(number: int) -> bytes:
    """One request, as somebody would write it who knows nothing of reading ahead."""
    return bytes(client(os.environ["AWS_ENDPOINT_URL"]).get(f"{number % FILES:06d}.jpg").bytes())


def dataset(kind: str) -> Dataset:
    """The same pictures, read in this way."""
    if kind == "from_files":
        paths = [f"s3://{BUCKET}/{number:06d}.jpg" for number in range(FILES)]
        return Dataset.from_files(paths).repeat(EPOCHS).map(decode, num_parallel_calls=1)
    return Dataset.range(FILES * EPOCHS).map(fetch, num_parallel_calls=1).map(decode, num_parallel_calls=1)


def make_pictures(folder: str) -> None:
    """Writes pictures."""
    from PIL import Image

    rng = np.random.default_rng(0)
    for number in range(FILES):
        coarse = rng.integers(0, 256, (20, 20, 3), np.uint8)
        Image.fromarray(coarse).resize((SIDE, SIDE)).save(os.path.join(folder, f"{number:06d}.jpg"), quality=90)


def colocated(kind: str) -> dict[str, Any]:
    """A training whose own process reads and decodes."""
    with contextlib.closing(iter(dataset(kind))) as elements:

        def read(count: int) -> float:
            began = time.perf_counter()
            for _ in range(count):
                next(elements)
                pause(OWN_S)
            return (time.perf_counter() - began) / count

        read(50)
        return {"workers": 0, "batch_s": read(round(SECONDS / OWN_S))}


def served(kind: str) -> dict[str, Any]:
    """A training on a service that is left alone."""
    return settled(dataset(kind), TASKS, OWN_S)


def measure(kinds: Iterable[str] = ("its own function", "from_files")) -> Mapping[str, Any]:
    """Runs and prints."""
    results: dict[str, Any] = {}
    rows = [["reads", "bucket", "computed by", "ms of a picture", "of the ideal rate"]]
    with tempfile.TemporaryDirectory(prefix="millrace-region-") as folder:
        make_pictures(folder)
        for place, round_trip_s in ((NEAR, 0.0), (FAR, ROUND_TRIP_S)):
            with far_store(folder, round_trip_s, BYTES_PER_S) as store, mock.patch.dict(os.environ, store.far):
                for kind in kinds:
                    for way in (colocated, served):
                        found = way(kind)
                        results[f"{kind}, {place}, {way.__name__}"] = found
                        by = f"{found['workers']} workers" if found["workers"] else "the training"
                        share = OWN_S / found["batch_s"]
                        rows.append([kind, place, by, f"{1000 * found['batch_s']:.1f}", f"{share:.3f}"])
                        print("  ".join(rows[-1]), flush=True)
    aims = [
        {
            "aim": f"{name}: rate, of the ideal",
            "value": OWN_S / found["batch_s"],
            "asked": f">= {REACHED}",
            "met": OWN_S / found["batch_s"] >= REACHED,
        }
        for name, found in results.items()
        if name.endswith(f"{FAR}, served")
    ]
    figures = {name: {"rate": OWN_S / each["batch_s"], "workers": each["workers"]} for name, each in results.items()}
    modelled = "the link (a proxy), and computing (a wait)"
    return {"modelled": modelled, "rounds": [figures], "table": rows, "aims": aims, "results": results}


def main() -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.cross_region", description=QUESTION)
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args()
    on = machine()
    found = measure()
    write(options.json, "benchmarks.papers.cross_region", QUESTION, None, on, found)
    return verdict(found["aims"])


if __name__ == "__main__":
    sys.exit(main())
