"""The source of :mod:`benchmarks.papers.latency`: a web server that takes its time, and what a pipeline does with it.

``python -m benchmarks.papers.far_source SECONDS`` is the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import subprocess
import sys
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.papers.throttled import pause

NBYTES = 4 << 10
"""Of a file."""

_connections = threading.local()


def fetch(port: int, files: int, number: int) -> bytes:
    """One request of this thread's connection."""
    if not hasattr(_connections, "own"):
        _connections.own = http.client.HTTPConnection("127.0.0.1", port)
    _connections.own.request("GET", f"/{number % files}")
    answer: bytes = _connections.own.getresponse().read()
    return answer


def work(seconds: float, element: Any) -> Any:
    """What decoding would be."""
    pause(seconds)
    return np.frombuffer(element["bytes"] if isinstance(element, dict) else element, np.uint8)


@contextlib.contextmanager
def server(delay_s: float) -> Iterator[int]:
    """Answers in so many seconds, in a process of its own; yields its port."""
    command = [sys.executable, "-m", "benchmarks.papers.far_source", str(delay_s)]
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
    asyncio.run(_serve(float(sys.argv[1])))
