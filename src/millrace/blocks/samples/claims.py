"""Claims of processes on samples that they fetch, so that no two fetch the same one at a time.

A claim is a lock on one byte of a file, at an offset that belongs to the sample: an open file description lock, which
conflicts between threads as it does between processes. Whoever finds a sample claimed waits for the lock without
polling, and the kernel lets go of it however its owner ends.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import struct
from collections.abc import Iterator

from millrace.private_folder import private

_LOCK = "hhqqi0q"
"""C's ``struct flock``: type, whence, start, length, pid; padded at its end."""


class Claims:
    """Claims of everybody who uses the file at ``path``. Thread-safe, and usable in forked children."""

    def __init__(self, path: str) -> None:
        self._path = path
        os.close(self._open())

    def _open(self) -> int:
        return private(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)

    @contextlib.contextmanager
    def claim(self, place: int) -> Iterator[bool]:
        """Hold the claim at ``place`` if it is free; gives whether it was."""
        handle = self._open()
        try:
            got = lock(handle, place, wait=False)
            try:
                yield got
            finally:
                if got:
                    unlock(handle, place)  # closing would do, but for children that were forked meanwhile
        finally:
            os.close(handle)

    def wait(self, place: int) -> None:
        """Wait until nobody holds the claim at ``place``, because it was given up or because its owner died."""
        handle = self._open()
        try:
            lock(handle, place, wait=True)
            unlock(handle, place)
        finally:
            os.close(handle)


def place_of(name: str, index: int) -> int:
    """Offset of the byte that stands for sample ``index`` of the dataset called ``name``.

    Two samples of one offset merely wait for one another.
    """
    return int.from_bytes(hashlib.blake2b(f"{index} {name}".encode(), digest_size=8).digest(), "big") >> 2


def lock(handle: int, start: int, *, wait: bool) -> bool:
    """Lock the byte at ``start`` of an open file; False if another open file has it and ``wait`` is not asked for."""
    request = struct.pack(_LOCK, fcntl.F_WRLCK, os.SEEK_SET, start, 1, 0)
    try:
        fcntl.fcntl(handle, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, request)
    except OSError as error:
        if wait or error.errno not in {errno.EAGAIN, errno.EACCES}:
            raise
        return False
    return True


def unlock(handle: int, start: int) -> None:
    """Unlock the byte at ``start``."""
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_UNLCK, os.SEEK_SET, start, 1, 0))
