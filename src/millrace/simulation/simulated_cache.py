"""Reads from caches and additions to them by a worker: :mod:`millrace.worker.cache_access`, without files.

It has its blocks' indexes from when it first needed them, as the real one: so a block may be known, and gone.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from millrace.protocol.cache_messages import BlocksKnown, CacheUse, CacheUsed, KeptBlock
from millrace.protocol.messages import LeaseTask
from millrace.simulation.pipelines import bytes_of
from millrace.simulation.store import Block, FullError, Store, UnreadableError

if TYPE_CHECKING:
    from millrace.simulation.invariants import Invariants

BLOCK_ITEMS = 5
"""A block is ended when it has so many."""


class KnownBlocks:
    """The blocks that a worker knows, by place."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._news: dict[str, list[str]] = {}
        self._indexes: dict[str, dict[str, frozenset[int]]] = {}

    def known(self, message: BlocksKnown) -> None:
        """Note what the dispatcher tells of blocks."""
        before = [] if message.whole else self._news.get(message.place, [])
        self._news[message.place] = [name for name in [*before, *message.names] if name not in message.gone]
        for name in [*self._indexes.get(message.place, ())]:
            if name in message.gone or (message.whole and name not in message.names):
                self.forget(message.place, name)

    def open(self, place: str) -> list[str]:
        """Read the indexes of what is new; return names of the blocks for which that failed."""
        indexes, lost = self._indexes.setdefault(place, {}), []
        for name in self._news.pop(place, []):
            if name not in indexes:
                try:
                    indexes[name] = self.store.index(place, name)
                except UnreadableError:
                    lost.append(name)
        return lost

    def find(self, place: str, unit: int) -> str:
        """Return the name of a block that has a unit; empty if none has."""
        return next((name for name, units in self._indexes.get(place, {}).items() if unit in units), "")

    def forget(self, place: str, name: str) -> None:
        """Use a block no more."""
        self._indexes.get(place, {}).pop(name, None)

    def reads(self, place: str, name: str) -> bool:
        """Whether a run would read a block."""
        return name in self._indexes.get(place, ()) or name in self._news.get(place, ())


class SimulatedCacheUse:
    """Use of a cache by one run.

    Args:
        known_blocks: of its worker.
        lease: of the run, with a cache.
        invariants: hears of what is published.
    """

    def __init__(self, known_blocks: KnownBlocks, lease: LeaseTask, invariants: Invariants) -> None:
        assert lease.cache is not None
        self.use: CacheUse = lease.cache
        self.lease = lease.lease
        self._job = lease.ref.job
        self._known_blocks, self._invariants = known_blocks, invariants
        self._places = self.use.place, *self.use.also
        self._lost = {place: known_blocks.open(place) for place in self._places}
        self._keeps = self.use.room > 0 and not lease.probe_level and not lease.poison
        self._made: dict[int, int] = {}
        self._draft: dict[int, int] = {}
        self._blocks: list[KeptBlock] = []
        self._error, self._wanted = "", 0
        self._hits = 0

    def read(self, unit: int) -> int | None:
        """Return the epoch whose random values are kept of a unit; None if it is not kept."""
        for place in self._places:
            while name := self._known_blocks.find(place, unit):
                try:
                    found, writer = self._known_blocks.store.read(place, name, unit)
                except UnreadableError:
                    self._known_blocks.forget(place, name)
                    self._lost[place].append(name)
                else:
                    self._hits += 1
                    self._invariants.caches.read(self._job, writer)
                    return found
        return None

    def made(self, unit: int, values: int) -> None:
        """Keep a unit that was computed, if there is room for all that is."""
        self._made[unit] = values
        if not self._keeps or self._error:
            return
        if len(self._draft) >= BLOCK_ITEMS:
            self._publish()
        self._draft[unit] = values
        written = sum(block.bytes for block in self._blocks) + sum(map(bytes_of, self._draft))
        if written > self.use.room:
            self._error, self._wanted = "there is no room for all that the task has", 2 * written

    @property
    def count(self) -> int:
        """Units that were computed."""
        return len(self._made)

    def finish(self) -> None:
        """Keep the rest of what was made, as the run has come to its end."""
        if self._keeps and not self._error and self._draft:
            self._publish()

    def told(self) -> list[CacheUsed]:
        """Return what the dispatcher is told."""
        mine, *others = self._places
        used = CacheUsed(
            self._job,
            self.lease,
            mine,
            self._blocks,
            self._lost[mine],
            self._hits,
            self.count,
            error=self._error,
            wanted=self._wanted,
        )
        return [used, *(CacheUsed(self._job, self.lease, place, lost=self._lost[place]) for place in others)]

    def _publish(self) -> None:
        draft, self._draft = self._draft, {}
        name = hashlib.blake2b(repr(sorted(draft)).encode(), digest_size=8).hexdigest()
        block = Block(KeptBlock(name, sum(map(bytes_of, draft)), len(draft)), draft, self.lease, self.use.writer)
        try:
            self._known_blocks.store.publish(self.use.place, block)
        except FullError:
            self._error = "the disk is full"
            return
        self._blocks.append(block.kept)
        self._invariants.caches.published(self._job, self.use.place, block)
