"""WebDataset source: tar archives in which consecutive files of one name, up to the first dot, are one sample.

``.tar`` files are cut into pieces of whole samples where these are known: from the index of a pack beside them, or of
local ones by hopping from header to header. Other remote ones and compressed ones (``.tar.gz``, ``.tgz``) are one split
each, whose number of samples only reading can tell.
"""

from __future__ import annotations

import contextlib
import io
import logging
from array import array
from collections.abc import Callable, Generator, Iterator
from itertools import islice, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError, SourceCorruptError
from millrace.graph.nodes import FromWebDataset
from millrace.planning.columns import StringsWriter, integers
from millrace.planning.split_table import Pieces, Split, SplitTable
from millrace.sources import storage
from millrace.sources.digests.digest_file import ItemKind
from millrace.sources.digests.item_check import PieceCheck, PieceChecks
from millrace.sources.digests.item_table import with_hashes
from millrace.sources.gzip_stream import GZIP, inflate
from millrace.sources.listing import expand
from millrace.sources.packs.pack_index import INDEX, MARK, PackIndex, read_index, read_mark
from millrace.sources.packs.pack_plan import split_name
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, PositionSource, SequentialSource, ignore_progress
from millrace.sources.splitting import entry_of, foretold, split_records
from millrace.sources.storage import FileInfo
from millrace.sources.store_requests import Entry
from millrace.sources.tarfiles import members

_INDEX_BUFFER_BYTES = 8 << 10
_logger = logging.getLogger(__name__)


def list_source(
    node: FromWebDataset, reads: Reads, seen: ListingProgress = ignore_progress, size: int | None = None
) -> SplitTable:
    """List pieces of about ``size`` bytes (None: by the amount of data), or whole files; or each sample for itself.

    Raises:
        PipelineError: samples are to be read in any order, and of a file nobody knows where they are.
    """
    files = expand(node.patterns)
    known = _indexed(files, reads)

    def record_ends(file: FileInfo) -> Iterator[int] | None:
        if _compressed(file.location):
            return None
        index, number = known.get(file.location, (None, 0))
        if index is not None:
            if index.shards[number].bytes == file.size:
                rows = index.rows(number)
                ends: list[int] = (index.offset[rows] + index.bytes[rows]).tolist()
                return iter(ends)
            _logger.warning(
                "%s has %d bytes, and %s beside it says %d: it is read as if it were not in there. Pack it again",
                *(file.location, file.size, INDEX, index.shards[number].bytes),
            )
        return None if storage.is_remote(file.location) else _hop(file, reads)

    table = (
        _samples_table(files, record_ends, seen)
        if node.random_access
        else split_records(files, record_ends, seen, size)
    )
    return with_hashes(table, node.digest, reads, _kind_of)


def _kind_of(location: str) -> ItemKind:
    return ItemKind.FILE if _compressed(location) else ItemKind.MEMBER


def open_source(node: FromWebDataset, table: SplitTable, reads: Reads) -> PositionSource | SequentialSource:
    """Make the reader of the samples."""
    checks = PieceChecks(table, table.items, node.digest) if table.items is not None else None
    return _PackedSamples(table, reads, checks) if node.random_access else _WebDataset(table, reads, checks)


def _indexed(files: list[FileInfo], reads: Reads) -> dict[str, tuple[PackIndex, int]]:
    """Read the indexes beside these files: by location of a shard its index and its number there."""
    plain = [file.location for file in files if not _compressed(file.location)]
    folders = list(dict.fromkeys(each.rpartition("/")[0] for each in plain if each == storage.bare(each)))

    def read(folder: str) -> PackIndex | None:
        index = read_index(f"{folder}/{INDEX}", reads)
        if index is None and read_mark(f"{folder}/{MARK}", reads) is not None:
            raise SourceCorruptError(f"{folder} holds a pack that is not finished: run the same `millrace pack` again")
        return index

    found = storage.for_each(read, folders, lambda folder: f"{folder}/{INDEX}")
    return {
        f"{folder}/{shard.name}": (index, number)
        for folder, index in zip(folders, found, strict=True)
        if index is not None
        for number, shard in enumerate(index.shards)
    }


