"""Link benchmark: throughput between two hosts, plain sockets beside millrace's own connections, taking turns."""

from __future__ import annotations

import socket
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import msgspec
import numpy as np

from millrace.errors import ProtocolError
from millrace.wire.data.buffer_pool import BufferPool
from millrace.wire.data.compression import Compression
from millrace.wire.data.data_connection import DataConnection, DataServer, open_data_connection
from millrace.wire.data.frames import receive_all, send_all
from millrace.wire.data.striping import MAX_SOCKETS, round_trip_s, same_host, sockets_for, window_bytes

BATCH_BYTES = 64 * 224 * 224 * 3
"""Bytes of a batch of 64 pictures, in which the figures are given: 9.6 MB."""
SOCKETS = (1, 2, 4, MAX_SOCKETS)
PINGS = 30

_MOST_BATCHES = 1 << 20


class SendBatches(msgspec.Struct, frozen=True, tag="Order"):
    """Order to send so many batches.

    Attributes:
        batches: 0 asks for an empty frame.
        plain: without frames: their bytes and nothing else.
        tokens: token ids, which shrink, rather than random bytes, which don't.
    """

    batches: int
    plain: bool = False
    tokens: bool = False


class LinkFigure(msgspec.Struct, frozen=True):
    """One way of using the link.

    Attributes:
        way: "plain sockets" or "millrace".
        sockets: side by side.
        content: "random bytes" or "token ids".
        compression: as of ``distribute``.
        bytes_per_s: median over rounds, before compression.
        rounds: all of them.
    """

    way: str
    sockets: int
    content: str
    compression: Compression | None
    bytes_per_s: float
    rounds: list[float]


class LinkReport(msgspec.Struct, frozen=True):
    """Measures of a link.

    Attributes:
        peer: the other end's ``host:port``.
        same_host: it is this machine.
        round_trip_s: of an empty frame, median, in seconds.
        window_bytes: most that a socket has on the way, by this machine's settings; None: unknown.
        sockets: how many millrace makes a connection of here.
        rows: figures.
    """

    peer: str
    same_host: bool
    round_trip_s: float
    window_bytes: float | None
    sockets: int
    rows: list[LinkFigure]


_orders = msgspec.msgpack.Decoder(SendBatches)


def serve_link(host: str, port: int, token: str | None) -> DataServer:
    """Serve the end that sends; runs until it is closed."""
    rng = np.random.default_rng(0)
    noise = rng.integers(0, 256, BATCH_BYTES, np.uint8)
    tokens = (rng.zipf(1.3, BATCH_BYTES // 4) % 50_000).astype(np.int32).view(np.uint8)

    def answer(connection: DataConnection) -> None:
        while True:
            order, _ = connection.receive(_orders, limit=0)
            if not 0 <= order.batches <= _MOST_BATCHES:
                raise ProtocolError(f"the peer ordered {order.batches} batches; at most {_MOST_BATCHES} are sent")
            batch = tokens if order.tokens else noise
            if not order.batches:
                connection.send(order)
            for _ in range(order.batches):
                if order.plain:
                    with connection.borrowed("send") as sock:
                        send_all(sock, [batch.data])
                else:
                    connection.send(order, [batch])

    return DataServer(host, answer, port=port, token=token, insecure=True)  # what is sent says nothing


def measure_link(address: str, token: str | None, seconds: float = 0.5, rounds: int = 3) -> LinkReport:
    """Measure the link to a :func:`serve_link`.

    Args:
        address: ``host:port`` of it.
        token: token that it demands.
        seconds: time that each measurement is to take, about.
        rounds: in which the ways take turns; figures are medians.
    """
    with ExitStack() as stack:
        # First in, last out: its threads end when the connections are closed, also after Ctrl-C.
        pool = stack.enter_context(ThreadPoolExecutor(MAX_SOCKETS, "millrace-link"))

        def connect(sockets: int, compression: Compression | None = None) -> DataConnection:
            made = open_data_connection(address, token, local=False, compression=compression, sockets=sockets)
            return stack.enter_context(made)

        plain = [connect(1) for _ in range(MAX_SOCKETS)]
        with plain[0].borrowed("measure") as sock:
            assert isinstance(sock, socket.socket)
            near = same_host(sock)
            window = window_bytes()
            best = sockets_for(round_trip_s(sock), window, same_host=near)
        round_trip = _round_trip(plain[0])
        ways: dict[tuple[str, int, str, Compression | None], Callable[[int], int]] = {}
        for count in sorted({*SOCKETS, best}):
            ways["plain sockets", count, "random bytes", None] = _plain(pool, plain[:count])
            ways["millrace", count, "random bytes", None] = _framed(connect(count), SendBatches(0))
        choices: tuple[Compression | None, ...] = (None, "lz4", "zstd")
        for choice in choices:
            ways["millrace", best, "token ids", choice] = _framed(connect(best, choice), SendBatches(0, tokens=True))
        sizes = {way: _batches_for(seconds, receive) for way, receive in ways.items()}
        rates: dict[tuple[str, int, str, Compression | None], list[float]] = {way: [] for way in ways}
        for _ in range(rounds):
            for way, receive in ways.items():
                rates[way].append(_rate(receive, sizes[way]))
    rows = [LinkFigure(*way, statistics.median(found), found) for way, found in rates.items()]
    return LinkReport(plain[0].peer, near, round_trip, window if np.isfinite(window) else None, best, rows)


def _round_trip(connection: DataConnection) -> float:
    times = []
    for _ in range(PINGS):
        began = time.perf_counter()
        connection.send(SendBatches(0))
        connection.receive(_orders)
        times.append(time.perf_counter() - began)
    return statistics.median(times)


def _plain(pool: ThreadPoolExecutor, connections: list[DataConnection]) -> Callable[[int], int]:
    def receive(batches: int) -> int:
        each = -(-batches // len(connections))
        list(pool.map(lambda connection: _receive_plain(connection, each), connections))
        return each * len(connections) * BATCH_BYTES

    return receive


def _receive_plain(connection: DataConnection, batches: int) -> None:
    connection.send(SendBatches(batches, plain=True))
    buffer = np.empty(BATCH_BYTES, np.uint8).data
    with connection.borrowed("receive") as sock:
        for _ in range(batches):
            receive_all(sock, buffer, "")


def _framed(connection: DataConnection, order: SendBatches) -> Callable[[int], int]:
    pool = BufferPool(4 * BATCH_BYTES)

    def receive(batches: int) -> int:
        connection.send(msgspec.structs.replace(order, batches=batches))
        for _ in range(batches):
            connection.receive(_orders, pool.allocate, BATCH_BYTES)
        return batches * BATCH_BYTES

    return receive


def _rate(receive: Callable[[int], int], batches: int) -> float:
    began = time.perf_counter()
    return receive(batches) / (time.perf_counter() - began)


def _batches_for(seconds: float, receive: Callable[[int], int]) -> int:
    """Count the batches received in that time, by trying, which also lets TCP find the link's speed."""
    _rate(receive, 1)
    return min(_MOST_BATCHES, max(1, round(seconds * _rate(receive, 4) / BATCH_BYTES)))
