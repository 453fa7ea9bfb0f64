"""WebDataset source: tar archives in which consecutive files of one name, up to the first dot, are one sample.

Local ``.tar`` files are cut into pieces by hopping from header to header. Remote and compressed (``.tar.gz``, ``.tgz``)
ones are one split each, whose number of samples only reading can tell.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Generator, Iterator
from itertools import islice
from typing import Any

from millrace.errors import SourceCorruptError
from millrace.graph.nodes import FromWebDataset
from millrace.planning.split_table import Split, SplitTable
from millrace.sources import storage
from millrace.sources.gzip_stream import GZIP, inflate
from millrace.sources.listing import expand
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.splitting import split_records
from millrace.sources.storage import FileInfo
from millrace.sources.tarfiles import members

_INDEX_BUFFER_BYTES = 8 << 10
_META = re.compile(r"__[^/]*__($|/)")
"""Paths that WebDataset keeps for itself."""


def list_source(node: FromWebDataset, seen: ListingProgress = ignore_progress, size: int | None = None) -> SplitTable:
    """List pieces of about ``size`` bytes (None: by the amount of data), or whole files."""

    def record_ends(file: FileInfo) -> Iterator[int] | None:
        return None if storage.is_remote(file.location) or _compressed(file.location) else _hop(file)

    return split_records(expand(node.patterns), record_ends, seen, size)


def open_source(node: FromWebDataset, table: SplitTable) -> _WebDataset:
    """Make the reader of the samples."""
    return _WebDataset()


def _compressed(location: str) -> bool:
    return storage.bare(location).endswith((".gz", ".tgz"))


def _hop(file: FileInfo) -> Iterator[int]:
    """Find the end of each sample of a local archive."""
    key = None
    end = 0
    with storage.open_range(file.location, buffer_bytes=_INDEX_BUFFER_BYTES) as stream:
        for member in members(stream, file.location):
            name = split_name(member.name)
            if name is not None:
                if key is not None and name[0] != key:
                    yield member.offset
                key = name[0]
            end = stream.tell() + -(-member.size // 512) * 512
    if key is not None:
        yield end


def split_name(path: str) -> tuple[str, str] | None:
    """Split a member's path into (key, field): up to the first dot of its last part, and the rest in lower case.

    The result is None if the member belongs to no sample: it has no dot, begins with one, or is WebDataset's own.
    """
    dot = path.find(".", path.rfind("/") + 1)
    if dot <= 0 or path[dot - 1] == "/" or (path.startswith("__") and _META.match(path)):
        return None
    return path[:dot], path[dot + 1 :].lower()


class _WebDataset:
    def read(
        self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]
    ) -> Iterator[list[dict[str, Any]]]:
        if 0 <= stop <= start:
            return
        done = start
        with contextlib.closing(_samples(split, start)) as samples:
            while done != stop:
                wanted = max(1, chunk_size())
                chunk = list(islice(samples, wanted if stop < 0 else min(wanted, stop - done)))
                if not chunk:
                    break
                done += len(chunk)
                yield chunk
        if done < split.count and done != stop:
            raise SourceCorruptError(
                f"{split.location} is truncated: it ends before sample {max(0, split.first_record) + done}, which was "
                "there when it was listed"
            )


def _samples(split: Split, start: int) -> Generator[dict[str, Any], None, None]:
    """Read samples from number ``start`` of the split on; of those before it only headers are read."""
    stream = storage.open_range(split.location, split.start, split.stop)
    if _compressed(split.location):
        stream = inflate(stream, split.location, GZIP)
    first = max(0, split.first_record)
    with contextlib.closing(stream):
        sample: dict[str, Any] = {}
        key, number = None, -1
        for member in members(stream, split.location):
            name = split_name(member.name)
            if name is None:
                continue
            if name[0] != key:
                if sample:
                    yield sample
                key = name[0]
                number += 1
                sample = {"__key__": key} if number >= start else {}
            if number < start:
                continue
            if name[1] in sample:
                raise SourceCorruptError(f"{split.location}, record {first + number}: two files {member.name!r}")
            data = stream.read(member.size)
            if len(data) < member.size:
                raise SourceCorruptError(
                    f"{split.location} is truncated: it ends within record {first + number}, in "
                    f"{member.name!r}, whose header is at byte {member.offset}"
                )
            sample[name[1]] = data
        if sample:
            yield sample
