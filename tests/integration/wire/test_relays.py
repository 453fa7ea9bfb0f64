"""Relays: processes that speak TLS for another one, as long as it needs them."""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import select
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import msgspec
import pytest
from tests.integration.test_other_users import as_nobody, theirs  # noqa: F401 (a fixture)
from tests.integration.tls_hosts import TlsHosts, files

from millrace.errors import ServiceUnreachableError
from millrace.wire.data import links, relayed_stream
from millrace.wire.data.data_connection import DataConnection, DataServer, open_data_connection
from millrace.wire.data.relay_passage import AHEAD_BYTES
from millrace.wire.data.relayed_stream import BUFFER_BYTES, RelayedStream
from millrace.wire.data.relays import RELAYS, SWITCH, Relays
from millrace.wire.data.tls_stream import TlsStream

WAIT_S = 30.0
KIB, MIB = 1 << 10, 1 << 20


class Ping(msgspec.Struct, frozen=True, tag=True):
    number: int


PING = msgspec.msgpack.Decoder(Ping)


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: Any) -> TlsHosts:
    return TlsHosts(tmp_path_factory.mktemp("tls"))


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    assert RELAYS.pids == []
    yield
    assert RELAYS.pids == []


def echo(connection: DataConnection) -> None:
    while True:
        header, payload = connection.receive(PING)
        connection.send(header, [payload])


@pytest.fixture
def server(hosts: TlsHosts, monkeypatch: Any) -> Iterator[DataServer]:
    """A worker's port, whose end of TLS is spoken by the process itself: the relays of the tests are the consumer's."""
    secured = links.secured

    def here_alone(*arguments: Any, **options: Any) -> Any:
        return secured(*arguments, **{**options, "relayed": False})

    monkeypatch.setattr("millrace.wire.data.data_connection.secured", here_alone)
    with DataServer("127.0.0.1", echo, token="secret", tls=files(hosts.good)) as server:
        yield server


def dial(server: DataServer, folder: Path, **options: Any) -> DataConnection:
    options = {"local": False, "sockets": 1, **options}
    return open_data_connection(server.address, "secret", WAIT_S, tls=files(folder), **options)


def ask(connection: DataConnection, number: int = 1) -> None:
    connection.send(Ping(number), [b"abc"])
    header, payload = connection.receive(PING)
    assert (header.number, payload.tobytes()) == (number, b"abc")


def ends(pid: int) -> bool:
    """Whether a process ends, which need not be a child."""
    try:
        number = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([number], [], [], WAIT_S)[0])
    finally:
        os.close(number)


def test_one_is_there_while_connections_are_that_need_it(server: DataServer, hosts: TlsHosts):
    with dial(server, hosts.other) as first:
        (pid,) = RELAYS.pids
        assert isinstance(first._sock, RelayedStream)
        with dial(server, hosts.other, sockets=3) as second:
            ask(second)
            assert pid in RELAYS.pids
        ask(first)
        assert RELAYS.pids == [pid]
    assert ends(pid)
    with DataServer("127.0.0.1", echo) as plain, open_data_connection(plain.address) as connection:
        ask(connection)
        assert RELAYS.pids == []


def test_none_is_there_for_who_wants_none(server: DataServer, hosts: TlsHosts, monkeypatch: Any):
    monkeypatch.setenv(SWITCH, "off")
    with dial(server, hosts.other) as connection:
        ask(connection)
        assert RELAYS.pids == []
        assert isinstance(connection._sock, TlsStream)


@pytest.mark.parametrize("executable", ["/nonexistent/python", "/bin/false", ""], ids=str)
def test_who_cannot_start_processes_is_told_once_and_does_without(
    server: DataServer, hosts: TlsHosts, monkeypatch: Any, caplog: Any, executable: str
):
    relays = Relays()
    for module in (links, relayed_stream):
        monkeypatch.setattr(module, "RELAYS", relays)
    monkeypatch.setattr(sys, "executable", executable)
    for _ in range(2):
        with dial(server, hosts.other) as connection:
            ask(connection)
            assert isinstance(connection._sock, TlsStream)
    (said,) = [record.getMessage() for record in caplog.records if "no process could be started" in record.message]
    assert said.endswith("MILLRACE_TLS_RELAY=off says that it shall")
    assert relays.pids == []


def test_one_that_is_killed_is_replaced(server: DataServer, hosts: TlsHosts, caplog: Any):
    with dial(server, hosts.other) as connection:
        (pid,) = RELAYS.pids
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(ServiceUnreachableError, match="lost the connection"):
            for number in range(1000):
                ask(connection, number)
    with dial(server, hosts.other) as connection:
        ask(connection)
        assert RELAYS.pids != [pid]
    assert f"the process {pid}, which spoke TLS for this one, ended with status -9" in caplog.text


