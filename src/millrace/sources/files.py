"""Files source (``Dataset.from_files``): one element per file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.graph.nodes import FromFiles
from millrace.planning.columns import Strings
from millrace.planning.split_table import SplitTable, table_of
from millrace.sources import storage
from millrace.sources.listing import expand_many
from millrace.sources.source import ListingProgress, ignore_progress


def list_source(node: FromFiles, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one position per file, with its size in bytes and its version."""
    return table_of(expand_many(node.patterns, seen))


def open_source(node: FromFiles, table: SplitTable) -> _Files:
    """Make the reader of the files."""
    return _Files(table.names)


class _Files:
    def __init__(self, locations: Strings) -> None:
        self._locations = locations

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        indices = positions if isinstance(positions, range) else positions.tolist()
        paths = [self._locations[i] for i in indices]
        contents = storage.read_many(paths)
        return [{"path": path, "bytes": data} for path, data in zip(paths, contents, strict=True)]
