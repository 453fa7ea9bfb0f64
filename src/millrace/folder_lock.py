"""Folder lock: one process at a time does something in a folder, without a file for that."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator


@contextlib.contextmanager
def folder_lock(folder: str) -> Iterator[None]:
    """Hold the lock on a folder; where the file system has none, two at the same moment are not told apart.

    Raises:
        OSError: the folder can't be opened.
    """
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
