"""Default capacity of a cache on a disk, where its owner gave none."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from millrace.errors import PipelineError
from millrace.sources.storage import absolute, is_remote

SHARE = 2
"""Divisor of the available room: a cache takes one part in this many."""


def default_bytes(location: str) -> int:
    """Half of what a cache in a folder could take: the free bytes of its file system, and the folder's own bytes.

    The folder's own bytes count, so that a service that starts again on it keeps the blocks of the one before.

    Args:
        location: a folder, which need not be there yet.

    Returns:
        bytes, at least 1.

    Raises:
        PipelineError: the location is a prefix of an object store, which cannot say what is free.
    """
    if is_remote(location):
        raise PipelineError(
            f"how much the cache in {location} may take has to be said, as cache_bytes= or --cache-bytes, for an "
            "object store cannot say what is free"
        )
    folder = Path(absolute(location))
    there = next(each for each in (folder, *folder.parents) if each.is_dir())
    taken = sum(_size(os.path.join(path, name)) for path, _, names in os.walk(folder) for name in names)
    return max(1, (shutil.disk_usage(there).free + taken) // SHARE)


def _size(path: str) -> int:
    try:
        return os.lstat(path).st_size
    except FileNotFoundError:  # deleted meanwhile by another service on the folder
        return 0
