"""Local cluster: workers as child processes of the dispatcher."""

from __future__ import annotations

import asyncio
import contextlib
import os
import subprocess
import threading
import uuid
from collections.abc import Callable, Sequence

from millrace.clusters.child_process import describe_exit, hang_up, reap, spawn
from millrace.dispatcher.cluster_contract import Cluster, Ended
from millrace.errors import ServiceError

STDERR = 2
"""Destination of what user functions print, that of the dispatcher's log: its standard output is for a program."""


class LocalCluster(Cluster):
    """Cluster (:class:`~millrace.dispatcher.cluster_contract.Cluster`) of processes on this machine.

    Args:
        dispatcher: returns where the dispatcher listens; asked whenever a worker is started.
        options: further ones of ``millrace worker``, for each.
        token: of the service.
        tls: folder of certificates; empty: none.
    """

    def __init__(
        self, dispatcher: Callable[[], str], options: Sequence[str] = (), token: str | None = None, tls: str = ""
    ) -> None:
        self._dispatcher = dispatcher
        self._options = options
        self._token, self._tls = token, tls
        self._spares: list[tuple[str, subprocess.Popen[bytes]]] = []
        self._lock = threading.Lock()
        self._processes: dict[str, subprocess.Popen[bytes]] = {}
        self._ended: Ended = lambda worker, how, orderly: None
        self._closed = False

    def watch(self, ended: Ended) -> None:
        """Have ``ended`` called for each process that ends."""
        self._ended = ended

    def prepare(self, workers: int) -> None:
        """Have so many load their libraries before they are told of a dispatcher; :meth:`start` takes them."""
        while len(self._spares) < workers:
            self._spares.append(self._spawn())

    async def start(self, workers: int) -> None:
        """Start so many more."""
        self.prepare(workers)  # all or none are started
        for _ in range(workers):
            name, process = self._spares.pop()
            assert process.stdin is not None
            with contextlib.suppress(BrokenPipeError):  # it has ended already, which is noticed as ever
                os.write(process.stdin.fileno(), f"{self._dispatcher()}\n".encode())
            waiting = threading.Thread(
                target=self._wait, args=(name, process), name=f"millrace-wait-{name[:8]}", daemon=True
            )
            try:
                waiting.start()
            except RuntimeError as error:  # nobody would notice that it has ended
                process.kill()
                process.wait()
                hang_up(process)
                with self._lock:
                    del self._processes[name]
                raise ServiceError(f"no further worker process can be looked after: {error}") from error

    def _spawn(self) -> tuple[str, subprocess.Popen[bytes]]:
        """Start a process that waits to be told the dispatcher's address; return it with its name."""
        name = uuid.uuid4().hex
        try:
            process = spawn(
                ["worker", "--dispatcher", "-", "--name", name, *self._options],
                worker=True,
                stdout=STDERR,
                token=self._token,
                tls=self._tls,
            )
        except OSError as error:
            raise ServiceError(f"no further worker process can be started on this machine: {error}") from error
        with self._lock:
            self._processes[name] = process
        return name, process

    def running(self) -> list[str]:
        """Return the ids of all that were told of the dispatcher."""
        with self._lock:
            spares = {name for name, _ in self._spares}
            return [name for name in self._processes if name not in spares]

    async def stop(self, workers: Sequence[str]) -> None:
        """End these processes, those that don't react within seconds by force."""
        with self._lock:
            processes = [self._processes[name] for name in workers if name in self._processes]
        await _end(processes)

    async def close(self) -> None:
        """End all of them."""
        with self._lock:
            self._closed = True
            processes = list(self._processes.values())
        await _end(processes)

    def _wait(self, name: str, process: subprocess.Popen[bytes]) -> None:
        status = process.wait()
        with self._lock:
            del self._processes[name]
            closed = self._closed
        hang_up(process)
        if not closed:
            self._ended(name, describe_exit(status), status == 0)


async def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        hang_up(process)
    await asyncio.gather(*(asyncio.to_thread(reap, process) for process in processes))
