"""TFRecord source. A record is length (u64), masked CRC of it (u32), data, masked CRC of them (u32), little-endian.

Local uncompressed files are cut into pieces by hopping from header to header. Remote files are cut if an index made by
``tfrecord2idx`` (lines of ``offset length``) lies next to them: ``a.tfrecord.idx``, ``a.idx``, or ``.index`` likewise;
else, and if compressed, a file is one split whose number of records only reading can tell.

Checksums of lengths are always verified. Those of the data are if ``google_crc32c`` or ``crc32c`` is installed.
"""

from __future__ import annotations

import contextlib
import io
import os
import struct
import warnings
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from millrace.errors import SourceCorruptError
from millrace.graph.nodes import FromTFRecords
from millrace.planning.split_table import Split, SplitTable
from millrace.sources import storage
from millrace.sources.crc32c import fast_crc32c, mask, masked_crc_of_lengths
from millrace.sources.digests.digest_file import ItemKind
from millrace.sources.digests.item_check import PieceCheck, PieceChecks
from millrace.sources.digests.item_table import with_hashes
from millrace.sources.gzip_stream import inflate, wbits_of
from millrace.sources.listing import expand
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.splitting import entry_of, foretold, split_records
from millrace.sources.storage import FileInfo
from millrace.sources.store_requests import Entry

_HEADER = struct.Struct("<QI")
_FOOTER = struct.Struct("<I")
HEADER_BYTES = _HEADER.size
FRAME_BYTES = _HEADER.size + _FOOTER.size
"""Bytes of a record beside its data, of which :data:`HEADER_BYTES` stand before them."""
_HEADERS_AT_ONCE = 4096
_INDEX_BUFFER_BYTES = 8 << 10
_TOGETHER_BYTES = 1 << 20
_DOUBTFUL_BYTES = 16 << 20
"""Size in bytes of a record above which its length is verified before memory is asked for; the others' by the chunk."""


def list_source(
    node: FromTFRecords, reads: Reads, seen: ListingProgress = ignore_progress, size: int | None = None
) -> SplitTable:
    """List pieces of about ``size`` bytes (None: by the amount of data), or whole files."""
    files = expand(node.patterns)
    plain = [file for file in files if not _wbits(node, file.location)]
    indexes = _indexes([file for file in plain if storage.is_remote(file.location)], reads)

    def record_ends(file: FileInfo) -> Iterable[int] | None:
        if _wbits(node, file.location):
            return None
        return indexes.get(file.location) if storage.is_remote(file.location) else _hop(file, reads)

    def kind_of(location: str) -> ItemKind:
        return ItemKind.FILE if _wbits(node, location) else ItemKind.RECORD

    return with_hashes(split_records(files, record_ends, seen, size), node.digest, reads, kind_of)


def open_source(node: FromTFRecords, table: SplitTable, reads: Reads) -> _TFRecords:
    """Make the reader of the records."""
    return _TFRecords(node, table, reads)


def _wbits(node: FromTFRecords, location: str) -> int:
    return wbits_of(node.op, node.compression, location)


# -- listing -----------------------------------------------------------------------------------------------------------


def _hop(file: FileInfo, reads: Reads) -> Iterator[int]:
    """Find the end of each record of a local file."""
    headers: list[bytes] = []
    at, number = 0, 0
    with reads.open(Entry(file.location), buffer_bytes=_INDEX_BUFFER_BYTES) as stream:
        while at < file.size:
            header = stream.read(_HEADER.size)
            headers.append(header)
            if len(header) < _HEADER.size:
                _verify_lengths(file.location, headers[:-1], number)
                raise _truncated(file.location, number + len(headers) - 1, at)
            end = at + FRAME_BYTES + int(_HEADER.unpack(header)[0])
            if len(headers) == _HEADERS_AT_ONCE or end > file.size:
                _verify_lengths(file.location, headers, number)
                if end > file.size:
                    raise _truncated(file.location, number + len(headers) - 1, at)
                number += len(headers)
                headers.clear()
            yield end
            at = stream.seek(end)
    _verify_lengths(file.location, headers, number)


