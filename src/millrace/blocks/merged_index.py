"""Merged index: the blocks of several writers at one point, looked up as one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

import numpy as np

from millrace.blocks.block_index import ItemLocations
from millrace.blocks.block_keys import Keys


class ItemIndex(Protocol):
    """Index of kept items and their elements: one :class:`~millrace.blocks.block_index.PointIndex`, or several."""

    def find(self, keys: Keys) -> ItemLocations:
        """Locate items.

        Args:
            keys: uint8 of shape (n, 16).
        """

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
        """Locate items as :meth:`Lookup.find` does."""
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
        """Read items as :meth:`Lookup.read` does."""
        elements: list[list[Any] | None] = [None] * len(found.block)
        block, owner = np.divmod(found.block, len(self._parts))
        for number in np.unique(owner).tolist():
            places = np.flatnonzero(owner == number)
            read = self._parts[number].read(ItemLocations(block[places], found.item[places]))
            for place, item in zip(places.tolist(), read, strict=True):
                elements[place] = item
        return elements

    def learn(self, names: Iterable[str]) -> None:
        """Add blocks as :meth:`Lookup.learn` does."""
        self._parts[0].learn(names)
