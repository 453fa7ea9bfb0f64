"""Digest file: an Arrow IPC stream with a row for each file of a data set, and in it the files' items.

``docs/digests.md`` describes the columns for who reads them with other programs.
"""

from __future__ import annotations

import enum
import functools
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import IO, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.message_budget import MALFORMED
from millrace.planning.item_hashes import HASH_BYTES
from millrace.sources.digests.arrow_messages import ByteStream, record_batches

VERSION = 1
ALGORITHM = "sha256"
_ABOUT = b"millrace.digest"


class ItemKind(enum.IntEnum):
    """Kind of a file's items: the file itself, members of a tar archive, TFRecords, column chunks of Parquet."""

    FILE = 0
    MEMBER = 1
    RECORD = 2
    CHUNK = 3


class DigestAbout(NamedTuple):
    """Description of a digest.

    Attributes:
        columns: of Parquet files, those whose chunks are items; None: all.
        files: number of files.
        items: number of items.
    """

    columns: tuple[str, ...] | None
    files: int
    items: int


class DigestRows(NamedTuple):
    """Some files of a digest, and their items.

    Attributes:
        locations: of the files, as bytes; local ones are absolute paths, as ``os.fsencode`` has them.
        kinds: of their items, see :class:`ItemKind`; uint8 [files].
        sizes: in bytes; int64 [files].
        stamps: versions (:func:`~millrace.planning.split_table.stamp_of`), 0 where it can't tell whether the file has
            changed; uint64 [files].
        firsts: number of each file's first item here, and behind the last the number of items; int64 [files + 1].
        offsets: first byte of each item in its file, ascending in a file; int64 [items].
        lengths: bytes of each item; int64 [items].
        hashes: SHA-256 of each item's bytes; uint8 [items, 32].
    """

    locations: list[bytes]
    kinds: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]
    firsts: npt.NDArray[np.int64]
    offsets: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint8]

    def chosen(self, rows: npt.NDArray[np.int64]) -> DigestRows:
        """Rows of these numbers, in their order."""
        starts, counts = self.firsts[rows], np.diff(self.firsts)[rows]
        firsts = np.concatenate([[0], np.cumsum(counts)])
        items = np.arange(firsts[-1]) + np.repeat(starts - firsts[:-1], counts)
        return DigestRows(
            [self.locations[row] for row in rows.tolist()],
            *(self.kinds[rows], self.sizes[rows], self.stamps[rows], firsts),
            *(self.offsets[items], self.lengths[items], self.hashes[items]),
        )


def joined_rows(parts: Iterable[DigestRows]) -> DigestRows:
    """Put the rows of several parts, of which there is one at least, one behind the other."""
    several = list(parts)
    counts = [np.diff(part.firsts) for part in several]
    columns = zip(*(part[1:] for part in several), strict=True)
    kinds, sizes, stamps, _, offsets, lengths, hashes = (np.concatenate(column) for column in columns)
    firsts = np.concatenate([[0], np.cumsum(np.concatenate(counts))])
    locations = list(itertools.chain.from_iterable(part.locations for part in several))
    return DigestRows(locations, kinds, sizes, stamps, firsts, offsets, lengths, hashes)


