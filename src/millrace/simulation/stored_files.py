"""Stored files: data sets of a simulated bucket, of which it is known what each file, or piece of a shard, holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from millrace.planning.split_table import Split, SplitTable, files_table, splits_table, stamp_of
from millrace.planning.units import Positions
from millrace.sources.splitting import entry_of
from millrace.sources.store_requests import Entry

FILES = 48
"""Files of each data set."""
_VERSION = "v1"
_PIECES = 4
"""Pieces of a shard."""


@dataclass(frozen=True)
class StoredFiles:
    """Data set of a bucket.

    Attributes:
        name: of the bucket.
        made_of: what its files' bytes are made of: data sets with the same have equal files.
        digest: whether its jobs know the files' content hashes, and ask cache servers by these.
    """

    name: str
    made_of: str
    digest: bool = False

    @cached_property
    def table(self) -> SplitTable:
        """Split table, as listing the bucket gives it."""
        return files_table((self._location(number), self._size(number), _VERSION) for number in range(FILES))

    @cached_property
    def entries(self) -> list[Entry]:
        """Files, as sources ask for them."""
        hashes = [hashlib.sha256(self._data(number)).digest() if self.digest else b"" for number in range(FILES)]
        stamp = stamp_of(_VERSION)
        sizes = [self._size(number) for number in range(FILES)]
        return [
            Entry(self._location(number), 0, size, stamp, size, content, number)
            for number, (size, content) in enumerate(zip(sizes, hashes, strict=True))
        ]

    def data(self, entry: Entry) -> bytes:
        """Return the bytes that a worker asks for."""
        return self._data(self.number_of(entry))

    def number_of(self, entry: Entry) -> int:
        """Find the number of the item that a worker asks for."""
        return entry.item

    def items(self, positions: Positions) -> list[int]:
        """List the items that hold the elements at these positions, each once."""
        found: list[int] = positions.tolist()
        return found

    def _data(self, number: int) -> bytes:
        made = hashlib.sha256(f"{self.made_of} {number}".encode()).digest()
        return (made * 8)[: self._size(number)]

    @staticmethod
    def _size(number: int) -> int:
        return 90 + number * 37 % 121

    def _location(self, number: int) -> str:
        return f"s3://{self.name}/{number:02}.jpg"


@dataclass(frozen=True)
class StoredShards(StoredFiles):
    """Data set of shards in a bucket, whose items are splits: pieces of shards, or shards as a whole.

    Attributes:
        counted: it is known where the records of a shard are, so that it is cut into pieces.
    """

    counted: bool = True

    @cached_property
    def table(self) -> SplitTable:
        """Split table, as listing the bucket gives it."""
        return splits_table(self._split(number) for number in range(FILES))

    @cached_property
    def entries(self) -> list[Entry]:
        """Splits, as streams of them ask for them."""
        found = map(entry_of, self.table.splits)
        return [entry if entry.stop >= 0 else entry._replace(stop=entry.size) for entry in found]

    def number_of(self, entry: Entry) -> int:
        """Find the number of the split that a worker asks for."""
        return self._numbers[entry]

    @cached_property
    def _numbers(self) -> dict[Entry, int]:
        return {entry: number for number, entry in enumerate(self.entries)}

    def items(self, positions: Positions) -> list[int]:
        """List the splits that hold the elements at these positions, each once."""
        splits = positions if not self.counted else np.searchsorted(self._ends, positions, side="right")
        found: list[int] = np.unique(splits).tolist()
        return found

    @cached_property
    def _ends(self) -> Positions:
        return np.cumsum([split.count for split in self.table.splits])

    def _split(self, number: int) -> Split:
        size = self._size(number)
        if not self.counted:
            return Split(f"s3://{self.name}/{number:02}.tar", first_record=0, bytes=size, version=_VERSION)
        shard, piece = divmod(number, _PIECES)
        start = sum(map(self._size, range(number - piece, number)))
        first, count = 2 * piece, 1 + number % 3
        return Split(f"s3://{self.name}/{shard:02}.tar", start, start + size, first, count, size, _VERSION)


NAMED = StoredFiles("photos", "photos")
HASHED, COPIED = StoredFiles("hashed", "others", digest=True), StoredFiles("copied", "others", digest=True)
DATA_SETS = (NAMED, HASHED, COPIED)
PIECES, SHARDS = StoredShards("pieces", "pieces"), StoredShards("shards", "shards", counted=False)
DATA_BYTES = NAMED.table.bytes
"""Bytes of each data set."""
