"""Local workers: processes that one training process starts on its own host, for its job on a service.

They register with the service's dispatcher like any others, but belong to that job. They end when they are closed, or
with the process that started them, however it ends; one that ends by itself is replaced.
"""

from __future__ import annotations

import os
import weakref
from typing import NoReturn

from millrace.clusters.respawned_processes import RespawnedProcesses
from millrace.errors import ShippingError
from millrace.host_limits import siblings, usable_cores
from millrace.planning.epoch_cursor import Share
from millrace.wire.address import own_host


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
        self._processes = RespawnedProcesses("a local worker of this training", command, workers, token, tls)
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


def free_cores() -> int:
    """Count the cores for one training process's workers, where each training process keeps one busy itself."""
    trainings = siblings()
    return max(1, (usable_cores() - trainings) // trainings)


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
