"""Invariants of caches, which hold at any moment, whatever fails."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.control.journal.cache_events import BlocksDeleted, BlocksPublished
from millrace.control.journal.event import Event
from millrace.control.journal.task_events import TaskLeased
from millrace.control.state.cache_state import is_of
from millrace.control.state.state import State
from millrace.simulation.store import Block
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_dispatcher import SimulatedDispatcher


class CacheInvariants:
    """Hears of what is promised, published and deleted, and raises :class:`Violation`.

    Who was given up and does not know may publish what nobody has room for: that is set aside here, and nothing else.

    Args:
        cluster: finds the store and workers.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._outside: set[tuple[str, str]] = set()
        self._leases: dict[tuple[str, str], int] = {}

    def published(self, job: str, place: str, block: Block) -> None:
        """Note that a worker has published a block that was made for a job."""
        tenant = self._cluster.tenants[job]
        if block.writer != tenant:
            raise Violation(f"job {job} of tenant {tenant} has kept a block in the name of {block.writer}")
        self._leases[place, block.kept.name] = block.lease
        dispatcher = self._cluster.dispatcher
        held = None if dispatcher is None else dispatcher.state.caches.reservations.get(block.lease)
        if held is None or held.over:  # while there is no dispatcher nobody can tell
            self._outside.add((place, block.kept.name))
        else:
            self._outside.discard((place, block.kept.name))

    def read(self, job: str, writer: str) -> None:
        """Check who wrote what a run of a job has read."""
        tenant = self._cluster.tenants[job]
        if writer not in {tenant, *self._cluster.settings.trust.get(tenant, ())}:
            raise Violation(f"job {job} of tenant {tenant} has read what {writer} wrote, whom nobody said it trusts")

    def deleting(self, dispatcher: SimulatedDispatcher, place: str, name: str) -> None:
        """Check that nobody who runs under a lease would read the block that the dispatcher deletes."""
        state = dispatcher.state
        for worker in self._cluster.alive_workers():
            if not worker.known_blocks.reads(place, name):
                continue
            for using in worker.usings():
                if place in {using.use.place, *using.use.also} and _in_force(state, using.lease):
                    raise Violation(f"{worker.name} reads block {name} under lease {using.lease}, and it is deleted")

    def decided(self, dispatcher: SimulatedDispatcher, events: Sequence[Event]) -> None:
        """Check a state that has just been brought up to date."""
        for event in events if self._cluster.older_journal.put_back else ():
            if isinstance(event, BlocksPublished) and event.lease < 0:  # found, and promised in a later journal only
                self._outside.update((event.place, block.name) for block in event.blocks)
        if any(isinstance(event, TaskLeased | BlocksPublished | BlocksDeleted) for event in events):
            self._within(dispatcher.state)

    def _within(self, state: State) -> None:
        """Check that what is kept and what is promised fit, of all and of each tenant with a quota.

        What a lease has added counts twice if the store was listed before its worker has said so, and only then.
        """
        self._check_room(state, "", state.settings.cache_bytes)
        for tenant, quota in state.settings.byte_quotas.items():
            self._check_room(state, tenant, quota)

    def _check_room(self, state: State, tenant: str, limit: int) -> None:
        """Check the room of a tenant, or of all (with an empty name)."""

        def counts(place: str) -> bool:
            return is_of(place, tenant) if tenant else "@" not in place

        taken = sum(held.room for held in state.caches.reservations.values() if counts(held.place))
        beside = 0
        for place, cached in state.caches.points.items():
            for name, kept in cached.blocks.items() if counts(place) else ():
                twice = _promised(state, self._leases.get((place, name), -1))
                taken += kept.bytes
                beside += kept.bytes if twice or (place, name) in self._outside else 0
        if taken - beside > limit:
            whose = f" of tenant {tenant}" if tenant else ""
            raise Violation(f"{taken} bytes{whose} of {limit} are kept or promised, {beside} of them beside or twice")

    def ticked(self, dispatcher: SimulatedDispatcher) -> None:
        """Everything once more: what is in the store is accounted for, what is promised is somebody's."""
        state = dispatcher.state
        self._within(state)
        leases = {lease for worker in state.workers.values() for lease in worker.unfinished}
        for lease, held in state.caches.reservations.items():
            if not held.over and lease not in leases:
                raise Violation(f"lease {lease} is over, and {held} stays")
        for (place, name), block in self._cluster.store.blocks.items():
            cached = state.caches.points.get(place)
            known = cached is not None and name in cached.blocks
            lost = (place, name) in self._outside or self._cluster.older_journal.put_back  # until the store is listed
            if not (known or lost or _promised(state, block.lease)):
                raise Violation(f"block {name} of {place} is in the store, of lease {block.lease}, and does not count")


def _promised(state: State, lease: int) -> bool:
    """Return whether what the lease has added counts, whoever knows of it."""
    held = state.caches.reservations.get(lease)
    return held is not None and held.room > 0


def _in_force(state: State, lease: int) -> bool:
    held = state.caches.reservations.get(lease)
    return held is not None and not held.over
