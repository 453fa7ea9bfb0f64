"""Last words of workers and clients: nobody is given up sooner after these than is promised."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster


class LastWords:
    """When the dispatcher has heard of each peer that has a session with it.

    Args:
        cluster: has the time and the settings.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._heard: dict[str, float] = {}
        self._put_back = 0.0

    def heard(self, peer: str) -> None:
        """Note that the dispatcher has heard of a worker or a client."""
        self._heard[peer] = self._cluster.network.now

    def let_in(self, peer: str) -> None:
        """Note that a place was given to one that may not have a session yet."""
        self._heard.setdefault(peer, self._cluster.network.now)

    def put_back(self) -> None:
        """Note that an older journal was put in place, which does not know who came back after it ended."""
        self._heard.clear()
        self._put_back = self._cluster.network.now

    def given_up(self, peer: str, grace: float) -> None:
        """Check that a peer which is given up had its time; if the journal was put back since, that to find it."""
        if peer not in self._heard:
            grace = min(grace, self._cluster.settings.return_s)
        away = self._cluster.network.now - self._heard.get(peer, self._put_back)
        if away < grace:
            raise Violation(f"{peer} was given up {away:.1f} s after its last word, and has {grace:g} s")
