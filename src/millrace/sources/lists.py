"""List source (``Dataset.from_list``): the items of a sequence."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.graph.nodes import FromList
from millrace.planning.split_table import SplitTable, positions_table
from millrace.sources.source import ListingProgress, ignore_progress


def list_source(node: FromList, _seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one position per item."""
    return positions_table(node.count)


def open_source(node: FromList, table: SplitTable) -> _List:
    """Make the reader that looks the items up."""
    return _List(node.items.value)


class _List:
    def __init__(self, items: Sequence[Any]) -> None:
        self._items = items

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[Any]:
        if isinstance(positions, range):
            return [self._items[i] for i in positions]
        return [self._items[i] for i in positions.tolist()]
