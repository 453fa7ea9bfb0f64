"""Split tables with what a digest knows of their items."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Literal

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError, SourceChangedError
from millrace.planning.columns import integers
from millrace.planning.item_hashes import HASH_BYTES, ItemHashes
from millrace.planning.split_table import SplitTable, stamp_of
from millrace.sources import storage
from millrace.sources.digests.digest_file import DigestAbout, DigestRows, ItemKind, joined_rows
from millrace.sources.digests.item_check import AGAIN
from millrace.sources.digests.known_files import KnownFiles, keys_of, listed_keys
from millrace.sources.digests.stored_digest import open_digest
from millrace.sources.reads import Reads

_KINDS = {
    ItemKind.FILE: "files as a whole",
    ItemKind.MEMBER: "members of tar archives",
    ItemKind.RECORD: "TFRecords",
    ItemKind.CHUNK: "column chunks of Parquet files",
}
_logger = logging.getLogger(__name__)


def with_hashes(
    table: SplitTable,
    digest: str,
    reads: Reads,
    kind: ItemKind | Callable[[str], ItemKind],
    columns: tuple[str, ...] | None = None,
) -> SplitTable:
    """Add to a table the hashes of its items, as a digest has them.

    Files that the digest does not have are warned of, and have no hashes: data sets grow, and nothing wrong is read of
    them.

    Args:
        table: as listed.
        digest: path or URL of the digest; empty: there is none, and the table stays as it is.
        reads: what the digest is read with.
        kind: of the items of all files, or of the file at a location.
        columns: of Parquet files, those that are read; None: all.

    Raises:
        SourceNotFoundError: there is no digest.
        SourceCorruptError: it can't be read as one.
        SourceChangedError: a file is not what it was when the digest was made; names it.
        PipelineError: the digest is of other files, items or columns.
    """
    if not digest or not table.names:
        return table
    files = _Files(table, digest, kind)
    with open_digest(digest, reads) as reader:
        files.check_columns(reader.about, columns)
        for rows in reader:
            files.enter(rows)
    files.check_missing()
    return msgspec.structs.replace(table, items=files.items())


class _Files:
    """Files of a table, and what is found of their items.

    Attributes:
        found: whether each file is in the digest; bool [files].
    """

    def __init__(self, table: SplitTable, digest: str, kind: ItemKind | Callable[[str], ItemKind]) -> None:
        self._table, self._digest = table, digest
        keys = listed_keys(table.names)
        self._known = KnownFiles(keys)
        self._file_of = self._known.find(keys)
        entries = self._known.entries.tolist()
        self.found = np.zeros(len(entries), bool)
        whole = table.pieces is None
        kinds = [kind(table.names[entry]) for entry in entries] if callable(kind) else kind
        self._kinds = np.full(len(entries), kinds, np.uint8)
        # What is read of others (compressed as a whole, or columns that don't fit into memory) is not always compared.
        self._compared = {ItemKind.FILE: whole, ItemKind.MEMBER: True, ItemKind.RECORD: True, ItemKind.CHUNK: False}
        self._hashes = np.zeros((len(entries) if whole else 0, HASH_BYTES), np.uint8)
        self._parts: list[DigestRows] = []
        self._places: list[npt.NDArray[np.int64]] = []
        self._sizes, self._stamps = self._versions()

    def _versions(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.uint64]]:
        """Size in bytes (-1 if the table does not say it) and stamp of each file."""
        table, entries = self._table, self._known.entries
        if table.pieces is None:
            stamps = np.fromiter(table.stamps, np.uint64, len(table.stamps)) if len(table.stamps) else None
            return table.sizes.array()[entries], np.zeros(len(entries), np.uint64) if stamps is None else stamps[
                entries
            ]
        versions = [table.pieces.versions[entry] if len(table.pieces.versions) else "" for entry in entries.tolist()]
        sizes = [
            -1 if storage.is_remote(table.names[entry]) else int(version.rpartition("-")[2] or -1)
            for entry, version in zip(entries.tolist(), versions, strict=True)
        ]
        return np.array(sizes, np.int64), np.array([stamp_of(version) for version in versions], np.uint64)

    def check_columns(self, about: DigestAbout, columns: tuple[str, ...] | None) -> None:
        """Refuse a digest that leaves out columns that are read."""
        if about.columns is None or ItemKind.CHUNK not in self._kinds:
            return
        if columns is None or not set(columns) <= set(about.columns):
            read = "all columns are" if columns is None else f"{', '.join(columns)} are"
            raise PipelineError(
                f"{self._digest} is a digest of the columns {', '.join(about.columns)} alone, and {read} read: make it"
                " with the --columns that are read, or without"
            )

    def enter(self, rows: DigestRows) -> None:
        """Take what a part of the digest says of these files."""
        places = self._known.find(keys_of(rows.locations, len(rows.locations)))
        chosen = np.flatnonzero(places >= 0)
        if not len(chosen):
            return
        rows, places = rows.chosen(chosen), places[chosen]
        self._check(rows, places)
        self.found[places] = True
        if self._table.pieces is None:
            self._hashes[places] = rows.hashes
        else:
            self._parts.append(rows)
            self._places.append(places)

    def _check(self, rows: DigestRows, places: npt.NDArray[np.int64]) -> None:
        kinds, sizes, stamps = self._kinds[places], self._sizes[places], self._stamps[places]
        for row in np.flatnonzero(kinds != rows.kinds).tolist():
            raise PipelineError(
                f"{self._name(places[row])} is known to {self._digest} by {_KINDS[ItemKind(rows.kinds[row])]}, and read"
                f" by {_KINDS[ItemKind(kinds[row])]}: make the digest with --items {ItemKind(kinds[row]).name.lower()}"
            )
        other_size = (sizes >= 0) & (sizes != rows.sizes)
        other_version = (stamps != rows.stamps) & (stamps != 0) & (rows.stamps != 0)
        for row in np.flatnonzero(other_size | other_version).tolist():
            name = self._name(places[row])
            if not other_size[row] and self._compared[kinds[row]] and not storage.is_remote(name):
                continue  # a copy has a time of its own: what is read tells whether it is the same
            now = f"{sizes[row]} bytes" if other_size[row] else "another version"
            raise SourceChangedError(
                f"{name} has changed since {self._digest} was made: it had {rows.sizes[row]} bytes, and has {now}. Put"
                f" it back, or {AGAIN}"
            )

    def _name(self, place: np.int64) -> str:
        return self._table.names[int(self._known.entries[place])]

    def check_missing(self) -> None:
        """Refuse a digest that has none of the files; warn of those that it does not have."""
        missing = np.flatnonzero(~self.found)
        if not len(missing):
            return
        first = self._table.names[int(self._known.entries[missing].min())]
        if len(missing) == len(self.found):
            raise PipelineError(
                f"{self._digest} is the digest of another data set: it has none of the {len(missing)} files that were"
                f" listed, such as {first}. Make one of these with `millrace digest`"
            )
        _logger.warning(
            "%s does not have %d of the %d files that were listed, such as %s: they are read without being compared. "
            "Run `millrace digest` again, which reads no more than these",
            *(self._digest, len(missing), len(self.found), first),
        )

    def items(self) -> ItemHashes:
        """Make the columns of the items."""
        file_of = self._file_of
        if self._table.pieces is None:
            return ItemHashes(self._hashes[file_of].tobytes())
        count = len(self._known)
        first, items = np.zeros(count, np.int64), np.zeros(count, np.int64)
        if not self._parts:
            return ItemHashes(b"", integers(first[file_of].tolist()), integers(items[file_of].tolist()))
        rows, places = joined_rows(self._parts), np.concatenate(self._places)
        first[places], items[places] = rows.firsts[:-1], np.diff(rows.firsts)
        firsts, counts = first[file_of], items[file_of]
        starts, stops = self._table.pieces.starts.array(), self._table.pieces.stops.array()
        for entry in np.flatnonzero((counts > 0) & np.isin(self._kinds[file_of], (ItemKind.MEMBER, ItemKind.RECORD))):
            within = rows.offsets[firsts[entry] : firsts[entry] + counts[entry]]
            # A member is named by where its data begin, behind its header: those of an empty one begin where it ends.
            side: Literal["left", "right"] = "right" if self._kinds[file_of[entry]] == ItemKind.MEMBER else "left"
            low = int(np.searchsorted(within, starts[entry], side))
            high = len(within) if stops[entry] < 0 else int(np.searchsorted(within, stops[entry], side))
            firsts[entry], counts[entry] = firsts[entry] + low, high - low
        return ItemHashes(
            rows.hashes.tobytes(),
            integers(firsts.tolist()),
            integers(counts.tolist()),
            integers(rows.offsets.tolist()),
            integers(rows.lengths.tolist()),
        )
