"""Making a pack, shard by shard, so that a run that dies is gone on with; and verifying one."""

from __future__ import annotations

import contextlib
import io
import os
import re
import tarfile
import tempfile
import uuid
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

import msgspec
import numpy as np

from millrace.errors import PipelineError, SourceChangedError, SourceError, SourceNotFoundError
from millrace.planning.split_table import stamp_of, table_of
from millrace.sources import storage
from millrace.sources.concurrent_calls import concurrently
from millrace.sources.listing import expand_many
from millrace.sources.packs.pack_index import (
    INDEX,
    MARK,
    PackedShard,
    PackIndex,
    PackMark,
    encode_index,
    merged,
    read_index,
    read_mark,
)
from millrace.sources.packs.pack_plan import SHARD_BYTES, PackedFile, PackPlan, difference, make_plan, shard_name
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.store_requests import Entry

_SHARD = re.compile(r"shard-\d{6,}\.tar")
_PARTS = re.compile(r"shard-\d{6,}\.tar\.part|\.(shard-\d{6,}\.tar(\.part)?|index\.parquet|pack\.json)\.\w+\.partial")
"""Names of what a run leaves behind that is ended."""
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
    with Reads() as reads:
        place = _Folder(folder, reads)
        plan = make_plan(table_of(expand_many(list(patterns), seen)), shard_bytes, seed)
        place.check_is_none_of(plan.locations)
        return _pack(plan, place, overwrite=overwrite, packed=packed)


def _pack(plan: PackPlan, place: _Folder, *, overwrite: bool, packed: PackProgress) -> PackReport:
    count = len(plan.shards) - 1
    there, known = place.files(), place.index()
    names = {shard_name(number) for number in range(count)}
    surplus = [name for name in there if _PARTS.fullmatch(name) or (_SHARD.fullmatch(name) and name not in names)]
    finished = (
        known is not None
        and known.plan == plan.digest
        and all(there.get(shard.name) == shard.bytes for shard in known.shards)
    )
    if known is not None and finished and not surplus and MARK not in there:
        packed(count, count)
        return _report(plan, known, made=0)
    mark = _take(place, plan, known, there, overwrite=overwrite)
    parts: list[PackIndex] = []
    versions: dict[str, str] = {}
    made = 0
    for number in range(count):
        if known is not None and known.plan == plan.digest:
            part: PackIndex | None = known.part(number)
        else:
            part = place.part(number, there)
        if part is None or part.plan != plan.digest or there.get(part.shards[0].name) != part.shards[0].bytes:
            part = _make_shard(place, plan, number, mark)
            versions[part.shards[0].name] = place.version(part.shards[0].name)
            made += 1
        parts.append(part)
        packed(number + 1, count)
    place.check_mine(mark, versions)
    for name in place.shards() - names:
        place.remove(name)  # before an index says that all here is of this pack
    index = merged(parts)
    place.write(INDEX, encode_index(index))
    for name in [*filter(_PARTS.fullmatch, place.files()), MARK]:
        place.remove(name)
    return _report(plan, index, made)


def _report(plan: PackPlan, index: PackIndex, made: int) -> PackReport:
    size = sum(shard.bytes for shard in index.shards)
    return PackReport(len(plan.order), len(plan.locations), len(index.shards), made, size)


def _take(
    place: _Folder, plan: PackPlan, known: PackIndex | None, there: Mapping[str, int], *, overwrite: bool
) -> PackMark:
    """Take the folder for a run of this plan."""
    before = read_mark(place.at(MARK), place.reads) if MARK in there else None
    digests = [each.plan for each in (known, before) if each is not None]
    others = [digest for digest in digests if digest != plan.digest]
    held = [name for name in there if name in (INDEX, MARK) or _SHARD.fullmatch(name)]
    if held and not overwrite and (others or not digests):
        if others:
            state = "a finished" if known is not None else "an unfinished"
            what = f"{state} pack that {difference(others[0], plan.digest)}"
        else:
            what = f"{held[0]}, which is of no pack"
        raise PipelineError(
            f"{place.folder} holds {what}. Choose another folder, or replace what is there with --overwrite"
        )
    mark = PackMark(plan.digest, uuid.uuid4().hex)
    place.write(MARK, msgspec.json.encode(mark))
    if INDEX in there and (known is None or known.plan != plan.digest):  # of shards that go, one by one
        place.remove(INDEX)
    return mark


