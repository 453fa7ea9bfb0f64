"""A dispatcher that is started on an older copy of its journal: what comes of it is said, or nobody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from millrace.control.journal.snapshot import dump
from millrace.control.state.state import State
from millrace.dispatcher.recovery import fence_off_newer
from millrace.simulation.disk import Disk, encoded
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer


class OlderJournal:
    """Which consumers know that the journal is older, as what they have read comes again.

    Args:
        cluster: finds them.

    Attributes:
        put_back: a copy was; ``refused``: the dispatcher would not go on with it, and somebody chose that it does.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self.put_back = False
        self.refused = self._gone_on = False
        self._cluster = cluster
        self._twice: set[str] = set()

    def take_copy(self, groups: int) -> None:
        """Put a copy of the journal from before the last groups of events in its place."""
        cluster = self._cluster
        cluster.disk = cluster.disk.older(groups)
        cluster.invariants.put_back(cluster.disk.last)
        self.put_back = True
        cluster.stirred()

    def end_service(self, reason: str) -> None:
        """Note that the dispatcher would not go on."""
        if not self.put_back or self._gone_on:
            raise Violation(f"the service would end: {reason}")
        self.refused = True

    def go_on(self, disk: Disk, state: State) -> bool:
        """Have it go on with it all the same, once; False if the disk is full."""
        if self.refused and not self._gone_on:
            fence_off_newer(state)
            self._gone_on = disk.write(encoded([]), 0, disk.at, dump(state))
        return self._gone_on or not self.refused

    def came_again(self, *clients: str) -> bool:
        """Whether these may have been dealt the same: that was said, or one of them could not be told, or is gone."""
        apart = {client for client in clients if self.put_back and self._is_apart(client)}
        self._twice |= apart
        return self.refused or bool(apart)

    def _is_apart(self, client: str) -> bool:
        session = next((each.session for each in self._cluster.consumers if each.client == client), None)
        return session is None or session.ends[1] is not self._cluster.dispatcher

    def let_in(self, consumer: SimulatedConsumer) -> None:
        """Check that a consumer which has a session again was told what came again."""
        if consumer.client in self._twice and not self.refused:
            raise Violation(f"what {consumer.name} had read came again as the journal is older, and nobody says so")