def _indexes(files: list[FileInfo], reads: Reads) -> dict[str, list[int]]:
    """Find the ends of records, for those of the remote ``files`` that have an index beside them."""
    candidates: dict[str, FileInfo] = {}
    for file in files:
        if storage.bare(file.location) != file.location:
            continue  # a signature is good for one file
        for stem in dict.fromkeys((file.location, os.path.splitext(file.location)[0])):
            candidates.update({stem + ending: file for ending in (".idx", ".index")})
    found = storage.existing(list(candidates))
    texts = reads.fetch([Entry(index.location, 0, index.size, index.version, index.size) for index in found])
    ends: dict[str, list[int]] = {}
    for index, text in zip(found, texts, strict=True):
        file = candidates[index.location]
        if file.location not in ends and (parsed := _parse_index(text, file, index.location)):
            ends[file.location] = parsed
    return ends


def _parse_index(text: bytes, file: FileInfo, location: str) -> list[int]:
    try:
        numbers = np.array([int(word) for word in text.split()], dtype=np.int64).reshape(-1, 2)
    except (ValueError, OverflowError):
        return []  # ".index" files of other kinds exist
    ends = numbers[:, 0] + numbers[:, 1]
    starts = np.concatenate([[0], ends[:-1]])
    last = int(ends[-1]) if len(ends) else 0
    if last != file.size or not np.array_equal(starts[: len(ends)], numbers[:, 0]):
        warnings.warn(
            f"{location} does not fit {file.location} (it ends at byte {last} of {file.size}) and is not used; make it "
            "anew with tfrecord2idx",
            stacklevel=2,
        )
        return []
    found: list[int] = ends.tolist()
    return found


# -- reading -----------------------------------------------------------------------------------------------------------


class _TFRecords:
    def __init__(self, node: FromTFRecords, table: SplitTable, reads: Reads) -> None:
        self._node, self._splits, self._reads = node, table.splits, reads
        self._checks = PieceChecks(table, table.items, node.digest) if table.items is not None else None

    def entries(self, unit: int, _start: int = 0, stop: int = -1) -> Iterator[Entry]:
        return foretold(self._reads, self._splits[unit], stop)

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[bytes]]:
        if 0 <= stop <= start:
            return
        stream = self._reads.open(entry_of(split))
        if wbits := _wbits(self._node, split.location):
            stream = inflate(stream, split.location, wbits)
        check = self._checks.of(split) if self._checks is not None and not wbits else None
        with contextlib.closing(stream):
            reader = _Reader(stream, split)
            reader.skip(start)
            while stop < 0 or reader.done < stop:
                wanted = max(1, chunk_size())
                number, at = max(0, split.first_record) + reader.done, stream.tell() if check is not None else 0
                found = reader.take(wanted if stop < 0 else min(wanted, stop - reader.done))
                if not found:
                    break
                if check is not None:
                    _check(check, at, found, number)
                yield found
        if 0 <= reader.done < min(split.count, stop if stop >= 0 else split.count):
            raise _truncated(split.location, max(0, split.first_record) + reader.done, split.stop)


def _check(check: PieceCheck, at: int, found: list[bytes], number: int) -> None:
    """Compare records, of which the first begins at byte ``at``, with what a digest says of them."""
    for which, data in enumerate(found, number):
        check.check(at + HEADER_BYTES, data, f", record {which}")
        at += FRAME_BYTES + len(data)


