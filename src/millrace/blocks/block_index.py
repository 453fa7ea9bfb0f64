"""Block index: finds the block that has an item of a point, and the item's elements; of one writer or several."""

from __future__ import annotations

import logging
import threading
import weakref
from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from contextlib import closing
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from millrace.blocks.block_keys import Keys, KeyTable
from millrace.blocks.block_reader import BlockIndex, BlockReader, ReadCounter, read_index
from millrace.blocks.stores.block_store import BlockStore
from millrace.errors import BlockDamagedError, BlockMissingError, CacheError

_logger = logging.getLogger(__name__)

_OPEN_BLOCKS = 64
"""Most blocks kept open for the next item: each takes a descriptor, of which a process often has a thousand."""


class ItemLocations(NamedTuple):
    """Locations of n items, int64 of shape (n,) each.

    Attributes:
        block: number of the block in its index; -1 if no block has the item.
        item: number of the item in the block.
    """

    block: npt.NDArray[np.int64]
    item: npt.NDArray[np.int64]


class _Part:
    """Several blocks with one table of their keys."""

    def __init__(self, numbers: list[int], indexes: list[BlockIndex]) -> None:
        self.numbers = numbers
        counts = [len(index) for index in indexes]
        self.table = KeyTable(np.concatenate([index.keys for index in indexes]))
        self.block = np.repeat(np.array(numbers, np.int64), counts)
        self.item = np.concatenate([np.arange(count, dtype=np.int64) for count in counts])


class PointIndex:
    """Index over the blocks of a point; thread-safe.

    Blocks that cannot be read are forgotten, and their items are not found any more: a cache loses nothing.

    Args:
        store: where the blocks are.
        point: the point that the blocks belong to.
        writer: tenant that must have made them. A block that bears another name, or none, is as good as damaged.

    Attributes:
        reads: counter of the reads and of their time.
    """

    def __init__(self, store: BlockStore, point: str, writer: str = "") -> None:
        self._store, self._point, self._writer = store, point, writer
        self._lock = threading.Lock()
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._indexes: dict[int, BlockIndex] = {}
        self._parts: list[_Part] = []
        self._forgotten: set[int] = set()
        self._readers: OrderedDict[int, BlockReader] = OrderedDict()
        self._lost: list[str] = []
        self._unread: dict[str, None] = {}
        """Names of blocks that could not be read just now: they are tried again as others are learnt."""
        self.reads = ReadCounter()

    def learn(self, names: Iterable[str]) -> None:
        """Add these blocks by reading their indexes, and those that could not be read before, unless they are known."""
        found: dict[str, BlockIndex] = {}
        with self._lock:
            before, self._unread = self._unread, {}
            unknown = deque(name for name in dict.fromkeys([*names, *before]) if name not in self._numbers)
        while unknown:
            name = unknown.popleft()
            try:
                with closing(self._store.open(self._point, name)) as block:
                    found[name] = read_index(block, self._writer)
            except (BlockDamagedError, BlockMissingError):
                with self._lock:
                    self._lost.append(name)
            except CacheError as error:  # it may be the store's fault, and then others would take as long to fail
                self._leave_unread([*unknown, name], error, told=bool(before))  # it comes last, if it is its own
                break
        with self._lock:
            new = {name: index for name, index in found.items() if name not in self._numbers}  # others learn, too
            if not new:
                return
            numbers = range(len(self._names), len(self._names) + len(new))
            self._names += new
            self._numbers.update(zip(new, numbers, strict=True))
            self._indexes.update(zip(numbers, new.values(), strict=True))
            self._parts = self._merged([*self._parts, _Part(list(numbers), list(new.values()))])

    def _leave_unread(self, names: list[str], error: CacheError, *, told: bool) -> None:
        """Have blocks tried again as others are learnt; that is said loudly once, until all can be read."""
        level = logging.INFO if told else logging.WARNING
        _logger.log(level, "%d blocks of point %s are not used just now: %s", len(names), self._point, error)
        with self._lock:
            self._unread |= dict.fromkeys(names)

    def forget(self, names: Iterable[str]) -> None:
        """Stop using these blocks."""
        with self._lock:
            for name in names:
                self._forget(self._numbers.get(name, -1))
                self._unread.pop(name, None)

    def names(self) -> set[str]:
        """Names of all known blocks."""
        with self._lock:
            return set(self._numbers)

    def find(self, keys: Keys) -> ItemLocations:
        """Locate the items with these keys."""
        block, item = np.full((2, len(keys)), -1, np.int64)
        with self._lock:
            if self._forgotten:  # what another block of their part has, too, has to be found there
                self._parts = [new for part in self._parts if (new := self._remaining(part)) is not None]
                self._forgotten.clear()
            parts = list(self._parts)
        for part in parts:
            rows = part.table.find(keys)
            there = rows >= 0
            block[there], item[there] = part.block[rows[there]], part.item[rows[there]]
        return ItemLocations(block, item)

    def read(self, found: ItemLocations) -> list[list[Any] | None]:
        """Read the elements of each item; None if its block has gone, or was damaged."""
        elements: list[list[Any] | None] = [None] * len(found.block)
        numbers = set(found.block.tolist())
        for number in numbers:
            places = range(len(elements)) if len(numbers) == 1 else np.flatnonzero(found.block == number).tolist()
            try:
                read = self._reader(number).read(found.item if len(numbers) == 1 else found.item[places])
            except CacheError as error:
                with self._lock:
                    known, told = [self._names[number]] if number in self._indexes else [], bool(self._unread)
                    self._forget(number)
                    if isinstance(error, BlockDamagedError | BlockMissingError):
                        self._lost += known
                        known = []
                if known:
                    self._leave_unread(known, error, told=told)
                continue
            for place, item in zip(places, read, strict=True):
                elements[place] = item
        return elements

    def take_lost(self) -> list[str]:
        """Take the names of blocks that should have been there and could not be read since the last call."""
        with self._lock:
            lost, self._lost = self._lost, []
        return lost

    def close(self) -> None:
        """Close what is open, as soon as nobody reads it any more."""
        with self._lock:
            self._readers.clear()

    def _merged(self, parts: list[_Part]) -> list[_Part]:
        """Merge parts until each is more than twice as large as the next, so that a search looks through few."""
        while len(parts) > 1 and len(parts[-2].item) <= 2 * len(parts[-1].item):
            numbers = [number for part in parts[-2:] for number in part.numbers if number in self._indexes]
            parts = [*parts[:-2], _Part(numbers, [self._indexes[number] for number in numbers])]
        return parts

    def _remaining(self, part: _Part) -> _Part | None:
        left = [number for number in part.numbers if number not in self._forgotten]
        if len(left) == len(part.numbers):
            return part
        return _Part(left, [self._indexes[number] for number in left]) if left else None

    def _forget(self, number: int) -> None:
        if self._indexes.pop(number, None) is not None:
            self._forgotten.add(number)
            # It may come back under the same name, as another block.
            del self._numbers[self._names[number]]
            self._readers.pop(number, None)

    def _reader(self, number: int) -> BlockReader:
        with self._lock:
            index, reader = self._indexes.get(number), self._readers.get(number)
            if reader is not None:
                self._readers.move_to_end(number)
        if index is None:
            raise CacheError(f"a block of point {self._point} was removed")
        if reader is None:
            block = self._store.open(self._point, self._names[number])
            reader = BlockReader(block, index, self.reads)
            weakref.finalize(reader, block.close)  # when the last one who reads has done
            with self._lock:
                if number in self._indexes:
                    reader = self._readers.setdefault(number, reader)
                if len(self._readers) > _OPEN_BLOCKS:
                    self._readers.popitem(last=False)
        return reader