def test_one_that_is_killed_while_it_connects(hosts: TlsHosts):
    with socket.create_server(("127.0.0.1", 0)) as silent, ThreadPoolExecutor(1) as pool:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        opening = pool.submit(
            open_data_connection, address, "secret", WAIT_S, local=False, sockets=1, tls=files(hosts.other)
        )
        peer, _ = silent.accept()
        with peer:
            assert peer.recv(1) == b"\x16"  # by then it has been passed on
            (pid,) = RELAYS.pids
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(ServiceUnreachableError, match="the process that speaks TLS for this one ended"):
                opening.result(WAIT_S)


def test_nothing_secret_is_told_to_who_may_see_its_command_line(server: DataServer, hosts: TlsHosts, monkeypatch: Any):
    monkeypatch.setenv("MILLRACE_TOKEN", "a secret")
    with dial(server, hosts.other):
        (pid,) = RELAYS.pids
        assert b"secret" not in Path(f"/proc/{pid}/environ").read_bytes()
        told = Path(f"/proc/{pid}/cmdline").read_bytes()
        assert told.endswith(b"millrace-tls-relay\0")
        for word in (b"secret", b"127.0.0.1", b"PRIVATE", str(hosts.folder).encode()):
            assert word not in told


REACH = """
pid = sys.argv[1]
def attempt(what, act):
    try:
        act()
    except OSError as error:
        print(type(error).__name__)
    else:
        print("reached", what)
attempt("descriptors", lambda: os.listdir(f"/proc/{pid}/fd"))
attempt("a socket", lambda: open(f"/proc/{pid}/fd/0", "rb+"))
attempt("memory", lambda: open(f"/proc/{pid}/mem", "rb"))
attempt("its end", lambda: os.kill(int(pid), 15))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_reaches_nothing_of_it(server: DataServer, hosts: TlsHosts, theirs: Path):  # noqa: F811
    """Its sockets have no names, so there is nothing to connect to, and descriptors are the owner's."""
    with dial(server, hosts.other) as connection:
        (pid,) = RELAYS.pids
        inodes = {os.stat(f"/proc/{pid}/fd/{name}").st_ino for name in os.listdir(f"/proc/{pid}/fd")}
        named = [line.split() for line in Path("/proc/net/unix").read_text().splitlines()[1:]]
        assert [row for row in named if int(row[6]) in inodes and len(row) > 7] == []
        out, err = as_nobody(theirs, REACH, str(pid)).communicate()
        assert out.splitlines() == ["PermissionError"] * 4, err
        ask(connection)


def reading_in_a_child(address: str, folder: str, pipe: Any) -> None:
    before = RELAYS.pids
    with open_data_connection(address, "secret", WAIT_S, local=False, sockets=1, tls=files(Path(folder))) as connection:
        ask(connection)
        pipe.send((before, RELAYS.pids))
        pipe.recv()


@pytest.mark.parametrize("way", ["fork", "spawn"])
def test_each_process_has_its_own(server: DataServer, hosts: TlsHosts, way: str):
    context: Any = multiprocessing.get_context(way)
    with dial(server, hosts.other) as connection:
        ask(connection)  # who says nothing is hung up on
        own = RELAYS.pids
        here, there = context.Pipe()
        child = context.Process(target=reading_in_a_child, args=(server.address, str(hosts.other), there))
        child.start()
        before, (its,) = here.recv()
        assert before == []
        assert [its] != own
        ask(connection)
        here.send("end")
        child.join(WAIT_S)
        assert child.exitcode == 0
        assert ends(its)
        ask(connection)
        assert RELAYS.pids == own


HOLD = """
import os, sys, signal
from pathlib import Path
from millrace.wire.data.data_connection import open_data_connection
from millrace.wire.data.relays import RELAYS
from millrace.wire.tls_files import TlsFiles
address, folder, forks = sys.argv[1:]
connection = open_data_connection(address, "secret", 30.0, local=False, sockets=1, tls=TlsFiles(folder))
if forks and not os.fork():
    os.read(0, 1)  # until the test is over
    os._exit(0)
try:
    print(*RELAYS.pids, flush=True)
    signal.pause()
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("forks", ["", "forks"], ids=["alone", "beside-a-child"])
@pytest.mark.parametrize("by", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_it_ends_with_its_parent_however_that_ends(server: DataServer, hosts: TlsHosts, by: signal.Signals, forks: str):
    command = [sys.executable, "-c", HOLD, server.address, str(hosts.other), forks]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, start_new_session=True) as holder:
        assert holder.stdout is not None
        pid = int(holder.stdout.readline())
        assert os.getpgid(pid) != os.getpgid(holder.pid)
        if by == signal.SIGINT and not forks:
            os.killpg(holder.pid, by)  # as a terminal does
            assert holder.stdout.readline() == "interrupted\n"
        else:
            holder.send_signal(by)
        holder.wait(WAIT_S)
        assert ends(pid)


NEEDED = (
    *("errors", "version", "wire", "wire.data", "wire.data.relay_passage", "wire.data.relay_process"),
    *("wire.tls_contexts", "wire.tls_names"),
)


def test_it_needs_the_standard_library_alone():
    """It is to be there at once."""
    program = """
