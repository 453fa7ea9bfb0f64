"""Scattered buffer: a message in several places, some in memory shared with its sender, some where it was received."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.recycled_arrays import Bytes


class ScatteredBuffer:
    """Bytes that follow one another but lie apart; a range across a border is copied when somebody asks for it.

    Args:
        parts: uint8 arrays of one dimension, in order.

    Attributes:
        nbytes: bytes of all parts.
    """

    def __init__(self, parts: Sequence[Bytes]) -> None:
        self._parts = [part for part in parts if len(part)]
        *self._starts, self.nbytes = accumulate(map(len, self._parts), initial=0)

    @property
    def head(self) -> Bytes:
        """First part."""
        return self._parts[0] if self._parts else np.empty(0, np.uint8)

    def view(self, start: int, stop: int) -> Bytes:
        """View bytes ``start`` to ``stop`` if they lie in one part, else copy them.

        Raises:
            ValueError: if there are not so many.
        """
        if not 0 <= start <= stop <= self.nbytes:
            raise ValueError(f"bytes {start} to {stop} of {self.nbytes}")
        first = self._find(start)
        if first < 0 or stop - self._starts[first] <= len(self._parts[first]):
            return self._cut(first, start, stop)
        return np.concatenate([self._cut(each, start, stop) for each in range(first, self._find(stop - 1) + 1)])

    def rows(self, start: int, count: int, shape: tuple[int, ...], dtype: np.dtype[Any]) -> list[npt.NDArray[Any]]:
        """Split the bytes from ``start`` on into ``count`` arrays of one shape, each of them a view where it can be."""
        size = math.prod(shape) * dtype.itemsize
        first = self._find(start)
        if count == 1 or first < 0 or start + count * size - self._starts[first] <= len(self._parts[first]):
            stacked = np.ndarray((count, *shape), dtype, self.view(start, start + count * size))
            return list(stacked) if shape else [stacked[row, ...] for row in range(count)]
        begins = range(start, start + count * size, size)
        return [np.ndarray(shape, dtype, self.view(begin, begin + size)) for begin in begins]

    def _find(self, at: int) -> int:
        return bisect_right(self._starts, at) - 1

    def _cut(self, number: int, start: int, stop: int) -> Bytes:
        if number < 0:
            return self.head
        begin = self._starts[number]
        return self._parts[number][max(start - begin, 0) : stop - begin]
