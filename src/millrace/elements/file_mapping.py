"""Memory-mapped files: shared mappings, copy-on-write snapshots, and the file ranges that another process can map too.

Python's own ``mmap`` keeps a duplicate of the descriptor for each mapping, so a trainer with many of them would run out
of descriptors, and it holds the interpreter's lock while a disk is waited for. So the system is called through ctypes.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.elements.recycled_arrays import Bytes, export
from millrace.errors import ProtocolError
from millrace.private_folder import ROOT

_PAGE = mmap.PAGESIZE
_ALIGNMENT = 64
"""Alignment in bytes of the arrays in a message (:mod:`millrace.elements.layout`)."""
_LARGE_PAGE = 2 << 20
"""Size in bytes of a large page. Where a file lies in memory in such pages, one page fault maps a whole one instead of
sixteen small pages; a mapping has to contain it wholly."""
_POPULATE_READ = 22
"""MADV_POPULATE_READ, of Linux 5.14 and later, which Python has no name for."""
_MOST = 4096
"""Most snapshots at a time. Systems allow a process 65,530 mappings, and malloc needs some of them."""
_SHOWN_BYTES = 256 << 10
"""Least size in bytes of a range worth mapping in another process; copying less costs less."""
_BETWEEN_BYTES = 4 << 10
"""Largest gap in bytes between two views of one range: the heads of messages."""
_THERE, _SWAPPED, _OF_A_FILE = 1 << 63, 1 << 62, 1 << 61
"""Bits of a page in /proc/self/pagemap: present, swapped out, and file-mapped or shared memory."""
_SAFE = frozenset({0xEF53, 0x58465342, 0x9123683E, 0x01021994, 0x794C7630, 0xF2F52010})
"""File systems of this machine itself: ext4, XFS, Btrfs, tmpfs, overlay, F2FS."""

if sys.platform == "linux":
    _libc = ctypes.CDLL(None, use_errno=True)
    _libc.mmap.restype = ctypes.c_void_p
    _libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_int64)
    _libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
    _libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    _libc.fstatfs.argtypes = (ctypes.c_int, ctypes.c_void_p)

AVAILABLE = sys.platform == "linux" and _libc.madvise(None, 0, _POPULATE_READ) == 0
"""Whether the system can report an unreadable page without a signal."""
_snapshots: dict[int, _Snapshot] = {}
"""By address; single operations on it need no lock."""


class Mapping:
    """Memory of a file, shared with all who map it, until this object dies.

    Args:
        fd: the file; it may be closed afterwards.
        size: bytes to map, from the file's start.
        private: nobody else sees what is written here: the system copies a page that is written to.

    Raises:
        OSError: it cannot be mapped.
    """

    __slots__ = ("__weakref__", "address", "kind", "private")

    def __init__(self, fd: int, size: int, *, private: bool = False) -> None:
        self.address = _map(fd, 0, size, mmap.MAP_PRIVATE if private else mmap.MAP_SHARED)
        weakref.finalize(self, _libc.munmap, self.address, size).atexit = False
        self.kind = ctypes.c_ubyte * size
        self.private = private

    @property
    def size(self) -> int:
        """Bytes that are mapped."""
        return ctypes.sizeof(self.kind)

    def revert(self) -> None:
        """Let go of what was written to a private mapping: it shows the file's bytes again."""
        size = self.size
        pages = _pages(self.address, self.address + size)
        # Where nothing was written all stays mapped: to map pages again costs as much as to copy them.
        if pages is None or bool(np.any((pages & (_THERE | _SWAPPED) != 0) & (pages & _OF_A_FILE == 0))):
            _libc.madvise(self.address, size, mmap.MADV_DONTNEED)

    def bytes(self, finalizer: Callable[..., object], argument: object) -> Bytes:
        """View the whole mapping as an array; ``finalizer(argument)`` is called when the last view of it has died."""
        return export(self.kind.from_address(self.address), _over, finalizer, argument, self)


class OpenFile:
    """File descriptor that is closed when nobody refers to it any more.

    Args:
        fd: an open descriptor; nobody else closes it.
    """

    __slots__ = ("__weakref__", "fd")

    def __init__(self, fd: int) -> None:
        self.fd = fd
        weakref.finalize(self, os.close, fd).atexit = False


