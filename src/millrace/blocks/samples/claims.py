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
import threading
from collections.abc import Iterator

from millrace.errors import CacheError
from millrace.private_folder import private

_LOCK = "hhqqi0q"
"""C's ``struct flock``: type, whence, start, length, pid; padded at its end."""


_handles: set[int] = set()
"""Open files that claims are held or waited for with."""
_opening = threading.RLock()
"""Held while such a file is opened or closed; a fork waits for that."""


class Claims:
    """Claims of everybody who uses the file at ``path``. Thread-safe, and usable in forked children."""

    def __init__(self, path: str) -> None:
        self._path = path
        with self._opened():
            pass

    @contextlib.contextmanager
    def _opened(self) -> Iterator[int]:
        with _opening:
            try:
                handle = private(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
            except FileNotFoundError as error:
                raise CacheError(
                    f"{os.path.dirname(self._path)} is gone: the SampleCache was closed, or somebody removed it"
                ) from error
            _handles.add(handle)
        try:
            yield handle
        finally:
            with _opening:
                _unlock(handle)  # closing would do, but for a child that was forked just now
                _handles.remove(handle)
                os.close(handle)

    @contextlib.contextmanager
    def claim(self, place: int) -> Iterator[bool]:
        """Hold the claim at ``place`` if it is free; gives whether it was."""
        with self._opened() as handle:
            yield lock(handle, place, wait=False)

    def wait(self, place: int) -> None:
        """Wait until nobody holds the claim at ``place``, because it was given up or because its owner died."""
        with self._opened() as handle:
            lock(handle, place, wait=True)


def _let_go() -> None:
    """Leave all claims to the parent, in a forked child: it may outlive the parent, and would hold them."""
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for handle in _handles:  # the thread that forked may be about to close one
        os.dup2(null, handle, inheritable=False)
    os.close(null)
    _opening.release()


os.register_at_fork(before=_opening.acquire, after_in_parent=_opening.release, after_in_child=_let_go)


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


def _unlock(handle: int) -> None:
    """Unlock all that is locked of an open file."""
    fcntl.fcntl(handle, fcntl.F_OFD_SETLK, struct.pack(_LOCK, fcntl.F_UNLCK, os.SEEK_SET, 0, 0, 0))
