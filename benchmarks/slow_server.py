"""A web server that is far away: every file is there, and comes after a while."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator


class FarServer:
    """What a server counted.

    Attributes:
        url: address of its root; a file's number comes behind it.
        reads: files that it was asked for.
        peak: most of them that were under way at once.
    """

    def __init__(self, latency_s: float, size: int) -> None:
        self.url = ""
        self.reads = self.peak = self._now = 0
        self._latency_s, self._body = latency_s, bytes(size)

    def forget(self) -> None:
        """Begins to count anew."""
        self.reads, self.peak = 0, self._now

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection."""
        version = b'ETag: "1"\r\nLast-Modified: Mon, 01 Jan 2024 00:00:00 GMT'
        head = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n%b\r\n\r\n" % (len(self._body), version)
        with contextlib.closing(writer), contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                request = await reader.readuntil(b"\r\n\r\n")
                if request.startswith(b"HEAD"):
                    writer.write(head)
                    continue
                self.reads, self._now = self.reads + 1, self._now + 1
                self.peak = max(self.peak, self._now)
                await asyncio.sleep(self._latency_s)
                self._now -= 1
                writer.write(head + self._body)
                await writer.drain()


@contextlib.contextmanager
def far_server(*, latency_s: float, size: int = 100) -> Iterator[FarServer]:
    """Starts a server on a thread.

    Args:
        latency_s: seconds until a file comes; being told of it takes none.
        size: bytes of every file.
    """
    server, ready, stop = FarServer(latency_s, size), threading.Event(), asyncio.Event()
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