def _samples_table(
    files: list[FileInfo], record_ends: Callable[[FileInfo], Iterator[int] | None], seen: ListingProgress
) -> SplitTable:
    """Make the table of a source in which each sample has a position of its own."""
    names, versions = StringsWriter(), StringsWriter()
    starts, stops, firsts = array("q"), array("q"), array("q")
    for file in files:
        ends = record_ends(file)
        if ends is None:
            why = "it is compressed" if _compressed(file.location) else f"no {INDEX} beside it has it"
            raise PipelineError(
                f"{file.location}: nobody knows where its samples are ({why}), as from_webdataset(random_access=True)"
                " has to. Make shards with an index by `millrace pack`, or leave random_access out"
            )
        for first, (start, stop) in enumerate(pairwise([0, *ends])):
            names.add(file.location)
            versions.add(file.version)
            starts.append(start)
            stops.append(stop)
            firsts.append(first)
        seen(1)
    sizes = np.frombuffer(stops, np.int64) - np.frombuffer(starts, np.int64)
    count = len(starts)
    ones = integers(np.ones(count, np.int64).tolist())
    pieces = Pieces(integers(starts), integers(stops), integers(firsts), ones, versions.column())
    return SplitTable(True, count, names.column(), integers(sizes.tolist()), pieces=pieces)


def _compressed(location: str) -> bool:
    return storage.bare(location).endswith((".gz", ".tgz"))


def _hop(file: FileInfo, reads: Reads) -> Iterator[int]:
    """Find the end of each sample of a local archive."""
    key = None
    end = 0
    with reads.open(Entry(file.location), buffer_bytes=_INDEX_BUFFER_BYTES) as stream:
        for member in members(stream, file.location):
            name = split_name(member.name)
            if name is not None:
                if key is not None and name[0] != key:
                    yield member.offset
                key = name[0]
            end = stream.tell() + -(-member.size // 512) * 512
    if key is not None:
        yield end


class _WebDataset:
    def __init__(self, table: SplitTable, reads: Reads, checks: PieceChecks | None) -> None:
        self._splits, self._reads, self._checks = table.splits, reads, checks

    def entries(self, unit: int, _start: int = 0, stop: int = -1) -> Iterator[Entry]:
        return foretold(self._reads, self._splits[unit], stop)

    def read(
        self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]
    ) -> Iterator[list[dict[str, Any]]]:
        if 0 <= stop <= start:
            return
        done = start
        with contextlib.closing(_samples(split, start, self._reads, self._checks)) as samples:
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


class _PackedSamples:
    """Samples of which each is read for itself."""

    def __init__(self, table: SplitTable, reads: Reads, checks: PieceChecks | None) -> None:
        self._splits, self._reads, self._checks = table.splits, reads, checks

    def entries(self, unit: int, _start: int = 0, _stop: int = -1) -> Iterator[Entry]:
        yield entry_of(self._splits[unit])._replace(item=unit)

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[dict[str, Any]]:
        indices = positions if isinstance(positions, range) else positions.tolist()
        contents = self._reads.fetch([entry for unit in indices for entry in self.entries(unit)])
        splits = [self._splits[unit] for unit in indices]
        return [_sample(split, data, self._checks) for split, data in zip(splits, contents, strict=True)]


def _sample(split: Split, data: bytes, checks: PieceChecks | None) -> dict[str, Any]:
    """Make the sample of a split that has no other."""
    stream: Any = io.BufferedReader(_Window(data, split.start))
    samples = list(_parse(stream, split, 0, checks.of(split) if checks is not None else None))
    if len(samples) != 1:
        raise SourceCorruptError(
            f"{split.location}, record {split.first_record}: {len(samples)} samples lie in bytes {split.start} to"
            f" {split.stop}, where there was one when they were listed"
        )
    return samples[0]


class _Window(storage.Stream):
    """Bytes of a file in memory, read as if all of it were there."""

    def __init__(self, data: bytes, start: int) -> None:
        super().__init__(start)
        self._data, self._start = memoryview(data), start

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer)
        part = self._data[self.at - self._start :][: len(view)]
        view[: len(part)] = part
        self.at += len(part)
        return len(part)


def _samples(
    split: Split, start: int, reads: Reads, checks: PieceChecks | None
) -> Generator[dict[str, Any], None, None]:
    """Read samples from number ``start`` of the split on; of those before it only headers are read."""
    stream = reads.open(entry_of(split))
    if _compressed(split.location):
        stream, checks = inflate(stream, split.location, GZIP), None
    return _parse(stream, split, start, checks.of(split) if checks is not None else None)


def _parse(
    stream: io.BufferedReader, split: Split, start: int, check: PieceCheck | None
) -> Generator[dict[str, Any], None, None]:
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
            at = stream.tell() if check is not None else 0
            data = stream.read(member.size)
            if len(data) < member.size:
                raise SourceCorruptError(
                    f"{split.location} is truncated: it ends within record {first + number}, in "
                    f"{member.name!r}, whose header is at byte {member.offset}"
                )
            if check is not None:
                check.check(at, data, f", record {first + number}, {member.name!r}")
            sample[name[1]] = data
        if sample:
            yield sample
