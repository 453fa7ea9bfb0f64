"""Bulk connections with real sockets and processes. The other processes' code is wire_peer.py."""

import contextlib
import os
import pickle
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from millrace.errors import (
    AddressInUseError,
    AuthenticationError,
    ProtocolError,
    ServiceError,
    ServiceUnreachableError,
    ShippingError,
    VersionMismatchError,
)
from millrace.wire.auth import OWN, Identity
from millrace.wire.data import acceptor, data_connection, handshake
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.data_keys import of_token
from millrace.wire.data.frames import MAGIC, receive_frame, send_frame

PROMPTLY_S = 5.0


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int
    data: bytes = b""


PING = msgspec.msgpack.Decoder(Ping)


def wait(connection):
    connection.receive(PING)


def bulk_echo(connection):
    while True:
        header, payload = connection.receive(PING)
        connection.send(header, [payload])


@pytest.fixture
def bulk_server() -> Iterator[DataServer]:
    with DataServer("127.0.0.1", bulk_echo) as server:
        yield server


def bulk_works(server):
    with open_data_connection(server.address) as connection:
        connection.send(Ping(5), [b"abc"])
        header, payload = connection.receive(PING)
        assert (header, payload.tobytes()) == (Ping(5), b"abc")


def test_bulk_payloads_of_any_size(bulk_server):
    rng = np.random.default_rng(0)
    with open_data_connection(bulk_server.address) as connection, ThreadPoolExecutor() as pool:
        for size in (0, 1, 63, 100_000, 30_000_000):
            parts = np.array_split(rng.integers(0, 256, size, np.uint8), 7)
            sending = pool.submit(connection.send, Ping(size), parts)
            header, payload = connection.receive(PING)
            assert header.number == sending.result() == size
            assert np.array_equal(payload, np.concatenate(parts))


def test_thousands_of_buffers_in_a_frame(bulk_server):
    with open_data_connection(bulk_server.address) as connection:
        connection.send(Ping(1), [bytes([i % 251]) for i in range(5000)])
        assert connection.receive(PING)[1].tobytes() == bytes(i % 251 for i in range(5000))


def test_frames_of_several_threads_do_not_mix(bulk_server):
    with open_data_connection(bulk_server.address) as connection, ThreadPoolExecutor(4) as pool:
        sent = [pool.submit(connection.send, Ping(i), [bytes([i]) * 10_000, bytes([i]) * 7]) for i in range(100)]
        for _ in sent:
            header, payload = connection.receive(PING)
            assert payload.tobytes() == bytes([header.number]) * 10_007
        assert {future.result() for future in sent} == {10_007}


def test_bulk_tokens():
    with DataServer("127.0.0.1", bulk_echo, token="secret") as server:
        with open_data_connection(server.address, "secret") as connection:
            connection.send(Ping(1))
            assert connection.receive(PING)[0] == Ping(1)
        with pytest.raises(AuthenticationError, match="refused the token"):
            open_data_connection(server.address, "Secret")
        with pytest.raises(AuthenticationError, match="refused the token"):
            open_data_connection(server.address)


def test_who_listens_in_a_servers_place_learns_nothing_and_is_found_out():
    """It can answer with a nonce, and with any proof; what it has got opens nothing at the real one."""
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:
        opening = pool.submit(open_data_connection, f"127.0.0.1:{listener.getsockname()[1]}", "secret", 5.0)
        sock, _ = listener.accept()
        with sock:
            hello, _ = receive_frame(sock, msgspec.msgpack.Decoder(handshake.Hello))
            send_frame(sock, handshake.Welcome(OWN, nonce=b"n" * 32))
            answer, _ = receive_frame(sock, msgspec.msgpack.Decoder(handshake.Answer))
            send_frame(sock, handshake.Welcome(OWN, proof=answer.proof))
            with pytest.raises(ServiceError, match="does not know the key that the service gave to this process"):
                opening.result()
    heard = msgspec.msgpack.encode([hello, answer])
    assert not any(each in heard for each in (b"secret", of_token("secret").key))
    with (
        DataServer("127.0.0.1", bulk_echo, token="secret") as server,
        socket.create_connection(("127.0.0.1", server.port)) as sock,
    ):
        send_frame(sock, hello)
        assert receive_frame(sock, msgspec.msgpack.Decoder(handshake.Welcome))[0].nonce
        send_frame(sock, answer)  # the server has drawn another nonce
        failure = receive_frame(sock, msgspec.msgpack.Decoder(handshake.Welcome))[0].failure
        assert failure is not None
        assert failure.kind == "AuthenticationError"


