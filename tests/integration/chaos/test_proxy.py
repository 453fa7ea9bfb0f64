"""What a proxy does to a connection, seen from both of its ends."""

import asyncio
import collections
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from chaos.proxy import FaultKind, FaultQueue, Proxy, ProxyFault

PIECE = bytes(range(256)) * 40
End = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def connected(orders: FaultQueue) -> AsyncIterator[tuple[End, End]]:
    """Both ends of a connection through a proxy."""
    accepted: asyncio.Queue[End] = asyncio.Queue()
    server = await asyncio.start_server(lambda *end: accepted.put_nowait(end), "127.0.0.1")
    proxy = await Proxy(server.sockets[0].getsockname(), orders).open("127.0.0.2")
    one = await asyncio.open_connection("127.0.0.2", proxy.port)
    other = await accepted.get()
    try:
        yield one, other
    finally:
        for _, writer in (one, other):
            writer.transport.abort()
        await proxy.close()
        server.close()


def through(check: Callable[[End, End, FaultQueue], Awaitable[None]]) -> None:
    async def run() -> None:
        orders: FaultQueue = collections.deque()
        async with asyncio.timeout(20), connected(orders) as (one, other):
            await check(one, other, orders)

    asyncio.run(run())


async def lost(end: End) -> bytes:
    """What still comes until the connection is lost."""
    try:
        return await end[0].read()
    except ConnectionError:
        return b""


def test_what_is_not_harmed_arrives_and_so_does_its_end():
    async def check(one: End, other: End, orders: FaultQueue) -> None:
        for source, sink in ((one, other), (other, one)):
            source[1].write(PIECE)
            assert await sink[0].readexactly(len(PIECE)) == PIECE
        one[1].write(PIECE)
        one[1].write_eof()
        assert await other[0].read() == PIECE
        other[1].write(b"more")
        other[1].close()
        assert await one[0].read() == b"more"

    through(check)


def test_a_cut_comes_in_the_middle_of_a_piece_that_is_large_enough():
    async def check(one: End, other: End, orders: FaultQueue) -> None:
        harm = ProxyFault(FaultKind.CUT, least=len(PIECE), spare=1)
        orders.append(harm)
        for piece in (b"small", PIECE):
            one[1].write(piece)
            assert await other[0].readexactly(len(piece)) == piece
        one[1].write(PIECE)
        assert await other[0].read() == PIECE[: len(PIECE) // 2]
        assert await lost(one) == b""
        assert harm.fired.result() == len(PIECE)

    through(check)


def test_a_delay_loses_nothing():
    async def check(one: End, other: End, orders: FaultQueue) -> None:
        harm = ProxyFault(FaultKind.DELAY, seconds=0.05)
        orders.append(harm)
        one[1].write(PIECE)
        await harm.fired
        one[1].write(b"behind it")
        other[1].write(b"the other way")
        assert await one[0].readexactly(13) == b"the other way"
        assert await other[0].readexactly(len(PIECE) + 9) == PIECE + b"behind it"

    through(check)


def test_half_open_is_known_to_the_sender_and_not_to_the_receiver():
    async def check(one: End, other: End, orders: FaultQueue) -> None:
        orders.append(ProxyFault(FaultKind.HALF_OPEN, seconds=60))
        one[1].write(PIECE)
        assert await other[0].readexactly(len(PIECE) // 2) == PIECE[: len(PIECE) // 2]
        assert await lost(one) == b""
        other[1].write(b"are you there?")
        await other[1].drain()
        assert not other[0].at_eof()

    through(check)


@pytest.mark.parametrize("kind", [FaultKind.SILENCE, FaultKind.HALF_OPEN])
def test_what_is_silent_ends_in_time(kind: FaultKind):
    async def check(one: End, other: End, orders: FaultQueue) -> None:
        orders.append(ProxyFault(kind, seconds=0.05))
        one[1].write(PIECE)
        other[1].write(b"lost")
        came = await lost(other)
        assert came == (b"" if kind is FaultKind.SILENCE else PIECE[: len(PIECE) // 2])
        assert await lost(one) in (b"", b"lost")

    through(check)


def test_harms_that_were_given_up_strike_nobody():
    async def check(one: End, other: End, orders: FaultQueue) -> None:
        orders.append(ProxyFault(FaultKind.CUT))
        orders[0].fired.cancel()
        one[1].write(PIECE)
        assert await other[0].readexactly(len(PIECE)) == PIECE
        assert not orders

    through(check)


def test_who_connects_where_nobody_listens_is_told_so():
    async def run() -> None:
        server = await asyncio.start_server(lambda *end: None, "127.0.0.1")
        target = server.sockets[0].getsockname()
        server.close()
        await server.wait_closed()
        proxy = await Proxy(target, collections.deque()).open("127.0.0.2")
        end = await asyncio.open_connection("127.0.0.2", proxy.port)
        assert await asyncio.wait_for(lost(end), 20) == b""
        end[1].transport.abort()
        await proxy.close()

    asyncio.run(run())
