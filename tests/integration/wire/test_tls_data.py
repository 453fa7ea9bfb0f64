"""TLS of the data port: frames through it as without, and what who is not believed is told; by a relay, and without."""

import contextlib
import socket
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest
from tests.integration.tls_hosts import TlsHosts, exchange, files

from millrace.elements.shared import Arena
from millrace.errors import ServiceError, ServiceUnreachableError, TlsError
from millrace.wire.data import data_connection
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.fd_passing import FdChannel
from millrace.wire.data.relayed_stream import RelayedStream
from millrace.wire.data.relays import SWITCH
from millrace.wire.data.striping import Striped
from millrace.wire.data.tls_stream import TlsStream

WAIT_S = 30.0


@pytest.fixture(params=["relayed", "here"], autouse=True)
def kind(request, monkeypatch) -> type:
    """What speaks TLS: a relay, or the process itself."""
    if request.param == "here":
        monkeypatch.setenv(SWITCH, "off")
        return TlsStream
    return RelayedStream


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int


PING = msgspec.msgpack.Decoder(Ping)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> TlsHosts:
    return TlsHosts(tmp_path_factory.mktemp("tls"))


def echo(connection):
    while True:
        header, payload = connection.receive(PING)
        connection.send(header, [payload])


def serve(folder, *, demands=False, host="127.0.0.1", handle=echo, **options):
    return DataServer(host, handle, token="secret", tls=files(folder, demands=demands), **options)


def dial(server, folder, **options):
    tls = None if folder is None else files(folder)
    return open_data_connection(server.address, "secret", WAIT_S, tls=tls, **options)


@pytest.mark.parametrize(
    ("sockets", "compression"), [(1, None), (2, None), (8, None), (1, "lz4"), (3, "zstd")], ids=str
)
def test_payloads_of_any_size(hosts, sockets, compression, kind):
    rng = np.random.default_rng(0)
    with (
        serve(hosts.good) as server,
        dial(server, hosts.anonymous, sockets=sockets, compression=compression) as connection,
        ThreadPoolExecutor() as pool,
    ):
        assert isinstance(connection._sock, Striped if sockets > 1 else kind)
        for size in (0, 1, 63, 8_191, 8_192, 16_384, 16_385, 100_000, 9_633_792):
            parts = np.array_split(rng.integers(0, 200, size, np.uint8), 7)
            sending = pool.submit(connection.send, Ping(size), parts)
            header, payload = connection.receive(PING)
            assert header.number == sending.result() == size
            assert np.array_equal(payload, np.concatenate(parts))


@pytest.mark.parametrize("sockets", [1, 3])
def test_both_directions_at_once(hosts, sockets):
    """A thread that waits for the peer's frames does not hold up one that sends, and none of OpenSSL's state breaks."""
    sent = 40
    payload = np.arange(500_000, dtype=np.uint8)

    def both(connection):
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(lambda: [connection.send(Ping(i), [payload]) for i in range(sent)])
            for number in range(sent):
                header, found = connection.receive(PING)
                assert header.number == number
                assert np.array_equal(found, payload)
            sending.result()

    over = threading.Event()

    def there(connection):
        both(connection)
        over.set()
        with contextlib.suppress(ServiceUnreachableError):
            connection.receive(PING)

    with serve(hosts.good, handle=there) as server, dial(server, hosts.other, sockets=sockets) as connection:
        both(connection)
        assert over.wait(WAIT_S)


def test_frames_of_several_threads_do_not_mix(hosts):
    with (
        serve(hosts.good) as server,
        dial(server, hosts.other) as connection,
        ThreadPoolExecutor(4) as pool,
    ):
        sent = [pool.submit(connection.send, Ping(i), [bytes([i]) * 30_000, bytes([i]) * 7]) for i in range(60)]
        for _ in sent:
            header, payload = connection.receive(PING)
            assert payload.tobytes() == bytes([header.number]) * 30_007


def test_thousands_of_buffers_in_a_frame(hosts):
    with serve(hosts.good) as server, dial(server, hosts.other) as connection:
        connection.send(Ping(1), [bytes([i % 251]) for i in range(5000)])
        assert connection.receive(PING)[1].tobytes() == bytes(i % 251 for i in range(5000))


def test_a_close_wakes_who_waits_at_either_end(hosts):
    woken = threading.Event()

    def there(connection):
        try:
            connection.receive(PING)
        finally:
            woken.set()

    with serve(hosts.good, handle=there) as server, ThreadPoolExecutor(1) as pool:
        connection = dial(server, hosts.other)
        waiting = pool.submit(connection.receive, PING)
        connection.close()
        with pytest.raises(ServiceUnreachableError, match="closed"):
            waiting.result(WAIT_S)
        assert woken.wait(WAIT_S)