class ItemIndex(Protocol):
    """Index of kept items and their elements: a :class:`PointIndex`, or several of them."""

    def find(self, keys: Keys) -> ItemLocations:
        """Locate the items with these keys."""

    def read(self, found: ItemLocations) -> list[list[Any] | None]:
        """Read the elements of each item; None if its block has gone, or was damaged."""

    def learn(self, names: Iterable[str]) -> None:
        """Add these blocks; of several indexes, to the first."""


class MergedIndex:
    """Several indexes as one. An item that more than one of them have is read from the first.

    Args:
        parts: the indexes. Number b of the blocks of part p is number ``b * len(parts) + p`` here.
    """

    def __init__(self, parts: Sequence[ItemIndex]) -> None:
        self._parts = parts

    def find(self, keys: Keys) -> ItemLocations:
        """Locate items."""
        block, item = np.full((2, len(keys)), -1, np.int64)
        for number, part in enumerate(self._parts):
            missing = np.flatnonzero(block < 0)
            if not len(missing):
                break
            found = part.find(keys[missing])
            there = found.block >= 0
            block[missing[there]] = found.block[there] * len(self._parts) + number
            item[missing[there]] = found.item[there]
        return ItemLocations(block, item)

    def read(self, found: ItemLocations) -> list[list[Any] | None]:
        """Read the elements of each item."""
        elements: list[list[Any] | None] = [None] * len(found.block)
        block, owner = np.divmod(found.block, len(self._parts))
        for number in np.unique(owner).tolist():
            places = np.flatnonzero(owner == number)
            read = self._parts[number].read(ItemLocations(block[places], found.item[places]))
            for place, item in zip(places.tolist(), read, strict=True):
                elements[place] = item
        return elements

    def learn(self, names: Iterable[str]) -> None:
        """Add blocks to the first index."""
        self._parts[0].learn(names)
