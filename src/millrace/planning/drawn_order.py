"""Drawn order: an order in which each unit is any of the input's, whatever was drawn before."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from millrace.planning.random_keys import mix, mix_array

Positions = npt.NDArray[np.int64]


class DrawnOrder:
    """Draws with replacement from ``range(count)``, by a hash of a key and the number of the draw.

    Args:
        count: size of the domain, at least 1 where anything is drawn.
        key: 64-bit number.
    """

    windowed = False

    def __init__(self, count: int, key: int) -> None:
        self._count, self._key = np.uint64(count), np.uint64(mix(key))

    def at(self, positions: Positions) -> Positions:
        """Units at these positions, each in [0, count)."""
        return (mix_array(positions.astype(np.uint64) ^ self._key) % self._count).astype(np.int64)

    def stretches(self, positions: Positions) -> Iterator[Positions]:
        """Units at these positions, as :meth:`at` gives them."""
        yield self.at(positions)
