"""Local workers: processes that one training process starts on its own host, for its job on a service.

They register with the service's dispatcher like any others, but belong to that job. They end when they are closed, or
with the process that started them, however it ends; one that ends by itself is replaced.
"""

from __future__ import annotations

import logging
import os
import subprocess
import threading
import time
import weakref
from typing import NoReturn

from millrace.clusters.child_process import describe_exit, hang_up, reap, spawn
from millrace.clusters.subprocesses import STDERR
from millrace.errors import ShippingError
from millrace.host_limits import siblings
from millrace.planning.epoch_cursor import Share
from millrace.policies.scaling.respawn import respawn_at
from millrace.wire.address import own_host

_REMEMBERED = 100
_logger = logging.getLogger(__name__)


class LocalWorkers:
    """Local workers of one job, as long as this object lives.

    Args:
        dispatcher: address of the service.
        job: name of the job.
        workers: number of processes, each of which keeps one core busy.
        token: of the service.
        tls: folder of certificates; empty: none.

    Raises:
        ServiceError: ``dispatcher`` is no address, or of no host that is known here.
    """

    def __init__(self, dispatcher: str, job: str, workers: int, token: str | None, tls: str = "") -> None:
        self.job = job
        # Where the dispatcher sees this host: others may have to fetch from there what tasks leave over.
        command = ["worker", "--dispatcher", dispatcher, "--job", job, "--threads", "1", "--host", own_host(dispatcher)]
        if not tls:
            command.append("--insecure")  # as the service is that it works for
        self._processes = _RespawnedProcesses(command, workers, token, tls)
        # Dropped without close(), which may happen in any thread, inside anything: only hang up.
        self._finalizer = weakref.finalize(self, self._processes.hang_up_all)

    @property
    def usable(self) -> bool:
        """Whether it was not closed, and is of this process."""
        return self._finalizer.alive and self._processes.owner == os.getpid()

    def close(self) -> None:
        """End the processes. May be called any number of times."""
        if self._finalizer.detach() is not None:
            self._processes.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("workers of a training host cannot be pickled: another process starts its own")


class _RespawnedProcesses:
    """Number of processes of one kind: a thread for each starts it, waits for its end, and starts it again."""

    def __init__(self, command: list[str], count: int, token: str | None, tls: str) -> None:
        self.owner = os.getpid()
        self._command, self._count, self._token, self._tls = command, count, token, tls
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
                again = respawn_at(self._deaths, now, self._count)
            _logger.warning("a local worker of this training %s; %s", how, again.reason)
            if self._over.wait(max(0.0, again.value - now)):
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


def free_cores() -> int:
    """Count the cores for one training process's workers, where each training process keeps one busy itself."""
    trainings = siblings()
    return max(1, ((os.cpu_count() or 1) - trainings) // trainings)


def local_share(workers: int, share: Share | None, *, alone: bool) -> int:
    """Divide this host's ``workers`` among helpers, each of which ends as soon as it has read its share.

    Args:
        workers: number that all helpers may have together.
        share: (i, n): helper i of n; None: there are no helpers.
        alone: no other workers do their work: each helper needs one of its own, as those of others may end before.
    """
    if share is None or not workers:
        return workers
    part, parts = share
    return max(workers // parts + (part < workers % parts), int(alone))
