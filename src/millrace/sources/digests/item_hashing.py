"""Hashing of the items of stored files: whole files, members of tar archives, TFRecords, column chunks of Parquet."""

from __future__ import annotations

import contextlib
import hashlib
import io
import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import numpy as np

from millrace.errors import SourceChangedError, SourceCorruptError
from millrace.planning.item_hashes import HASH_BYTES
from millrace.planning.split_table import stamp_of
from millrace.sources import storage
from millrace.sources.digests.digest_file import DigestRows, ItemKind, joined_rows
from millrace.sources.parquet import column_chunks
from millrace.sources.reads import Reads, is_far
from millrace.sources.store_requests import Entry
from millrace.sources.tarfiles import members
from millrace.sources.tfrecord import FRAME_BYTES, HEADER_BYTES, records

_AT_ONCE_BYTES = 1 << 20
_SETTLED_NS = 2 * 10**9
"""Age of a local file from which on its time changes when it is written to, whatever the resolution of its clock."""
_Item = tuple[int, int, bytes]


class HashedFile(NamedTuple):
    """File whose items are to be hashed: all of it as listed, and their kind."""

    entry: Entry
    kind: ItemKind


def kind_by_name(location: str) -> ItemKind:
    """Choose the kind of a file's items by its name; what is compressed as a whole is one item."""
    name = storage.bare(location).rpartition("/")[2].lower()
    if name.endswith((".gz", ".tgz", ".zlib")):
        return ItemKind.FILE
    if name.endswith(".tar"):
        return ItemKind.MEMBER
    if name.endswith(".parquet"):
        return ItemKind.CHUNK
    return ItemKind.RECORD if ".tfrecord" in name or name.endswith(".tfrec") else ItemKind.FILE


def hash_together(files: Sequence[HashedFile], reads: Reads) -> DigestRows:
    """Hash small files, each of which is one item; they are read at once."""
    contents = reads.fetch([file.entry for file in files])
    hashed = []
    for file, data in zip(files, contents, strict=True):
        if len(data) != file.entry.size:
            raise _changed(file.entry)
        hashed.append(_rows(file, [(0, len(data), hashlib.sha256(data).digest())]))
    return joined_rows(hashed)


def hash_alone(file: HashedFile, columns: Sequence[str] | None, reads: Reads, check: Callable[[], None]) -> DigestRows:
    """Hash the items of a file of any size, which is read from its start to its end in pieces.

    Args:
        file: of any kind.
        columns: of Parquet files, those whose chunks are items; None: all.
        reads: what it is read with.
        check: called now and then; it raises once the hashes are no longer wanted.

    Raises:
        SourceChangedError: the file is not what was listed, or was changed meanwhile.
        SourceCorruptError: it is not of its kind, or truncated.
    """
    try:
        items = list(_items(file, columns, reads, check))
    except SourceCorruptError:
        _settled_stamp(file.entry)  # the reason may be that it has changed
        raise
    return _rows(file, items)


def _items(file: HashedFile, columns: Sequence[str] | None, reads: Reads, check: Callable[[], None]) -> Iterator[_Item]:
    entry = file.entry
    if file.kind in (ItemKind.MEMBER, ItemKind.RECORD):
        with contextlib.closing(reads.open(entry)) as stream:
            yield from (_members if file.kind == ItemKind.MEMBER else _records)(stream, entry.location, check)
        return
    ranges = [entry]
    if file.kind == ItemKind.CHUNK:
        ranges = sorted(column_chunks(reads, entry, columns), key=lambda chunk: chunk.start)
    for each in ranges:
        with contextlib.closing(reads.open(each)) as stream:
            yield each.start, *_next(stream, each.stop - each.start, entry.location, check)


def _rows(file: HashedFile, items: list[_Item]) -> DigestRows:
    """Make the row of a file, if it is still what was listed."""
    entry = file.entry
    starts, lengths = (np.array([item[column] for item in items], np.int64) for column in (0, 1))
    hashes = np.frombuffer(b"".join(item[2] for item in items), np.uint8).reshape(-1, HASH_BYTES)
    stamp = np.array([_settled_stamp(entry)], np.uint64)
    location = storage.absolute(entry.location).encode("utf-8", "surrogateescape")
    numbers = np.array([file.kind], np.uint8), np.array([entry.size], np.int64), stamp
    return DigestRows([location], *numbers, np.array([0, len(items)]), starts, lengths, hashes)


def _settled_stamp(entry: Entry) -> int:
    """Stamp of a file that was read to its end; 0 if it may yet change without another one.

    What comes from far away was compared with what was listed, answer by answer.
    """
    stamp = entry.version if isinstance(entry.version, int) else stamp_of(entry.version)
    if is_far(entry.location):
        return stamp
    found = storage.stat(entry.location)
    if stamp_of(found.version) != stamp:
        raise _changed(entry)
    if storage.is_remote(entry.location):
        return stamp
    written_ns = int(found.version.partition("-")[0])
    return stamp if time.time_ns() - written_ns > _SETTLED_NS else 0


def _changed(entry: Entry) -> SourceChangedError:
    return SourceChangedError(f"{entry.location} has changed since it was listed: let nobody write to it meanwhile")


def _members(stream: io.BufferedReader, location: str, check: Callable[[], None]) -> Iterator[_Item]:
    for member in members(stream, location):
        yield stream.tell(), *_next(stream, member.size, location, check)


def _records(stream: io.BufferedReader, location: str, check: Callable[[], None]) -> Iterator[_Item]:
    for at, some in records(stream, location):
        check()
        start = at + HEADER_BYTES
        for data in some:
            yield start, len(data), hashlib.sha256(data).digest()
            start += len(data) + FRAME_BYTES


def _next(stream: io.BufferedReader, size: int, location: str, check: Callable[[], None]) -> tuple[int, bytes]:
    """Hash the next bytes of a stream."""
    state, left = hashlib.sha256(), size
    while left:
        check()
        data = stream.read(min(left, _AT_ONCE_BYTES))
        if not data:
            raise SourceCorruptError(f"{location} is truncated: the last {left} bytes of an item are not there")
        state.update(data)
        left -= len(data)
    return size, state.digest()
