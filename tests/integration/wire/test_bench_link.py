"""``millrace bench link``: both ends as processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
from typing import Any

import msgspec
import pytest

from millrace.errors import ServiceUnreachableError
from millrace.wire.data.data_connection import DataServer, open_data_connection
from millrace.wire.data.link_benchmark import SendBatches, serve_link

COMMAND = [sys.executable, "-m", "millrace", "bench", "link"]
ORDER = msgspec.msgpack.Decoder(SendBatches)
ENVIRONMENT = {**os.environ, "MILLRACE_TOKEN": "right"}


@contextlib.contextmanager
def listening():
    process: Any = subprocess.Popen(
        [*COMMAND, "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True, env=ENVIRONMENT
    )
    try:
        yield process, process.stdout.readline().split(";")[0].removeprefix("listens at ")
    finally:
        process.kill()
        process.communicate()


def run(*arguments, env=ENVIRONMENT):
    return subprocess.run([*COMMAND, *arguments], check=False, capture_output=True, text=True, env=env)


def test_a_link_is_measured():
    with listening() as (_, address):
        done = run(address, "--json", "--rounds", "1", "--seconds", "0.01")
        assert done.returncode == 0, done.stderr
        report = json.loads(done.stdout)
        assert report["peer"] == address
        assert report["same_host"]
        assert report["sockets"] == 1
        assert report["round_trip_s"] > 0
        assert {(row["way"], row["sockets"]) for row in report["rows"] if row["content"] == "random bytes"} == {
            (way, count) for way in ("plain sockets", "millrace") for count in (1, 2, 4, 8)
        }
        assert {row["compression"] for row in report["rows"] if row["content"] == "token ids"} == {None, "lz4", "zstd"}
        assert all(row["bytes_per_s"] > 0 for row in report["rows"])
        wrong = run(address, env={**ENVIRONMENT, "MILLRACE_TOKEN": "wrong"})
        assert wrong.returncode == 1
        assert "refused the token" in wrong.stderr


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_ends_the_listening_end(number):
    with listening() as (process, _):
        process.send_signal(number)
        assert process.wait(20) == 0


def test_ctrl_c_ends_the_measuring_end():
    asked = threading.Event()

    def silent(connection):
        connection.receive(ORDER)
        asked.set()
        connection.receive(ORDER)

    with DataServer("127.0.0.1", silent, token="right") as server:
        process: Any = subprocess.Popen([*COMMAND, server.address], stderr=subprocess.PIPE, text=True, env=ENVIRONMENT)
        try:
            assert asked.wait(60)
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert not process.stderr.read()
        finally:
            process.kill()
            process.communicate()


def test_one_end_must_be_chosen():
    for arguments in ([], ["127.0.0.1:1", "--listen", "127.0.0.1:0"]):
        done = run(*arguments)
        assert done.returncode == 2
        assert "either --listen HOST:PORT, or" in done.stderr


def test_orders_are_bounded():
    with serve_link("127.0.0.1", 0, None) as server, open_data_connection(server.address) as connection:
        connection.send(SendBatches(1 << 40))
        with pytest.raises(ServiceUnreachableError):
            connection.receive(ORDER)
