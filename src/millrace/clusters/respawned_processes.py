"""Respawned processes: children that are started again when they end, until their parent ends."""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time

from millrace.clusters.child_process import describe_exit, hang_up, reap, spawn
from millrace.clusters.subprocesses import STDERR
from millrace.policies.scaling.respawn import respawn_at

_REMEMBERED = 100
_logger = logging.getLogger(__name__)


class RespawnedProcesses:
    """Number of processes of one kind: a thread for each starts it, waits for its end, and starts it again.

    Args:
        name: of one of them, as the log has it.
        command: of millrace, with its options.
        count: how many.
        token: of the service.
        tls: folder of certificates; empty: none.
    """

    def __init__(self, name: str, command: list[str], count: int, token: str | None, tls: str) -> None:
        self.owner = os.getpid()
        self._name, self._command, self._count, self._token, self._tls = name, command, count, token, tls
        self._gone = False
        self._over = threading.Event()
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._deaths: list[float] = []
        self._threads = [
            threading.Thread(target=self._keep, name=f"millrace-local-{number}", daemon=True) for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def _keep(self) -> None:
        while how := self._run():
            with self._lock:
                now = time.monotonic()
                self._deaths = [*self._deaths, now][-_REMEMBERED:]
                wait_s = max(0.0, respawn_at(self._deaths, now, self._count).value - now)
            when = f"in {wait_s:g} s" if wait_s else "at once"
            _logger.warning("%s %s; it is started again %s", self._name, how, when)
            if self._over.wait(wait_s):
                return

    def _run(self) -> str:
        """Run one process to its end; return how it ended in words, "" if that is the end of all."""
        try:
            process = spawn(self._command, worker=True, token=self._token, tls=self._tls, stdout=STDERR)
        except OSError as error:
            return f"could not be started ({error})"
        self._running.add(process)
        if self._gone:  # since before it was known here
            hang_up(process)
        how = describe_exit(process.wait())
        self._running.discard(process)
        hang_up(process)
        return "" if self._gone else how

    def hang_up_all(self) -> None:
        """Tell all of them to end, without waiting for that, and without any lock."""
        if os.getpid() == self.owner:  # else forked: they are the parent's
            self._gone = True
            for process in list(self._running):
                hang_up(process)

    def close(self) -> None:
        """End all of them and wait for that."""
        if os.getpid() != self.owner:
            return
        self.hang_up_all()
        self._over.set()
        for process in list(self._running):
            reap(process)
        for thread in self._threads:
            thread.join()