import sys
sys.path.append(sys.argv[1])
import millrace.wire.data.relay_process
tops = {name.partition(".")[0] for name in sys.modules}
print(*sorted(tops - set(sys.stdlib_module_names) - {"__main__"}))
print(*sorted(tops & {"asyncio", "subprocess", "multiprocessing", "logging", "threading", "pickle", "email", "http"}))
print(*sorted(name for name in sys.modules if name.startswith("millrace.")))
"""
    root = os.path.dirname(os.path.dirname(sys.modules["millrace"].__file__ or ""))
    found = subprocess.run(
        [sys.executable, "-S", "-s", "-P", "-c", program, root], capture_output=True, text=True, check=True, env={}
    )
    assert found.stdout.splitlines() == [
        "millrace",
        "",
        " ".join(f"millrace.{name}" for name in NEEDED),
    ]


# -- its bytes ---------------------------------------------------------------------------------------------------------


class Ends:
    """A stream of this process, by a relay, and its peer's TLS."""

    def __init__(self, hosts: TlsHosts, *, receive_bytes: int = 64 * KIB) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            dialled = socket.create_connection(listener.getsockname())
            accepted, _ = listener.accept()
        stream = links.secured(accepted, files(hosts.good), "the peer")
        assert isinstance(stream, RelayedStream)
        self.stream = stream
        with ThreadPoolExecutor(1) as pool:
            shaking = pool.submit(self.stream.shake_hands, WAIT_S)
            self.peer = files(hosts.other).client_context().wrap_socket(dialled, server_hostname="good")
            shaking.result(WAIT_S)
        self.stream.settimeout(WAIT_S)
        self.peer.settimeout(WAIT_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.peer.close()


def received(take: Callable[[int], bytes], size: int) -> bytes:
    found = bytearray()
    while len(found) < size and (piece := take(size - len(found))):
        found += piece
    return bytes(found)


def taken(stream: RelayedStream, size: int) -> bytes:
    def take(most: int) -> bytes:
        piece = bytearray(most)
        return bytes(piece[: stream.recv_into(piece, most, 0)])

    return received(take, size)


def test_what_nobody_reads_waits_within_bounds(hosts: TlsHosts):
    data = os.urandom(MIB)
    with Ends(hosts) as ends_:
        ends_.peer.setblocking(False)
        ends_.peer.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 * KIB)
        sent = 0
        while select.select([], [ends_.peer], [], 10 if sent <= MIB / 4 else 0.5)[1] and sent < 256 * MIB:
            with contextlib.suppress(ssl.SSLWantWriteError):
                sent += ends_.peer.send(data[sent % MIB :])
        assert MIB / 4 < sent < AHEAD_BYTES + 4 * BUFFER_BYTES + MIB
        found = taken(ends_.stream, sent)
        assert found == (data * (sent // MIB + 1))[:sent]


def test_what_was_sent_before_a_close_arrives(hosts: TlsHosts):
    data = os.urandom(300 * KIB)
    with Ends(hosts) as ends_:
        assert ends_.stream.sendmsg([data]) == len(data)
        ends_.stream.shutdown(socket.SHUT_RDWR)
        ends_.stream.close()
        assert received(ends_.peer.recv, len(data)) == data
        with contextlib.suppress(ssl.SSLEOFError):
            assert ends_.peer.recv(1) == b""


def test_what_came_before_the_peer_closed_is_read(hosts: TlsHosts):
    data = os.urandom(900 * KIB)
    with Ends(hosts) as ends_:
        with ThreadPoolExecutor(1) as pool:
            sending = pool.submit(ends_.peer.sendall, data)
            sending.add_done_callback(lambda _: ends_.peer.close())
            assert taken(ends_.stream, len(data)) == data
            sending.result(WAIT_S)
        assert ends_.stream.recv_into(bytearray(1), 1, 0) == 0


def test_a_peer_that_takes_nothing_does_not_keep_it(hosts: TlsHosts):
    with Ends(hosts) as ends_:
        (pid,) = RELAYS.pids
        ends_.stream.settimeout(0.5)
        with pytest.raises(TimeoutError):
            while True:
                ends_.stream.sendmsg([bytes(MIB)])
        ends_.stream.close()
        assert ends(pid)


def test_a_peer_that_talks_nonsense_ends_its_own_connection_alone(hosts: TlsHosts):
    with Ends(hosts) as honest, Ends(hosts) as other:
        raw = socket.socket(fileno=os.dup(other.peer.fileno()))
        with raw:
            raw.settimeout(WAIT_S)
            raw.sendall(b"\x17\x03\x03\x00\x20" + bytes(32))
            assert other.stream.recv_into(bytearray(1), 1, 0) == 0
        honest.peer.sendall(b"abc")
        assert taken(honest.stream, 3) == b"abc"


def test_it_is_quiet(server: DataServer, hosts: TlsHosts, caplog: Any, capfd: Any):
    caplog.set_level(logging.WARNING)
    with dial(server, hosts.other, sockets=4) as connection:
        ask(connection)
    assert caplog.text == ""
    assert capfd.readouterr() == ("", "")
