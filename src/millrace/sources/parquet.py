"""Parquet source: one split per row group, one element per row.

A row is a dict by column. Numbers, booleans, strings and binary values are Python's; timestamps, dates and durations
are numpy scalars; lists and tensors of numbers are numpy arrays that own their memory; structs are dicts; a missing
value is None, and a list of numbers with a missing one in it stays a list.
"""

from __future__ import annotations

import contextlib
import io
import os
import threading
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from typing import Any, NamedTuple

from millrace.errors import (
    MillraceError,
    PipelineError,
    SourceChangedError,
    SourceCorruptError,
    SourceError,
    SourceNotFoundError,
)
from millrace.graph.source_nodes import FromParquet
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources import storage
from millrace.sources.digests.digest_file import ItemKind
from millrace.sources.digests.item_check import PieceCheck, PieceChecks
from millrace.sources.digests.item_table import with_hashes
from millrace.sources.listing import expand
from millrace.sources.read_queues import Feed
from millrace.sources.reads import Reads, joined
from millrace.sources.rows import to_rows
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.storage import FileInfo
from millrace.sources.store_requests import LIST_ANEW, Entry

_BATCH_BYTES = 4 << 20
_MAX_BATCH_ROWS = 64 << 10
_TOGETHER_BYTES = 64 << 20
"""Size in bytes up to which the columns of a stored row group are fetched together; larger ones are read as streams."""
_BLOCKS_HELD = 4
_AT_ONCE_BYTES = 1 << 20
_FOOTERS_KEPT = 32
_FOOTER_BYTES = 64 << 10


def list_source(node: FromParquet, reads: Reads, seen: ListingProgress = ignore_progress) -> SplitTable:
    """List one split per row group that has rows, from the files' footers."""
    files = expand(node.patterns)

    def look(file: FileInfo) -> list[Split]:
        metadata = _footer(reads, _whole(file)).metadata
        _check_columns(node.columns, file.location, metadata)
        seen(1)
        return list(_splits(file, metadata))

    found = storage.for_each(look, files, lambda file: file.location)
    table = splits_table([split for splits in found for split in splits])
    return with_hashes(table, node.digest, reads, ItemKind.CHUNK, node.columns)


def open_source(node: FromParquet, table: SplitTable, reads: Reads) -> _Parquet:
    """Make the reader of the rows."""
    return _Parquet(node, table, reads)


def _splits(file: FileInfo, metadata: Any) -> Iterator[Split]:
    first = 0
    for group in range(metadata.num_row_groups):
        about = metadata.row_group(group)
        if about.num_rows:
            yield Split(file.location, group, group + 1, first, about.num_rows, about.total_byte_size, file.version)
        first += about.num_rows


def _check_columns(names: Collection[str] | None, location: str, metadata: Any) -> None:
    available = metadata.schema.to_arrow_schema().names
    missing = [name for name in names or () if name not in available]
    if missing:
        raise PipelineError(
            f"from_parquet(columns=...): {location} has no column {', '.join(map(repr, missing))}. Its columns are "
            f"{', '.join(map(repr, available))}"
        )


class _Footer(NamedTuple):
    """Footer of a file: all of the file as listed, and what the footer says."""

    file: Entry
    metadata: Any

    def columns(self, group: int, names: Collection[str] | None) -> list[Entry]:
        """Entries of a row group's columns, or of those of these names, one for each of their stored columns."""
        about = self.metadata.row_group(group)
        found = []
        for number in range(about.num_columns):
            column = about.column(number)
            path = column.path_in_schema
            if names is None or any(path == name or path.startswith(f"{name}.") for name in names):
                start = min(filter(None, (column.data_page_offset, column.dictionary_page_offset)), default=0)
                found.append(self.file.part(start, start + column.total_compressed_size))
        return found


def column_chunks(reads: Reads, file: Entry, names: Collection[str] | None) -> list[Entry]:
    """Find the entries of all column chunks of a file, or of those of columns of these names.

    Raises:
        PipelineError: the file has no column of a name.
        SourceCorruptError: it is no Parquet file.
    """
    footer = _footer(reads, file)
    _check_columns(names, file.location, footer.metadata)
    groups = range(footer.metadata.num_row_groups)
    return [column for group in groups for column in footer.columns(group, names)]


def _whole(file: FileInfo) -> Entry:
    return Entry(file.location, 0, file.size, file.version, file.size)


def _footer(reads: Reads, file: Entry) -> _Footer:
    import pyarrow.parquet as pq

    with _corrupt_if_unreadable(file.location), contextlib.closing(_open(reads, file)) as stored:
        return _Footer(file, pq.read_metadata(stored))


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
        if isinstance(error, OSError) and error.errno:  # the system's word, not pyarrow's
            raise SourceError(f"{location}: {error.strerror or error}") from error
        what = "is no Parquet file, truncated or damaged" if group < 0 else f"is damaged in row group {group}"
        raise SourceCorruptError(f"{location} {what}: {str(error).strip()}") from error


