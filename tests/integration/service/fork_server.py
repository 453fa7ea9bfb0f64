"""Fork server: starts dispatchers and workers of tests without importing everything anew for each of them.

A process imports what dispatchers and workers import, and forks for each that is asked for: half a second of a core is
spared a thousand times. Whoever is started so is a process like any other, with a session, a standard input and an
environment of its own. What is read as a process begins (variables of libraries, the command line itself) is the fork
server's; tests of that start processes with :func:`millrace.clusters.child_process.spawn`.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from typing import Self

import msgspec

from millrace.clusters.child_process import worker_environment

_MOST_BYTES = 1 << 20
_IMPORTED = [
    "importlib.metadata",
    "millrace.blocks.block_index",
    "millrace.blocks.stores.open_store",
    "millrace.dispatcher.server",
    "millrace.engine.cache.cache_writer",
    "millrace.engine.run.program",
    "millrace.functions.bundles",
    "millrace.functions.fingerprint",
    "millrace.sources.files",
    "millrace.sources.sequences",
    "millrace.sources.tfrecord",
    "millrace.worker.worker_process",
    "sqlite3",
]


class Start(msgspec.Struct, tag=True, array_like=True):
    """Start ``millrace ARGUMENTS --parent-pipe``, whose standard files come along; the answer is its process id."""

    arguments: list[str]
    environment: dict[str, str]


class Reap(msgspec.Struct, tag=True, array_like=True):
    """Tell the exit status of a child that has ended, as :meth:`os.waitstatus_to_exitcode` has it."""

    pid: int


class ForkedProcess(subprocess.Popen[bytes]):
    """Process that a fork server has started."""

    _child_created = False  # it isn't a child of this process, says this to the destructor

    def __init__(self, server: ForkServer, arguments: Sequence[str], environment: Mapping[str, str], *, stdout: bool):
        self._server = server
        self.args = ["millrace", *arguments]
        self.returncode = None
        self.stderr = None
        reads, writes = os.pipe()
        out = os.pipe() if stdout else None
        try:
            self.pid = server.ask(Start([*arguments], {**environment}), [reads, out[1] if out else 1, 2])
        finally:
            os.close(reads)
            if out:
                os.close(out[1])
        self.stdin = os.fdopen(writes, "wb", 0)
        self.stdout = os.fdopen(out[0], "rb") if out else None
        self._handle = os.pidfd_open(self.pid)

    def poll(self) -> int | None:
        """Look whether it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end; return its exit status."""
        if self.returncode is None:
            waiting = select.poll()
            waiting.register(self._handle, select.POLLIN)
            if not waiting.poll(None if timeout is None else timeout * 1000):
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            with self._server.lock:
                if self.returncode is None:
                    self.returncode = self._server.ask(Reap(self.pid))
                    os.close(self._handle)
        return self.returncode

    def send_signal(self, sig: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, sig)


class ForkServer:
    """A fork server; it ends as it is left, or with this process."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._process = subprocess.Popen(
                [sys.executable, "-P", __file__, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                env=worker_environment(os.environ),
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        assert self._control.recv(8), "the fork server did not start"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._control.close()
        self._process.wait()

    def start(self, arguments: Sequence[str], *, stdout: bool) -> ForkedProcess:
        """Start a process with a worker's environment."""
        return ForkedProcess(self, arguments, worker_environment(os.environ), stdout=stdout)

    def ask(self, request: Start | Reap, descriptors: Sequence[int] = ()) -> int:
        """Ask the server, and wait for its answer."""
        with self.lock:
            socket.send_fds(self._control, [msgspec.msgpack.encode(request)], [*descriptors])
            return int.from_bytes(self._control.recv(8), "big", signed=True)


def serve(control: socket.socket) -> list[str]:
    """Answer until the other side is gone; returns in each child that is to run these arguments."""
    decoder: msgspec.msgpack.Decoder[Start | Reap] = msgspec.msgpack.Decoder(Start | Reap)
    while True:
        raw, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 3)
        if not raw:
            os._exit(0)
        request = decoder.decode(raw)
        if isinstance(request, Reap):
            answer = os.waitstatus_to_exitcode(os.waitpid(request.pid, 0)[1])
        else:
            answer = os.fork()
            if not answer:
                control.close()
                os.setsid()
                for place, descriptor in enumerate(descriptors):
                    os.dup2(descriptor, place, inheritable=True)
                    os.close(descriptor)
                os.environ.clear()
                os.environ.update(request.environment)
                return request.arguments
            for descriptor in descriptors:
                os.close(descriptor)
        control.send(answer.to_bytes(8, "big", signed=True))


def main() -> int:
    """The server, and its children."""
    from millrace.cli import main as run

    for module in _IMPORTED:
        importlib.import_module(module)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.send(b"ready")
    arguments = serve(control)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.argv = ["millrace", *arguments, "--parent-pipe"]
    return run()


if __name__ == "__main__":
    sys.exit(main())
