"""``Dataset.from_files``: one element per file."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.graph.nodes import FromFiles
from millrace.planning.tables import SplitTable, files_table
from millrace.sources import storage
from millrace.sources.listing import expand


def list_source(node: FromFiles) -> SplitTable:
    """One position per file, with its size in bytes and its version."""
    found = expand(node.patterns)
    sizes, versions = [file.size for file in found], [file.version for file in found]
    return files_table([file.location for file in found], sizes, versions)


def open_source(node: FromFiles, table: SplitTable) -> _Files:
    """What reads the files."""
    return _Files(table.locations)


class _Files:
    def __init__(self, locations: list[str]) -> None:
        self._locations = locations

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        indices = positions if isinstance(positions, range) else positions.tolist()
        paths = [self._locations[i] for i in indices]
        contents = storage.read_many(paths)
        return [{"path": path, "bytes": data} for path, data in zip(paths, contents, strict=True)]
