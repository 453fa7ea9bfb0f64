"""Disk of the dispatcher, with its journal and blobs, which outlives it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from millrace.control.journal.event import Event
from millrace.control.journal.replay import AnyEvent
from millrace.dispatcher.journal_file import JournalContents

_DECODER = msgspec.msgpack.Decoder(list[AnyEvent])


class Disk:
    """Holds what :mod:`millrace.dispatcher.journal_file` and the folder of blobs would hold.

    Args:
        every: events from one snapshot to the next.

    Attributes:
        full: writing fails.
        failed: how often it has.
        last: number of the last event that is durable, counted from 1.
        at: the dispatcher's clock with it, in seconds.
        blobs: bytes by digest.
    """

    def __init__(self, every: int) -> None:
        self.full = False
        self.failed = 0
        self.last = 0
        self.at = 0.0
        self.blobs: dict[str, bytes] = {}
        self._removed: dict[str, bytes] = {}
        self._every = every
        self._groups: list[tuple[int, bytes, float]] = []
        self._snapshots: list[tuple[int, bytes]] = []

    @property
    def due(self) -> bool:
        """The next group should bring a snapshot."""
        return self.last - (self._snapshots[-1][0] if self._snapshots else 0) >= self._every

    def write(self, body: bytes, count: int, at: float, snapshot: bytes | None) -> bool:
        """``count`` encoded events are durable, with a snapshot of the state behind them; False if the disk is full."""
        if self.full:
            self.failed += 1
            return False
        self._groups.append((self.last + 1, body, at))
        self.last += count
        self.at = at
        if snapshot is not None:
            self._snapshots = [*self._snapshots[-1:], (self.last, snapshot)]
            self._groups = [group for group in self._groups if group[0] > self._snapshots[0][0]]
        return True

    def keep_blobs(self, needed: set[str]) -> None:
        """Remove the others, but from copies that were made before."""
        self._removed.update(self.blobs)
        self.blobs = {digest: data for digest, data in self.blobs.items() if digest in needed}

    def older(self, groups: int) -> Disk:
        """Return a copy from before the last groups of events, or fewer where not so many are kept."""
        copy = Disk(self._every)
        kept = len(self._groups) - min(groups, len(self._groups) - 1)
        copy._groups, copy.blobs = self._groups[:kept], {**self._removed, **self.blobs}
        if kept < len(self._groups):
            copy.last = self._groups[kept][0] - 1
            copy.at = self._groups[kept - 1][2]
        else:
            copy.last, copy.at = self.last, self.at
        copy._snapshots = [(last, snapshot) for last, snapshot in self._snapshots if last <= copy.last]
        return copy

    def read(self) -> JournalContents:
        """Return all of it, as a journal would give it."""
        base, snapshot = self._snapshots[-1] if self._snapshots else (0, None)
        events = [_DECODER.decode(body) for first, body, _ in self._groups if first > base]
        return JournalContents(snapshot, events, base, self.last, self.at)


def encoded(events: Sequence[Event]) -> bytes:
    """Events as they are journalled."""
    return msgspec.msgpack.encode(events)
