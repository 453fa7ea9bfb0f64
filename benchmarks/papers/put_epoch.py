"""An epoch that is also written into a cache, beside computing alone and beside writing alone.

Elements are arrays of 512 KB. In ``computing`` each is made by expanding compressed bytes, which is what an epoch waits
for; in ``writing`` it is hardly work, and the folder is behind a link of 100 MB/s (see
:mod:`benchmarks.papers.throttled`); in ``memory`` it is a folder as it is, into the system's memory: then checksums and
the copy that whoever is above may change are what takes longest, and no 1.1 was aimed at. ``computed`` is an epoch of
the same pipeline without a cache, ``written`` a bare loop that writes the same bytes to a file of such a folder, as
they are; ``put`` is the epoch that computes and writes, with its keys, checksums and index, until its blocks can be
read. What was aimed at is put <= 1.1 x the larger of both.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import tempfile
import time
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from benchmarks.papers.throttled import Link, stores_of
from millrace import Dataset
from millrace.engine.cache import local_cache

NBYTES = 512 << 10
CASES = {"computing": (4, 0.0), "writing": (0, 1e8), "memory": (0, 0.0)}
"""How often an element is expanded, and the folder's bandwidth in bytes per second, 0 for what it is."""
_NOISE = np.random.default_rng(0).integers(0, 16, NBYTES, np.uint8)
_PACKED = zlib.compress(_NOISE.tobytes(), 1)


def element(work: int, number: int) -> Any:
    """An array that begins with its number, after expanding it so often."""
    for _ in range(work):
        zlib.decompress(_PACKED, bufsize=NBYTES)
    made = _NOISE.copy()
    made[:4].view("<u4")[0] = number
    return made


def _seconds(epoch: Iterable[Any], count: int) -> float:
    began = time.perf_counter()
    found = sum(1 for _ in epoch)
    if found != count:
        raise RuntimeError(f"{found} elements came out of {count}")
    return time.perf_counter() - began


def _dataset(work: int, count: int) -> Dataset:
    return Dataset.range(count).map(functools.partial(element, work))


def _computed(work: int, _rate: float, count: int) -> float:
    dataset = _dataset(work, count)
    _seconds(dataset, count)
    return _seconds(dataset, count)


def _put(work: int, rate: float, count: int) -> float:
    took = []
    with stores_of(rate, local_cache) if rate else contextlib.nullcontext():
        for _ in range(2):
            with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
                took.append(_seconds(_dataset(work, count).cache(folder), count))
    return took[1]


def _written(_: int, rate: float, count: int) -> float:
    took = []
    link = Link(rate) if rate else None
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            began = time.perf_counter()
            with open(os.path.join(folder, "block"), "wb", buffering=0) as file:
                for _ in range(count):
                    if link is not None:
                        link.take(NBYTES)
                    file.write(_NOISE.data)
            took.append(time.perf_counter() - began)
    return took[1]


def _run(options: Options, way: Any) -> Mapping[str, float]:
    """Milliseconds an element."""
    count = options["elements"]
    return {name: way(*case, count) / count * 1e3 for name, case in CASES.items()}


def _larger(options: Options) -> Mapping[str, float]:
    """Both, one after the other, and the larger."""
    computed, written = _run(options, _computed), _run(options, _written)
    return {name: max(computed[name], written[name]) for name in CASES}


BENCHMARK = Benchmark(
    question="What does an epoch take that also writes a cache?",
    figures={name: Figure(f"ms/element, {name}", digits=3, more_is_better=False) for name in CASES},
    contestants=(
        Contestant("the larger", _larger, note="of the next two, in one process"),
        Contestant("computed", functools.partial(_run, way=_computed)),
        Contestant("written", functools.partial(_run, way=_written)),
        Contestant("put", functools.partial(_run, way=_put)),
    ),
    reference="the larger",
    sizes={"elements": Size(600, 20, "elements of 512 KiB in an epoch")},
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.papers.put_epoch"))
