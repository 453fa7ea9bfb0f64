"""Files source (``Dataset.from_files``): one element per file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.graph.nodes import FromFiles
from millrace.planning.split_table import SplitTable, table_of
from millrace.sources.digests.digest_file import ItemKind
from millrace.sources.digests.item_check import FileCheck
from millrace.sources.digests.item_table import with_hashes
from millrace.sources.listing import expand_many
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.store_requests import Entry


def list_source(node: FromFiles, reads: Reads, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one position per file, with its size in bytes and its version."""
    return with_hashes(table_of(expand_many(node.patterns, seen)), node.digest, reads, ItemKind.FILE)


def open_source(node: FromFiles, table: SplitTable, reads: Reads) -> _Files:
    """Make the reader of the files."""
    return _Files(node, table, reads)


class _Files:
    def __init__(self, node: FromFiles, table: SplitTable, reads: Reads) -> None:
        self._locations, self._sizes, self._stamps = table.names, table.sizes, table.stamps
        self._reads = reads
        self._check = FileCheck(table.items, node.digest) if table.items is not None else None

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Iterator[Entry]:
        size, stamp = self._sizes[unit], self._stamps[unit] if len(self._stamps) else 0
        content = b"" if self._check is None else self._check.content(unit)
        yield Entry(self._locations[unit], 0, size, stamp, size, content, unit)

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        units = positions if isinstance(positions, range) else positions.tolist()
        entries = [entry for unit in units for entry in self.entries(unit)]
        contents = self._reads.fetch(entries)
        if self._check is not None:
            for unit, entry, data in zip(units, entries, contents, strict=True):
                self._check.check(unit, entry.location, data)
        return [{"path": entry.location, "bytes": data} for entry, data in zip(entries, contents, strict=True)]
