"""Folders that are one user's: what is in them is read by nobody else, and written by nobody else."""

from __future__ import annotations

import errno
import os
import stat

ROOT = 0
"""The user who may do anything anyway."""


def make_private(folder: str) -> None:
    """Makes a folder that only this user can look into, or makes this user's one so.

    Raises:
        OSError: it can't be, or it is somebody else's.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    for uid in (found.st_uid, os.lstat(folder).st_uid):  # a link of one's own is a choice
        if uid not in {os.geteuid(), ROOT}:
            raise PermissionError(errno.EPERM, f"it belongs to another user (uid {uid})")
    if found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) & 0o077:
        try:
            os.chmod(folder, 0o700)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOSYS, errno.EPERM}:  # a mount that has no modes
                raise


def private(path: str, flags: int) -> int:
    """An opener for :func:`open`: a new file is this user's alone, and no link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
