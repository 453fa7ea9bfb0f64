"""Stored files: data sets of a simulated bucket, of which it is known what each file holds."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cached_property

from millrace.planning.split_table import SplitTable, files_table, stamp_of
from millrace.sources.store_requests import Entry

FILES = 48
"""Files of each data set."""
_VERSION = "v1"


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
        hashes = [hashlib.sha256(self.data(number)).digest() if self.digest else b"" for number in range(FILES)]
        stamp = stamp_of(_VERSION)
        sizes = [self._size(number) for number in range(FILES)]
        return [
            Entry(self._location(number), 0, size, stamp, size, content, number)
            for number, (size, content) in enumerate(zip(sizes, hashes, strict=True))
        ]

    def data(self, number: int) -> bytes:
        """Return the bytes of a file."""
        made = hashlib.sha256(f"{self.made_of} {number}".encode()).digest()
        return (made * 8)[: self._size(number)]

    @staticmethod
    def _size(number: int) -> int:
        return 90 + number * 37 % 121

    def _location(self, number: int) -> str:
        return f"s3://{self.name}/{number:02}.jpg"


NAMED = StoredFiles("photos", "photos")
HASHED, COPIED = StoredFiles("hashed", "others", digest=True), StoredFiles("copied", "others", digest=True)
DATA_SETS = (NAMED, HASHED, COPIED)
DATA_BYTES = NAMED.table.bytes
"""Bytes of each data set."""
