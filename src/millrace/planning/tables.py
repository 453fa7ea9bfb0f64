"""Split tables: what listing a source found out. Data only; they travel from the listing worker to the dispatcher."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec


class Split(msgspec.Struct, frozen=True, array_like=True):
    """A piece of a sequential source that is read on its own.

    Attributes:
        location: path or URL of the file.
        start: first byte (TFRecord, tar) or row group (Parquet) of the piece.
        stop: one past the last; -1 is the end of the file.
        first_record: number of the file's records before the piece, for messages; -1 if unknown.
        count: elements in it; -1 if only reading can tell.
        bytes: stored size, for cutting tasks.
        version: etag, or mtime and size, of the file when it was listed; empty if the store gives none.
    """

    location: str
    start: int = 0
    stop: int = -1
    first_record: int = -1
    count: int = -1
    bytes: int = 0
    version: str = ""


class SplitTable(msgspec.Struct, frozen=True):
    """Everything known about one source before it is read.

    Either the source has *positions*, each as cheap to read as the next (``range``, lists, map-style datasets, files
    as elements): then ``count`` says how many, and ``splits`` is empty; if the elements are files, ``locations`` and
    ``sizes`` name them, and ``stamps`` their versions (see :func:`stamp_of`). Or it is *sequential*: ``splits`` lists
    its pieces; ``count`` is their sum, or -1 as soon as one of them has no known count.
    """

    cheap: bool
    count: int
    locations: list[str] = []
    sizes: list[int] = []
    splits: list[Split] = []
    stamps: list[int] = []

    @property
    def bytes(self) -> int:
        """Stored size in bytes, 0 if unknown."""
        return sum(self.sizes) + sum(split.bytes for split in self.splits)


def positions_table(count: int) -> SplitTable:
    """Table of a source whose elements are ``count`` positions."""
    return SplitTable(cheap=True, count=count)


def files_table(locations: list[str], sizes: list[int], versions: Sequence[str] = ()) -> SplitTable:
    """Table of a source whose elements are files; ``sizes`` in bytes, ``versions`` as those of splits."""
    stamps = [stamp_of(version) for version in versions]
    return SplitTable(cheap=True, count=len(locations), locations=locations, sizes=sizes, stamps=stamps)


def stamp_of(version: str) -> int:
    """A version of a file in 64 bits, as a data set may have millions of files; 0 of none."""
    return int.from_bytes(hashlib.blake2b(version.encode(), digest_size=8).digest()) if version else 0


def splits_table(splits: list[Split]) -> SplitTable:
    """Table of a sequential source."""
    known = all(split.count >= 0 for split in splits)
    return SplitTable(cheap=False, count=sum(split.count for split in splits) if known else -1, splits=splits)
