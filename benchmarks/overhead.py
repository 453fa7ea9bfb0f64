"""CPU seconds that a service takes beside the work: pictures decoded in process, and on an embedded service.

Counted are user and system time of the whole process tree: the consumer, the dispatcher and the workers, as the kernel
adds them up when a process is waited for after a clean exit. A run of one epoch and a run of several, each in a fresh
process, differ by whole epochs and by nothing else: starting, the first look at files and stopping are in both. Nothing
is prepared beyond the last epoch. The pipeline is that of :mod:`benchmarks.decode`.
"""

from __future__ import annotations

import functools
import resource
import subprocess
import sys
from collections.abc import Mapping

from benchmarks import decode, peers
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main

_WORKERS = 2


def _run(options: Options, workers: int) -> Mapping[str, float]:
    """CPU milliseconds per image, from the difference between two runs."""
    short, long = (_cpu_s(options, workers, epochs) for epochs in (1, 1 + options["epochs"]))
    images = options["epochs"] * options["files"] * options["repeats"]
    return {"cpu": (long - short) / images * 1e3}


def _prepare(options: Options) -> Options:
    decode.paths_of(options["files"], options["repeats"])
    return {}


def _cpu_s(options: Options, workers: int, epochs: int) -> float:
    """CPU seconds of a run in a process of its own, with all the processes that it starts."""
    before = _of_children()
    sizes = (options["files"], options["repeats"])
    arguments = [str(number) for number in (*sizes, workers, epochs)]
    subprocess.run([sys.executable, "-m", "benchmarks.overhead", *arguments], check=True)
    return _of_children() - before


def _of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _read(files: int, repeats: int, workers: int, epochs: int) -> None:
    """Reads epochs in this process or, if there are workers, on a service."""
    dataset = decode.dataset(decode.paths_of(files, repeats))
    if workers:
        with dataset.distribute(workers=workers) as served:
            images = sum(map(peers.length, served.epochs(epochs)))
    else:
        images = sum(peers.length(batch) for _ in range(epochs) for batch in dataset)
    if images != files * repeats * epochs:
        raise RuntimeError(f"{images} images came out of {files * repeats * epochs}")


BENCHMARK = Benchmark(
    question="How much CPU time does a service take beside the work?",
    figures={"cpu": Figure("CPU ms/image", digits=3, more_is_better=False)},
    contestants=(
        Contestant("in process", functools.partial(_run, workers=0), ("PIL",)),
        Contestant("embedded, 2 workers", functools.partial(_run, workers=_WORKERS), ("PIL",)),
    ),
    reference="in process",
    prepare=_prepare,
    sizes={
        "files": decode.BENCHMARK.sizes["files"],
        "repeats": decode.BENCHMARK.sizes["repeats"],
        "epochs": Size(3, 1, "measured epochs in a round"),
    },
)

if __name__ == "__main__":
    if sys.argv[1:2] and sys.argv[1].isdecimal():
        _read(*map(int, sys.argv[1:]))
    else:
        sys.exit(main("benchmarks.overhead"))