def test_a_hello_without_a_nonce_is_refused(bulk_server):
    with socket.create_connection(("127.0.0.1", bulk_server.port)) as sock:
        send_frame(sock, handshake.Hello(OWN))
        failure = receive_frame(sock, msgspec.msgpack.Decoder(handshake.Welcome))[0].failure
        assert failure is not None
        assert failure.message == "the hello has no nonce"


@pytest.mark.parametrize(
    "garbage",
    [b"", b"GET / HTTP/1.1\r\n\r\n", os.urandom(5000), MAGIC, MAGIC + b"\x01\0\0\0" + b"\xff" * 12, b"\0" * 100_000],
)
def test_garbage_does_not_hurt_a_bulk_server(bulk_server, garbage):
    with open_data_connection(bulk_server.address) as bystander:
        with (
            socket.create_connection(("127.0.0.1", bulk_server.port)) as sock,
            contextlib.suppress(ConnectionError),  # it may hang up before it has read all
        ):
            sock.sendall(garbage)
        bystander.send(Ping(1))
        assert bystander.receive(PING)[0] == Ping(1)
    bulk_works(bulk_server)


def test_garbage_after_the_hello(bulk_server):
    with open_data_connection(bulk_server.address) as connection:
        connection._sock.sendmsg([b"x" * 100])
        with pytest.raises(ServiceUnreachableError, match=r"lost the connection with 127\.0\.0\.1:"):
            connection.receive(PING)
    bulk_works(bulk_server)


def test_whoever_says_no_hello_is_hung_up(monkeypatch):
    monkeypatch.setattr(data_connection, "HELLO_TIMEOUT_S", 0.2)
    with DataServer("127.0.0.1", bulk_echo) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"MR")
        sock.settimeout(PROMPTLY_S)
        assert sock.recv(1) == b""
        monkeypatch.undo()  # on a busy machine this process takes as long, too
        server._acceptor.lobby._seconds = data_connection.HELLO_TIMEOUT_S
        bulk_works(server)


def silent_of(server):
    """A connection that says nothing."""
    return socket.create_connection(("127.0.0.1", server.port))


def slow_of(server):
    """A connection that has said a part of a hello."""
    sock = silent_of(server)
    sock.sendall(MAGIC)
    return sock


def test_whoever_is_let_in_and_says_nothing_is_hung_up(monkeypatch):
    monkeypatch.setattr(data_connection, "HELLO_TIMEOUT_S", 2.0)
    with DataServer("127.0.0.1", bulk_echo) as server, open_data_connection(server.address) as connection:
        connection.send(Ping(1))
        assert connection.receive(PING)[0] == Ping(1)
        with open_data_connection(server.address) as silent, pytest.raises(ServiceUnreachableError):
            silent.receive(PING)
        connection.send(Ping(2))
        assert connection.receive(PING)[0] == Ping(2)


@pytest.mark.parametrize("hostile", [silent_of, slow_of])
def test_peers_that_are_not_let_in_keep_nobody_out(monkeypatch, hostile):
    """1,024 connections that said nothing had a thread each, and everybody else was refused."""
    monkeypatch.setattr(acceptor, "PER_ADDRESS", 40)
    with DataServer("127.0.0.1", bulk_echo) as server, contextlib.ExitStack() as held:
        before = threading.active_count()
        for number in range(600):
            held.enter_context(hostile(server))
            if number % 100 == 99:
                bulk_works(server)
                assert len(server._acceptor.lobby) <= 40
        bulk_works(server)
        until = time.monotonic() + 20  # some are about to end
        while threading.active_count() - before > (90 if hostile is slow_of else 2):
            assert time.monotonic() < until
            threading.Event().wait(0.01)


