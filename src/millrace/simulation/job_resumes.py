"""Trainings that save their states, end, and go on from there, with as many ranks or others."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer

SAVED = 0.6
"""Share of the jobs with equal steps whose training ends and goes on."""
TRIES = 6
"""How often it is tried to find all ranks in one epoch."""


class JobResumes:
    """Which trainings of a schedule end and go on.

    Args:
        cluster: where they run.
        rng: of when they do.
    """

    def __init__(self, cluster: SimulatedCluster, rng: random.Random) -> None:
        self._cluster = cluster
        self._rng = rng

    def draw(self, name: str) -> None:
        """Draw whether a job with equal steps is resumed."""
        if self._rng.random() < SAVED:
            self._cluster.network.after(self._rng.uniform(1.0, 6.0), self._save, name, TRIES)

    def _save(self, name: str, tries: int) -> None:
        """All ranks save where they are and end; others go on. Later, if they are not all in one epoch."""
        cluster, rng = self._cluster, self._rng
        ranks = [each for each in cluster.consumers if each.spec.name == name and each.alive and not each.done]
        if not self._can_save(ranks):
            if tries > 1:
                cluster.network.after(rng.uniform(0.2, 3.0), self._save, name, tries - 1)
            return
        states = [each.state() for each in ranks]
        cluster.invariants.saved(ranks, states[0].epoch)
        for each in ranks:
            each.die(silently=rng.random() < 0.3)
        count = rng.choice((len(ranks), rng.randrange(1, 4)))
        if ranks[0].spec.coordinated:
            count = len(ranks)  # rounds of others would be others
        spec = msgspec.structs.replace(ranks[0].spec, num_consumers=count)
        cluster.expected += count - len(ranks)
        cluster.fired["saved and loaded"] += 1
        for index in range(count):
            stops = ranks[index % len(ranks)].stops  # without end somebody has to stop
            cluster.network.after(rng.uniform(0.1, 4.0), cluster.add_consumer, spec, index, stops, None, states)
        self.draw(name)

    def _can_save(self, ranks: list[SimulatedConsumer]) -> bool:
        if not ranks or {each.consumer for each in ranks} != set(range(ranks[0].spec.num_consumers or 0)):
            return False
        epochs = {each.reading for each in ranks}
        return (
            len(epochs) == 1 and -1 not in epochs and not self._cluster.invariants.interrupted(ranks[0], epochs.pop())
        )
