"""Connections of several sockets, and compressed ones, with real sockets."""

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from tests.integration.wire.wire_messages import PROMPTLY_S

from millrace.errors import AuthenticationError, ProtocolError, ServiceUnreachableError
from millrace.wire.address import format_address
from millrace.wire.data import data_connection, striping
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.data_keys import of_token
from millrace.wire.data.frames import receive_frame, send_frame
from millrace.wire.data.handshake import exchange_hello
from millrace.wire.data.striping import Striped, StripePart, round_trip_s, same_host
from millrace.wire.own_token import own_token


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int


PING = msgspec.msgpack.Decoder(Ping)


def echo(connection):
    while True:
        header, payload = connection.receive(PING)
        connection.send(header, [payload])


def forever(connection):
    while True:
        connection.receive(PING)


def parts(connection):
    return connection._sock._sockets


@contextlib.contextmanager
def pairs(count):
    with contextlib.ExitStack() as stack:
        both = [socket.socketpair() for _ in range(count)]
        for sock in (sock for pair in both for sock in pair):
            stack.enter_context(sock)
        yield [left for left, _ in both], [right for _, right in both]


@pytest.mark.parametrize("sockets", [1, 2, 3, 8])
@pytest.mark.parametrize("compression", [None, "lz4", "zstd"])
def test_payloads_of_any_size(sockets, compression):
    rng = np.random.default_rng(0)
    with (
        DataServer("127.0.0.1", echo, token="secret") as server,
        open_data_connection(server.address, "secret", sockets=sockets, compression=compression) as connection,
        ThreadPoolExecutor() as pool,
    ):
        for size in (0, 1, 63, 100_000, 262_144, 9_633_792):
            parts = np.array_split(rng.integers(0, 200, size, np.uint8), 7)
            sending = pool.submit(connection.send, Ping(size), parts)
            header, payload = connection.receive(PING)
            assert header.number == sending.result() == size
            assert np.array_equal(payload, np.concatenate(parts))


def test_frames_of_several_threads_do_not_mix():
    with (
        DataServer("127.0.0.1", echo) as server,
        open_data_connection(server.address, sockets=3) as connection,
        ThreadPoolExecutor(4) as pool,
    ):
        sent = [pool.submit(connection.send, Ping(i), [bytes([i]) * 300_000, bytes([i]) * 7]) for i in range(60)]
        for _ in sent:
            header, payload = connection.receive(PING)
            assert payload.tobytes() == bytes([header.number]) * 300_007
        assert {future.result() for future in sent} == {300_007}


