"""A web server that is far away: every file is there, and comes after a while."""

from __future__ import annotations

import asyncio
import contextlib
import re
import threading
import time
from collections.abc import Iterator

_RANGE = re.compile(rb"\r\nrange: bytes=(\d+)-(\d+)", re.IGNORECASE)
_INDEX = re.compile(rb"[A-Z]+ \S+\.(idx|index|parquet) ")
"""Requests for files beside those that are there."""
_VERSION = b'ETag: "1"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT'


class FarServer:
    """What a server counted.

    Attributes:
        url: address of its root; a file's number comes behind it.
        reads: files that it was asked for.
        first_read: time (:func:`time.monotonic`) at which it was asked for the first of them; 0: for none yet.
        peak: most of them that were under way at once.
    """

    def __init__(self, latency_s: float, body: bytes) -> None:
        self.url = ""
        self.reads = self.peak = self._now = 0
        self.first_read = 0.0
        self._latency_s, self._body = latency_s, body

    def forget(self) -> None:
        """Begins to count anew."""
        self.reads, self.peak, self.first_read = 0, self._now, 0.0

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                if _INDEX.match(request):
                    writer.write(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
                    continue
                head, part = self._found(request)
                if request.startswith(b"HEAD"):
                    writer.write(head)
                    continue
                self.first_read = self.first_read or time.monotonic()
                self.reads, self._now = self.reads + 1, self._now + 1
                self.peak = max(self.peak, self._now)
                await asyncio.sleep(self._latency_s)
                self._now -= 1
                writer.write(head)
                writer.write(part)
                await writer.drain()

    def _found(self, request: bytes) -> tuple[bytes, memoryview]:
        """Head and body of the answer: all of the file, or the range that is asked for."""
        start, stop, kind, where = 0, len(self._body), b"200 OK", b""
        if asked := _RANGE.search(request):
            start, stop, kind = int(asked[1]), min(int(asked[2]) + 1, stop), b"206 Partial Content"
            where = b"\r\nContent-Range: bytes %d-%d/%d" % (start, stop - 1, len(self._body))
        head = b"HTTP/1.1 %b\r\nContent-Length: %d%b\r\n%b\r\n\r\n" % (kind, stop - start, where, _VERSION)
        return head, memoryview(self._body)[start:stop]


@contextlib.contextmanager
def far_server(*, latency_s: float, size: int = 100, body: bytes | None = None) -> Iterator[FarServer]:
    """Starts a server on a thread.

    Args:
        latency_s: seconds until a file comes; being told of it takes none.
        size: bytes of every file.
        body: what is in every file; None: zeros.
    """
    server, ready, stop = (
        FarServer(latency_s, bytes(size) if body is None else body),
        threading.Event(),
        asyncio.Event(),
    )
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        listening = await asyncio.start_server(server.answer, "127.0.0.1", 0, backlog=1024)
        server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}/"
        ready.set()
        await stop.wait()
        listening.close()

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(loop.shutdown_asyncgens())

    thread = threading.Thread(target=run, name="far-server", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield server
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()
