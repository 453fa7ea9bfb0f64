"""Range source (``Dataset.range``): Python ints."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from millrace.elements.tree import NumberList
from millrace.graph.nodes import Range
from millrace.planning.split_table import SplitTable, positions_table
from millrace.sources.source import ListingProgress, ignore_progress

_INT64_SAFE = 1 << 62


def list_source(node: Range, _seen: ListingProgress = ignore_progress) -> SplitTable:
    """List as many positions as the range has numbers."""
    return positions_table(len(range(node.start, node.stop, node.step)))


def open_source(node: Range, table: SplitTable) -> _Range:
    """Make the reader that computes the numbers."""
    return _Range(range(node.start, node.stop, node.step))


class _Range:
    def __init__(self, numbers: range) -> None:
        self._numbers = numbers
        self._fits = max(abs(numbers.start), abs(numbers.stop), abs(numbers.step)) < _INT64_SAFE

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[int]:
        if isinstance(positions, range):
            return [self._numbers[i] for i in positions] if positions.step < 0 else self._slice(positions)
        if not self._fits:  # Python's ints have no bound, numpy's do
            return [self._numbers[i] for i in positions.tolist()]
        return NumberList((self._numbers.start + self._numbers.step * positions).tolist())

    def _slice(self, positions: range) -> list[int]:
        return NumberList(self._numbers[positions.start : positions.stop : positions.step])