def _make_shard(place: _Folder, plan: PackPlan, number: int, mark: PackMark) -> PackIndex:
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
        place.check_mine(mark)
    offset, length, crc32 = np.array(extents, np.int64).T
    shard = np.zeros(len(keys), np.int32)
    name = PackedShard(shard_name(number), size)
    part = PackIndex(plan.digest, [name], shard, offset, length, crc32.astype(np.uint32), keys)
    place.check_mine(mark)
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
    entries = [Entry(file.location, 0, file.size, file.stamp, file.size) for _, files in some for file in files]
    try:
        contents = iter(reads.fetch(entries))
        for key, files in some:
            members = [(file.name, next(contents)) for file in files]
            for file, (_, data) in zip(files, members, strict=True):
                _check_unchanged(file, data)
            yield key, members
    except (SourceChangedError, SourceNotFoundError) as error:
        raise SourceChangedError(
            f"{error}. A pack holds files as they were listed: once they stay as they are, run the command again, with"
            " --overwrite, as it is another pack"
        ) from error


def _check_unchanged(file: PackedFile, data: bytes) -> None:
    """Raise if a file was replaced after it was listed; of one in a store its answer was compared."""
    near = not storage.is_remote(file.location)
    if len(data) != file.size or (near and stamp_of(storage.stat(file.location).version) != file.stamp):
        raise SourceChangedError(f"{file.location} is not what it was when it was listed")


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
            f"{place.at(INDEX)} is not there, or can't be read as the index of a pack: pack the files again"
        )
    count = len(index.shards)
    wrong: list[str] = []
    for first in range(0, count, _VERIFIED_AT_ONCE):
        some = list(range(first, min(first + _VERIFIED_AT_ONCE, count)))
        at_once = len(some) if storage.is_remote(place.folder) else 1
        for said in concurrently(lambda number: _verify(place, index, number), some, at_once):
            wrong += said
        verified(some[-1] + 1, count)
    names = {shard.name for shard in index.shards}
    wrong += [f"{place.at(name)} is of no sample in the index: remove it" for name in sorted(place.shards() - names)]
    return VerifyReport(count, len(index.keys), wrong)


def _verify(place: _Folder, index: PackIndex, number: int) -> list[str]:
    shard, rows = index.shards[number], index.rows(number)
    location = place.at(shard.name)
    remedy = "remove the file, and run millrace pack again with the files"
    wrong = []
    extents = zip(index.offset[rows].tolist(), index.bytes[rows].tolist(), index.crc32[rows].tolist(), strict=True)
    try:
        found = storage.stat(location).size
        if found != shard.bytes:
            return [f"{location} has {found} bytes, and the index says {shard.bytes}: {remedy}"]
        with place.reads.open(Entry(location, 0, shard.bytes, "", shard.bytes)) as stream:
            for key, (offset, size, crc32) in zip(index.keys[rows], extents, strict=True):
                stream.seek(offset)
                if zlib.crc32(stream.read(size)) != crc32:
                    where = f"{size} bytes from byte {offset} on"
                    wrong.append(f"{location}: the sample {key!r}, {where}, is damaged: {remedy}")
    except SourceError as error:
        wrong.append(str(error))
    return wrong


# -- the folder --------------------------------------------------------------------------------------------------------


class _Folder:
    """Folder of a pack, on a disk or in a store.

    Attributes:
        folder: its path or URL.
        reads: what it is read with.
    """

    def __init__(self, folder: str, reads: Reads) -> None:
        if not folder:
            raise PipelineError("the folder to pack into has an empty name")
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

    def check_is_none_of(self, locations: Iterable[str]) -> None:
        """Refuse files that lie where shards are to be written.

        Raises:
            PipelineError: names one.
        """
        within = f"{storage.absolute(self.folder)}/"
        for location in locations:
            if location.startswith(within):
                raise PipelineError(
                    f"{location} is to be packed, and lies in the folder to pack into. Choose a folder that no pattern"
                    " matches files in"
                )

    def check_mine(self, mark: PackMark, versions: Mapping[str, str] | None = None) -> None:
        """Raise if another run has taken the folder, or shards are in other versions than these.

        Raises:
            SourceError: another run writes here.
        """
        found = read_mark(self.at(MARK), self.reads)
        changed = [name for name, version in (versions or {}).items() if self.version(name) != version]
        if found != mark or changed:
            for name in changed:
                self.remove(f"{name}.part")
            raise SourceError(
                f"{self.folder}: another millrace pack has begun to write there. Let one of them end, and run it again"
            )

    def version(self, name: str) -> str:
        """Version of a file here."""
        return storage.stat(self.at(name)).version

    def shards(self) -> set[str]:
        """Names of the shards here, whoever made them."""
        return {name for name in self.files() if _SHARD.fullmatch(name)}

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
        partial = os.path.join(folder, f".{name}.{uuid.uuid4().hex}.partial")
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
