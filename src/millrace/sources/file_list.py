"""List of files that are found in any order and given in the order of their paths, in few bytes each."""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator
from itertools import chain, islice
from operator import lt

import numpy as np
import numpy.typing as npt

from millrace.planning.split_table import Files, stamp_of
from millrace.sources.storage import FileInfo

_RUN = b"\0"
"""Mark before files of a folder that were found one right after the other. No name has this byte, nor a slash."""
_AT_ONCE = 1 << 16
"""Files of a folder that are given at a time."""


class FileList:
    """List of millions of files: names by folder, each folder's in one piece of memory; sizes and versions as found.

    Paths are compared as they are written, so that ``a-b`` comes before ``a/b``, as with :func:`sorted`. A file that is
    added twice is given once.
    """

    def __init__(self) -> None:
        self._names: dict[str, bytearray] = {}
        self._below: dict[str, set[bytes]] = {}
        self._sizes, self._stamps = array("q"), array("Q")
        self._latest: tuple[str, bytearray] | None = None

    def add(self, file: FileInfo) -> None:
        """Add a file."""
        cut = file.location.rfind("/") + 1
        folder = file.location[:cut]
        if self._latest is None or self._latest[0] != folder:
            self._latest = folder, self._enter(folder)
        names = self._latest[1]
        names += file.location[cut:].encode("utf-8", "surrogateescape")
        names += b"/"
        self._sizes.append(file.size)
        self._stamps.append(stamp_of(file.version))

    def _enter(self, folder: str) -> bytearray:
        """Return the names in a folder, to be appended to."""
        names = self._names.get(folder)
        if names is None:
            names = self._names[folder] = bytearray()
            while folder:
                cut = folder.rfind("/", 0, -1) + 1
                self._below.setdefault(folder[:cut], set()).add(folder[cut:].encode("utf-8", "surrogateescape"))
                folder = folder[:cut]
        names += b"%b%d/" % (_RUN, len(self._sizes))
        return names

    def take(self) -> Iterator[Files]:
        """Take all files, in order; each folder is forgotten as it comes."""
        self._latest = None
        walks = [(b"", self._entries(b""))]
        while walks:
            folder, entries = walks[-1]
            for entry in entries:
                if isinstance(entry, bytes):
                    walks.append((folder + entry, self._entries(folder + entry)))
                    break
                yield entry
            else:
                walks.pop()

    def _entries(self, folder: bytes) -> Iterator[Files | bytes]:
        """Files, and names of folders with their slash, in order."""
        path = folder.decode("utf-8", "surrogateescape")
        names, found = _sorted(bytes(self._names.pop(path, b"")))
        sizes, stamps = (np.frombuffer(column, column.typecode) for column in (self._sizes, self._stamps))
        start = 0
        for below in chain(sorted(self._below.pop(path, ())), [b""]):
            stop = bisect_left(names, below, start) if below else len(names)
            for first in range(start, stop, _AT_ONCE):
                last = min(first + _AT_ONCE, stop)
                where = found[first:last]
                yield Files(folder, names[first:last], sizes[where].tolist(), stamps[where].tolist())
            if below:
                yield below
            start = stop


def _sorted(text: bytes) -> tuple[list[bytes], npt.NDArray[np.int64]]:
    """Sort names, each once; return them with the order in which each was found."""
    names: list[bytes] = []
    runs = [np.zeros(0, np.int64)]
    for run in text.split(_RUN)[1:]:
        first, *more = run.split(b"/")[:-1]
        names += more
        runs.append(np.arange(int(first), int(first) + len(more)))
    found = np.concatenate(runs)
    if all(map(lt, names, islice(names, 1, None))):  # as stores list them
        return names, found
    order = sorted(range(len(names)), key=names.__getitem__)
    once = [at for before, at in zip([-1, *order], order, strict=False) if before < 0 or names[before] != names[at]]
    return [names[at] for at in once], found[once]