class _Parquet:
    def __init__(self, node: FromParquet, table: SplitTable, reads: Reads) -> None:
        self._columns = list(node.columns) if node.columns is not None else None
        self._splits, self._reads = table.splits, reads
        self._checks = PieceChecks(table, table.items, node.digest) if table.items is not None else None
        # Splits of one file are often read one after the other.
        self._footers: dict[tuple[str, str], Future[_Footer]] = {}
        self._lock = threading.Lock()

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Feed:
        split = self._splits[unit]
        footer = self._footer(split, ahead=True)
        while not footer.done():
            yield None
        if footer.exception() is None:
            columns = footer.result().columns(split.start, self._columns)
            if sum(column.bytes for column in columns) <= self._most:
                yield from joined(columns)

    @property
    def _most(self) -> int:
        """Bytes up to which the columns of a row group are read together."""
        return min(_TOGETHER_BYTES, self._reads.account.budget)

    def _footer(self, split: Split, *, ahead: bool = False) -> Future[_Footer]:
        """Footer of a split's file, which is read once; ``ahead``: on another thread, if nobody has begun to."""
        key = split.location, split.version
        with self._lock:
            footer = self._footers.pop(key, None)
            mine = footer is None
            self._footers[key] = footer = footer or Future()  # the latest used comes last
            for old in list(self._footers)[:-_FOOTERS_KEPT]:
                del self._footers[old]

        def read() -> None:
            try:
                found = storage.stat_readable(split.location)
                listed = found._replace(version=split.version or found.version)
                footer.set_result(_footer(self._reads, _whole(listed)))
            except BaseException as error:  # noqa: BLE001 - raised by who asks for it
                footer.set_exception(error)
                with self._lock:
                    self._footers.pop(key, None)

        if mine and ahead:
            self._reads.beside(read)
        elif mine:
            read()
        return footer

    def read(
        self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]
    ) -> Iterator[list[dict[str, Any]]]:
        import pyarrow.parquet as pq

        end = split.count if stop < 0 else min(stop, split.count)
        if end <= start:
            return
        footer = self._footer(split).result()
        metadata = footer.metadata
        groups = metadata.num_row_groups
        if split.start >= groups or metadata.row_group(split.start).num_rows != split.count:
            raise SourceChangedError(
                f"{split.location} has changed since it was listed: its row group {split.start} had {split.count} rows,"
                f" and it has {groups} row groups now, of {metadata.num_rows} rows in all. {LIST_ANEW}"
            )
        unreadable = _corrupt_if_unreadable(split.location, split.start)
        check = self._checks.of(split) if self._checks is not None else None
        with unreadable, contextlib.closing(_open(self._reads, footer.file, checked=check is not None)) as file:
            if isinstance(file, _StoredFile):
                file.expect(footer.columns(split.start, self._columns), self._most, check)
            parquet = pq.ParquetFile(file, metadata=metadata, pre_buffer=False, buffer_size=_AT_ONCE_BYTES)
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


def _open(reads: Reads, file: Entry, *, checked: bool = False) -> Any:
    """Open a file for pyarrow, which reads local ones by itself, unless what it reads is to be checked."""
    import pyarrow as pa

    stored = checked or storage.is_remote(file.location)
    # As bytes, since pyarrow has names be UTF-8.
    return _StoredFile(reads, file) if stored else pa.OSFile(os.fsencode(file.location), "rb")


class _StoredFile(storage.Stream):
    """Stored file as pyarrow reads it: by position. Its end, which is read in small parts, is fetched once."""

    def __init__(self, reads: Reads, file: Entry) -> None:
        super().__init__()
        self._reads, self._file = reads, file
        self._fetched: list[tuple[Entry, bytes]] = []
        self._streams: list[tuple[Entry, io.BufferedReader]] = []

    def expect(self, columns: list[Entry], most: int, check: PieceCheck | None) -> None:
        """Fetch columns together if they have no more than ``most`` bytes; else each is read as a stream.

        Raises:
            SourceChangedError: ``check`` says that a column that was fetched is not what it was.
        """
        if sum(column.bytes for column in columns) <= most:
            asked = joined(columns)
            self._fetched = list(zip(asked, self._reads.fetch(asked), strict=True))
            if check is not None:
                for column in filter(lambda column: column.bytes, columns):
                    chunk = self._range(column.start, column.stop)
                    check.check(column.start, chunk, f", the column chunk at byte {column.start}")
        else:
            block = most // (_BLOCKS_HELD * len(columns))
            self._streams = [(column, self._reads.open(column, block_bytes=block)) for column in columns]

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return super().seek(self._file.stop + offset) if whence == os.SEEK_END else super().seek(offset, whence)

    def read(self, size: int = -1) -> bytes:
        data = self._range(self.at, self._file.stop if size < 0 else min(self._file.stop, self.at + size))
        self.at += len(data)
        return data

    def _range(self, start: int, stop: int) -> bytes:
        for entry, data in self._fetched:
            if entry.start <= start and stop <= entry.stop:
                return data[start - entry.start : stop - entry.start]
        for entry, stream in self._streams:
            if entry.start <= start and stop <= entry.stop:
                stream.seek(start)
                return stream.read(stop - start)
        tail = self._file.part(max(0, self._file.stop - _FOOTER_BYTES), self._file.stop)
        if start >= tail.start:
            self._fetched.append((tail, self._reads.fetch([tail])[0]))
            return self._range(start, max(start, stop))
        (data,) = self._reads.fetch([self._file.part(start, stop)])
        return data

    def close(self) -> None:
        for _, stream in self._streams:
            stream.close()
        self._fetched, self._streams = [], []
        super().close()