def records(stream: io.BufferedReader, location: str) -> Iterator[tuple[int, list[bytes]]]:
    """Read the records of a plain file from its start on, some at a time, with the byte where the first of them begins.

    The data of a record begin :data:`HEADER_BYTES` after it, and the next record :data:`FRAME_BYTES` after their size.
    """
    reader = _Reader(stream, Split(location))
    count = 1
    while some := reader.take(count):
        size = sum(map(len, some)) + FRAME_BYTES * len(some)
        yield stream.tell() - size, some
        count = max(1, min(_HEADERS_AT_ONCE, _TOGETHER_BYTES * len(some) // size))


class _Reader:
    """Reader of the records of one split in order; ``done`` of them are read or skipped."""

    def __init__(self, stream: io.BufferedReader, split: Split) -> None:
        self.done = 0
        self._stream = stream
        self._location = split.location
        self._first = max(0, split.first_record)
        self._crc = fast_crc32c()

    def skip(self, count: int) -> None:
        """Skip ``count`` records, reading their headers alone."""
        headers: list[bytes] = []
        for _ in range(count):
            at = self._stream.tell()
            header = self._stream.read(_HEADER.size)
            if not header:
                break
            if len(header) < _HEADER.size:
                self._fail(headers, len(header))
            headers.append(header)
            # Up to the last byte, which is read: seeking beyond the end of a file is no error.
            self._stream.seek(at + FRAME_BYTES - 1 + int(_HEADER.unpack(header)[0]))
            if not self._stream.read(1):
                self._verify(headers)
                raise _truncated(self._location, self._first + self.done + len(headers) - 1, at)
            if len(headers) == _HEADERS_AT_ONCE:
                self._verify(headers)
                self.done += len(headers)
                headers = []
        self._verify(headers)
        self.done += len(headers)

    def take(self, count: int) -> list[bytes]:
        """Read the next ``count`` records, or fewer at the end."""
        read = self._stream.read
        unpack = _HEADER.unpack
        records: list[bytes] = []
        headers: list[bytes] = []
        footers: list[bytes] = []
        for _ in range(count):
            header = read(_HEADER.size)
            if len(header) < _HEADER.size:
                if not header:
                    break
                self._fail(headers, len(header))
            length = unpack(header)[0]
            headers.append(header)
            if length > _DOUBTFUL_BYTES:
                self._verify(headers)
            data = read(length)
            footer = read(_FOOTER.size)
            if len(footer) < _FOOTER.size:
                self._fail(headers, _HEADER.size + len(data) + len(footer))
            records.append(data)
            footers.append(footer)
        self._verify(headers)
        if self._crc is not None:
            self._verify_data(records, footers)
        self.done += len(records)
        return records

    def _verify(self, headers: list[bytes]) -> None:
        _verify_lengths(self._location, headers, self._first + self.done)

    def _verify_data(self, records: list[bytes], footers: list[bytes]) -> None:
        assert self._crc is not None
        for number, (data, footer) in enumerate(zip(records, footers, strict=True), self._first + self.done):
            if mask(self._crc(data)) != _FOOTER.unpack(footer)[0]:
                raise SourceCorruptError(f"{self._location}, record {number}: the data do not match their checksum")

    def _fail(self, headers: list[bytes], partial: int) -> None:
        """Raise that the file ends ``partial`` bytes into a record; if its header came, it is in ``headers``."""
        self._verify(headers)
        whole_headers = len(headers) - (partial >= _HEADER.size)
        raise _truncated(self._location, self._first + self.done + whole_headers, self._stream.tell() - partial)


def _verify_lengths(location: str, headers: list[bytes], first: int) -> None:
    """Check the lengths of records ``first``, ``first + 1``, ... against their checksums."""
    if not headers:
        return
    table = np.frombuffer(b"".join(headers), dtype=np.uint8).reshape(-1, _HEADER.size)
    stored = np.ascontiguousarray(table[:, 8:]).view("<u4")[:, 0]
    wrong = np.flatnonzero(masked_crc_of_lengths(table[:, :8]) != stored)
    if len(wrong):
        number = first + int(wrong[0])
        hint = ": it is not a TFRecord file, or compressed (then give compression='GZIP')" if number == 0 else ""
        raise SourceCorruptError(f"{location}, record {number}: the record's length does not match its checksum{hint}")


def _truncated(location: str, number: int, at: int) -> SourceCorruptError:
    return SourceCorruptError(f"{location} is truncated: it ends within record {number}, which begins at byte {at}")
