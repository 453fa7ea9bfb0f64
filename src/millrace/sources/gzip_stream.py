"""Gzip and zlib streams, read in sequence and in bounded memory."""

from __future__ import annotations

import io
import zlib
from typing import Any

from millrace.errors import PipelineError, SourceCorruptError
from millrace.sources import storage

GZIP = 31
"""Value of ``wbits`` of :mod:`zlib` for a gzip stream."""
ZLIB = 15
"""Value of ``wbits`` of :mod:`zlib` for a zlib stream."""
_WBITS = {"": 0, "GZIP": GZIP, "ZLIB": ZLIB}
_READ_BYTES = 256 << 10


def wbits_of(operator: str, compression: str | None, location: str) -> int:
    """Find ``wbits`` of a file; 0: it isn't compressed.

    Args:
        operator: the source, for messages.
        compression: "", "GZIP" or "ZLIB"; None: by the file's ending.
        location: of the file.

    Raises:
        PipelineError: it is another compression.
    """
    if compression is None:
        compression = "GZIP" if storage.bare(location).endswith(".gz") else ""
    if compression not in _WBITS:
        raise PipelineError(f"{operator}(compression={compression!r}): it must be None, '', 'GZIP' or 'ZLIB'")
    return _WBITS[compression]


class _Inflated(storage.Stream):
    """Inflated stream: positions count inflated bytes; concatenated streams (``cat a.gz b.gz``) are read as one."""

    def __init__(self, stored: io.BufferedReader, location: str, wbits: int) -> None:
        super().__init__()
        self._stored = stored
        self._location = location
        self._wbits = wbits
        self._inflate = zlib.decompressobj(wbits)
        self._begun = False
        self._pending = b""

    def _go(self, target: int) -> None:
        if target < self.at:
            raise io.UnsupportedOperation("a compressed stream cannot be read backwards")
        dropped = bytearray(min(_READ_BYTES, target - self.at))
        while self.at < target and self.readinto(memoryview(dropped)[: target - self.at]):
            pass

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        while view:
            if self._inflate.eof:
                self._pending = self._inflate.unused_data or self._stored.read1(_READ_BYTES)
                if not self._pending.strip(b"\0"):  # the end, or padding after it
                    return 0
                self._inflate = zlib.decompressobj(self._wbits)
            elif not self._pending:
                self._pending = self._stored.read1(_READ_BYTES)
                if not self._pending and not self._begun:
                    return 0
            data = self._some(len(view))
            if data:
                view[: len(data)] = data
                self.at += len(data)
                return len(data)
        return 0

    def _some(self, limit: int) -> bytes:
        ended = not self._pending
        try:
            data = self._inflate.decompress(self._pending, limit)
        except zlib.error as error:
            kind = "gzip" if self._wbits == GZIP else "zlib"
            raise SourceCorruptError(
                f"{self._location} is not a {kind} file or is damaged: {error} (after {self.at} inflated bytes)"
            ) from error
        self._begun = True
        self._pending = self._inflate.unconsumed_tail
        if ended and not data and not self._inflate.eof:
            raise SourceCorruptError(
                f"{self._location} is truncated: its compressed data ends after {self.at} inflated bytes"
            )
        return data

    def close(self) -> None:
        self._stored.close()
        super().close()


def inflate(stored: io.BufferedReader, location: str, wbits: int) -> io.BufferedReader:
    """Inflate ``stored`` as it is read; closing the result closes ``stored``.

    Raises:
        SourceCorruptError: when reading, if the data is truncated or of another format.
    """
    return io.BufferedReader(_Inflated(stored, location, wbits), _READ_BYTES)
