"""Map-style source (``Dataset.from_map_style``): any dataset with ``__len__`` and ``__getitem__``."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.errors import ElementError, PipelineError
from millrace.graph.nodes import Opaque
from millrace.graph.source_nodes import FromMapStyle
from millrace.planning.split_table import SplitTable, positions_table
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress


def list_source(node: FromMapStyle, _reads: Reads, _seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one position per item."""
    return positions_table(node.count)


def open_source(node: FromMapStyle, table: SplitTable, _reads: Reads) -> _MapStyle:
    """Make the reader that asks the dataset for its items."""
    return _MapStyle(node.dataset, str(node))


class _MapStyle:
    def __init__(self, dataset: Opaque, operator: str) -> None:
        self._dataset = dataset.value
        self._name = dataset.name or type(dataset.value).__name__
        self._operator = operator
        # torch's convention for reading a batch at once; Hugging Face datasets have it too.
        self._many = getattr(dataset.value, "__getitems__", None)

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[Any]:
        indices = list(positions) if isinstance(positions, range) else positions.tolist()
        if self._many is None or len(indices) < 2:
            return [self._item(i) for i in indices]
        try:
            items = list(self._many(indices))
        except Exception:  # noqa: BLE001  # whichever item it is: asked for alone it says so itself
            return [self._item(i) for i in indices]
        if len(items) != len(indices):
            raise PipelineError(
                f"{self._name}.__getitems__ returned {len(items)} items for {len(indices)} indices; it must return one "
                "for each, in order"
            )
        return items

    def _item(self, index: int) -> Any:
        try:
            return self._dataset[index]
        except Exception as error:
            raise ElementError(
                f"{self._name}[{index}] failed: {type(error).__name__}: {error}",
                operator=self._operator,
                where=f"item {index}",
                user_traceback=traceback.format_exc(),
            ) from error
