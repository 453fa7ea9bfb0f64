"""Two hosts with a distance between them: network namespaces, joined by tunnel.py. The ends' code is here, too."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest

from millrace.errors import ServiceUnreachableError
from millrace.wire.data import socket_options
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.striping import Striped, round_trip_s

TUNNEL = Path(__file__).with_name("tunnel.py")
DELAY_S = 0.01
BATCHES = 6
TOKEN = "secret"


class Batch(msgspec.Struct, frozen=True, tag=True):
    number: int


BATCH = msgspec.msgpack.Decoder(Batch)


def batch(number):
    return np.random.default_rng(number).integers(0, 50, 700_000 + number, np.uint8)


def say(*words):
    print(*words, flush=True)


def give(connection):
    while True:
        header, _ = connection.receive(BATCH)
        connection.send(header, np.array_split(batch(header.number), 3))


def near(address, compression, asks):
    """Reads batches, says what it saw, then waits for one that the link never brings, or asks for one."""
    # A dead link is noticed after 2 s, not 20.
    socket_options.KEEPALIVE.update(TCP_KEEPIDLE=1, TCP_KEEPINTVL=1, TCP_KEEPCNT=1)
    socket_options.UNACKNOWLEDGED_MS = 2000
    with open_data_connection(address, TOKEN, compression=None if compression == "-" else compression) as connection:
        sockets = connection._sock._sockets if isinstance(connection._sock, Striped) else [connection._sock]
        assert isinstance(sockets[0], socket.socket)
        assert round_trip_s(sockets[0]) >= 2 * DELAY_S
        for number in range(BATCHES):
            connection.send(Batch(number))
        for number in range(BATCHES):
            header, payload = connection.receive(BATCH)
            assert header == Batch(number)
            assert np.array_equal(payload, batch(number))
        say("read over", len(sockets))
        sys.stdin.readline()
        try:
            if asks == "asks":  # while that is on its way nobody looks whether the peer is there
                connection.send(Batch(0))
            connection.receive(BATCH)
        except ServiceUnreachableError:
            say("lost", connection.closed)


def far(*_):
    server = DataServer("0.0.0.0", give, token=TOKEN, insecure=True)
    say(server.port)
    sys.stdin.read()


def started(stack, *command):
    process: Any = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    stack.callback(process.communicate)
    stack.callback(process.kill)
    return process, process.stdout.readline().strip()


@pytest.fixture
def hosts():
    """``run(side, role, ...)`` starts this file there; ``cut()`` makes the link lose everything from now on."""
    if os.geteuid() != 0:
        pytest.skip("needs root, to make network namespaces")
    if not os.path.exists("/dev/net/tun") or shutil.which("ip") is None:
        pytest.skip("needs /dev/net/tun and iproute2, to join network namespaces")
    name = f"millrace-{os.getpid()}"
    with ExitStack() as stack:
        for side in "ab":
            stack.callback(subprocess.run, ["ip", "netns", "del", f"{name}-{side}"], stderr=subprocess.DEVNULL)
        tunnel, line = started(stack, sys.executable, str(TUNNEL), name, str(DELAY_S), "3e7")
        assert line
        if line != "ready":
            pytest.skip(f"no network namespaces or tunnels here: {line}")

        def run(side, *arguments):
            return started(stack, "ip", "netns", "exec", f"{name}-{side}", sys.executable, __file__, *arguments)

        yield SimpleNamespace(run=run, cut=lambda: tunnel.send_signal(signal.SIGSTOP))


@pytest.mark.parametrize(("compression", "asks"), [("-", "waits"), ("lz4", "waits"), ("-", "asks")])
def test_between_distant_hosts(hosts, compression, asks):
    """Bytes are right, the round trip makes it several sockets, and a link that goes dead is noticed."""
    _, port = hosts.run("b", "far")
    reader, line = hosts.run("a", "near", f"10.97.0.2:{port}", compression, asks)
    words, sockets = line.rsplit(" ", 1)
    assert words == "read over"
    assert int(sockets) > 1
    hosts.cut()
    print(file=reader.stdin, flush=True)
    assert reader.stdout.readline().strip() == "lost True"


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
