"""Uploads: requests while they arrive, each in limited time, of limited size, and within a budget of its peer.

A request over some kibibytes lies on the disk until it is whole, so that one that stands still, or comes a byte at a
time, takes no memory. One large request at a time is in memory, to be decoded.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import IO, Any

import grpc.aio

from millrace.errors import ProtocolError, ServiceError, ServiceUnreachableError
from millrace.wire.control import rpc

SPOOLED_BYTES = 64 << 10
"""Bytes of a request from which it is written to the disk as it comes."""
LARGE_BYTES = 16 << 20
"""Bytes from which a request waits for others as large before it is read back."""
STALL_S = 20.0
"""Seconds for the next frame, of a mebibyte at most, to come."""
UPLOAD_S = 300.0
"""Seconds for a whole request; who sends one waits for no longer."""
PEER_BYTES = rpc.MAX_CALL_BYTES + LARGE_BYTES
"""Most bytes of the requests of one address that are on their way."""
PEER_REQUESTS = 256
"""Most requests of one address that are on their way."""
ALL_BYTES = 8 * rpc.MAX_CALL_BYTES
"""Most bytes of requests on their way, all peers together."""

_BUSY = "the dispatcher is busy receiving requests {0}; try again in a while"


class Uploads:
    """Requests that are on their way to a server. Belongs to its event loop.

    Attributes:
        bytes: on their way, by address.
        requests: on their way, by address.
    """

    def __init__(self) -> None:
        self.bytes: Counter[str] = Counter()
        self.requests: Counter[str] = Counter()
        self._large = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def receive(
        self, name: str, peer: str, read: Callable[[], Awaitable[Any]], most_bytes: int
    ) -> AsyncIterator[bytes]:
        """Receive a request, whose bytes count until this context ends.

        Args:
            name: of the call.
            peer: as gRPC writes it, ``ipv4:10.0.0.7:41234``.
            read: waits for the next frame, or ``grpc.aio.EOF``.
            most_bytes: of the request.

        Raises:
            ProtocolError: it is too large, or came too slowly.
            ServiceUnreachableError: its peer, or all together, send too much at a time; clients that join try again.
        """
        address = peer.rpartition(":")[0]
        if self.requests[address] >= PEER_REQUESTS:
            raise ServiceUnreachableError(_BUSY.format("of this host"))
        self.requests[address] += 1
        counted = 0

        def count(size: int) -> None:
            nonlocal counted
            counted += size
            self.bytes[address] += size
            rpc.check_call_size(counted, f"the request {name}")
            if counted > most_bytes:
                raise ProtocolError(f"the request {name} takes over {counted:,} bytes; at most {most_bytes:,} are read")
            if self.bytes[address] > PEER_BYTES:
                raise ServiceUnreachableError(_BUSY.format("of this host"))
            if self.bytes.total() > ALL_BYTES:
                raise ServiceUnreachableError(_BUSY.format("of all hosts"))

        try:
            with tempfile.SpooledTemporaryFile(SPOOLED_BYTES, prefix="millrace-") as spool:
                await _collect(name, read, spool, count)
                if counted <= LARGE_BYTES:
                    yield _whole(spool)
                else:
                    async with self._large:
                        yield await asyncio.to_thread(_whole, spool)
        finally:
            for counter, over in ((self.bytes, counted), (self.requests, 1)):
                counter[address] -= over
                if not counter[address]:
                    del counter[address]


async def _collect(
    name: str, read: Callable[[], Awaitable[Any]], spool: IO[bytes], count: Callable[[int], None]
) -> None:
    """Write the frames of a request to ``spool``."""
    try:
        async with asyncio.timeout(UPLOAD_S):
            while (frame := await asyncio.wait_for(read(), STALL_S)) is not grpc.aio.EOF:
                count(len(frame))
                if len(frame) < SPOOLED_BYTES:
                    spool.write(frame)
                else:
                    await asyncio.to_thread(spool.write, frame)
    except TimeoutError:
        raise ProtocolError(f"the request {name} came too slowly; it was given up") from None
    except ServiceUnreachableError:  # which is an OSError, too
        raise
    except OSError as error:
        raise ServiceError(
            f"the request {name} cannot be kept in {tempfile.gettempdir()} while it comes: {error.strerror}"
        ) from error


def _whole(spool: IO[bytes]) -> bytes:
    spool.seek(0)
    return spool.read()
