"""Split tables: the results of listing a source. Data only; workers hand them on, the dispatcher needs a summary."""

from __future__ import annotations

import functools
import hashlib
import itertools
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, overload

import msgspec
import numpy as np

from millrace.errors import ProtocolError
from millrace.message_budget import MALFORMED, check_containers
from millrace.planning.columns import Integers, Strings, StringsWriter, integers
from millrace.planning.item_hashes import ItemHashes
from millrace.planning.split_groups import SplitGroups, can_be_groups, groups_of

_AT_ONCE = 4096
"""Locations that are put together at a time."""
_FORMAT = 2
_MOST_BYTES = 1 << 62
_NOTHING = Integers()


class Split(msgspec.Struct, frozen=True, array_like=True):
    """Part of a sequential source that is read on its own.

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


class TableSummary(msgspec.Struct, frozen=True, omit_defaults=True):
    """Summary of a split table, as much as cutting an epoch into tasks needs, whatever the table's length.

    Attributes:
        cheap: see :class:`SplitTable`; ``count`` likewise.
        pieces: number of splits of a sequential source.
        bytes: stored size, 0 if unknown.
        group_units: units of each group of a sequential source's splits (:class:`SplitGroups`), of which data chunks
            are made; empty: nobody has counted them.
        group_bytes: stored bytes of each.
        sizes: in older journals the whole table's sizes; summed up into ``bytes``, and dropped.
        splits: in older journals the whole table's splits; counted in ``pieces`` and ``bytes``, and dropped.
    """

    cheap: bool
    count: int
    pieces: int = 0
    bytes: int = 0
    sizes: list[int] = []
    splits: list[Split] = []
    group_units: list[int] = []
    group_bytes: list[int] = []

    def __post_init__(self) -> None:
        if self.sizes or self.splits:
            total = min(sum(self.sizes) + sum(split.bytes for split in self.splits), _MOST_BYTES)
            for name, value in (("bytes", total), ("pieces", len(self.splits)), ("sizes", []), ("splits", [])):
                msgspec.structs.force_setattr(self, name, value)

    @property
    def groups(self) -> SplitGroups | None:
        """Groups of a sequential source's splits; None: nobody has counted them, or not rightly."""
        found = SplitGroups(tuple(self.group_units), tuple(self.group_bytes))
        units = self.pieces if self.count < 0 else self.count
        return found if can_be_groups(found, self.pieces, units, _MOST_BYTES) else None


class Pieces(msgspec.Struct, frozen=True, array_like=True):
    """Columns that only splits of sequential sources have; see :class:`Split`. Without ``versions`` none is known."""

    starts: Integers = _NOTHING
    stops: Integers = _NOTHING
    first_records: Integers = _NOTHING
    counts: Integers = _NOTHING
    versions: Strings = Strings()


