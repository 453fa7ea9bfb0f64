"""Source of saved datasets: the manifest is listed, and blocks are read from their files, each by one request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from millrace.errors import SourceCorruptError, SourceNotFoundError
from millrace.graph.source_nodes import Load
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources import storage
from millrace.sources.reads import Reads
from millrace.sources.saved_blocks import read_block
from millrace.sources.saved_manifest import MANIFEST, SavedFile, at, read_contents
from millrace.sources.source import ListingProgress, ignore_progress, sliced
from millrace.sources.splitting import entry_of
from millrace.sources.storage import FileInfo
from millrace.sources.store_requests import Entry


def list_source(node: Load, reads: Reads, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one split per block. Each file is looked up once.

    Whoever has listed a dataset goes on reading it when others have replaced it, as long as its files stay.
    """
    contents = read_contents(node.path)

    def look(each: SavedFile) -> FileInfo:
        found = storage.stat(at(node.path, each.file))
        if found.size != each.size:
            raise SourceCorruptError(f"{found.location} has {found.size} bytes, and {MANIFEST} says {each.size}")
        seen(1)
        return found

    found = storage.for_each(look, contents.files, lambda each: at(node.path, each.file))
    return splits_table(
        split for file, each in zip(found, contents.files, strict=True) for split in _splits(file, each)
    )


def _splits(file: FileInfo, of: SavedFile) -> Iterator[Split]:
    start = first = 0
    for count, size in zip(of.elements, of.bytes, strict=True):
        yield Split(file.location, start, start + size, first, count, size, file.version)
        start, first = start + size, first + count


def open_source(node: Load, table: SplitTable, reads: Reads) -> _Blocks:
    """Make the reader of the elements."""
    return _Blocks(table, reads)


class _Blocks:
    def __init__(self, table: SplitTable, reads: Reads) -> None:
        self._splits, self._reads = table.splits, reads

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Iterator[Entry]:
        yield entry_of(self._splits[unit])

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[Any]]:
        return sliced(self._items(split), start, stop, chunk_size)

    def _items(self, split: Split) -> Iterator[list[Any]]:
        try:
            (data,) = self._reads.fetch([entry_of(split)])
        except SourceNotFoundError as error:
            raise SourceNotFoundError(
                f"{error}. It was there when the dataset was listed: a later save has replaced it, and its "
                "keep_replaced= was shorter than what reads it takes"
            ) from error
        yield from read_block(split.location, split.start, data)