class _Snapshot(NamedTuple):
    """Private mapping of a file from byte ``begin`` on; the descriptor lives as long as whoever opened it."""

    file: weakref.ref[OpenFile]
    begin: int


def snapshot(file: OpenFile, start: int, stop: int) -> Bytes | None:
    """Bytes ``start`` to ``stop`` of a file, uint8, without a copy; None where they must be read instead.

    Writing to them changes neither the file nor what anybody else sees: the system copies a page that is written to.
    All of them were brought into memory when this returns; the memory is the system's, which can take it back as long
    as nobody writes to it. They are readable as long as the file isn't cut short and its disk doesn't fail: where that
    is likelier, on a network's file system, this is always None.
    """
    begin = start & -_LARGE_PAGE
    size = (stop - begin + _LARGE_PAGE - 1) & -_LARGE_PAGE
    if len(_snapshots) >= _MOST:
        return None
    try:
        address = _map(file.fd, begin, size, mmap.MAP_PRIVATE)
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.ENODEV, errno.EACCES):  # no room, or a file that cannot be mapped
            return None
        raise
    _snapshots[address] = _Snapshot(weakref.ref(file), begin)
    view = export((ctypes.c_ubyte * size).from_address(address), _unmap, address, size)[start - begin : stop - begin]
    # What lies behind the end of the file, or cannot be read from the disk, is said here, and raises no signal.
    skipped = (start - begin) & -_PAGE
    wanted = stop - begin - skipped
    return view if _libc.madvise(address + skipped, wanted, _POPULATE_READ) == 0 else None


def map_or_read(file: OpenFile, start: int, stop: int) -> Bytes:
    """Bytes ``start`` to ``stop`` of another process's file, uint8: a snapshot, or read where none is to be made.

    Either way they are aligned as they are in the file, up to multiples of 64 bytes. Files that their maker could take
    away from under a reader are read (:func:`_may_vanish`), and so are those of other hosts' file systems.

    Raises:
        ProtocolError: if it is no regular file of at least ``stop`` bytes, or the bytes cannot be read.
    """
    found = os.fstat(file.fd)
    if not stat.S_ISREG(found.st_mode) or not 0 <= start < stop <= found.st_size:
        raise ProtocolError(f"the peer passed a file that does not hold bytes {start} to {stop}")
    with contextlib.suppress(OSError):  # not to be had here; so it is read
        safe = stays_readable(file.fd) and not _may_vanish(file.fd, found)
        mapped = snapshot(file, start, stop) if safe else None
        if mapped is not None:
            return mapped
    try:
        room = np.empty(stop - start + _ALIGNMENT, np.uint8)
        skipped = (start - room.ctypes.data) % _ALIGNMENT
        made = room[skipped : skipped + stop - start]
        count = 0
        while count < len(made) and (more := os.preadv(file.fd, [made[count:].data], start + count)):
            count += more
    except (OSError, MemoryError) as error:
        raise ProtocolError(f"the peer passed a file that cannot be read: {error}") from error
    if count < len(made):
        raise ProtocolError(f"the peer passed a file that was cut short at byte {start + count}")
    return made


class MappedRange(NamedTuple):
    """Bytes of a file that this process has mapped.

    Attributes:
        file: the open file.
        start: offset of the range in the file, in bytes.
        size: bytes.
        views: views that lie in the range, as (index, distance from ``start`` in bytes).
    """

    file: OpenFile
    start: int
    size: int
    views: list[tuple[int, int]]


def mapped_ranges(views: Iterable[tuple[int, Bytes]]) -> Iterator[MappedRange]:
    """Find the file ranges of those of ``views`` that are parts of snapshots: another process can map them as well.

    Views that follow one another closely share a range. Views that were written to since, or may have been, are left
    out:
    the file holds other bytes there.

    Args:
        views: with an index each, which must not change meanwhile.
    """
    groups: list[list[tuple[int, _Place, int]]] = []
    end: _Place | None = None
    for index, view in views:
        place = _place(view)
        if place is None:
            continue
        if end is None or not _follows(end, place):
            groups.append([])
        groups[-1].append((index, place, len(view)))
        end = _Place(place.file, place.address + len(view), place.at + len(view))
    for group in groups:
        (_, first, _), (_, last, count) = group[0], group[-1]
        size = last.at + count - first.at
        if size >= _SHOWN_BYTES and _untouched(first.address, size):
            yield MappedRange(first.file, first.at, size, [(index, place.at - first.at) for index, place, _ in group])