def test_too_many_connections(monkeypatch):
    monkeypatch.setattr(data_connection, "MAX_CONNECTIONS", 2)
    with (
        DataServer("127.0.0.1", bulk_echo) as server,
        open_data_connection(server.address),
        open_data_connection(server.address),
        pytest.raises(ServiceUnreachableError, match="did not welcome this process"),
    ):
        open_data_connection(server.address, timeout=2)


def test_a_payload_over_the_limit_closes_the_connection(bulk_server):
    with open_data_connection(bulk_server.address) as connection:
        connection.send(Ping(1), [b"12345"])
        with pytest.raises(ProtocolError, match="a payload of 5 bytes; at most 4 are accepted"):
            connection.receive(PING, limit=4)
        assert connection.closed
        with pytest.raises(ServiceUnreachableError, match=r"cannot receive: the connection with .* is closed"):
            connection.receive(PING)


def test_a_header_over_the_limit_is_not_sent(bulk_server):
    with open_data_connection(bulk_server.address) as connection:
        with pytest.raises(ProtocolError, match="put large parts into the payload"):
            connection.send(Ping(1, b"." * (1 << 20)))
        connection.send(Ping(2))
        assert connection.receive(PING)[0] == Ping(2)


def test_an_allocation_that_fails_closes_the_connection(bulk_server):
    def allocate(size):
        raise MemoryError(f"no room for {size} bytes")

    with open_data_connection(bulk_server.address) as connection:
        connection.send(Ping(1), [b"12345"])
        with pytest.raises(MemoryError, match="no room for 5 bytes"):
            connection.receive(PING, allocate)
        assert connection.closed


@pytest.mark.parametrize("action", ["receive", "send"])
def test_close_wakes_a_thread_that_blocks(action):
    with DataServer("127.0.0.1", wait) as server, ThreadPoolExecutor() as pool:
        connection = open_data_connection(server.address)
        started = threading.Event()

        def block():
            started.set()
            while action == "send":
                connection.send(Ping(1), [bytes(20_000_000)])  # the server reads one of these
            connection.receive(PING)

        blocked = pool.submit(block)
        assert started.wait(PROMPTLY_S)
        number = connection._sock.fileno()
        connection.close()
        with pytest.raises(ServiceUnreachableError, match=f"closed|{action}"):
            blocked.result(PROMPTLY_S)
        assert connection._sock.fileno() == -1 != number


def test_closing_the_server_ends_its_threads():
    server = DataServer("127.0.0.1", bulk_echo)
    connections = [open_data_connection(server.address) for _ in range(20)]
    assert sum(thread.name.startswith("millrace-data") for thread in threading.enumerate()) == 21
    server.close()
    server.close()
    assert not any(thread.name.startswith("millrace-data") for thread in threading.enumerate())
    for connection in connections:
        with pytest.raises(ServiceUnreachableError, match=r"the peer closed the connection|reset"):
            connection.receive(PING)


def test_a_server_closes_though_its_thread_was_woken_by_something_else_just_then(monkeypatch):
    server = DataServer("127.0.0.1", bulk_echo)
    acceptor = server._acceptor
    wake = acceptor._wake

    class Late:
        """Wakes the thread, and again once that has ended."""

        def send(self, data):
            wake.send(data)
            acceptor.thread.join(PROMPTLY_S)
            return wake.send(data)

        def close(self):
            wake.close()

    monkeypatch.setattr(acceptor, "_wake", Late())
    server.close()
    assert not acceptor.thread.is_alive()
    assert all(listener.fileno() == -1 for listener in acceptor._listeners)


