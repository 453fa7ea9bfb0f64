"""How much of a far link do reads fill: 100 KB objects, and a single shard, 50 ms away behind 200 Mbit/s.

The server and the link are a process of their own: every byte arrives half a round trip after it was sent, and all
connections share the link's rate. One pass from the first word on. What is measured in process was listed before. On a
service listing is a part of the pass: a web server has to be asked for each file before the epoch can be planned, and
the link is idle meanwhile. So the pass is measured in two parts as well, at the server: the seconds until the first
file was asked for, and what of the link was filled from then on, which is to be 0.9 and more. The file at the other end
of the link is the same for every name. ``one stream`` is what reading a shard by a single request gets.
"""

from __future__ import annotations

import contextlib
import functools
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from benchmarks.far_store import link
from benchmarks.harness import Benchmark, Contestant, Figure, Options, Size, main
from benchmarks.slow_server import far_server
from millrace import Dataset, LocalService
from millrace.sources import storage
from millrace.sources.crc32c import masked_crc_of_lengths

Read = Callable[[str, int, contextlib.ExitStack], Callable[[], Iterable[int]]]
_RECORD_BYTES = 100_000


def _shard(size: int) -> bytes:
    """A TFRecord file of about so many bytes."""
    import numpy as np

    from millrace.sources.crc32c import fast_crc32c, mask

    record, length = bytes(_RECORD_BYTES), struct.pack("<Q", _RECORD_BYTES)
    head = length + struct.pack("<I", int(masked_crc_of_lengths(np.frombuffer(length, np.uint8).reshape(1, 8))[0]))
    crc = fast_crc32c()
    return (head + record + struct.pack("<I", mask(crc(record)) if crc is not None else 0)) * (size // len(record))


class _Server:
    """The server and the link in their process; ``url`` is the address at the link's near end."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.url = self._line()

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline().strip()

    def first_read(self) -> float:
        """Time at which the first file was asked for, as that process's clock and this one's have it."""
        assert self._process.stdin is not None
        print(file=self._process.stdin, flush=True)
        return float(self._line())


@contextlib.contextmanager
def _server(kind: str, size: int, options: Options) -> Iterator[_Server]:
    """Runs the server and the link."""
    words = (kind, str(size), str(options["round_trip"]), str(options["mbit"]))
    command = [sys.executable, "-m", "benchmarks.far_link", "serve", *words]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield _Server(process)
        finally:
            process.communicate()


def _serve(kind: str, size: str, round_trip: str, mbit: str) -> None:
    body = _shard(int(size)) if kind == "shard" else bytes(int(size))
    with far_server(latency_s=0.0, body=body) as server:
        port = int(server.url.rstrip("/").rpartition(":")[2])
        with link(port, float(round_trip) / 1000, float(mbit) * 1e6 / 8) as made:
            print(f"http://127.0.0.1:{made.port}/", flush=True)
            for _ in sys.stdin:
                print(server.first_read, flush=True)


def _run(options: Options, kind: str, read: Read) -> Mapping[str, float]:
    size, count = (options["size"], options["objects"]) if kind == "objects" else (options["shard"] << 20, 1)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(_server(kind, size, options))
        every = read(server.url, count, stack)
        began = time.monotonic()
        found = sum(every())
        ended = time.monotonic()
        if found < 0.95 * size * count:
            raise RuntimeError(f"{found} bytes came")
        reading = server.first_read() - options["round_trip"] / 2000  # when the request went off
        of_the_link = found / (options["mbit"] * 1e6 / 8)
        return {
            "reading": of_the_link / (ended - reading),
            "before": max(0.0, reading - began),
            "link": of_the_link / (ended - began),
        }


def _names(url: str, count: int) -> list[str]:
    return [f"{url}{number:06d}" for number in range(count)]


def _threads(url: str, count: int, stack: contextlib.ExitStack, threads: int) -> Callable[[], Iterable[int]]:
    pool = stack.enter_context(ThreadPoolExecutor(threads))
    return lambda: map(len, pool.map(storage.read, _names(url, count)))


def _length(element: Any) -> int:
    return len(element["bytes"]) if isinstance(element, dict) else len(element)


def _in_process(url: str, count: int, stack: contextlib.ExitStack) -> Callable[[], Iterable[int]]:
    return _listed(Dataset.from_files(_names(url, count)).map(_length))


def _listed(dataset: Dataset) -> Callable[[], Iterable[int]]:
    dataset.__pipeline__().tables()
    return lambda: dataset


def _service(url: str, count: int, stack: contextlib.ExitStack) -> Callable[[], Iterable[int]]:
    service = stack.enter_context(LocalService(max_workers=1))
    warm = Dataset.from_list([b""]).map(_length)  # by which the worker imports this module
    stack.enter_context(near := warm.distribute(service.address, job_name="warm"))
    list(near)
    dataset = Dataset.from_files(_names(url, count)).map(_length)
    return lambda: stack.enter_context(dataset.distribute(service.address, job_name="far"))


def _stream(url: str, count: int, stack: contextlib.ExitStack) -> Callable[[], Iterable[int]]:
    def blocks() -> Iterator[int]:
        with storage.open_range(url) as stream:
            while data := stream.read(1 << 20):
                yield len(data)

    return blocks


def _records(url: str, count: int, stack: contextlib.ExitStack) -> Callable[[], Iterable[int]]:
    return _listed(Dataset.from_tfrecords(f"{url}a.tfrecord").map(_length))


def _contestant(name: str, kind: str, read: Read) -> Contestant:
    return Contestant(name, functools.partial(_run, kind=kind, read=read))


BENCHMARK = Benchmark(
    question="How much of a far link do reads fill?",
    figures={
        "reading": Figure("of the link, reading", digits=3),
        "before": Figure("s before that", digits=2, more_is_better=False),
        "link": Figure("of the link, the whole pass", digits=3),
    },
    contestants=(
        _contestant("objects, 64 threads", "objects", functools.partial(_threads, threads=64)),
        _contestant("objects, millrace, in process", "objects", _in_process),
        _contestant("objects, millrace, service, 1 worker", "objects", _service),
        _contestant("a shard, one stream", "shard", _stream),
        _contestant("a shard, millrace, in process", "shard", _records),
    ),
    reference="objects, 64 threads",
    sizes={
        "objects": Size(1500, 30, "objects"),
        "size": Size(100_000, 10_000, "bytes of each"),
        "shard": Size(128, 1, "MiB of the shard"),
        "round_trip": Size(50, 5, "milliseconds"),
        "mbit": Size(200, 200, "Mbit/s of the link"),
    },
    rounds=3,
)

if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        _serve(*sys.argv[2:])
    else:
        sys.exit(main("benchmarks.far_link"))
