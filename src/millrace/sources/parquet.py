"""Parquet source: one split per row group, one element per row.

A row is a dict by column. Numbers, booleans, strings and binary values are Python's; timestamps, dates and durations
are numpy scalars; lists and tensors of numbers are numpy arrays that own their memory; structs are dicts; a missing
value is None, and a list of numbers with a missing one in it stays a list.
"""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator
from typing import Any

from millrace.errors import MillraceError, PipelineError, SourceCorruptError, SourceNotFoundError
from millrace.graph.nodes import FromParquet
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources import storage
from millrace.sources.listing import expand
from millrace.sources.rows import to_rows
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.storage import FileInfo

_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 64 << 10
_PRE_BUFFER_BYTES = 64 << 20
"""Size in bytes up to which remote row groups are fetched in few large requests; larger ones in many small ones."""
_FOOTERS_KEPT = 8
_FOOTER_BYTES = 64 << 10


def list_source(node: FromParquet, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one split per row group that has rows, from the files' footers."""
    files = expand(node.patterns)

    def look(file: FileInfo) -> list[Split]:
        _, metadata = _footer(file.location, file.version)
        _check_columns(node, file.location, metadata)
        seen(1)
        return list(_splits(file, metadata))

    found = storage.for_each(look, files, lambda file: file.location)
    return splits_table([split for splits in found for split in splits])


def open_source(node: FromParquet, table: SplitTable) -> _Parquet:
    """Make the reader of the rows."""
    return _Parquet(node)


def _splits(file: FileInfo, metadata: Any) -> Iterator[Split]:
    first = 0
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        if about.num_rows:
            yield Split(file.location, group, group + 1, first, about.num_rows, about.total_byte_size, file.version)
        first += about.num_rows


def _check_columns(node: FromParquet, location: str, metadata: Any) -> None:
    available = metadata.schema.to_arrow_schema().names
    missing = [name for name in node.columns or () if name not in available]
    if missing:
        raise PipelineError(
            f"from_parquet(columns=...): {location} has no column {', '.join(map(repr, missing))}. Its columns are "
            f"{', '.join(map(repr, available))}"
        )


def _footer(location: str, version: str) -> tuple[int, Any]:
    """Read (size in bytes, metadata) of a file; ``version`` tells cached footers apart."""
    import pyarrow.parquet as pq

    size = storage.stat(location).size
    with _corrupt_if_unreadable(location), contextlib.closing(_open(location, size)) as file:
        return size, pq.read_metadata(file)


@contextlib.contextmanager
def _corrupt_if_unreadable(location: str, group: int = -1) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except MillraceError:  # of the storage below
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{location} does not exist") from error
    except (pa.ArrowException, OSError) as error:
        what = "is no Parquet file, truncated or damaged" if group < 0 else f"is damaged in row group {group}"
        raise SourceCorruptError(f"{location} {what}: {str(error).strip()}") from error


class _Parquet:
    def __init__(self, node: FromParquet) -> None:
        self._columns = list(node.columns) if node.columns is not None else None
        # Splits of one file are often read one after the other.
        self._footers = functools.lru_cache(_FOOTERS_KEPT)(_footer)

    def read(
        self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]
    ) -> Iterator[list[dict[str, Any]]]:
        import pyarrow.parquet as pq

        end = split.count if stop < 0 else min(stop, split.count)
        if end <= start:
            return
        size, metadata = self._footers(split.location, split.version)
        remote = storage.is_remote(split.location)
        unreadable = _corrupt_if_unreadable(split.location, split.start)
        with unreadable, contextlib.closing(_open(split.location, size)) as file:
            parquet = pq.ParquetFile(
                file,
                metadata=metadata,
                pre_buffer=remote and split.bytes <= _PRE_BUFFER_BYTES,
                buffer_size=storage.READ_AHEAD_BYTES,
            )
            about = metadata.row_group(split.start)
            rows = max(1, min(_MAX_BATCH_ROWS, _BATCH_BYTES * about.num_rows // max(1, about.total_byte_size)))
            batches = parquet.iter_batches(rows, row_groups=[split.start], columns=self._columns, use_threads=False)
            at = 0
            for batch in batches:
                low, high = max(start - at, 0), min(end - at, batch.num_rows)
                at += batch.num_rows
                while low < high:
                    wanted = min(max(1, chunk_size()), high - low)
                    yield to_rows(batch.slice(low, wanted), self._columns)
                    low += wanted
                if at >= end:
                    return


def _open(location: str, size: int) -> Any:
    import pyarrow as pa

    return _RemoteFile(location, size) if storage.is_remote(location) else pa.OSFile(location, "rb")


class _RemoteFile(storage.Stream):
    """Remote file as pyarrow reads it: by position. Its end, which is read in small parts, is fetched once."""

    def __init__(self, location: str, size: int) -> None:
        super().__init__()
        self._location = location
        self._size = size
        self._tail = b""

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return super().seek(self._size + offset) if whence == os.SEEK_END else super().seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        data = self._range(self.at, self._size if size < 0 else min(self._size, self.at + size))
        self.at += len(data)
        return data

    def _range(self, start: int, stop: int) -> bytes:
        tail = max(0, self._size - _FOOTER_BYTES)
        if start < tail:
            return storage.read_range(self._location, start, stop)
        if not self._tail:
            self._tail = storage.read_range(self._location, tail, self._size)
        return self._tail[start - tail : max(start, stop) - tail]
