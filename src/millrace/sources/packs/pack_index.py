"""Index of a pack: where each sample lies in which shard, as a Parquet file beside the shards."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import SourceNotFoundError
from millrace.sources.reads import Reads
from millrace.sources.store_requests import Entry
from millrace.sources.stores import StoreAccessDeniedError

INDEX = "index.parquet"
MARK = "pack.json"
"""File beside shards that says which plan they follow, for as long as a pack is being made."""
_ABOUT = b"millrace.pack"
_VERSION = 1
_logger = logging.getLogger(__name__)


class PackMark(msgspec.Struct):
    """Mark of a pack that is being made: digest of its plan, and an identity of the run that makes it."""

    plan: str
    run: str


class PackedShard(NamedTuple):
    """Shard of a pack: its name in the folder, its size in bytes."""

    name: str
    bytes: int


class PackIndex(NamedTuple):
    """Index of a pack; its samples stand in the order of the shards, and in each from its start on.

    Attributes:
        plan: digest of the plan that the pack was made by, see :class:`millrace.sources.packs.pack_plan.PackPlan`.
        shards: in order.
        shard: number of each sample's shard; int32 [samples].
        offset: byte of the sample's first header; int64 [samples].
        bytes: from there to the next sample, or to the end of the last; int64 [samples].
        crc32: of these bytes; uint32 [samples].
        keys: of the samples.
    """

    plan: str
    shards: list[PackedShard]
    shard: npt.NDArray[np.int32]
    offset: npt.NDArray[np.int64]
    bytes: npt.NDArray[np.int64]
    crc32: npt.NDArray[np.uint32]
    keys: list[str]

    def rows(self, shard: int) -> slice:
        """Rows of a shard's samples."""
        first, last = np.searchsorted(self.shard, [shard, shard + 1]).tolist()
        return slice(first, last)

    def part(self, shard: int) -> PackIndex:
        """Index of one shard alone."""
        rows = self.rows(shard)
        numbers = self.offset[rows], self.bytes[rows], self.crc32[rows]
        return PackIndex(self.plan, [self.shards[shard]], np.zeros_like(self.shard[rows]), *numbers, self.keys[rows])


def encode_index(index: PackIndex) -> bytes:
    """Write an index as a Parquet file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    columns = {
        "shard": pa.array(index.shard, pa.int32()),
        "key": pa.array(index.keys, pa.string()),
        "offset": pa.array(index.offset, pa.int64()),
        "bytes": pa.array(index.bytes, pa.int64()),
        "crc32": pa.array(index.crc32, pa.uint32()),
    }
    about = {"version": _VERSION, "plan": index.plan, "shards": index.shards}
    table = pa.table(columns).replace_schema_metadata({_ABOUT: json.dumps(about)})
    file = io.BytesIO()
    pq.write_table(table, file, compression="zstd")
    return file.getvalue()


def decode_index(data: bytes) -> PackIndex | None:
    """Read what :func:`encode_index` wrote; None if it is something else.

    Raises:
        ValueError: it is an index that this version can't read, or a damaged one.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.ParquetFile(pa.BufferReader(data)).read()  # read_table() imports pandas: half a second
    except (pa.ArrowException, OSError) as error:
        raise ValueError(f"it is no Parquet file ({error})") from error
    about = (table.schema.metadata or {}).get(_ABOUT)
    if about is None:
        return None
    return _checked(json.loads(about), table)


def _checked(about: Mapping[str, Any], table: Any) -> PackIndex:
    version = about.get("version") if isinstance(about, dict) else None
    if version != _VERSION:
        raise ValueError(f"it has version {version}, and this millrace reads {_VERSION}")
    shards = [PackedShard(str(name), int(size)) for name, size in about["shards"]]
    shard, offset, size, crc32 = (_numbers(table.column(name)) for name in ("shard", "offset", "bytes", "crc32"))
    sizes = np.array([each.bytes for each in shards], np.int64)
    follows = (np.diff(shard) > 0) | (offset[1:] >= (offset + size)[:-1])
    there = np.array_equal(np.unique(shard), np.arange(len(sizes)))  # each shard has samples, and no other has
    if not (
        there
        and np.all((offset >= 0) & (size > 0) & (offset + size <= sizes[shard]))
        and np.all(np.diff(shard) >= 0)
        and np.all(follows)
    ):
        raise ValueError("its samples overlap, or lie outside their shards")
    return PackIndex(str(about["plan"]), shards, shard, offset, size, crc32, table.column("key").to_pylist())


def _numbers(column: Any) -> npt.NDArray[Any]:
    """Numbers of a column. Arrow's own ``to_numpy()`` would import pandas."""
    return np.concatenate([np.empty(0, column.type.to_pandas_dtype()), *map(np.from_dlpack, column.chunks)])


def merged(parts: Iterable[PackIndex]) -> PackIndex:
    """Put the indexes of a pack's shards together, which come in the shards' order."""
    parts = list(parts)
    shards = [shard for part in parts for shard in part.shards]
    numbers = [np.full(len(part.keys), number, np.int32) for number, part in enumerate(parts)]
    return PackIndex(
        parts[0].plan,
        shards,
        np.concatenate(numbers),
        np.concatenate([part.offset for part in parts]),
        np.concatenate([part.bytes for part in parts]),
        np.concatenate([part.crc32 for part in parts]),
        [key for part in parts for key in part.keys],
    )


def read_index(location: str, reads: Reads) -> PackIndex | None:
    """Read an index; None if there is none, or something else is called so; what can't be read is warned of.

    Raises:
        SourceError: the store can't be reached.
    """
    try:
        return decode_index(*reads.fetch([Entry(location)]))
    except (SourceNotFoundError, StoreAccessDeniedError):  # a store may deny access to what isn't there
        return None
    except (ValueError, KeyError, TypeError) as error:
        _logger.warning("%s is not read as the index of the shards beside it: %s", location, error)
        return None


def read_mark(location: str, reads: Reads) -> PackMark | None:
    """Read a mark; None if there is none, or something else is called so.

    Raises:
        SourceError: the store can't be reached.
    """
    try:
        (data,) = reads.fetch([Entry(location)])
        return msgspec.json.decode(data, type=PackMark)
    except (SourceNotFoundError, StoreAccessDeniedError, msgspec.MsgspecError):
        return None
