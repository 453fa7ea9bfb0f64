"""Silent and slow peers of a dispatcher: bounded, and in nobody's way."""

import contextlib
import socket
import subprocess
import sys

import pytest
from tests.integration.wire.wire_messages import PROMPTLY_S, works

from millrace.dispatcher.journal_file import SqliteJournal
from millrace.wire.control import connection_sweep
from millrace.wire.control.connection_sweep import ConnectionSweep
from millrace.wire.control.control_client import ControlChannel

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux lists a process's sockets")

HTTP2 = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"


@pytest.fixture(autouse=True)
def bounds(monkeypatch):
    monkeypatch.setattr(connection_sweep, "PER_ADDRESS", 30)
    monkeypatch.setattr(connection_sweep, "_FEW", 0)
    monkeypatch.setattr(connection_sweep, "PERIOD_S", 3600.0)  # the tests sweep themselves


def connected(dispatcher, said=b""):
    host, port = dispatcher.address.rsplit(":", 1)
    sock = socket.create_connection((host, int(port)))
    sock.settimeout(PROMPTLY_S)
    sock.sendall(said)
    return sock


def ended(sock):
    """Whether the peer has hung up."""
    with contextlib.suppress(TimeoutError):
        try:
            while sock.recv(4096):
                pass
        except ConnectionError:
            return True
        return True
    return False


def swept(dispatcher, now):
    """Sweep once gRPC has accepted all that the tests have connected."""
    sweep: ConnectionSweep = dispatcher.server._sweep
    with ControlChannel(dispatcher.address) as last:
        last.connect()
        return sweep.sweep(now)


@pytest.mark.parametrize("said", [b"", HTTP2])
def test_of_many_silent_peers_the_oldest_go(serving, said):
    with serving() as dispatcher, ControlChannel(dispatcher.address) as honest, contextlib.ExitStack() as held:
        honest.connect()
        first = [held.enter_context(connected(dispatcher, said)) for _ in range(30)]
        assert swept(dispatcher, 0.0) <= 1
        for _ in range(300):
            held.enter_context(connected(dispatcher, said))
        assert 295 <= swept(dispatcher, 1.0) <= 301
        assert all(map(ended, first))
        assert len(dispatcher.server._sweep.lobby) <= 30
        honest.connect()
        works(dispatcher.address)


def test_whoever_is_not_let_in_in_time_goes(serving):
    with serving() as dispatcher, ControlChannel(dispatcher.address) as honest:
        honest.connect()
        with connected(dispatcher, HTTP2) as slow:
            assert swept(dispatcher, 0.0) == 0
            assert swept(dispatcher, connection_sweep.SECONDS - 0.1) == 0
            assert swept(dispatcher, connection_sweep.SECONDS + 0.1) == 1
            assert ended(slow)
        honest.connect()


def test_only_own_connections_are_swept(serving):
    """This process has other sockets, to this port and to others."""
    with serving() as dispatcher, serving() as other, connected(other) as elsewhere, connected(dispatcher) as client:
        swept(dispatcher, 0.0)
        assert swept(dispatcher, 100.0) == 1
        assert ended(client)
        elsewhere.settimeout(0.2)
        assert not ended(elsewhere)
        works(other.address)


def test_a_sweep_leaves_the_locks_of_the_journal_alone(serving, tmp_path):
    """Who closes any descriptor of a file ends all locks that its process has on it."""
    journal = SqliteJournal(str(tmp_path / "journal.db"))
    look = (
        f"import sqlite3; sqlite3.connect({str(tmp_path / 'journal.db')!r}, timeout=0).execute('SELECT 1 FROM groups')"
    )
    try:
        with serving() as dispatcher:
            for now in (0.0, 100.0):
                swept(dispatcher, now)
        found = subprocess.run([sys.executable, "-c", look], capture_output=True, text=True, check=False)
    finally:
        journal.close()
    assert "database is locked" in found.stderr
    subprocess.run([sys.executable, "-c", look], check=True)
