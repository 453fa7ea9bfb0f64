"""Folders that are one user's: nobody else reads or writes what is in them."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable

ROOT = 0
"""The user who may do anything anyway."""


def make_private(folder: str, ours: Callable[[str], bool] = lambda _: True) -> None:
    """Make a folder that only this user can look into, or make this user's one so, if nothing else is in it.

    A folder that holds other files, such as the current one, keeps its mode; others must not be able to write there.

    Args:
        folder: its path.
        ours: whether a file or folder of this name in it belongs to what the folder is used for.

    Raises:
        OSError: it can't be, or it is somebody else's, or others can write there.
    """
    os.makedirs(folder, mode=0o700, exist_ok=True)
    found = os.stat(folder)
    for uid in (found.st_uid, os.lstat(folder).st_uid):  # a link of one's own is a choice
        if uid not in {os.geteuid(), ROOT}:
            raise PermissionError(errno.EPERM, f"it belongs to another user (uid {uid})")
    mode = stat.S_IMODE(found.st_mode)
    if found.st_uid != os.geteuid() or not mode & 0o077:
        return
    others = sorted(name for name in os.listdir(folder) if not ours(name))
    if not others:
        try:
            os.chmod(folder, 0o700)
        except OSError as error:
            if error.errno not in {errno.ENOTSUP, errno.ENOSYS, errno.EPERM}:  # a mount that has no modes
                raise
    elif mode & 0o022:
        raise PermissionError(
            errno.EPERM,
            f"others may write there (mode {mode:o}), and it holds more than what is kept there, such as {others[0]}: "
            f"name a folder of its own, such as {os.path.join(folder, 'millrace')}, or chmod go-w {folder}",
        )


def private(path: str, flags: int) -> int:
    """Open a file, as an opener for :func:`open`: a new file is this user's alone, and no link is followed."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)
