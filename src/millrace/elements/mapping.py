"""Parts of files in this process's address space.

Python's own ``mmap`` keeps a duplicate of the descriptor for each mapping, so a trainer with many of them would run out
of descriptors, and it holds the interpreter's lock while a disk is waited for. So the system is called through ctypes.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
import weakref
from collections.abc import Callable

from millrace.elements.exporting import Bytes, exported

_PAGE = mmap.PAGESIZE
_LARGE_PAGE = 2 << 20
"""Where a file lies in memory in pages of this size, they are found one by one instead of sixteen small ones each time;
a mapping has to hold them wholly."""
_POPULATE_READ = 22
"""MADV_POPULATE_READ, of Linux 5.14 and later, which Python has no name for."""
_MOST = 4096
"""Snapshots at a time. Systems allow a process 65,530 mappings, and malloc needs some of them."""
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
"""Whether the system can say that a page cannot be read other than by a signal."""
_snapshots: set[int] = set()
"""Addresses; single operations on it need no lock."""


class Mapping:
    """Memory of a file, shared with all who map it, until this object dies.

    Args:
        fd: the file; it may be closed afterwards.
        size: bytes from its start on.

    Raises:
        OSError: it cannot be mapped.
    """

    __slots__ = ("__weakref__", "address", "kind")

    def __init__(self, fd: int, size: int) -> None:
        self.address = _map(fd, 0, size, mmap.MAP_SHARED)
        weakref.finalize(self, _libc.munmap, self.address, size).atexit = False
        self.kind = ctypes.c_ubyte * size

    def bytes(self, finalizer: Callable[..., object], argument: object) -> Bytes:
        """All of it as an array; ``finalizer(argument)`` is called when the last view of it has died."""
        return exported(self.kind.from_address(self.address), _over, finalizer, argument, self)


def snapshot(fd: int, start: int, stop: int) -> Bytes | None:
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
        address = _map(fd, begin, size, mmap.MAP_PRIVATE)
    except OSError as error:
        if error.errno in (errno.ENOMEM, errno.ENODEV, errno.EACCES):  # no room, or a file that cannot be mapped
            return None
        raise
    _snapshots.add(address)
    view = exported((ctypes.c_ubyte * size).from_address(address), _unmap, address, size)[start - begin : stop - begin]
    # What lies behind the end of the file, or cannot be read from the disk, is said here, and raises no signal.
    skipped = (start - begin) & -_PAGE
    wanted = stop - begin - skipped
    return view if _libc.madvise(address + skipped, wanted, _POPULATE_READ) == 0 else None


def stays(fd: int) -> bool:
    """Whether a file lies where :func:`snapshot` can be trusted to stay readable."""
    if not AVAILABLE:
        return False
    found = ctypes.create_string_buffer(256)  # struct statfs has 120 bytes, and begins with the type
    if _libc.fstatfs(fd, found) != 0:
        return False
    return int.from_bytes(found.raw[: ctypes.sizeof(ctypes.c_long)], sys.byteorder) in _SAFE


def _map(fd: int, begin: int, size: int, flags: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, flags, fd, begin)
    if address == ctypes.c_void_p(-1).value:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    found: int = address
    return found


def _unmap(address: int, size: int) -> None:
    _snapshots.discard(address)  # first: the system may give the address to the next one at once
    _libc.munmap(address, size)


def _over(finalizer: Callable[..., object], argument: object, _mapping: Mapping) -> None:
    finalizer(argument)  # and the mapping lives no longer for this exporter's sake
