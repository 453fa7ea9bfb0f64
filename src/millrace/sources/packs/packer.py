"""Making a pack, shard by shard, so that a run that dies is gone on with; and verifying one."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import msgspec
import numpy as np

from millrace.errors import PipelineError, SourceCorruptError, SourceError, SourceNotFoundError
from millrace.planning.split_table import table_of
from millrace.sources import storage
from millrace.sources.listing import expand_many
from millrace.sources.packs.pack_index import INDEX, PackedShard, PackIndex, encode_index, merged, read_index
from millrace.sources.packs.pack_plan import SHARD_BYTES, PackedFile, PackPlan, make_plan, shard_name
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.store_requests import Entry

_MARK = "pack.json"
"""File that says which plan a pack that is being made follows."""
_SHARD = re.compile(r"shard-\d{6}\.tar")
_AT_ONCE_BYTES = 32 << 20
_AT_ONCE = 256
_VERIFIED_AT_ONCE = 8

PackProgress = Callable[[int, int], None]
"""Callback: number of shards that are there, and that there will be."""


class PackReport(NamedTuple):
    """Report of a pack that was made: numbers of samples, files and shards, of these made now, and size in bytes."""

    samples: int
    files: int
    shards: int
    made: int
    bytes: int


class VerifyReport(NamedTuple):
    """Report of a pack that was verified: numbers of shards and samples, and what is wrong, a sentence each."""

    shards: int
    samples: int
    wrong: list[str]


class _Mark(msgspec.Struct):
    plan: str


# -- making ------------------------------------------------------------------------------------------------------------


def pack(
    patterns: Sequence[str],
    folder: str,
    *,
    shard_bytes: int = SHARD_BYTES,
    seed: int | None = None,
    overwrite: bool = False,
    seen: ListingProgress = ignore_progress,
    packed: PackProgress = lambda _made, _all: None,
) -> PackReport:
    """Pack files into tar shards with an index, or go on with a pack of the same files that was left unfinished.

    Args:
        patterns: paths, URLs or globs, as for ``from_files``.
        folder: path or URL of the folder for shards and index.
        shard_bytes: size in bytes at which a shard ends.
        seed: of a permutation of the samples; None: in the order of the paths.
        overwrite: whether what else is packed in the folder may go.
        seen: called with the number of files listed since the last call.
        packed: called after each shard.

    Raises:
        PipelineError: the files can't be packed, or the folder holds another pack.
        SourceError: a file can't be read or has changed since it was listed, or the folder can't be written.
    """
    plan = make_plan(table_of(expand_many(list(patterns), seen)), shard_bytes, seed)
    with Reads() as reads:
        return _pack(plan, _Folder(folder, reads), overwrite=overwrite, packed=packed)


def _pack(plan: PackPlan, place: _Folder, *, overwrite: bool, packed: PackProgress) -> PackReport:
    count = len(plan.shards) - 1
    there, known = place.files(), place.index()
    if known is None or known.plan != plan.digest:
        _take(place, plan, known, there, overwrite=overwrite)
        known = None
    parts: list[PackIndex] = []
    made = 0
    for number in range(count):
        part = known.part(number) if known is not None else place.part(number, there)
        if part is None or part.plan != plan.digest or there.get(part.shards[0].name) != part.shards[0].bytes:
            part = _make_shard(place, plan, number)
            made += 1
        parts.append(part)
        packed(number + 1, count)
    index = merged(parts)
    if known is None:
        place.write(INDEX, encode_index(index))
        ours = {INDEX, *map(shard_name, range(count))}
        leftovers = {_MARK, *map(_part_name, range(count)), *filter(_SHARD.fullmatch, there)} - ours
        for name in sorted(leftovers, key=_MARK.__eq__):  # the mark last
            place.remove(name)
    return _report(plan, index, made)


def _report(plan: PackPlan, index: PackIndex, made: int) -> PackReport:
    size = sum(shard.bytes for shard in index.shards)
    return PackReport(len(plan.order), len(plan.locations), len(index.shards), made, size)


def _take(
    place: _Folder, plan: PackPlan, known: PackIndex | None, there: Mapping[str, int], *, overwrite: bool
) -> None:
    """Take the folder for this plan, which is not the one that the index there is of."""
    if place.mark(there) == plan.digest:
        return
    held = [name for name in there if _SHARD.fullmatch(name)]
    if (known is not None or _MARK in there or held) and not overwrite:
        what = "a finished pack" if known is not None else "an unfinished pack" if _MARK in there else "tar shards"
        raise PipelineError(
            f"{place.folder} holds {what} of other files, of the same files as they were before, or of other"
            " --shard-bytes or --seed. Choose another folder, or replace what is there with --overwrite"
        )
    place.write(_MARK, msgspec.json.encode(_Mark(plan.digest)))
    if known is not None:  # of shards that go, one by one
        place.remove(INDEX)


def _make_shard(place: _Folder, plan: PackPlan, number: int) -> PackIndex:
    """Write one shard and behind it its part of the index, whose being there says that the shard is whole."""
    keys: list[str] = []
    extents: list[tuple[int, int, int]] = []
    with place.draft(shard_name(number)) as file:
        at = 0
        for key, members in _contents(plan.samples(number), place.reads):
            image = _tar(members)
            file.write(image)
            keys.append(key)
            extents.append((at, len(image), zlib.crc32(image)))
            at += len(image)
        file.write(bytes(2 * tarfile.BLOCKSIZE))
        size = file.tell()
    offset, length, crc32 = np.array(extents, np.int64).T
    shard = np.zeros(len(keys), np.int32)
    name = PackedShard(shard_name(number), size)
    part = PackIndex(plan.digest, [name], shard, offset, length, crc32.astype(np.uint32), keys)
    place.write(_part_name(number), encode_index(part))
    return part


def _contents(
    samples: Iterator[tuple[str, list[PackedFile]]], reads: Reads
) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    """Read samples, some at once and not more bytes than fit: key, and name and contents of each file."""
    some: list[tuple[str, list[PackedFile]]] = []
    count = size = 0
    for key, files in samples:
        some.append((key, files))
        count += len(files)
        size += sum(file.size for file in files)
        if count >= _AT_ONCE or size >= _AT_ONCE_BYTES:
            yield from _read(some, reads)
            some, count, size = [], 0, 0
    yield from _read(some, reads)


def _read(some: list[tuple[str, list[PackedFile]]], reads: Reads) -> Iterator[tuple[str, list[tuple[str, bytes]]]]:
    entries = [Entry(file.location, 0, file.size, "", file.size) for _, files in some for file in files]
    contents = iter(reads.fetch(entries))
    for key, files in some:
        members = [(file.name, next(contents)) for file in files]
        for file, (_, data) in zip(files, members, strict=True):
            if len(data) != file.size:
                raise SourceError(
                    f"{file.location} has {len(data)} bytes now, and had {file.size} when it was listed: it changed"
                    " while it was packed. Run the command again when it no longer does"
                )
        yield key, members


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    """Make the part of an archive that holds these members: the same bytes whoever makes it, and when."""
    file = io.BytesIO()
    for name, data in members:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        file.write(info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        file.write(data)
        file.write(bytes(-len(data) % tarfile.BLOCKSIZE))
    return file.getvalue()


def _part_name(number: int) -> str:
    return f"{shard_name(number)}.part"


# -- verifying ---------------------------------------------------------------------------------------------------------


def verify(folder: str, verified: PackProgress = lambda _done, _all: None) -> VerifyReport:
    """Read a pack, and compare each sample's bytes with the index.

    Raises:
        SourceNotFoundError: there is no index in the folder.
    """
    with Reads() as reads:
        return _verified(_Folder(folder, reads), verified)


def _verified(place: _Folder, verified: PackProgress) -> VerifyReport:
    index = place.index()
    if index is None:
        raise SourceNotFoundError(
            f"{place.at(INDEX)} is not there, or is no index of a pack: make one with millrace pack"
        )
    count = len(index.shards)
    wrong: list[str] = []
    for first in range(0, count, _VERIFIED_AT_ONCE):
        some = list(range(first, min(first + _VERIFIED_AT_ONCE, count)))
        at_once = len(some) if storage.is_remote(place.folder) else 1
        for said in storage.concurrently(lambda number: _verify(place, index, number), some, at_once):
            wrong += said
        verified(some[-1] + 1, count)
    return VerifyReport(count, len(index.keys), wrong)


def _verify(place: _Folder, index: PackIndex, number: int) -> list[str]:
    shard, rows = index.shards[number], index.rows(number)
    location = place.at(shard.name)
    try:
        found = storage.stat(location).size
    except SourceNotFoundError:
        return [f"{location} is not there"]
    if found != shard.bytes:
        return [f"{location} has {found} bytes, and the index says {shard.bytes}"]
    wrong = []
    extents = zip(index.offset[rows].tolist(), index.bytes[rows].tolist(), index.crc32[rows].tolist(), strict=True)
    with place.reads.open(Entry(location, 0, shard.bytes, "", shard.bytes)) as stream:
        for key, (offset, size, crc32) in zip(index.keys[rows], extents, strict=True):
            stream.seek(offset)
            if zlib.crc32(stream.read(size)) != crc32:
                wrong.append(f"{location}: the sample {key!r}, {size} bytes from byte {offset} on, is damaged")
    return wrong


# -- the folder --------------------------------------------------------------------------------------------------------


class _Folder:
    """Folder of a pack, on a disk or in a store.

    Attributes:
        folder: its path or URL.
        reads: what it is read with.
    """

    def __init__(self, folder: str, reads: Reads) -> None:
        self.reads = reads
        self.folder = folder.rstrip("/") or "/"
        self._remote = storage.is_remote(folder)

    def at(self, name: str) -> str:
        """Location of a file in the folder."""
        return f"{self.folder}/{name}"

    def index(self) -> PackIndex | None:
        return read_index(self.at(INDEX), self.reads)

    def part(self, number: int, there: Mapping[str, int]) -> PackIndex | None:
        name = _part_name(number)
        return read_index(self.at(name), self.reads) if name in there else None

    def mark(self, there: Mapping[str, int]) -> str:
        """Digest of the plan of the pack that is being made here; empty if there is none."""
        if _MARK not in there:
            return ""
        try:
            return msgspec.json.decode(storage.read(self.at(_MARK)), type=_Mark).plan
        except msgspec.MsgspecError as error:
            raise SourceCorruptError(
                f"{self.at(_MARK)} is not what millrace pack wrote ({error}): remove it"
            ) from error

    def files(self) -> dict[str, int]:
        """Names and sizes in bytes of the files here."""
        if self._remote:
            found = storage.list_folder(f"{self.folder}/", recursive=False)
            return {file.location.rpartition("/")[2]: file.size for file in found}
        try:
            with os.scandir(storage.local_path(self.folder)) as entries:
                return {entry.name: entry.stat().st_size for entry in entries if entry.is_file()}
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise SourceError(f"{self.folder}: {error.strerror or error}") from error

    def write(self, name: str, data: bytes) -> None:
        with self.draft(name) as file:
            file.write(data)

    @contextlib.contextmanager
    def draft(self, name: str) -> Iterator[IO[bytes]]:
        """File that is there under its name, wholly, once this ends well."""
        if self._remote:
            with tempfile.TemporaryFile(prefix="millrace-pack-") as file:
                yield file
                file.seek(0)
                storage.write(self.at(name), file)
            return
        folder = storage.local_path(self.folder)
        partial = os.path.join(folder, f".{name}.partial")
        try:
            os.makedirs(folder, exist_ok=True)
            with open(partial, "wb") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            os.replace(partial, os.path.join(folder, name))
        except BaseException as error:
            with contextlib.suppress(OSError):
                os.unlink(partial)
            if isinstance(error, OSError) and not isinstance(error, SourceError):
                raise SourceError(f"{self.at(name)}: {error.strerror or error}") from error
            raise

    def remove(self, name: str) -> None:
        with contextlib.suppress(SourceNotFoundError, FileNotFoundError):
            if self._remote:
                storage.delete(self.at(name))
            else:
                os.unlink(storage.local_path(self.at(name)))
