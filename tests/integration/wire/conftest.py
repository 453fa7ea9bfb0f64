"""A dispatcher's end in a thread, other processes, and a stricter look at threads."""

import asyncio
import contextlib
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.integration.wire.wire_messages import PROMPTLY_S, Ping

from millrace.wire.control.control_server import ControlServer

PEER = Path(__file__).with_name("wire_peer.py")


@contextlib.contextmanager
def _peer(role, address="127.0.0.1:0", **environment):
    """A process of wire_peer.py and the first line it says."""
    command = [sys.executable, str(PEER), role, address]
    process: Any = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **environment})
    try:
        yield process, process.stdout.readline().strip()
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


async def echo(session):
    async for message in session:
        session.send(message)


class Dispatcher:
    """A ControlServer on an event loop in a thread of its own."""

    def __init__(self, address="127.0.0.1:0", on_session=echo, **options):
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="millrace-test-loop")
        self.thread.start()
        try:
            self.server = self.do(self._start(address, on_session, options))
        except BaseException:
            self.close()
            raise

    async def _start(self, address, on_session, options):
        server = ControlServer(address, on_session=on_session, message=Ping, **options)
        self.address = await server.start()
        return server

    def do(self, coroutine):
        return asyncio.run_coroutine_threadsafe(coroutine, self.loop).result(30)

    def close(self):
        if hasattr(self, "server"):
            self.do(self.server.stop(0.5))
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


@pytest.fixture(scope="session")
def serving():
    """``with serving(address, on_session, **options of ControlServer) as dispatcher``; echoes unless told otherwise."""
    return Dispatcher


@pytest.fixture(scope="session")
def peer():
    return _peer


@pytest.fixture
def dispatcher() -> Iterator[Dispatcher]:
    with Dispatcher() as running:
        yield running


@pytest.fixture(autouse=True)
def no_thread_left():
    """Stricter than the run's own check: gRPC's threads are daemons and have foreign names."""
    before = set(threading.enumerate())
    yield
    left = [thread for thread in set(threading.enumerate()) - before if "_poll_wrapper" not in thread.name]
    for thread in left:
        thread.join(PROMPTLY_S)
    assert not [thread for thread in left if thread.is_alive()]
