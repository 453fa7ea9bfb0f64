"""A source that is far away: does a training read as fast as from a near one, and what does that take?

    python -m benchmarks.papers.latency [--json FILE]

A web server on this machine answers every request at once, or 50 ms later (tf.data service 4.2 reads from another
region). An element takes a request, 40 ms of work in a worker, and 20 ms of the consumer. It is asked for by the
pipeline's own function, one request after the other, or by ``Dataset.from_files``, which has several under way. Each
job begins with one worker and is left alone until the service has settled; then its elements are timed.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from benchmarks.papers.report import main
from benchmarks.papers.scaled import NBYTES, Reading, service
from benchmarks.papers.throttled import pause
from millrace import Dataset

QUESTION = "Is a source that is far away read as fast as a near one, by more workers?"
DELAY_S = 0.050
WORK_S = 0.040
OWN_S = 0.020
FILES = 600
EPOCHS = 20
"""So many times the files; no job reads that many."""
TASKS = 600
MOST = 16
SECONDS = 8.0
"""Of a measurement."""
LIMIT_S = 120.0
KINDS = ("its own function", "from_files")
NEAR, FAR = "near", f"{1000 * DELAY_S:.0f} ms away"

_connections = threading.local()


def fetch(port: int, number: int) -> bytes:
    """One request of this thread's connection."""
    if not hasattr(_connections, "own"):
        _connections.own = http.client.HTTPConnection("127.0.0.1", port)
    _connections.own.request("GET", f"/{number % FILES}")
    answer: bytes = _connections.own.getresponse().read()
    return answer


def work(element: Any) -> Any:
    """What decoding would be."""
    pause(WORK_S)
    content = element["bytes"] if isinstance(element, dict) else element
    return np.frombuffer(content, np.uint8)


def dataset(kind: str, port: int) -> Dataset:
    """The same elements, asked for in this way."""
    if kind == "from_files":
        source = Dataset.from_files([f"http://127.0.0.1:{port}/{number}" for number in range(FILES)]).repeat(EPOCHS)
        return source.map(work, num_parallel_calls=1)
    read = Dataset.range(FILES * EPOCHS).map(functools.partial(fetch, port), num_parallel_calls=1)
    return read.map(work, num_parallel_calls=1)


def measured(kind: str, delay_s: float) -> dict[str, Any]:
    """A job that is left alone until the service has settled; and how fast it is then."""
    with (
        server(delay_s) as port,
        service(f"1-{MOST}") as address,
        dataset(kind, port).distribute(address, job_name="reads", tasks=TASKS) as served,
    ):
        reading = Reading(address, "reads", iter(served), OWN_S)
        workers = reading.settle(LIMIT_S)
        reading.empty()
        return {"workers": workers, "batch_s": reading.read(round(SECONDS / OWN_S)), "timeline": reading.timeline}


def measure() -> Mapping[str, Any]:
    """Runs and prints."""
    results: dict[str, Any] = {}
    rows = [["asked for by", "the source is", "workers", "ms of an element", "rate, of the near source's"]]
    for kind in KINDS:
        found = {place: measured(kind, delay_s) for place, delay_s in ((NEAR, 0.0), (FAR, DELAY_S))}
        for place, each in found.items():
            rate = found[NEAR]["batch_s"] / each["batch_s"]
            rows.append([kind, place, str(each["workers"]), f"{1000 * each['batch_s']:.1f}", f"{rate:.3f}"])
            print("  ".join(rows[-1]), flush=True)
        results[kind] = found
    figures = {
        kind: {"rate": each[NEAR]["batch_s"] / each[FAR]["batch_s"], "workers": each[FAR]["workers"]}
        for kind, each in results.items()
    }
    return {"rounds": [figures], "table": rows, "results": results}


# -- the server --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def server(delay_s: float) -> Iterator[int]:
    """Answers in so many seconds, in a process of its own; yields its port."""
    command = [sys.executable, "-m", "benchmarks.papers.latency", "serve", str(delay_s)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        yield int(process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


async def _serve(delay_s: float) -> None:
    body = bytes(NBYTES)
    dated = 'Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nETag: "1"\r\nAccept-Ranges: bytes\r\n'
    head = f"HTTP/1.1 200 OK\r\nContent-Length: {NBYTES}\r\n{dated}\r\n".encode()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):  # who asked has gone
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                await asyncio.sleep(delay_s)
                writer.write(head if request.startswith(b"HEAD") else head + body)
                await writer.drain()
        writer.close()

    listening = await asyncio.start_server(answer, "127.0.0.1", 0)
    print(listening.sockets[0].getsockname()[1], flush=True)
    await listening.serve_forever()


if __name__ == "__main__":
    if sys.argv[1:2] == ["serve"]:
        asyncio.run(_serve(float(sys.argv[2])))
    else:
        main("benchmarks.papers.latency", QUESTION, measure)
