"""Items of a cache server's disk in virtual time: :class:`millrace.cache_server.item_store.ItemStore`, without files.

It has the same rules for what is kept, and a test compares the two. What lies on the disk outlives the process.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

from millrace.cache_server.item_store import StoredItem
from millrace.policies.caching.source_eviction import IDLE_S, SegmentUse, victim
from millrace.protocol.source_cache_messages import DATA_NAME_BYTES

SEGMENTS = 8
"""Segments that a full store has, about."""
LABELS_AT_ONCE = 4
"""Labels that are written at a time."""
LEAST_COUNTED = 16
"""A segment counts as this part of a full one at least."""


@dataclass
class SimulatedSegment:
    """File of a disk.

    Attributes:
        label: of what lies in it.
        used: time at which something of it was last read or written.
        size: bytes that were written to it.
    """

    label: bytes
    used: float
    size: int = 0


@dataclass
class ItemDisk:
    """Disk of a cache server, which outlives its processes.

    Attributes:
        files: bytes, by number of the segment.
        segments: the same, as the index knows them.
        items: by content; ``names``: contents, by name.
    """

    files: dict[int, bytearray] = field(default_factory=dict)
    segments: dict[int, SimulatedSegment] = field(default_factory=dict)
    items: dict[bytes, StoredItem] = field(default_factory=dict)
    names: dict[bytes, bytes] = field(default_factory=dict)

    def wipe(self) -> bool:
        """Remove everything; False if nothing was there."""
        there = bool(self.files)
        for part in (self.files, self.segments, self.items, self.names):
            part.clear()
        return there

    def lose(self, rng: random.Random) -> bool:
        """Lose the files of some segments, and tell nobody; False if there are none."""
        lost = rng.sample(sorted(self.files), rng.randint(min(1, len(self.files)), len(self.files)))
        for number in lost:
            del self.files[number]
        return bool(lost)


class SimulatedItems:
    """Items of one life of a cache server.

    Args:
        disk: what the lives before have left.
        most_bytes: that it may hold.
        now: time, in seconds.
    """

    def __init__(self, disk: ItemDisk, most_bytes: int, now: float) -> None:
        self.disk, self.most_bytes = disk, most_bytes
        self.segment_bytes = max(most_bytes // SEGMENTS, 1)
        self._now = now
        self._writing: dict[bytes, int] = {}
        self._kept: dict[bytes, frozenset[bytes]] = {}
        for number in disk.segments.keys() - disk.files.keys():
            self._remove(number)
        for segment in disk.segments.values():
            segment.used = now
        self._last = max(disk.segments.keys() | disk.files.keys(), default=0)

    def at(self, now: float) -> None:
        """Note the time, in seconds."""
        self._now = now

    def find(
        self, contents: Sequence[bytes], names: Sequence[bytes]
    ) -> tuple[list[StoredItem | None], list[StoredItem | None]]:
        """Look up items, by their contents and by names that they were inserted under."""
        found = [self.disk.items.get(content) for content in contents]
        named = [self.disk.items.get(self.disk.names.get(name, b"")) for name in names]
        for item in (*found, *named):
            if item is not None:
                self.disk.segments[item.segment].used = self._now
        return found, named

    def read(self, item: StoredItem) -> bytes | None:
        """Read an item; None: it has gone meanwhile."""
        if item.segment not in self.disk.segments:
            return None
        if item.segment not in self.disk.files:
            self._remove(item.segment)
            return None
        return bytes(self.disk.files[item.segment][item.start : item.start + item.size])

    def add(self, data: memoryview, content: bytes, name: bytes | None, label: bytes) -> StoredItem | None:
        """Keep an item; None: there is no room, or nothing of its label is kept."""
        item = self.disk.items.get(content)
        if item is None:
            item = self._append(data, label)
            if item is None:
                return None
            self.disk.items[content] = item
        if name is not None and self.disk.names.get(name, b"") not in self.disk.items:
            self.disk.names[name] = content
        self.disk.segments[item.segment].used = self._now
        return item

    def keep_labels(self, sets: Mapping[bytes, Collection[bytes]]) -> None:
        """Keep of what is labelled this alone, from now on; of data that are not named, or name themselves, all."""
        self._kept = {beginning: frozenset(labels) for beginning, labels in sets.items()}
        for number, segment in list(self.disk.segments.items()):
            if not self._keeps(segment.label):
                self._remove(number)

    @property
    def labels(self) -> set[bytes]:
        """Labels of which something lies on the disk."""
        return {self.disk.segments[number].label for number in self.disk.files if number in self.disk.segments}

    @property
    def held(self) -> int:
        """Bytes that lie on the disk."""
        return sum(map(len, self.disk.files.values()))

    def _keeps(self, label: bytes) -> bool:
        kept = self._kept.get(label[:DATA_NAME_BYTES]) if label else None
        return kept is None or label in kept or label[:DATA_NAME_BYTES] in kept

    def _given(self, label: bytes) -> bool:
        return label[:DATA_NAME_BYTES] in self._kept

    def _append(self, data: memoryview, label: bytes) -> StoredItem | None:
        size = data.nbytes
        if size > self.most_bytes or not self._keeps(label):
            return None
        number = self._segment_for(label)
        if number is None or self.disk.segments[number].size + size > max(self.segment_bytes, size):
            if not self._make_room(max(self.segment_bytes, size), given=self._given(label)):
                return None
            number = self._begin(label)
        segment = self.disk.segments[number]
        start, segment.size = segment.size, segment.size + size
        self.disk.files[number] += data
        return StoredItem(number, start, size, 0)

    def _segment_for(self, label: bytes) -> int | None:
        """Find the segment that is written to for a label, or go on with its last one; None: that is full."""
        number = self._writing.pop(label, None)
        if number is None:
            of_label = (number for number, segment in self.disk.segments.items() if segment.label == label)
            number = max(of_label, default=None)
            if number is None or not self._may_grow(number):
                return None
        if number not in self.disk.files:
            self._remove(number)
            return None
        self._write_to(label, number)
        return number

    def _may_grow(self, number: int) -> bool:
        """Whether a segment that was left can be filled, with what came later beside it."""
        counted = max(self.disk.segments[number].size, self.segment_bytes // LEAST_COUNTED)
        return counted < self.segment_bytes and self._taken() - counted + self.segment_bytes <= self.most_bytes

    def _begin(self, label: bytes) -> int:
        self._last = number = self._last + 1
        self.disk.segments[number], self.disk.files[number] = SimulatedSegment(label, self._now), bytearray()
        self._write_to(label, number)
        return number

    def _write_to(self, label: bytes, number: int) -> None:
        self._writing.pop(label, None)
        self._writing[label] = number  # it comes last now
        while len(self._writing) > LABELS_AT_ONCE:
            del self._writing[next(iter(self._writing))]

    def _make_room(self, size: int, *, given: bool) -> bool:
        while self._taken() + size > self.most_bytes:
            segments = self.disk.segments.items()
            uses = [SegmentUse(number, each.used, self._given(each.label)) for number, each in segments]
            number = victim(uses, self._now, IDLE_S, given=given)
            if number is None:
                return False
            self._remove(number)
        return True

    def _taken(self) -> int:
        growing, least = {*self._writing.values()}, self.segment_bytes // LEAST_COUNTED
        return sum(
            max(segment.size, self.segment_bytes if number in growing else least)
            for number, segment in self.disk.segments.items()
        )

    def _remove(self, number: int) -> None:
        """Remove a segment and all that lies in it."""
        segment = self.disk.segments.pop(number)
        if self._writing.get(segment.label) == number:
            del self._writing[segment.label]
        gone = {content for content, item in self.disk.items.items() if item.segment == number}
        self.disk.items = {content: item for content, item in self.disk.items.items() if content not in gone}
        self.disk.names = {name: content for name, content in self.disk.names.items() if content not in gone}
        self._unlink(number)

    def _unlink(self, number: int) -> None:
        self.disk.files.pop(number, None)
