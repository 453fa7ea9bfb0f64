"""Line blocks: stored text read in blocks of whole lines, from any byte range of a file.

Files are cut into ranges of bytes without looking into them. A line is read with the range in which it begins: who
reads a range begins one byte before it, leaves out what precedes the first end of a line, and reads on behind it to the
end of the last line. So nobody needs to know where lines are before, and any number of workers share a file.
"""

from __future__ import annotations

import contextlib
import functools
import io
from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

import msgspec

from millrace.errors import ElementTooLargeError
from millrace.graph.source_nodes import FromCSV, FromText
from millrace.planning import byte_ranges
from millrace.planning.split_table import Split, SplitTable, splits_table
from millrace.sources.gzip_stream import inflate, wbits_of
from millrace.sources.listing import expand
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress
from millrace.sources.splitting import check_size, ends_of, entry_of, foretold, piece_bytes, whole
from millrace.sources.store_requests import Entry

_BLOCK_BYTES = 1 << 20
_TAIL_BYTES = 64 << 10
"""Bytes that are read at a time behind a range, for the rest of its last line."""


class TextBlock(NamedTuple):
    """Whole lines of a file.

    Attributes:
        data: the lines, with their ends; the last of a file may have none.
        at: byte of the file, or of what it inflates to, at which they begin.
    """

    data: bytes
    at: int


def list_lines(node: FromText | FromCSV, seen: ListingProgress, size: int | None = None) -> SplitTable:
    """List ranges of about ``size`` bytes (None: by the amount of data), or whole files where they are compressed."""
    files = expand(node.patterns)
    size = piece_bytes(files) if size is None else size
    splits: list[Split] = []
    for file in files:
        if wbits_of(node.op, node.compression, file.location):
            splits.append(whole(file))
        elif file.size:
            pieces = max(1, file.size // size)
            bounds = [file.size * number // pieces for number in range(pieces + 1)]
            for start, stop in pairwise(bounds):
                first = -1 if start else 0
                splits.append(Split(file.location, start, stop, first, -1, stop - start, file.version))
        seen(1)
    return splits_table(splits)


class LineBlocks:
    """Reader of a source's lines, in blocks.

    Args:
        node: of the source.
        table: of :func:`list_lines`.
        reads: what reads.
    """

    def __init__(self, node: FromText | FromCSV, table: SplitTable, reads: Reads) -> None:
        self._node, self.splits, self._reads = node, table.splits, reads

    @functools.cached_property
    def _ends(self) -> dict[str, int]:
        """Size in bytes of each file that was cut."""
        return ends_of(self.splits)

    def entries(self, unit: int) -> Iterator[Entry]:
        """Foretell what reading a split asks for, but for the end of its last line."""
        return foretold(self._reads, _from_before(self.splits[unit]), -1)

    def read(self, split: Split) -> Iterator[TextBlock]:
        """Read the lines that begin in a split, in blocks of about 1 MiB.

        Raises:
            ElementTooLargeError: a line has more bytes than the source may hold.
            SourceChangedError: the file has another size than when it was listed.
            SourceError: with the file's name.
        """
        check_size(split.location, split.bytes if split.stop < 0 else self._ends[split.location])
        held, at, before = b"", split.start, split.start > 0
        with contextlib.closing(self._open(entry_of(_from_before(split)))) as stream:
            for data in iter(lambda: stream.read(_BLOCK_BYTES), b""):
                begin = 0
                if before:  # what precedes the first end of a line is of a line that begins earlier
                    begin = data.find(b"\n") + 1
                    at += begin - 1 if begin else len(data)
                    if not begin:
                        continue
                    before = False
                end = data.rfind(b"\n") + 1
                if end > begin:
                    yield TextBlock(held + data[begin:end], at)
                    at += len(held) + end - begin
                    held = data[end:]
                else:
                    held += data[begin:]
                self._check(split, at, held)
        if held:
            yield TextBlock(held + self._rest_of_line(split, at, held), at)

    def widened(self, split: Split) -> Split:
        """Make a split as long as a block, if its file is."""
        if split.stop < 0:
            return split
        stop = max(split.stop, min(split.start + _BLOCK_BYTES, self._ends[split.location]))
        return msgspec.structs.replace(split, stop=stop)

    def first_line(self, split: Split) -> bytes:
        """Read the first line of a split's file, with its end."""
        entry = Entry(
            split.location, 0, self._ends[split.location], split.version, split.bytes if split.stop < 0 else -1
        )
        with contextlib.closing(self._open(entry, _TAIL_BYTES)) as stream:
            return self._line(stream, split, 0, b"")

    def _open(self, entry: Entry, block_bytes: int = byte_ranges.BLOCK_BYTES) -> io.BufferedReader:
        stream = self._reads.open(entry, block_bytes=block_bytes)
        wbits = wbits_of(self._node.op, self._node.compression, entry.location)
        return inflate(stream, entry.location, wbits) if wbits else stream

    def _rest_of_line(self, split: Split, at: int, held: bytes) -> bytes:
        """Read on behind a split, up to the end of the line that begins with ``held``."""
        end = self._ends[split.location]
        if split.stop < 0 or split.stop >= end:
            return b""
        entry = Entry(split.location, split.stop, end, split.version)
        with contextlib.closing(self._reads.open(entry, block_bytes=_TAIL_BYTES)) as stream:
            return self._line(stream, split, at, held)

    def _line(self, stream: io.BufferedReader, split: Split, at: int, held: bytes) -> bytes:
        found = b""
        for data in iter(lambda: stream.read(_TAIL_BYTES), b""):
            end = data.find(b"\n") + 1
            found += data[:end] if end else data
            self._check(split, at, held + found)
            if end:
                break
        return found

    def _check(self, split: Split, at: int, held: bytes) -> None:
        most = max(_BLOCK_BYTES, self._reads.account.budget)
        if len(held) > most:
            raise ElementTooLargeError(
                f"{split.location} has a line of more than {most} bytes, which begins at byte {at}, and that is what "
                "its source may hold: raise with_options(buffer_bytes=...), or read the file with from_files"
            )


def _from_before(split: Split) -> Split:
    """Begin a split one byte earlier: is that the end of a line?"""
    return msgspec.structs.replace(split, start=max(0, split.start - 1))
