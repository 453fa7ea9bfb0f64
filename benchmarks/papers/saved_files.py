"""Saved datasets in files of several sizes: how fast they are read, and by how many requests.

    python -m benchmarks.papers.saved_files [--mib N] [--json FILE]

The same elements of 64 KiB are saved with files of 4 MiB (a block each, as many small files are), 64 MiB and 512 MiB,
and read in one process: in order and by a reservoir of a quarter of them, from a folder of ``TMPDIR`` that is dropped
from memory before each epoch, and in order from a web server behind a link of 30 ms and 100 MB/s, which counts. Sizes
take turns, and figures are medians of the rounds. ``auto`` says what would be chosen for that folder, and why. It fails
where more requests are made than one for each file, one for each block, and one for each task whose edge lies in a
block.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import os
import re
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.far_store import Link, link
from benchmarks.machine import machine
from benchmarks.papers.report import verdict, write
from millrace import Dataset

QUESTION = "What do files of a saved dataset gain by being large?"
SIZES = {"4 MiB": 4 << 20, "64 MiB": 64 << 20, "512 MiB": 512 << 20}
ELEMENT = 64 << 10
ROUND_TRIP_S = 0.03
BYTES_PER_S = 100e6
ROUNDS = 3
_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d+)", re.IGNORECASE)
_ENDS = (asyncio.IncompleteReadError, asyncio.CancelledError, ConnectionError)
"""What ends a connection."""
_REQUEST = re.compile(rb"([A-Z]+) /(\S+) ")


def element(number: int) -> Any:
    """Bytes that no disk makes smaller."""
    return np.random.default_rng(number).integers(0, 256, ELEMENT, np.uint8)


async def answer(folder: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serves files of a folder, and ranges of them, on one connection."""
    with contextlib.closing(writer), contextlib.suppress(*_ENDS):
        while True:
            request = await reader.readuntil(b"\r\n\r\n")
            writer.write(response(folder, request))
            await writer.drain()


def response(folder: str, request: bytes) -> bytes:
    """Head of the answer to a request, and the bytes that it asks for."""
    found = _REQUEST.match(request)
    assert found is not None, request
    with open(os.path.join(folder, os.fsdecode(found[2])), "rb") as file:
        size = os.fstat(file.fileno()).st_size
        start, stop, kind, where = 0, size, b"200 OK", b""
        if asked := _RANGE.search(request):
            start, stop, kind = int(asked[1]), min(int(asked[2]) + 1, size), b"206 Partial Content"
            where = b"\r\nContent-Range: bytes %d-%d/%d" % (start, stop - 1, size)
        about = b'ETag: "1"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT'
        head = b"HTTP/1.1 %b\r\nContent-Length: %d%b\r\n%b\r\n\r\n" % (kind, stop - start, where, about)
        return head + os.pread(file.fileno(), stop - start, start) if found[1] == b"GET" else head


@contextlib.contextmanager
def web_server(folder: str) -> Iterator[int]:
    """A server of a folder, on a thread; its port."""
    loop, ready, stop, ports = asyncio.new_event_loop(), threading.Event(), asyncio.Event(), list[int]()

    async def serve() -> None:
        listening = await asyncio.start_server(lambda *ends: answer(folder, *ends), "127.0.0.1", 0, backlog=1024)
        ports.append(listening.sockets[0].getsockname()[1])
        ready.set()
        await stop.wait()
        listening.close()
        open_still = asyncio.all_tasks() - {asyncio.current_task()}
        for task in open_still:
            task.cancel()
        await asyncio.gather(*open_still, return_exceptions=True)

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=run, name="web-server", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield ports[0]
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def drop(folder: str) -> None:
    """Has the system forget what it holds of the files in memory."""
    for entry in os.scandir(folder):
        with open(entry.path, "rb") as file:
            os.fsync(file.fileno())
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def read(dataset: Dataset, count: int) -> float:
    """Seconds of an epoch, listing included."""
    began = time.perf_counter()
    if sum(1 for _ in dataset) != count:
        raise RuntimeError("an epoch has not all elements")
    return time.perf_counter() - began


