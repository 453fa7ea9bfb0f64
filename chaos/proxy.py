"""A TCP proxy that harms what passes through it: cuts in the middle of a frame, delays, half-open connections.

A :class:`ProxyFault` waits in a queue for its connection: the first one, of all that share the queue, through which a
large enough piece passes. So a faulty connection had bytes in flight, and whoever ordered the fault learns how many.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import dataclasses
import enum
from collections.abc import Coroutine
from typing import Self

PIECE_BYTES = 64 << 10
"""Most that is read at once, and so most that is in flight in the proxy."""
_CONNECT_S = 5.0


class FaultKind(enum.Enum):
    """What is done to a connection."""

    CUT = "cut"
    """Half of a piece arrives, then both ends lose the connection."""
    DELAY = "delay"
    """The piece, and what follows it in its direction, comes later."""
    HALF_OPEN = "half-open"
    """Half of a piece arrives. Its sender loses the connection; its receiver learns of it later."""
    SILENCE = "silence"
    """From this piece on nothing arrives anywhere; both ends learn of it later."""


@dataclasses.dataclass
class ProxyFault:
    """One fault.

    Attributes:
        kind: what is done.
        seconds: how long a delay is, or how long it takes until a connection's loss is noticed.
        least: bytes that the piece must have; 2 at least, so that it can be halved.
        spare: pieces of that size that may pass before.
        fired: bytes in flight when it was done.
    """

    kind: FaultKind
    seconds: float = 0.0
    least: int = 2
    spare: int = 0
    fired: asyncio.Future[int] = dataclasses.field(default_factory=lambda: asyncio.get_running_loop().create_future())


FaultQueue = collections.deque[ProxyFault]
"""Harms that wait for their victims, in order."""


class Proxy:
    """Listens on one address of this machine and forwards to another. Belongs to a running event loop.

    Args:
        target: ``host, port`` to forward to, where nobody needs to be yet; port 0 is the one that it listens at itself.
        orders: harms to be done; may be shared with other proxies.
        bytes_s: that pass in a second, in each direction of each connection; None: as many as may.

    Attributes:
        port: that it listens at, once opened.
        passed: bytes that it has forwarded.
    """

    def __init__(self, target: tuple[str, int], orders: FaultQueue, bytes_s: float | None = None) -> None:
        self.port = 0
        self.passed = 0
        self._target = target
        self._orders = orders
        self._bytes_s = bytes_s
        self._server: asyncio.Server | None = None
        self._links: set[asyncio.Task[None]] = set()

    async def open(self, host: str, port: int = 0) -> Self:
        """Listens at ``host:port``; 0 takes a free port."""
        self._server = await asyncio.start_server(self._accepted, host, port, limit=PIECE_BYTES)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def close(self) -> None:
        """Ends all connections and stops listening."""
        if self._server is not None:
            self._server.close()
        for link in self._links:
            link.cancel()
        await asyncio.gather(*self._links, return_exceptions=True)

    def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = asyncio.create_task(self._link(reader, writer))
        self._links.add(link)
        link.add_done_callback(self._links.discard)

    async def _link(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One connection, until either side ends it."""
        with contextlib.ExitStack() as ends:
            ends.callback(writer.transport.abort)
            host, port = self._target
            try:
                there = await asyncio.wait_for(
                    asyncio.open_connection(host, port or self.port, limit=PIECE_BYTES), timeout=_CONNECT_S
                )
            except (OSError, TimeoutError):
                return  # nobody is there, which closing says
            ends.callback(there[1].transport.abort)
            if there[1].get_extra_info("sockname") == there[1].get_extra_info("peername"):
                return  # Linux may connect a socket to itself where nobody listens
            silent = asyncio.Event()
            with contextlib.suppress(_OverError, OSError):
                await _both(
                    self._pump(reader, there[1], writer, silent), self._pump(there[0], writer, there[1], silent)
                )

    async def _pump(
        self,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        back: asyncio.StreamWriter,
        silent: asyncio.Event,
    ) -> None:
        """One direction, until it ends or is harmed; ``back`` leads to where the bytes come from.

        Raises:
            _OverError: the connection ends here.
            OSError: it has ended.
        """
        while piece := await source.read(PIECE_BYTES):
            if silent.is_set():
                continue
            harm = self._ordered(len(piece))
            if harm is not None:
                harm.fired.set_result(len(piece))
                await _apply(harm, piece, sink, back, silent)
            self.passed += len(piece)
            if self._bytes_s is not None:
                await asyncio.sleep(len(piece) / self._bytes_s)
            sink.write(piece)
            await sink.drain()
        if silent.is_set():
            await asyncio.Event().wait()  # the other direction says when it is over
        sink.write_eof()

    def _ordered(self, size: int) -> ProxyFault | None:
        """The next harm, if it is this piece's turn."""
        while self._orders and self._orders[0].fired.done():  # given up by who ordered it
            self._orders.popleft()
        if not self._orders or size < self._orders[0].least:
            return None
        if self._orders[0].spare:
            self._orders[0].spare -= 1
            return None
        return self._orders.popleft()


class _OverError(Exception):
    """A connection was cut."""


async def _apply(
    harm: ProxyFault, piece: bytes, sink: asyncio.StreamWriter, back: asyncio.StreamWriter, silent: asyncio.Event
) -> None:
    """Returns if the piece may go on."""
    if harm.kind in (FaultKind.CUT, FaultKind.HALF_OPEN):
        sink.write(piece[: len(piece) // 2])
        await sink.drain()
    if harm.kind in (FaultKind.SILENCE, FaultKind.HALF_OPEN):
        silent.set()
    if harm.kind is FaultKind.HALF_OPEN:
        back.transport.abort()
    if harm.kind is not FaultKind.CUT:
        await asyncio.sleep(harm.seconds)
    if harm.kind is not FaultKind.DELAY:
        raise _OverError


async def _both(one: Coroutine[None, None, None], other: Coroutine[None, None, None]) -> None:
    """Until both have returned or one has failed, with its error."""
    ways = [asyncio.create_task(one), asyncio.create_task(other)]
    try:
        await asyncio.gather(*ways)
    finally:
        for way in ways:
            way.cancel()
        await asyncio.gather(*ways, return_exceptions=True)
