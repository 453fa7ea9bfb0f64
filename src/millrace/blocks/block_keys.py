"""Item keys, and a table that finds many of them at once."""

from __future__ import annotations

import hashlib
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

KEY_BYTES = 16
"""Bytes of an item key, and of the hash that a block is named by."""

Keys: TypeAlias = npt.NDArray[np.uint8]
"""Item keys: uint8 of shape (n, 16), contiguous."""


def block_name(keys: bytes) -> str:
    """Name of a block with these items: BLAKE2b of their keys in order, 32 hexadecimal digits."""
    return hashlib.blake2b(keys, digest_size=KEY_BYTES).hexdigest()


def as_bytes(keys: Keys) -> list[bytes]:
    """Convert keys to byte strings, 16 bytes each."""
    found: list[bytes] = keys.view(f"V{KEY_BYTES}").ravel().tolist()
    return found


class KeyTable:
    """Table of many keys with binary search: 28 bytes a key, and no object per key.

    Args:
        keys: uint8 of shape (n, 16). Of a key that occurs more than once one occurrence is found.
    """

    def __init__(self, keys: Keys) -> None:
        high, low = _halves(keys)
        order = np.lexsort((low, high))
        self._order = order.astype(np.uint32)
        self._high, self._low = high[order], low[order]
        # Keys are hashes, so that no two with the same first half are to be expected; but they can't be ruled out.
        changes = np.flatnonzero(self._high[1:] != self._high[:-1])
        edges = np.concatenate(([-1], changes, [len(keys) - 1]))
        self._longest_run = int(np.diff(edges).max())

    def __len__(self) -> int:
        return len(self._order)

    def find(self, keys: Keys) -> npt.NDArray[np.int64]:
        """Find the row of each key in the table's keys, int64 of shape (k,); -1 where it isn't there."""
        rows = np.full(len(keys), -1, np.int64)
        if not len(self):
            return rows
        high, low = _halves(keys)
        first = np.searchsorted(self._high, high)
        for step in range(self._longest_run):
            at = np.minimum(first + step, len(self) - 1)
            hits = (self._high[at] == high) & (self._low[at] == low)
            rows[hits] = self._order[at[hits]]
        return rows


def _halves(keys: Keys) -> tuple[npt.NDArray[np.uint64], npt.NDArray[np.uint64]]:
    words = np.ascontiguousarray(keys).view(np.uint64)
    return words[:, 0], words[:, 1]