def round_of(root: str, name: str, count: int, far: Link) -> dict[str, float]:
    """One epoch of each kind over the files of one size."""
    folder = os.path.join(root, name)
    drop(folder)
    in_order = read(Dataset.load(folder), count)
    drop(folder)
    mixed = Dataset.load(folder).reservoir(count // 4, seed=1).with_options(buffer_bytes=count * ELEMENT)
    random = read(mixed, count)
    far.reset()
    over_link = read(Dataset.load(f"http://127.0.0.1:{far.port}/{name}"), count)
    megabytes = count * ELEMENT / 1e6
    return {
        "in order, MB/s": megabytes / in_order,
        "reservoir, MB/s": megabytes / random,
        "over the link, MB/s": megabytes / over_link,
        "requests": far.requests,
        "sent, MB": far.sent / 1e6,
    }


def facts(folder: str) -> dict[str, int]:
    """Files, blocks and tasks of an epoch."""
    pipeline = Dataset.load(folder).__pipeline__()
    tasks = pipeline.plan().length
    assert tasks is not None
    return {"files": Dataset.saved_info(folder).files, "blocks": len(pipeline.tables()[0].splits), "tasks": tasks}


def measure(root: str, mib: int) -> dict[str, Any]:
    """Saves, and reads."""
    count = (mib << 20) // ELEMENT
    dataset, on_disk = Dataset.range(count).map(element), dict[str, dict[str, int]]()
    for name, size in {size.replace(" ", "-"): value for size, value in SIZES.items()}.items():
        dataset.save(os.path.join(root, name), file_bytes=size)
        on_disk[name] = facts(os.path.join(root, name))
    made = dataset.save(os.path.join(root, "auto")).info.made
    assert made is not None
    rounds = []
    with web_server(root) as port, link(port, ROUND_TRIP_S, BYTES_PER_S) as far:
        for turn in range(ROUNDS):
            names = list(on_disk) if turn % 2 == 0 else list(reversed(on_disk))
            rounds.append({name: round_of(root, name, count, far) for name in names})
            print(f"  round {turn + 1}: {rounds[-1]}", flush=True)
    return {"rounds": rounds, "on_disk": on_disk, "auto": {"bytes": made.file_bytes, "why": made.why_file_bytes}}


def median(rounds: Sequence[Mapping[str, Mapping[str, float]]], name: str, figure: str) -> float:
    """Median over the rounds."""
    return statistics.median(each[name][figure] for each in rounds)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs as the command line says; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.papers.saved_files", description=QUESTION)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of elements")
    parser.add_argument("--json", metavar="FILE", help="writes every figure here, too")
    options = parser.parse_args(arguments)
    on = machine()
    with tempfile.TemporaryDirectory(prefix="millrace-saved-files-") as root:
        found = measure(root, options.mib)
    figures = ("in order, MB/s", "reservoir, MB/s", "over the link, MB/s", "requests")
    table, aims = [["files of", "files", "blocks", *figures]], []
    for name, facts_of in found["on_disk"].items():
        values = [f"{median(found['rounds'], name, each):.0f}" for each in figures]
        table.append([name, str(facts_of["files"]), str(facts_of["blocks"]), *values])
        most = sum(facts_of.values()) + 1  # and the manifest
        share = max(each[name]["requests"] for each in found["rounds"]) / most
        aim = f"{name}: requests, of one for each file, block and task"
        aims.append({"aim": aim, "value": share, "asked": 1.05, "met": share <= 1.05})
    for row in table:
        print("  ".join(f"{cell:>20}" for cell in row))
    print(f"auto: {found['auto']['bytes']} bytes: {found['auto']['why']}")
    report = {"modelled": "the link", **found, "table": table, "aims": aims}
    write(options.json, "benchmarks.papers.saved_files", QUESTION, arguments, on, report)
    return verdict(aims)


if __name__ == "__main__":
    sys.exit(main())
