"""How many files a second come from a store that is far away: a web server that sends each of them after a while.

One pass over the files from the first word on, its listing included, as how fast it gets going is half of the question.
Processes of a service were started before. Plain threads each ask for the next file when they have one.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor

from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from benchmarks.slow_server import far_server
from millrace import Dataset, LocalService
from millrace.sources import storage

Read = Callable[[list[str], contextlib.ExitStack], Callable[[], Iterable[object]]]


def _run(options: Options, read: Read) -> Mapping[str, float]:
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(far_server(latency_s=options["latency"] / 1000, size=options["size"]))
        every = read([f"{server.url}{number:06d}" for number in range(options["files"])], stack)
        began = time.perf_counter()
        count = sum(1 for _ in every())
        seconds = time.perf_counter() - began
        if count != options["files"]:
            raise RuntimeError(f"{count} files came")
        return {"files": count / seconds, "peak": server.peak}


def _threads(files: list[str], stack: contextlib.ExitStack, threads: int) -> Callable[[], Iterable[object]]:
    pool = stack.enter_context(ThreadPoolExecutor(threads))
    return lambda: pool.map(storage.read, files)


def _in_process(files: list[str], stack: contextlib.ExitStack) -> Callable[[], Iterable[object]]:
    return lambda: Dataset.from_files(files)


def _service(files: list[str], stack: contextlib.ExitStack) -> Callable[[], Iterable[object]]:
    service = stack.enter_context(LocalService(max_workers=1))
    stack.enter_context(near := Dataset.range(1).distribute(service.address, job_name="warm"))
    list(near)
    return lambda: stack.enter_context(Dataset.from_files(files).distribute(service.address, job_name="far"))


BENCHMARK = Benchmark(
    question="How many files a second come from a store that is far away?",
    figures={
        "files": Figure("files/s"),
        "peak": Figure("reads at once"),
    },
    contestants=(
        Contestant("16 threads", functools.partial(_run, read=functools.partial(_threads, threads=16))),
        Contestant("64 threads", functools.partial(_run, read=functools.partial(_threads, threads=64))),
        Contestant("millrace, in process", functools.partial(_run, read=_in_process)),
        Contestant("millrace, service, 1 worker", functools.partial(_run, read=_service)),
    ),
    reference="16 threads",
    sizes={
        "files": Size(600, 40, "files"),
        "size": Size(20_000, 1_000, "bytes of each"),
        "latency": Size(300, 20, "milliseconds until a file comes"),
    },
    rounds=3,
)

if __name__ == "__main__":
    sys.exit(main("benchmarks.far"))
