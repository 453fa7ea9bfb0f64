"""Contract of clusters, which start and stop worker processes for the dispatcher."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

Ended = Callable[[str, str, bool], None]
"""Callback for the end of a worker's process: its id ("" if it is not known), how it ended in words, e.g. ``was killed
by SIGKILL``, and whether that was in good order: by itself, with exit status 0."""


class Cluster(Protocol):
    """Cluster on which workers are started and stopped. Implementations are in :mod:`millrace.clusters`."""

    def watch(self, ended: Ended) -> None:
        """Have ``ended`` called for each worker process that ends; called once, before anything is started.

        Args:
            ended: called from any thread; not for a process that the cluster replaces by itself.
        """

    def trouble(self) -> str:
        """Say why workers that were asked for have not begun; empty if nothing is known to be wrong."""
        return ""

    async def start(self, workers: int) -> None:
        """Ask for so many more workers; they register by themselves when they are there.

        Raises:
            ServiceError: if they can't be asked for; then none of them comes.
        """

    async def forgo(self, workers: int) -> int:
        """Give up so many of those that were asked for and have not begun, e.g. as there is no room for them.

        Returns:
            How many were given up, which is fewer if more have begun: those are left alone. ``ended`` is not called.
        """
        return 0

    def running(self) -> list[str]:
        """Return the ids of workers whose processes run, as far as is known, whether they have registered or not."""

    async def stop(self, workers: Sequence[str]) -> None:
        """End these workers' processes, at once if need be; ids of others are ignored."""

    async def close(self) -> None:
        """End all workers that it has started, and wait for that. ``ended`` is no longer called."""