class SplitTable(msgspec.Struct, frozen=True, dict=True, omit_defaults=True):
    """Everything known about one source before it is read, in columns.

    Either the source has *positions*, each as cheap to read as the next (``range``, lists, map-style datasets, files
    as elements): then ``count`` says how many, and there are no ``splits``; if the elements are files, ``locations``
    and ``sizes`` name them, and ``stamps`` their versions (see :func:`stamp_of`). Or it is *sequential*: ``splits`` are
    its pieces; ``count`` is their sum, or -1 as soon as one of them has no known count.

    Attributes:
        cheap: any order of elements costs the same.
        count: of elements.
        names: the locations of files, or of the splits' files.
        sizes: stored bytes of each.
        stamps: versions of files.
        pieces: the other columns of splits.
        items: content hashes of the items; None where nobody knows any. No plan depends on them.
    """

    cheap: bool
    count: int
    names: Strings = Strings()
    sizes: Integers = _NOTHING
    stamps: Integers = _NOTHING
    pieces: Pieces | None = None
    items: ItemHashes | None = None

    def __post_init__(self) -> None:
        entries, columns = len(self.names), [self.sizes]
        if self.pieces is None:
            columns.append(self.stamps)
            right = self.count >= 0 and (not entries or entries == self.count)
        else:
            columns += [self.pieces.starts, self.pieces.stops, self.pieces.first_records, self.pieces.counts]
            right = len(self.pieces.versions) in (0, entries) and self.count == _total(self.pieces.counts)
        if not right or any(len(column) != entries for column in columns):
            raise ValueError(f"the split table is damaged: its columns are not those of {entries} entries")
        hashed = entries if self.items is None else self.items.entries
        if not self.sizes.within(0, _MOST_BYTES) or hashed != entries:
            raise ValueError("the split table is damaged: sizes or hashes are not those of its entries")

    @property
    def locations(self) -> Strings:
        """Locations of the files that are the elements; empty if elements are no files."""
        return self.names if self.pieces is None else Strings()

    @functools.cached_property
    def splits(self) -> Sequence[Split]:
        """Splits of a sequential source; empty for others."""
        return () if self.pieces is None else _Splits(self, self.pieces)

    @property
    def bytes(self) -> int:
        """Stored size in bytes, 0 if unknown."""
        return self.sizes.total

    def summary(self) -> TableSummary:
        """Summarize as much of it as plans are made of."""
        units, sizes = map(list, self._groups)
        size = min(self.bytes, _MOST_BYTES)
        return TableSummary(self.cheap, self.count, len(self.splits), size, group_units=units, group_bytes=sizes)

    @functools.cached_property
    def _groups(self) -> SplitGroups:
        entries = len(self.names)
        if self.cheap or self.pieces is None or not entries:
            return SplitGroups((), ())
        units = self.pieces.counts.array() if self.count >= 0 else np.ones(entries, np.int64)
        return groups_of(units, np.minimum(self.sizes.array(), _MOST_BYTES // entries))


class _Splits(Sequence[Split]):
    """Rows of a table of splits."""

    def __init__(self, table: SplitTable, pieces: Pieces) -> None:
        self._names, self._versions = table.names, pieces.versions
        self._numbers = (pieces.starts, pieces.stops, pieces.first_records, pieces.counts, table.sizes)

    def __len__(self) -> int:
        return len(self._names)

    @overload
    def __getitem__(self, index: int) -> Split: ...
    @overload
    def __getitem__(self, index: slice) -> list[Split]: ...
    def __getitem__(self, index: int | slice) -> Split | list[Split]:
        if isinstance(index, slice):
            return [self[each] for each in range(*index.indices(len(self)))]
        name, version = self._names[index], self._versions[index] if len(self._versions) else ""
        start, stop, first, count, size = (column[index] for column in self._numbers)
        return Split(name, start, stop, first, count, size, version)

    def __iter__(self) -> Iterator[Split]:
        versions = self._versions if len(self._versions) else itertools.repeat("")
        starts, stops, firsts, counts, sizes = self._numbers
        rows = zip(self._names, starts, stops, firsts, counts, sizes, versions, strict=False)
        yield from itertools.starmap(Split, rows)


def _total(counts: Integers) -> int:
    return counts.total if counts.within(0, _MOST_BYTES) else -1


def positions_table(count: int) -> SplitTable:
    """Make the table of a source whose elements are ``count`` positions."""
    return SplitTable(cheap=True, count=count)


class Files(NamedTuple):
    """Files of one folder.

    Attributes:
        folder: what their locations begin with, as ``os.fsencode`` has it.
        names: what follows, of each.
        sizes: in bytes.
        stamps: their versions, see :func:`stamp_of`.
    """

    folder: bytes
    names: list[bytes]
    sizes: list[int]
    stamps: list[int]


def table_of(found: Iterable[Files]) -> SplitTable:
    """Make the table of a source whose elements are files, which are asked for a folder at a time."""
    names, sizes, stamps = StringsWriter(), array("q"), array("Q")
    for files in found:
        for start in range(0, len(files.names), _AT_ONCE):
            names.extend([files.folder + name for name in files.names[start : start + _AT_ONCE]])
        sizes.extend(files.sizes)
        stamps.extend(files.stamps)
    return SplitTable(True, len(names), names.column(), integers(sizes), integers(stamps))


def files_table(files: Iterable[tuple[str, int, str]]) -> SplitTable:
    """Make the table of a source whose elements are files: (location, size in bytes, version) of each."""
    return table_of(
        Files(b"", [location.encode("utf-8", "surrogateescape")], [size], [stamp_of(version)])
        for location, size, version in files
    )


def stamp_of(version: str) -> int:
    """Hash the version of a file to 64 bits, as a data set may have millions of files; 0 of none."""
    data = version.encode("utf-8", "surrogateescape")
    return int.from_bytes(hashlib.blake2b(data, digest_size=8).digest()) if data else 0


def splits_table(splits: Iterable[Split]) -> SplitTable:
    """Make the table of a sequential source, whose splits are asked for one by one."""
    names, versions = StringsWriter(), StringsWriter()
    starts, stops, firsts, counts, sizes = (array("q") for _ in range(5))
    versioned = False
    for split in splits:
        names.add(split.location)
        versions.add(split.version)
        versioned = versioned or bool(split.version)
        numbers = split.start, split.stop, split.first_record, split.count, split.bytes
        for column, number in zip((starts, stops, firsts, counts, sizes), numbers, strict=True):
            column.append(number)
    known = versions.column() if versioned else Strings()
    pieces = Pieces(integers(starts), integers(stops), integers(firsts), integers(counts), known)
    return SplitTable(False, _total(pieces.counts), names.column(), integers(sizes), pieces=pieces)


# -- on the way --------------------------------------------------------------------------------------------------------


class _Inline(msgspec.Struct, frozen=True):
    """Table as it was written before there were columns."""

    cheap: bool
    count: int
    locations: list[str] = []
    sizes: list[int] = []
    splits: list[Split] = []
    stamps: list[int] = []

    def table(self) -> SplitTable:
        if self.splits or not self.cheap:
            return splits_table(self.splits)
        if not self.locations:
            return positions_table(self.count)
        files = files_table(zip(self.locations, self.sizes, itertools.repeat(""), strict=False))
        return msgspec.structs.replace(files, stamps=integers(self.stamps)) if self.stamps else files


_decoder = msgspec.msgpack.Decoder(tuple[int, dict[int, SplitTable]])
_before = msgspec.msgpack.Decoder(dict[int, _Inline])


def pack_tables(tables: Mapping[int, SplitTable]) -> bytes:
    """Serialize the split tables of a graph's sources, by node id; equal tables give equal bytes."""
    return msgspec.msgpack.encode((_FORMAT, dict(sorted(tables.items()))))


def unpack_tables(data: bytes) -> dict[int, SplitTable]:
    """Restore the tables of :func:`pack_tables`, of this version or before.

    Raises:
        ProtocolError: these are not the bytes of split tables.
    """
    check_containers(data, "a message of split tables")
    try:
        if data[:1] and (data[0] & 0xF0 == 0x80 or data[0] in (0xDE, 0xDF)):  # a map
            return {node: inline.table() for node, inline in _before.decode(data).items()}
        version, tables = _decoder.decode(data)
    except (*MALFORMED, ValueError, OverflowError) as error:
        raise ProtocolError(f"these bytes are not split tables: {error}") from error
    if version != _FORMAT:
        raise ProtocolError(f"these split tables have format {version}, this millrace reads {_FORMAT}")
    return tables


def without_hashes(tables: Mapping[int, SplitTable]) -> dict[int, SplitTable]:
    """Leave out of tables what no element depends on: the content hashes of their items."""
    return {
        node: table if table.items is None else msgspec.structs.replace(table, items=None)
        for node, table in tables.items()
    }


def summaries(tables: Mapping[int, SplitTable]) -> dict[int, TableSummary]:
    """Summarize each table as far as plans need it."""
    return {node: table.summary() for node, table in tables.items()}
