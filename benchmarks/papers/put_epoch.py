"""An epoch that is also written into a cache, beside computing alone and beside writing alone.

Elements are arrays of 512 KB, made from compressed bytes, some of which take long to make and some of which hardly any
time: so either computing or writing is what an epoch waits for. ``computed`` is an epoch of the same pipeline without a
cache, ``written`` a bare loop that writes the same bytes to a file of the same folder, as they are; ``put`` is the
epoch that computes and writes, with its keys, checksums and index, until its blocks can be read. What was aimed at is
put <= 1.1 x the larger of both. Nothing waits for the disk: that is done by the system, behind all of them.
"""

from __future__ import annotations

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
from millrace import Dataset

NBYTES = 512 << 10
WORK = {"computing": 4, "writing": 0}
"""How often an element is expanded, by what an epoch waits for."""
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


def _computed(work: int, count: int) -> float:
    dataset = _dataset(work, count)
    _seconds(dataset, count)
    return _seconds(dataset, count)


def _put(work: int, count: int) -> float:
    took = []
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            took.append(_seconds(_dataset(work, count).cache(folder), count))
    return took[1]


def _written(_: int, count: int) -> float:
    took = []
    for _ in range(2):
        with tempfile.TemporaryDirectory(prefix="millrace-bench-") as folder:
            began = time.perf_counter()
            with open(os.path.join(folder, "block"), "wb", buffering=0) as file:
                for _ in range(count):
                    file.write(_NOISE.data)
            took.append(time.perf_counter() - began)
    return took[1]


def _run(options: Options, way: Any) -> Mapping[str, float]:
    """Milliseconds an element."""
    count = options["elements"]
    return {name: way(work, count) / count * 1e3 for name, work in WORK.items()}


def _larger(options: Options) -> Mapping[str, float]:
    """Both, one after the other, and the larger."""
    computed, written = _run(options, _computed), _run(options, _written)
    return {name: max(computed[name], written[name]) for name in WORK}


BENCHMARK = Benchmark(
    question="What does an epoch take that also writes a cache?",
    figures={name: Figure(f"ms/element, {name} is what takes longer", digits=3, more_is_better=False) for name in WORK},
    contestants=(
        Contestant("the larger", _larger, note="of the next two, in one process"),
        Contestant("computed", functools.partial(_run, way=_computed)),
        Contestant("written", functools.partial(_run, way=_written)),
        Contestant("put", functools.partial(_run, way=_put)),
    ),
    reference="the larger",
    sizes={"elements": Size(1000, 20, "elements of 512 KiB in an epoch")},
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.papers.put_epoch"))