class _Place(NamedTuple):
    """Correspondence of an address of this process to byte ``at`` of the file."""

    file: OpenFile
    address: int
    at: int


def _follows(end: _Place, place: _Place) -> bool:
    """Whether a place is in the same mapping as the end of another, and not far behind it."""
    between = place.at - end.at
    return place.file is end.file and place.address - end.address == between and 0 <= between <= _BETWEEN_BYTES


def _place(view: Bytes) -> _Place | None:
    """Position of a view's first byte in its file, if it is part of a snapshot whose file is still open."""
    at: object = view
    while True:
        if isinstance(at, np.ndarray):
            at = at.base
        elif isinstance(at, memoryview):
            at = at.obj
        else:
            break
    if not isinstance(at, ctypes.Array):
        return None
    base = ctypes.addressof(at)
    mapped = _snapshots.get(base)
    file = mapped.file() if mapped is not None else None
    if mapped is None or file is None:
        return None
    address: int = view.__array_interface__["data"][0]
    return _Place(file, address, mapped.begin + address - base)


def _untouched(address: int, size: int) -> bool:
    """Whether all these bytes are the file's own: who writes to a page gets a copy of it, which is no file's."""
    begin = address & -_PAGE
    end = (address + size + _PAGE - 1) & -_PAGE
    if (found := _states(begin, end)) is not None and not found[0]:
        # The system took pages back, or undid a larger one of which a part was written to.
        _libc.madvise(begin, end - begin, _POPULATE_READ)
        found = _states(begin, end)
    return found == (True, True)


def _states(begin: int, end: int) -> tuple[bool, bool] | None:
    """Whether all pages between two addresses are (present, a file's); None: the system doesn't say."""
    pages = _pages(begin, end)
    if pages is None:
        return None
    all_of = int(np.bitwise_and.reduce(pages))
    return bool(all_of & _THERE), bool(all_of & _OF_A_FILE)


def _pages(begin: int, end: int) -> npt.NDArray[np.uint64] | None:
    """Bits of each page between two addresses; None: the system doesn't say."""
    try:
        with open("/proc/self/pagemap", "rb", buffering=0) as pages:
            found = os.pread(pages.fileno(), 8 * (end - begin) // _PAGE, 8 * begin // _PAGE)
    except OSError:  # as in some sandboxes
        return None
    return None if len(found) < 8 * (end - begin) // _PAGE else np.frombuffer(found, np.uint64)


def stays_readable(fd: int) -> bool:
    """Whether a file lies where :func:`snapshot` can be trusted to stay readable."""
    if not AVAILABLE:
        return False
    found = ctypes.create_string_buffer(256)  # struct statfs has 120 bytes, and begins with the type
    if _libc.fstatfs(fd, found) != 0:
        return False
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) in _SAFE


def _may_vanish(fd: int, found: os.stat_result) -> bool:
    """Whether somebody else can cut a file short: reading what was mapped would end this process.

    That is memory (memfd), which has no name in any folder, if it is not sealed, and a file of another user.
    """
    if found.st_nlink:
        return found.st_uid not in {os.geteuid(), ROOT}
    try:
        return not fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
    except OSError:  # a file of a disk that was removed, of a cache for example
        return False


def _map(fd: int, begin: int, size: int, flags: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, begin)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    found: int = address
    return found


def _unmap(address: int, size: int) -> None:
    _snapshots.pop(address, None)  # first: the system may give the address to the next one at once
    _libc.munmap(address, size)


def _over(finalizer: Callable[..., object], argument: object, _mapping: Mapping) -> None:
    finalizer(argument)  # and the mapping lives no longer for this exporter's sake
