"""Rows of a digest that is being made, in a file that survives the process: what was hashed is not hashed again."""

from __future__ import annotations

import fcntl
import io
import os
import struct
import threading
import zlib
from array import array
from collections import OrderedDict
from collections.abc import Iterator
from typing import Self

import numpy as np
import numpy.typing as npt

from millrace.errors import SourceError
from millrace.sources.digests.digest_file import DigestAbout, DigestReader, DigestRows, joined_rows, write_digest

_PREFIX = struct.Struct("<II")
_DECODED_ROWS = 4096
"""Rows of the records read last that are kept as such; the last record in any case."""


class HashedRows:
    """Rows in the order in which they were added, on disk. Thread-safe; one process has the file at a time.

    The file is a sequence of records, each a digest of some files behind its length and checksum. A record that did not
    come to its end, as the process was killed, is cut off when the file is opened again.

    Args:
        path: of the file; it is made if it is not there.
        columns: of Parquet files, those whose chunks are items; None: all.

    Attributes:
        items: number of items of each row.

    Raises:
        SourceError: the file can't be written, or another process has it.
    """

    def __init__(self, path: str, columns: tuple[str, ...] | None) -> None:
        self._path, self._columns = path, columns
        self._lock = threading.Lock()
        self.items = array("I")
        self._firsts, self._starts, self._lengths = array("q"), array("q"), array("q")
        self._decoded: OrderedDict[int, DigestRows] = OrderedDict()
        self._end = 0
        self._file = _locked(path)

    def recover(self) -> Iterator[tuple[DigestAbout, DigestRows]]:
        """Find what an earlier process left: rows, in order, with what their record says of itself; once, and first."""
        size = os.fstat(self._file).st_size
        while self._end + _PREFIX.size <= size:
            length, checksum = _PREFIX.unpack(os.pread(self._file, _PREFIX.size, self._end))
            start = self._end + _PREFIX.size
            data = os.pread(self._file, length, start) if start + length <= size else b""
            if len(data) < length or zlib.crc32(data) != checksum:
                break
            try:
                about, rows = _decode(data)
            except ValueError:  # something else is called so
                break
            self._enter(rows, start, length)
            yield about, rows
        os.ftruncate(self._file, self._end)

    def append(self, rows: DigestRows) -> range:
        """Add rows; return their numbers. They are there whatever becomes of the process."""
        encoded = io.BytesIO()
        encoded.write(bytes(_PREFIX.size))
        write_digest(encoded, DigestAbout(self._columns, len(rows.locations), len(rows.offsets)), [rows])
        view = encoded.getbuffer()
        length = len(view) - _PREFIX.size
        _PREFIX.pack_into(view, 0, length, zlib.crc32(view[_PREFIX.size :]))
        with self._lock:
            try:
                at = self._end
                while view:
                    written = os.pwrite(self._file, view, at)
                    view, at = view[written:], at + written
            except OSError as error:
                raise SourceError(f"{self._path}: {error.strerror}") from error
            first = len(self.items)
            self._enter(rows, self._end + _PREFIX.size, length)
            return range(first, len(self.items))

    def _enter(self, rows: DigestRows, start: int, length: int) -> None:
        self._firsts.append(len(self.items))
        self._starts.append(start)
        self._lengths.append(length)
        self.items.frombytes(np.diff(rows.firsts).astype(np.uint32).tobytes())
        self._end = start + length

    def rows(self, numbers: npt.NDArray[np.int64]) -> DigestRows:
        """Read rows, at least one, in the order of their numbers here."""
        firsts = np.array(self._firsts, np.int64)
        records = np.searchsorted(firsts, numbers, "right") - 1
        by_record = np.argsort(records, kind="stable")
        found = []
        for record in np.unique(records).tolist():
            wanted = numbers[by_record][records[by_record] == record]
            found.append(self._record(record).chosen(wanted - firsts[record]))
        return joined_rows(found).chosen(np.argsort(by_record))

    def _record(self, record: int) -> DigestRows:
        rows = self._decoded.pop(record, None)
        if rows is None:
            _, rows = _decode(os.pread(self._file, self._lengths[record], self._starts[record]))
        self._decoded[record] = rows
        while len(self._decoded) > 1 and sum(len(each.locations) for each in self._decoded.values()) > _DECODED_ROWS:
            self._decoded.popitem(last=False)
        return rows

    def remove(self) -> None:
        """Remove the file, whose rows are in a digest now."""
        os.unlink(self._path)

    def close(self) -> None:
        """Close the file, for whoever goes on with it; it goes if nothing is in it."""
        if not self._end and os.fstat(self._file).st_nlink:
            self.remove()
        os.close(self._file)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _decode(data: bytes) -> tuple[DigestAbout, DigestRows]:
    reader = DigestReader(io.BytesIO(data), len(data))
    return reader.about, joined_rows(reader)


def _locked(path: str) -> int:
    """Open a file that no other process has; return its descriptor."""
    while True:
        try:
            file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            raise SourceError(f"{path}: {error.strerror}") from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(file)
            raise SourceError(
                f"{path} is being written: another millrace digest makes the same one. Let it end, or end it"
            ) from error
        if os.fstat(file).st_nlink:
            return file
        os.close(file)  # its process ended between the two calls, and has removed it
