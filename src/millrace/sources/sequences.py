"""Sequence sources (``Dataset.range``, ``Dataset.from_list``): Python ints, and the items of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.tree import NumberList
from millrace.graph.nodes import Range
from millrace.graph.source_nodes import FromList
from millrace.planning.split_table import SplitTable, positions_table
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress

_INT64_SAFE = 1 << 62


def list_source(node: Range | FromList, _reads: Reads, _seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one position per number or item."""
    return positions_table(len(range(node.start, node.stop, node.step)) if isinstance(node, Range) else node.count)


def open_source(node: Range | FromList, table: SplitTable, _reads: Reads) -> _List:
    """Make the reader that computes the numbers, or looks the items up."""
    return _Range(range(node.start, node.stop, node.step)) if isinstance(node, Range) else _List(node.items.value)


class _List:
    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[Any]:
        return [self._items[i] for i in (positions if isinstance(positions, range) else positions.tolist())]


class _Range(_List):
    def __init__(self, numbers: range) -> None:
        super().__init__(numbers)
        self._numbers = numbers
        self._fits = max(abs(numbers.start), abs(numbers.stop), abs(numbers.step)) < _INT64_SAFE

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[int]:
        if isinstance(positions, range):
            if positions.step > 0:
                return NumberList(self._numbers[positions.start : positions.stop : positions.step])
        elif self._fits:
            return NumberList((self._numbers.start + self._numbers.step * positions).tolist())
        return super().fetch(positions)  # Python's ints have no bound, numpy's do
