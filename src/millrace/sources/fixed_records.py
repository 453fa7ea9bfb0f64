"""Source of records of one length (``Dataset.from_fixed_length_records``): one element per record, its ``bytes``."""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Callable, Iterator

from millrace.errors import SourceCorruptError
from millrace.graph.source_nodes import FromFixedLengthRecords
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources.gzip_stream import inflate, wbits_of
from millrace.sources.listing import expand
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.splitting import check_size, ends_of, entry_of, foretold, piece_bytes, whole
from millrace.sources.storage import FileInfo
from millrace.sources.store_requests import Entry

_AT_ONCE_BYTES = 4 << 20


def list_source(
    node: FromFixedLengthRecords, reads: Reads, seen: ListingProgress = ignore_progress, size: int | None = None
) -> SplitTable:
    """List pieces of about ``size`` bytes (None: by the amount of data), or whole files where they are compressed.

    Raises:
        SourceCorruptError: a file's size is not that of whole records.
    """
    files = expand(node.patterns)
    size = piece_bytes(files) if size is None else size
    splits: list[Split] = []
    for file in files:
        if wbits_of(node.op, node.compression, file.location):
            splits.append(whole(file))
        else:
            splits.extend(_cut(node, file, max(1, size // node.record_bytes)))
        seen(1)
    return splits_table(splits)


def open_source(node: FromFixedLengthRecords, table: SplitTable, reads: Reads) -> _Records:
    """Make the reader of the records."""
    return _Records(node, table, reads)


def _cut(node: FromFixedLengthRecords, file: FileInfo, each: int) -> Iterator[Split]:
    record = node.record_bytes
    count, rest = divmod(file.size - node.header_bytes - node.footer_bytes, record)
    if rest or count < 0:
        raise _odd(node, file.location, file.size)
    for first in range(0, count, each):
        start, some = node.header_bytes + first * record, min(each, count - first)
        yield Split(file.location, start, start + some * record, first, some, some * record, file.version)


def _odd(node: FromFixedLengthRecords, location: str, size: int) -> SourceCorruptError:
    beside = f", beside a header of {node.header_bytes} and a footer of {node.footer_bytes}"
    return SourceCorruptError(
        f"{location} has {size} bytes, which are not whole records of {node.record_bytes}"
        f"{beside if node.header_bytes or node.footer_bytes else ''}"
    )


class _Records:
    def __init__(self, node: FromFixedLengthRecords, table: SplitTable, reads: Reads) -> None:
        self._node, self._splits, self._reads = node, table.splits, reads

    @functools.cached_property
    def _sizes(self) -> dict[str, int]:
        """Size in bytes of each file that was cut."""
        return {location: end + self._node.footer_bytes for location, end in ends_of(self._splits).items()}

    def entries(self, unit: int, _start: int = 0, stop: int = -1) -> Iterator[Entry]:
        return foretold(self._reads, self._splits[unit], stop)

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[bytes]]:
        node, record = self._node, self._node.record_bytes
        check_size(split.location, split.bytes if split.stop < 0 else self._sizes[split.location])
        stream = self._reads.open(entry_of(split))
        wbits = wbits_of(node.op, node.compression, split.location)
        header, footer = (node.header_bytes, node.footer_bytes) if wbits else (0, 0)
        if wbits:
            stream = inflate(stream, split.location, wbits)
        with contextlib.closing(stream):
            at = split.start + header + start * record  # streams count from the beginning of the file
            stream.seek(at)
            held, done = b"", start
            while stop < 0 or done < stop:
                wanted = min(max(1, chunk_size()), max(1, _AT_ONCE_BYTES // record))
                wanted = wanted if stop < 0 else min(wanted, stop - done)
                data = held + _exactly(stream, wanted * record + footer - len(held))
                count, rest = divmod(max(0, len(data) - footer), record)
                if len(data) < wanted * record + footer and (rest or len(data) < footer):
                    raise _odd(node, split.location, at + len(data))
                if not count:
                    return
                yield [data[first : first + record] for first in range(0, count * record, record)]
                held, done, at = data[count * record :], done + count, at + count * record


def _exactly(stream: io.BufferedReader, size: int) -> bytes:
    """Read ``size`` bytes, fewer at the end only."""
    parts, left = [], size
    while left > 0 and (data := stream.read(left)):
        parts.append(data)
        left -= len(data)
    return b"".join(parts)