@functools.cache
def schema() -> Any:
    """Columns of a digest file, as pyarrow has them."""
    import pyarrow as pa

    item = pa.struct(
        [
            pa.field("offset", pa.int64(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("sha256", pa.binary(HASH_BYTES), nullable=False),
        ]
    )
    return pa.schema(
        [
            pa.field("location", pa.binary(), nullable=False),
            pa.field("kind", pa.uint8(), nullable=False),
            pa.field("bytes", pa.int64(), nullable=False),
            pa.field("stamp", pa.uint64(), nullable=False),
            pa.field("items", pa.list_(pa.field("item", item, nullable=False)), nullable=False),
        ]
    )


# -- writing -----------------------------------------------------------------------------------------------------------


def write_digest(file: IO[bytes], about: DigestAbout, parts: Iterable[DigestRows]) -> None:
    """Write a digest whose files come in parts; the same files and items give the same bytes for the same parts."""
    import pyarrow as pa

    described = schema().with_metadata({_ABOUT: msgspec.json.encode(_Said(VERSION, ALGORITHM, *about))})
    options = pa.ipc.IpcWriteOptions(metadata_version=pa.ipc.MetadataVersion.V5)
    with pa.ipc.new_stream(pa.PythonFile(file, "w"), described, options=options) as writer:
        for rows in parts:
            writer.write_batch(_batch(rows))


def _batch(rows: DigestRows) -> Any:
    import pyarrow as pa

    columns = schema()
    lists = columns.field("items").type
    struct = lists.value_type
    count, items = len(rows.locations), len(rows.offsets)
    hashes = pa.Array.from_buffers(struct.field("sha256").type, items, [None, pa.py_buffer(rows.hashes.tobytes())])
    parts = [_array(rows.offsets, pa.int64()), _array(rows.lengths, pa.int64()), hashes]
    held = pa.Array.from_buffers(struct, items, [None], children=parts)
    listed = pa.Array.from_buffers(lists, count, [None, _buffer(rows.firsts, np.int32)], children=[held])
    ends = np.cumsum([0, *map(len, rows.locations)])
    text = pa.py_buffer(b"".join(rows.locations))
    names = pa.Array.from_buffers(pa.binary(), count, [None, _buffer(ends, np.int32), text])
    numbers = [_array(rows.kinds, pa.uint8()), _array(rows.sizes, pa.int64()), _array(rows.stamps, pa.uint64())]
    return pa.RecordBatch.from_arrays([names, *numbers, listed], schema=columns)


def _array(numbers: npt.NDArray[Any], kind: Any) -> Any:
    """Make a column of numbers. ``pyarrow.array()`` would import pandas, where that is installed."""
    import pyarrow as pa

    return pa.Array.from_buffers(kind, len(numbers), [None, _buffer(numbers, numbers.dtype)])


def _buffer(numbers: npt.NDArray[Any], kind: npt.DTypeLike) -> Any:
    import pyarrow as pa

    return pa.py_buffer(np.ascontiguousarray(numbers, kind))


# -- reading -----------------------------------------------------------------------------------------------------------


class DigestReader:
    """Reader of a digest file, part by part.

    Attributes:
        about: what it says of itself.

    Args:
        stream: of the file, from its start on.
        size: of the file in bytes.

    Raises:
        ValueError: it is no digest, one of a version that is not known here, or a damaged one.
    """

    def __init__(self, stream: ByteStream, size: int) -> None:
        self._batches = record_batches(stream, size, schema())
        self.about = _about(next(self._batches).metadata or {})

    def __iter__(self) -> Iterator[DigestRows]:
        """Read the parts.

        Raises:
            ValueError: what comes is no part of a digest, or not all of it comes.
        """
        files = items = 0
        for batch in self._batches:
            rows = _rows(batch)
            files, items = files + len(rows.locations), items + len(rows.offsets)
            yield rows
        if (files, items) != (self.about.files, self.about.items):
            raise ValueError(f"it has {files} files and {items} items, and says that it has others")


class _Said(msgspec.Struct):
    """Description of a digest as it is written."""

    version: int
    algorithm: str
    columns: tuple[str, ...] | None = None
    files: int = -1
    items: int = -1


def _about(metadata: Mapping[bytes, bytes]) -> DigestAbout:
    try:
        said = msgspec.json.decode(metadata.get(_ABOUT, b""), type=_Said)
    except MALFORMED as error:
        raise ValueError("it is no digest, or its description is damaged") from error
    if said.version != VERSION or said.algorithm != ALGORITHM:
        raise ValueError(
            f"it has version {said.version} and hashes by {said.algorithm[:20]!r}, and this millrace reads version"
            f" {VERSION} and {ALGORITHM!r}"
        )
    return DigestAbout(said.columns, said.files, said.items)


def _rows(batch: Any) -> DigestRows:
    """Take a part out of Arrow's columns, and check it."""
    locations, *numbers, listed = batch.columns
    if any(column.null_count for column in (locations, *numbers, listed, listed.values)):
        raise ValueError("it has rows without a value")
    kinds, sizes, stamps = (_numbers(column) for column in numbers)
    bounds = _numbers(listed.offsets).astype(np.int64)
    firsts = bounds - bounds[0]
    items = listed.values.slice(int(bounds[0]), int(firsts[-1]))
    where, length, hashes = items.flatten()
    if any(column.null_count for column in (where, length, hashes)):
        raise ValueError("it has items without a value")
    offsets, lengths = _numbers(where), _numbers(length)
    data = np.frombuffer(hashes.buffers()[1] or b"", np.uint8)
    first = HASH_BYTES * hashes.offset
    found = data[first : first + HASH_BYTES * len(hashes)].reshape(-1, HASH_BYTES)
    rows = DigestRows(locations.to_pylist(), kinds, sizes, stamps, firsts, offsets, lengths, found)
    _check(rows)
    return rows


def _numbers(column: Any) -> Any:
    """Take the numbers of a column without a copy. Arrow's own ``to_numpy()`` may import pandas."""
    return np.from_dlpack(column)


def _check(rows: DigestRows) -> None:
    counts = np.diff(rows.firsts)
    if not (np.all(counts >= 0) and np.all(rows.sizes >= 0) and np.all(rows.kinds <= max(ItemKind))):
        raise ValueError("its files are damaged")
    ends, room = rows.offsets + rows.lengths, np.repeat(rows.sizes, counts)
    inside = (rows.offsets >= 0) & (rows.lengths >= 0) & (ends >= 0) & (ends <= room)
    owners = np.repeat(np.arange(len(counts)), counts)
    follows = (np.diff(rows.offsets) >= 0) | (np.diff(owners) > 0)
    files = rows.kinds == ItemKind.FILE
    whole = np.all(counts[files] == 1) and np.all((rows.lengths == room)[files[owners]])
    if not (np.all(inside) and np.all(follows) and whole):
        raise ValueError("its items lie outside their files, or in no order")
