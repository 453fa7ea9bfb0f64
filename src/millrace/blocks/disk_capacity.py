"""Default capacity of a cache on a disk, where its owner gave none."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from millrace.errors import PipelineError
from millrace.sources.storage import absolute, is_remote

SHARE = 2
"""Divisor of the available room: a cache takes one part in this many."""


def default_bytes(location: str, is_own: Callable[[str], bool] = lambda name: True) -> int:
    """Half of what a cache in a folder could take: the free bytes of its file system, and the cache's own bytes.

    Its own bytes count, so that a service that starts again on it keeps the blocks of the one before.

    Args:
        location: a folder, which need not be there yet.
        is_own: whether the cache makes files or folders of this name there; others are no room of its.

    Returns:
        bytes, at least 1.

    Raises:
        PipelineError: the location is a prefix of an object store, which cannot say what is free.
    """
    check_capacity(location)
    folder = Path(absolute(location))
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    _, folders, files = next(os.walk(folder), ("", [], []))
    taken = sum(_size(folder / name) for name in (*folders, *files) if is_own(name))
    return max(1, (shutil.disk_usage(there).free + taken) // SHARE)


def check_capacity(location: str) -> None:
    """Check that a location can say what is free there.

    Raises:
        PipelineError: it is a prefix of an object store, which cannot.
    """
    if is_remote(location):
        raise PipelineError(
            f"how much the cache in {location} may take has to be said, as cache_bytes= or --cache-bytes, for an "
            "object store cannot say what is free"
        )


def _size(top: Path) -> int:
    """Bytes of a file, or of all files below a folder."""
    files = [os.path.join(path, name) for path, _, names in os.walk(top) for name in names]
    size = 0
    for path in files if top.is_dir() else [top]:
        with contextlib.suppress(FileNotFoundError):  # deleted meanwhile by another service on the folder
            size += os.lstat(path).st_size
    return size
