"""Tar archive headers (ustar, GNU, pax), parsed at a tenth of the cost of :mod:`tarfile`."""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterator
from typing import NamedTuple

from millrace.errors import SourceCorruptError

BLOCK = 512
_ZEROS = bytes(BLOCK)
_MAX_EXTENSION_BYTES = 1 << 20
_EXTENSIONS = frozenset((b"L", b"K", b"x", b"g", b"X"))
_REGULAR = frozenset((b"0", b"\0", b"7"))
_WITHOUT_DATA = frozenset((b"1", b"2", b"3", b"4", b"5", b"6"))
_SPARSE = b"S"
_ADLER = 65521
_UNKNOWN = -1


class Member(NamedTuple):
    """Regular file in an archive: offset of its first header, its path, its size in bytes."""

    offset: int
    name: str
    size: int


def members(stream: io.BufferedReader, location: str) -> Iterator[Member]:
    """List the regular files of an archive, in order, from a stream that stands at a header.

    When a member is yielded the stream stands at its data; what the receiver leaves unread is skipped. An archive ends
    at a block of zeros or, as some writers leave it, with the file.

    Raises:
        SourceCorruptError: the file is no archive, damaged or truncated; with the byte of the member's header, and its
            number if the stream stood at the archive's start.
    """
    offset = stream.tell()
    number = 0 if offset == 0 else _UNKNOWN
    extensions: dict[str, str] = {}
    while True:
        at = stream.tell()
        header = stream.read(BLOCK)
        if header == _ZEROS or (not header and at > 0 and not extensions):
            return
        if len(header) < BLOCK:
            raise truncated(location, number, at)
        if not _checksum_fits(header):
            raise _damaged(location, number, at)
        kind = header[156:157]
        member = kind not in _EXTENSIONS
        try:
            size = int(extensions["size"]) if "size" in extensions and member else _number(header[124:136])
        except ValueError as error:
            raise _damaged(location, number, at) from error
        end = stream.tell() + -(-size // BLOCK) * BLOCK
        if kind in b"LKxgX":
            _read_extension(stream, kind, size, extensions, location, number)
        elif kind == _SPARSE or any(key.startswith("GNU.sparse.") for key in extensions):
            raise SourceCorruptError(
                f"{location}{f', member {number}' if number >= 0 else ''}: it is a sparse file, of which the archive "
                "holds parts only, and these are not put together here: make the archive anew without --sparse"
            )
        elif kind in _REGULAR:
            yield Member(offset, extensions.get("path") or _name(header), size)
        elif kind in _WITHOUT_DATA:
            end = at + BLOCK  # links, devices and folders have no data, whatever their size says
        if not _hop(stream, end):
            raise truncated(location, number, at)
        if member:
            number += number >= 0
            offset = end
            extensions = {}


def _hop(stream: io.BufferedReader, end: int) -> bool:
    """Seek to byte ``end``; False if the file ends before."""
    if stream.tell() == end:
        return True
    # The last byte is read, since seeking beyond the end of a file is no error.
    stream.seek(end - 1)
    return bool(stream.read(1))


def truncated(location: str, number: int, at: int) -> SourceCorruptError:
    """Make the error for an archive that ends within member ``number``, whose header is at byte ``at``."""
    if at == 0 and number == 0:
        return SourceCorruptError(f"{location} is truncated: it ends within its first member")
    member = "a member" if number < 0 else f"member {number}"
    return SourceCorruptError(f"{location} is truncated: it ends within {member}, whose header is at byte {at}")


def _damaged(location: str, number: int, at: int) -> SourceCorruptError:
    if at == 0:
        return SourceCorruptError(
            f"{location} is not a tar archive: its first {BLOCK} bytes are no tar header. Where other files lie "
            "beside the archives, write a pattern that these match alone, such as 'folder/*.tar'"
        )
    return SourceCorruptError(f"{location}{f', member {number}' if number >= 0 else ''}: damaged header at byte {at}")


def _checksum_fits(header: bytes) -> bool:
    # The low half of adler32 is 1 + the sum of the bytes, modulo 65521: the sum that tar wants, at the speed of C. The
    # checksum's own eight bytes count as spaces.
    total = (zlib.adler32(header) & 0xFFFF) - (zlib.adler32(header[148:156]) & 0xFFFF) + 8 * 0x20
    try:
        stored = _number(header[148:156])
    except ValueError:
        return False
    if (total - stored) % _ADLER == 0:
        return True
    # Some old writers summed signed bytes.
    return 8 * 0x20 + sum(memoryview(header[:148] + header[156:]).cast("b")) == stored


def _number(field: bytes) -> int:
    if field[0] & 0x80:  # GNU: binary, for 8 GiB and more
        return int.from_bytes(field, "big") & ((1 << (8 * len(field) - 1)) - 1)
    return int(field.partition(b"\0")[0].strip() or b"0", 8)


def _name(header: bytes) -> str:
    name = header[:100].partition(b"\0")[0]
    if header[257:263] == b"ustar\0" and header[345]:
        name = header[345:500].partition(b"\0")[0] + b"/" + name
    return name.decode("utf-8", "surrogateescape")


def _read_extension(
    stream: io.BufferedReader, kind: bytes, size: int, extensions: dict[str, str], location: str, number: int
) -> None:
    """Read what GNU ("L") and pax ("x") headers say about the next member; others are left unread."""
    if kind not in b"Lx":
        return
    at = stream.tell()
    if size > _MAX_EXTENSION_BYTES:
        raise _damaged(location, number, at)
    data = stream.read(size)
    if len(data) < size:
        raise truncated(location, number, at - BLOCK)
    if kind == b"L":
        extensions["path"] = data.rstrip(b"\0").decode("utf-8", "surrogateescape")
        return
    while data.strip(b"\0"):
        length, space, _ = data.partition(b" ")
        if not space or not length.isdigit() or int(length) <= len(length):
            raise _damaged(location, number, at)
        key, _, value = data[len(length) + 1 : int(length) - 1].partition(b"=")
        extensions[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        data = data[int(length) :]
