"""What a worker reads from caches and adds to them: :mod:`millrace.worker.cache_access`, without files.

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
    from millrace.simulation.invariants import Checks

BLOCK_ITEMS = 5
"""A block is ended when it has so many."""


class Catalogs:
    """The blocks that a worker knows, by place."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self._news: dict[str, list[str]] = {}
        self._indexes: dict[str, dict[str, frozenset[int]]] = {}

    def known(self, message: BlocksKnown) -> None:
        """The dispatcher tells of blocks."""
        before = [] if message.whole else self._news.get(message.place, [])
        self._news[message.place] = [name for name in [*before, *message.names] if name not in message.gone]
        for name in [*self._indexes.get(message.place, ())]:
            if name in message.gone or (message.whole and name not in message.names):
                self.forget(message.place, name)

    def open(self, place: str) -> list[str]:
        """Reads the indexes of what is new; names of the blocks for which that failed."""
        indexes, lost = self._indexes.setdefault(place, {}), []
        for name in self._news.pop(place, []):
            if name not in indexes:
                try:
                    indexes[name] = self.store.index(place, name)
                except UnreadableError:
                    lost.append(name)
        return lost

    def find(self, place: str, unit: int) -> str:
        """The name of a block that has a unit; empty if none has."""
        return next((name for name, units in self._indexes.get(place, {}).items() if unit in units), "")

    def forget(self, place: str, name: str) -> None:
        """The block is not to be used any more."""
        self._indexes.get(place, {}).pop(name, None)

    def reads(self, place: str, name: str) -> bool:
        """Whether a run would read a block."""
        return name in self._indexes.get(place, ()) or name in self._news.get(place, ())


class Using:
    """What one run has of a cache.

    Args:
        catalogs: of its worker.
        lease: of the run, with a cache.
        checks: hears of what is published.
    """

    def __init__(self, catalogs: Catalogs, lease: LeaseTask, checks: Checks) -> None:
        assert lease.cache is not None
        self.use: CacheUse = lease.cache
        self.lease = lease.lease
        self._job = lease.ref.job
        self._catalogs, self._checks = catalogs, checks
        self._places = self.use.place, *self.use.also
        self._lost = {place: catalogs.open(place) for place in self._places}
        self._keeps = self.use.room > 0 and not lease.probe_level and not lease.poison
        self._made: dict[int, int] = {}
        self._draft: dict[int, int] = {}
        self._blocks: list[KeptBlock] = []
        self._error, self._wanted = "", 0
        self._hits = 0

    def read(self, unit: int) -> int | None:
        """The epoch whose random values are kept of a unit; None if it is not kept."""
        for place in self._places:
            while name := self._catalogs.find(place, unit):
                try:
                    found, writer = self._catalogs.store.read(place, name, unit)
                except UnreadableError:
                    self._catalogs.forget(place, name)
                    self._lost[place].append(name)
                else:
                    self._hits += 1
                    self._checks.caches.read(self._job, writer)
                    return found
        return None

    def made(self, unit: int, values: int) -> None:
        """A unit was computed: it is kept, if there is room for all that is."""
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
        """The run has come to its end: what was made may be kept."""
        if self._keeps and not self._error and self._draft:
            self._publish()

    def told(self) -> list[CacheUsed]:
        """What the dispatcher is told."""
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
            self._catalogs.store.publish(self.use.place, block)
        except FullError:
            self._error = "the disk is full"
            return
        self._blocks.append(block.kept)
        self._checks.caches.published(self._job, self.use.place, block)
