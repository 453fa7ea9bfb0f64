"""Check of what is read against the hashes that a digest has of it."""

from __future__ import annotations

import hashlib
from itertools import groupby

import numpy as np
import numpy.typing as npt

from millrace.errors import SourceChangedError
from millrace.planning.item_hashes import UNKNOWN, ItemHashes
from millrace.planning.split_table import Split, SplitTable

_Buffer = bytes | memoryview


class FileCheck:
    """Check of files that are items as a whole.

    Args:
        items: of the table that names the files.
        digest: where they are from, for messages.
    """

    def __init__(self, items: ItemHashes, digest: str) -> None:
        self._hashes, self._digest = items.array, digest

    def content(self, entry: int) -> bytes:
        """Return the hash of a file's content; empty if nobody knows it."""
        found = self._hashes[entry].tobytes()
        return b"" if found == UNKNOWN else found

    def check(self, entry: int, location: str, data: _Buffer) -> None:
        """Compare the content of a file.

        Raises:
            SourceChangedError: it is another one.
        """
        expected = self.content(entry)
        if expected and hashlib.sha256(data).digest() != expected:
            raise _changed(location, self._digest)


class PieceChecks:
    """Checks of the items of splits, by file.

    Args:
        table: of the splits.
        items: of the table.
        digest: where they are from, for messages.
    """

    def __init__(self, table: SplitTable, items: ItemHashes, digest: str) -> None:
        self._items, self._digest = items, digest
        self._rows: dict[str, slice] = {}
        firsts, ends = items.firsts.array(), items.firsts.array() + items.counts.array()
        entry = 0
        for name, several in groupby(table.names):
            stop = entry + sum(1 for _ in several)
            first, end = int(firsts[entry:stop].min()), int(ends[entry:stop].max())
            if end > first:
                self._rows[name] = slice(first, end)
            entry = stop

    def of(self, split: Split) -> PieceCheck | None:
        """Check of the items of a split's file; None if nothing is known of them."""
        rows = self._rows.get(split.location)
        if rows is None:
            return None
        return PieceCheck(split.location, self._items.starts[rows], self._items.array[rows], self._digest)


class PieceCheck:
    """Check of the items of one file, which come in about the order of their offsets; for one thread."""

    def __init__(
        self, location: str, starts: npt.NDArray[np.int64], hashes: npt.NDArray[np.uint8], digest: str
    ) -> None:
        self._location, self._starts, self._hashes, self._digest = location, starts, hashes, digest
        self._next = 0

    def check(self, start: int, data: _Buffer, where: str = "") -> None:
        """Compare an item that begins at byte ``start`` of the file.

        Args:
            start: of the item.
            data: of the item.
            where: it is, beside the file, for messages.

        Raises:
            SourceChangedError: it is another one, or there was none.
        """
        at = self._next
        if at >= len(self._starts) or self._starts[at] != start:
            at = int(np.searchsorted(self._starts, start))
        self._next = at + 1
        known = at < len(self._starts) and self._starts[at] == start
        if not known or hashlib.sha256(data).digest() != self._hashes[at].tobytes():
            raise _changed(f"{self._location}{where}", self._digest)


def _changed(where: str, digest: str) -> SourceChangedError:
    return SourceChangedError(
        f"{where} is not what {digest} says: it has changed since the digest was made, or was damaged on its way. Put"
        f" it back, or {AGAIN}"
    )


AGAIN = (
    "run `millrace digest` again, which reads no more than what has changed, and make the dataset again (on a service,"
    " as a job of another name)"
)
