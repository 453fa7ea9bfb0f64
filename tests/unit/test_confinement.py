"""What tests/unit/conftest.py promises about unit tests."""

import os
import socket
import subprocess
import time

import pytest


def refused(what: str):
    return pytest.raises(pytest.fail.Exception, match=f"a unit test tried to {what}")


def test_cannot_sleep():
    with refused("sleep"):
        time.sleep(0)  # the one call of it, to see it refused


def test_cannot_bind_or_connect():
    with socket.socket() as sock:
        with refused("bind a socket"):
            sock.bind(("127.0.0.1", 0))
        with refused("connect a socket"):
            sock.connect(("127.0.0.1", 1))


def test_cannot_start_processes():
    with refused("start a process"):
        subprocess.run(["true"], check=True)
    with refused("fork"):
        os.fork()
