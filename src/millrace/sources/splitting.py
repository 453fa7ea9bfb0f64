"""Splitting of record files into splits of whole records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence

from millrace.errors import SourceChangedError
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources import storage
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress
from millrace.sources.storage import FileInfo
from millrace.sources.store_requests import LIST_ANEW, Entry

_PIECE_BYTES = 4 << 20
"""Size in bytes of a piece, at which the cost of opening it is negligible."""
_SMALL_PIECE_BYTES = 64 << 10
_PIECES = 128
"""Number of pieces that little data is cut into, so that each task has several to mix."""


def piece_bytes(files: Iterable[FileInfo]) -> int:
    """Size in bytes that pieces of these files should have, about."""
    return min(_PIECE_BYTES, max(_SMALL_PIECE_BYTES, sum(file.size for file in files) // _PIECES))


def whole(file: FileInfo) -> Split:
    """Make the split that is all of a file, of whose records nobody knows where they are."""
    return Split(file.location, first_record=0, bytes=file.size, version=file.version)


def cut(file: FileInfo, ends: Iterable[int], size: int) -> list[Split]:
    """Cut a file into splits of whole records, of ``size`` bytes or just above; ``ends`` are the records' ends."""
    splits: list[Split] = []
    start = end = first = count = 0
    for end in ends:
        count += 1
        if end - start >= size:
            splits.append(_split(file, start, end, first, count))
            start, first, count = end, first + count, 0
    if count:
        splits.append(_split(file, start, end, first, count))
    return splits


def _split(file: FileInfo, start: int, end: int, first: int, count: int) -> Split:
    return Split(file.location, start, end, first, count, end - start, file.version)


def split_records(
    files: list[FileInfo],
    record_ends: Callable[[FileInfo], Iterable[int] | None],
    seen: ListingProgress,
    size: int | None,
) -> SplitTable:
    """Cut each file into splits of about ``size`` bytes (None: by the amount of data).

    A file whose records have no known ends is one split, whose number of records only reading can tell.
    """
    size = piece_bytes(files) if size is None else size
    splits: list[Split] = []
    for file in files:
        ends = record_ends(file)
        if ends is None:
            splits.append(whole(file))
        else:
            splits.extend(cut(file, ends, size))
        seen(1)
    return splits_table(splits)


def entry_of(split: Split) -> Entry:
    """Make the entry of a split of bytes."""
    size = split.bytes if split.stop < 0 and split.bytes else -1  # of a split that is a whole file
    return Entry(split.location, split.start, split.stop, split.version, size)


def ends_of(splits: Sequence[Split]) -> dict[str, int]:
    """Byte at which the last split of each file ends that was cut."""
    return {split.location: split.stop for split in splits}  # the last of a file's splits comes last


def check_size(location: str, listed: int) -> None:
    """Compare a local file's size with the one that was listed; of remote files answers say the version.

    Raises:
        SourceChangedError: it is another one.
    """
    if storage.is_remote(location):
        return
    found = storage.stat(location).size
    if found != listed:
        raise SourceChangedError(
            f"{location} has changed since it was listed: it had {listed} bytes, and has {found}. {LIST_ANEW}"
        )


def foretold(reads: Reads, split: Split, stop: int) -> Iterator[Entry]:
    """Foretell the entries that reading a split's elements up to number ``stop`` (-1: all) asks for, about."""
    entry = entry_of(split)
    last = end = entry.stop if entry.stop >= 0 else entry.size
    if 0 <= stop < split.count:
        last = entry.start + -(-(end - entry.start) * stop // split.count)
    for block in reads.blocks(entry._replace(stop=end)):
        if block.start >= last:
            return
        yield block