def test_a_close_wakes_who_has_no_room_to_send(hosts):
    entered = threading.Event()

    def there(connection):
        entered.wait()
        connection.close()

    with serve(hosts.good, handle=there) as server, ThreadPoolExecutor(1) as pool:
        connection = dial(server, hosts.other)
        with connection:
            sending = pool.submit(connection.send, Ping(1), [np.zeros(64 << 20, np.uint8)])
            entered.set()
            with pytest.raises(ServiceUnreachableError):
                sending.result(WAIT_S)


def test_memory_is_shared_on_one_host_all_the_same(hosts):
    with serve(hosts.good, arena=Arena(64 << 20)) as server, dial(server, hosts.other) as connection:
        assert isinstance(connection._local, FdChannel)
        connection.send(Ping(1), [np.arange(1 << 20, dtype=np.uint8)])
        assert connection.receive(PING)[1].nbytes == 1 << 20


def test_a_certificate_of_another_host_is_not_believed_but_one_of_workers_is(hosts):
    only_here = hosts.issue("127.0.0.3")
    with (
        serve(only_here, host="127.0.0.2") as server,
        pytest.raises(TlsError, match=r"is for 127\.0\.0\.3, .* and not for 127\.0\.0\.2"),
    ):
        dial(server, hosts.other)
    with serve(hosts.good, host="127.0.0.2") as server, dial(server, hosts.other) as connection:
        connection.send(Ping(1))
        assert connection.receive(PING)[0] == Ping(1)


@pytest.mark.parametrize(
    ("listening", "said"), [("stranger", r"is not of the authority in .*/ca\.crt"), ("expired", "has expired")]
)
def test_who_is_not_believed_gets_nothing(hosts, listening, said):
    with serve(getattr(hosts, listening)) as server, pytest.raises(TlsError, match=said):
        dial(server, hosts.other)


def test_who_demands_certificates_gets_them(hosts, caplog, kind):
    with serve(hosts.good, demands=True) as server:
        with dial(server, hosts.other, sockets=2) as connection:
            connection.send(Ping(1), [b"abc"])
            assert connection.receive(PING)[1].tobytes() == b"abc"
        for folder, said in (
            (hosts.anonymous, "demands a certificate, and .*/anonymous has none"),
            (hosts.known_by(hosts.stranger, f"unknown-{kind.__name__}"), "refused the certificate in .*/unknown"),
            (hosts.expired, "refused the certificate in .*/expired, as it has expired"),
        ):
            with pytest.raises(ServiceUnreachableError, match=said):
                dial(server, folder)
        # Who was refused hears of it before the server writes it down.
        deadline = time.monotonic() + 20
        for written in ("showed no certificate, and one is demanded here", "has expired"):
            while written not in caplog.text:
                assert time.monotonic() < deadline, caplog.text
                threading.Event().wait(0.02)


def test_who_does_not_speak_tls_is_told_to(hosts):
    with serve(hosts.good) as server, pytest.raises(TlsError, match=r"speaks TLS, and this end does not: set MILLRACE"):
        dial(server, None)


def test_who_speaks_tls_to_a_worker_without_hears_so(hosts):
    with (
        DataServer("127.0.0.1", echo, token="secret") as server,
        pytest.raises(TlsError, match="does not speak TLS: what listens there has to be started with --tls"),
    ):
        dial(server, hosts.other)


def test_who_begins_a_handshake_and_stops_is_hung_up_on(hosts, monkeypatch):
    monkeypatch.setattr(data_connection, "HELLO_TIMEOUT_S", 0.3)
    context = ssl.create_default_context()
    with serve(hosts.good) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        there, here = ssl.MemoryBIO(), ssl.MemoryBIO()
        with contextlib.suppress(ssl.SSLWantReadError):
            context.wrap_bio(there, here, server_hostname="localhost").do_handshake()
        sock.sendall(here.read()[:100])
        sock.settimeout(WAIT_S)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(1 << 16):
                pass


def test_who_stops_in_a_handshake_does_not_keep_a_server_from_its_end(hosts):
    before = set(threading.enumerate())
    with serve(hosts.good) as server, socket.create_connection(("127.0.0.1", server.port)) as sock:
        sock.sendall(b"\x16\x03\x01")
        with dial(server, hosts.other) as connection:  # behind it
            connection.send(Ping(1))
            assert connection.receive(PING)[0] == Ping(1)
        server.close()
        for thread in set(threading.enumerate()) - before:
            thread.join(WAIT_S)
            assert not thread.is_alive(), thread.name


def test_certificates_change_while_a_server_runs(hosts, kind):
    folder = hosts.copy(hosts.good, f"rotating-{kind.__name__}")
    with serve(folder) as server, dial(server, hosts.other) as connection:
        exchange(folder, hosts.stranger)
        with pytest.raises(TlsError, match="is not of the authority"):
            dial(server, hosts.other)
        with dial(server, hosts.stranger) as late:
            for each in (late, connection):  # who was there before goes on
                each.send(Ping(1), [b"abc"])
                assert each.receive(PING)[1].tobytes() == b"abc"


def test_who_listens_needs_a_certificate(hosts):
    with pytest.raises(ServiceError, match="who listens needs a certificate"):
        serve(hosts.anonymous)