def test_a_killed_bulk_server_is_noticed(peer):
    with peer("bulk_server") as (process, address), open_data_connection(address) as connection:
        connection.send(Ping(1))
        assert connection.receive(PING)[1].tobytes() == b"x" * 10
        process.kill()
        with pytest.raises(ServiceUnreachableError, match=f"lost the connection with {address}: "):
            connection.receive(PING)


def test_a_bug_in_the_callback_ends_one_connection(caplog):
    def fail(connection):
        header, _ = connection.receive(PING)
        if header.number == 13:
            raise KeyError("oops")
        connection.send(header, [b"abc"])

    with DataServer("127.0.0.1", fail) as server:
        with open_data_connection(server.address) as connection:
            connection.send(Ping(13))
            with pytest.raises(ServiceUnreachableError):
                connection.receive(PING)
        bulk_works(server)
    assert "oops" in caplog.text


def test_frames_over_a_real_socket_pair():
    left, right = socket.socketpair()
    with left, right, ThreadPoolExecutor() as pool:
        data = np.random.default_rng(0).integers(0, 256, 5_000_000, np.uint8)
        sending = pool.submit(send_frame, left, Ping(1), np.array_split(data, 3000))
        header, payload = receive_frame(right, PING)
        assert (header, sending.result()) == (Ping(1), data.size)
        assert np.array_equal(payload, data)


def test_connections_cannot_be_pickled(bulk_server):
    with (
        open_data_connection(bulk_server.address) as connection,
        pytest.raises(ShippingError, match="cannot be pickled: send its address"),
    ):
        pickle.dumps(connection)


def test_ctrl_c_while_bulk_data_is_awaited(peer):
    with peer("bulk_server") as (_, address), peer("interrupted_bulk", address) as (process, line):
        assert line == "reading"
        process.send_signal(signal.SIGINT)
        assert process.wait(PROMPTLY_S) == -signal.SIGINT


def test_other_protocols_are_refused(bulk_server, monkeypatch):
    monkeypatch.setattr(handshake, "OWN", Identity(protocol=99))
    with pytest.raises(VersionMismatchError, match="this process protocol 99"):
        open_data_connection(bulk_server.address)


def test_addresses(bulk_server):
    with pytest.raises(AddressInUseError, match=f"cannot listen on {bulk_server.address}: .* or port 0 for any"):
        DataServer("127.0.0.1", print, port=bulk_server.port)
    with pytest.raises(AuthenticationError, match=r"refused to listen on \[::\]:0 without a token"):
        DataServer("::", print)
    with pytest.raises(ServiceError, match=r"refused to listen on \[::\]:0 without TLS"):
        DataServer("::", print, token="secret")
    with pytest.raises(ServiceError, match=r"cannot listen on 192\.0\.2\.1:0: .* Use an address of this machine"):
        DataServer("192.0.2.1", print, token="secret", insecure=True)
    with pytest.raises(ServiceError, match="'nowhere' is not an address: the port is missing"):
        open_data_connection("nowhere")
    with pytest.raises(ServiceUnreachableError, match=r"nobody answered at 127\.0\.0\.1:1 within 10 s: Conn"):
        open_data_connection("127.0.0.1:1")


def test_ipv6():
    try:
        server = DataServer("::1", lambda connection: connection.send(Ping(1)))
    except ServiceError as error:
        pytest.skip(str(error))
    with server:
        assert server.address.startswith("[::1]:")
        with open_data_connection(server.address) as connection:
            assert connection.receive(PING)[0] == Ping(1)


def test_a_peer_for_whom_no_thread_can_start_is_refused_alone(monkeypatch, bulk_server, caplog):
    start = threading.Thread.start
    failures = iter([RuntimeError("can't start new thread")])

    def failing(thread):
        if thread.name.startswith("millrace-data-127") and (error := next(failures, None)) is not None:
            raise error
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", failing)
    with pytest.raises(ServiceUnreachableError):
        open_data_connection(bulk_server.address)
    assert "can't start new thread" in caplog.text
    bulk_works(bulk_server)
