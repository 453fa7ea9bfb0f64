"""Item hashes: what is known of a source's items by their content, in columns beside its split table."""

from __future__ import annotations

import functools

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.planning.columns import Integers

HASH_BYTES = 32
"""Bytes of an item's content hash, which is SHA-256."""
UNKNOWN = bytes(HASH_BYTES)
"""Hash that stands for one that nobody knows."""

_MOST = 1 << 61
_NOTHING = Integers()


class ItemHashes(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Content hashes of the items of a split table's entries.

    Either each entry *is* one item, a whole file: then ``hashes`` has one for each, in the entries' order, and the
    other columns are empty. Or an entry *has* items, such as the members of a tar shard: then ``firsts`` and ``counts``
    say for each entry which, and ``offsets`` and ``sizes`` where they lie in the entry's file. The items of an entry
    come in the order of their offsets; entries may share items.

    Attributes:
        hashes: :data:`HASH_BYTES` of each item; :data:`UNKNOWN` where nobody knows it.
        firsts: number of each entry's first item.
        counts: number of its items; 0 where nobody knows them.
        offsets: first byte of each item in its file.
        sizes: bytes of each item.
    """

    hashes: bytes = b""
    firsts: Integers = _NOTHING
    counts: Integers = _NOTHING
    offsets: Integers = _NOTHING
    sizes: Integers = _NOTHING

    def __post_init__(self) -> None:
        known, rest = divmod(len(self.hashes), HASH_BYTES)
        placed = known if len(self.firsts) else 0
        lengths = len(self.counts) - len(self.firsts), len(self.offsets) - placed, len(self.sizes) - placed
        columns = self.firsts, self.counts, self.offsets, self.sizes
        if rest or any(lengths) or not all(column.within(0, _MOST) for column in columns):
            raise ValueError("item hashes are damaged: their columns are not those of the same items")
        if len(self.firsts) and int((self.firsts.array() + self.counts.array()).max()) > known:
            raise ValueError("item hashes are damaged: entries have items that are not there")

    @property
    def entries(self) -> int:
        """Number of the entries that these are the items of."""
        return len(self.firsts) or len(self.hashes) // HASH_BYTES

    @functools.cached_property
    def array(self) -> npt.NDArray[np.uint8]:
        """Hashes of all items, uint8 of shape (items, :data:`HASH_BYTES`); of whole files item i is that of entry i."""
        return np.frombuffer(self.hashes, np.uint8).reshape(-1, HASH_BYTES)

    @functools.cached_property
    def starts(self) -> npt.NDArray[np.int64]:
        """First byte of each item in its file, int64 of shape (items,); empty where items are whole files."""
        return self.offsets.array()

    def rows(self, entry: int) -> slice:
        """Rows of :attr:`array` and :attr:`starts` that are the items of an entry."""
        if not len(self.firsts):
            return slice(entry, entry + 1)
        first = self.firsts[entry]
        return slice(first, first + self.counts[entry])