def test_a_socket_that_stalls_holds_up_no_other():
    """All but the stalled one's slices arrive while nobody reads that one."""
    with pairs(3) as (left, right), ThreadPoolExecutor() as pool:
        size = 6 * striping.SLICE_BYTES
        sending = pool.submit(Striped(left).sendmsg, [bytes(size)])
        for sock in right[1:]:
            assert len(sock.recv(size // 3, socket.MSG_WAITALL)) == size // 3
        assert not sending.done()
        assert len(right[0].recv(size // 3, socket.MSG_WAITALL)) == size // 3
        assert sending.result(PROMPTLY_S) == size


@pytest.mark.parametrize("action", ["receive", "send"])
def test_close_wakes_a_thread_that_blocks(action):
    with DataServer("127.0.0.1", lambda connection: connection.receive(PING)) as server, ThreadPoolExecutor() as pool:
        connection = open_data_connection(server.address, sockets=4)
        sockets = parts(connection)
        started = threading.Event()

        def block():
            started.set()
            while action == "send":
                connection.send(Ping(1), [bytes(20_000_000)])  # the server reads one of these
            connection.receive(PING)

        blocked = pool.submit(block)
        assert started.wait(PROMPTLY_S)
        connection.close()
        with pytest.raises(ServiceUnreachableError, match=f"closed|{action}"):
            blocked.result(PROMPTLY_S)
        assert {sock.fileno() for sock in sockets} == {-1}


@pytest.mark.parametrize("which", [0, 1, 3])
def test_the_death_of_one_socket_ends_the_connection(which):
    ended = threading.Event()

    def serve(connection):
        try:
            forever(connection)
        finally:
            ended.set()

    with DataServer("127.0.0.1", serve) as server, open_data_connection(server.address, sockets=4) as connection:
        parts(connection)[which].shutdown(socket.SHUT_RDWR)
        with pytest.raises(ServiceUnreachableError, match=r"lost the connection with 127\.0\.0\.1:"):
            while True:
                connection.send(Ping(1), [bytes(4 * striping.SLICE_BYTES)])
        assert connection.closed
        assert ended.wait(PROMPTLY_S)


def test_every_socket_says_the_token():
    with DataServer("127.0.0.1", echo, token="secret") as server:
        with pytest.raises(AuthenticationError, match="refused the token"):
            open_data_connection(server.address, "Secret", sockets=3)
        with pytest.raises(AuthenticationError, match="refused the token"):
            said(server, "wrong", StripePart("a", 1, 2))
        assert not server._pending._waiting


def said(server, token, part):
    """A socket that was welcomed as this part of a connection."""
    sock = socket.create_connection(("127.0.0.1", server.port))
    try:
        exchange_hello(sock, of_token(token), time.monotonic() + PROMPTLY_S, part=part)
    except BaseException:
        sock.close()
        raise
    return sock


def test_sockets_whose_first_never_comes_are_hung_up(monkeypatch):
    monkeypatch.setattr(data_connection, "HELLO_TIMEOUT_S", 2.0)
    with (
        DataServer("127.0.0.1", echo) as server,
        said(server, own_token(), StripePart("a", 1, 2)) as sock,
    ):
        sock.settimeout(PROMPTLY_S)
        assert sock.recv(1) == b""
        assert not server._pending._waiting
        monkeypatch.undo()  # on a busy machine this process takes as long, too
        server._acceptor.lobby._seconds = data_connection.HELLO_TIMEOUT_S
        with pytest.raises(ProtocolError, match="a connection of 2 sockets came before all of them were there"):
            said(server, own_token(), StripePart("a", 0, 2))


def test_closing_the_server_ends_the_waiting_at_once(monkeypatch):
    monkeypatch.setattr(data_connection, "HELLO_TIMEOUT_S", 600)  # else the test would end all the same
    with (
        DataServer("127.0.0.1", echo) as server,
        said(server, own_token(), StripePart("a", 1, 2)) as sock,
    ):
        server.close()
        assert sock.recv(1) == b""
    assert not any(thread.name.startswith("millrace-data") for thread in threading.enumerate())


def test_a_connection_of_many_sockets_costs_the_server_one_thread(monkeypatch):
    monkeypatch.setattr(data_connection, "HELLO_TIMEOUT_S", 600)
    before = set(threading.enumerate())
    with DataServer("127.0.0.1", echo) as server, open_data_connection(server.address, sockets=4) as connection:
        connection.send(Ping(1))
        connection.receive(PING)
        serving = [thread for thread in set(threading.enumerate()) - before if thread is not server._acceptor.thread]
        for thread in serving:
            if thread.name != f"millrace-data-{format_address(*parts(connection)[0].getsockname()[:2])}":
                thread.join(PROMPTLY_S)
        assert len([thread for thread in serving if thread.is_alive()]) == 1


def test_the_same_socket_twice_is_hung_up():
    with DataServer("127.0.0.1", echo) as server, said(server, own_token(), StripePart("a", 1, 2)):
        with pytest.raises(EOFError):
            said(server, own_token(), StripePart("a", 1, 2))
        with said(server, own_token(), StripePart("a", 0, 2)) as first:  # the one that came earlier is still good
            send_frame(first, Ping(5))
            assert receive_frame(first, PING)[0] == Ping(5)


def test_parts_out_of_range_are_refused():
    with (
        DataServer("127.0.0.1", echo) as server,
        pytest.raises(ProtocolError, match=r"socket . of 9 was offered; a connection has at most 8"),
    ):
        open_data_connection(server.address, sockets=9)


def test_many_connections_at_once_find_their_own_sockets():
    with DataServer("127.0.0.1", echo) as server, ThreadPoolExecutor(8) as pool:

        def use(number):
            with open_data_connection(server.address, sockets=3) as connection:
                connection.send(Ping(number), [bytes([number]) * 800_000])
                header, payload = connection.receive(PING)
                return header.number == number and payload.tobytes() == bytes([number]) * 800_000

        assert all(pool.map(use, range(24)))


def test_unknown_compressions_are_refused():
    with (
        DataServer("127.0.0.1", echo) as server,
        pytest.raises(ServiceUnreachableError, match="did not welcome this process"),
    ):
        open_data_connection(server.address, compression="gzip")  # type: ignore[arg-type]


def test_what_the_kernel_says_of_a_connection():
    with DataServer("127.0.0.1", echo) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        assert same_host(sock)
        assert 0 < round_trip_s(sock) < PROMPTLY_S
        with open_data_connection(server.address) as connection:
            assert isinstance(connection._sock, socket.socket)
