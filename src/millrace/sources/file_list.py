"""Files that are found in any order and given in the order of their paths, in the meantime in few bytes each."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from millrace.sources.storage import Found

_END = b"\0/"
"""Of a file's record. No name has these bytes, and nothing else in a record can."""


class FileList:
    """Millions of files: by folder, the names, sizes and versions of the files in it in one piece of memory.

    Paths are compared as they are written, so that ``a-b`` comes before ``a/b``, as with :func:`sorted`. A file that is
    added twice is given once.
    """

    def __init__(self) -> None:
        self._records: dict[str, bytearray] = {}
        self._below: dict[str, set[bytes]] = {}

    def add(self, file: Found) -> None:
        """Takes note of a file."""
        cut = file.location.rfind("/") + 1
        folder = file.location[:cut]
        records = self._records.get(folder)
        if records is None:
            records = self._enter(folder)
        records += b"%b\0%d\0=%b%b" % (_bytes(file.location[cut:]), file.size, _bytes(file.version), _END)

    def _enter(self, folder: str) -> bytearray:
        records = self._records[folder] = bytearray()
        while folder:
            cut = folder.rfind("/", 0, -1) + 1
            self._below.setdefault(folder[:cut], set()).add(_bytes(folder[cut:]))
            folder = folder[:cut]
        return records

    def take(self) -> Iterator[Found]:
        """All files, in order; each folder is forgotten as it comes."""
        walks = [("", self._entries(""))]
        while walks:
            folder, entries = walks[-1]
            for entry in entries:
                name, mark, rest = entry.partition(b"\0")
                if not mark:
                    walks.append((folder + _text(name), self._entries(folder + _text(name))))
                    break
                size, _, version = rest.partition(b"\0=")
                yield Found(folder + _text(name), int(size), _text(version))
            else:
                walks.pop()

    def _entries(self, folder: str) -> Iterator[bytes]:
        """Records of files, and names of folders with their slash, in order."""
        files = bytes(self._records.pop(folder, b"")).split(_END)[:-1]
        files.sort()
        last = b""
        for entry in heapq.merge(files, sorted(self._below.pop(folder, ()))):
            if entry != last:
                yield entry
            last = entry


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")
