"""The dispatcher's own cluster: as many workers as it asks for, as far as they have room."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster

SCALED = 1 / 3
"""Share of the schedules in which the dispatcher has a cluster, and decides how many workers there are."""
ROOMS = (1, 2, 3, 5, 9)
"""Workers that have room, as likely as they are here."""
BEGIN_S = (0.1, 2.0)
"""Least and most seconds that a simulated worker takes to begin."""


class SimulatedPool:
    """Starts and ends workers, as :mod:`millrace.dispatcher.worker_pool` has it done.

    Args:
        cluster: where they live.
        rng: of how much room there is, and how soon workers begin.

    Attributes:
        room: workers that can run at a time; those that run when it becomes less go on.
        asked: workers that are to run.
    """

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self.room = rng.choice(ROOMS)
        self.asked = 0
        self._cluster = cluster
        self._rng = rng

    def settings(self) -> dict[str, Any]:
        """Return the settings of its dispatcher: all that takes minutes takes seconds."""
        most = self._rng.choice((3, 5, 8))
        first = self._rng.choice((1, 1, 2))
        return {
            "least_workers": 1,
            "most_workers": most,
            "first_workers": first,
            "shrink_s": 6.0,
            "drain_s": 10.0,
            "patience_s": self._rng.choice((0.5, 0.5, 3.0)),  # some come too late
        }

    def resize(self, workers: int) -> None:
        """Run so many; those that have no room and are not wanted any more never begin."""
        self.asked = workers
        self.fill_soon()

    def fill_soon(self) -> None:
        """Start in a moment what is missing and has room."""
        self._cluster.network.after(self._rng.uniform(*BEGIN_S), self._fill)

    def change_room(self) -> None:
        """There is room for another number of workers."""
        self.room = self._rng.choice([room for room in ROOMS if room != self.room])
        self.fill_soon()

    def _fill(self) -> None:
        if self._cluster.dispatcher is None:
            return
        running = sum(not worker.only for worker in self._cluster.alive_workers())
        for _ in range(min(self.asked, self.room) - running):
            self._cluster.add_worker()
