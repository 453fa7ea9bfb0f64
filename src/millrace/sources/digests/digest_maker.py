"""Making a digest: what an earlier one knows is taken over, and the rest is read, several files at once."""

from __future__ import annotations

import contextlib
import glob
import os
import threading
from collections.abc import Callable, Iterator, Sequence
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from millrace.errors import (
    PipelineError,
    SourceChangedError,
    SourceCorruptError,
    SourceError,
    SourceNotFoundError,
)
from millrace.planning.split_table import SplitTable, table_of
from millrace.sources import globs, storage
from millrace.sources.digests.digest_file import DigestAbout, DigestRows, ItemKind, write_digest
from millrace.sources.digests.hashed_rows import HashedRows
from millrace.sources.digests.item_hashing import HashedFile, hash_alone, hash_together, kind_by_name
from millrace.sources.digests.known_files import KnownFiles, as_written, keys_of, listed_keys
from millrace.sources.digests.stored_digest import draft, open_digest
from millrace.sources.listing import expand_many
from millrace.sources.reads import Reads
from millrace.sources.source import ListingProgress, ignore_progress
from millrace.sources.store_requests import AbandonedError, Entry

_AT_ONCE = 8
"""Groups of files that are hashed at once; how many requests are under way is decided by ``Reads``."""
_TOGETHER = 64
_TOGETHER_BYTES = 4 << 20
_PART_FILES = 4096
_PART_ITEMS = 1 << 16
_MOST_FAILURES = 100
_SAID = 5

DigestProgress = Callable[[int, int], None]
"""Callback, on any thread: files and bytes that were hashed, or taken over, since the last call."""


class DigestReport(NamedTuple):
    """Report of a digest that was made.

    Attributes:
        files: number of files in it.
        items: number of items.
        bytes: of all files.
        read_files: files that were read, as nothing was known of them.
        read_bytes: of these.
    """

    files: int
    items: int
    bytes: int
    read_files: int
    read_bytes: int


class _Failures:
    """Files that can't be hashed, as they are damaged, gone or changed. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.errors: list[SourceError] = []

    def add(self, error: SourceError) -> None:
        with self._lock:
            self.errors.append(error)

    @property
    def many(self) -> bool:
        return len(self.errors) >= _MOST_FAILURES

    def check(self, work: str) -> None:
        """Raise if there are any."""
        if not self.errors:
            return
        said = "; ".join(map(str, self.errors[:_SAID]))
        more = f"; and {len(self.errors) - _SAID} more" if len(self.errors) > _SAID else ""
        raise type(self.errors[0])(
            f"{said}{more}. No digest was written. What was hashed is kept in {work}: once this is mended, or the"
            " patterns leave it out, run the same command again"
        )


def make_digest(
    patterns: Sequence[str],
    output: str,
    reads: Reads,
    *,
    kind: ItemKind | None = None,
    columns: Sequence[str] | None = None,
    seen: ListingProgress = ignore_progress,
    listed: DigestProgress = lambda _files, _bytes: None,
    hashed: DigestProgress = lambda _files, _bytes: None,
) -> DigestReport:
    """Make the digest of files, or bring one up to date: of its files those that have changed are read again.

    Args:
        patterns: paths, URLs or globs, as for ``from_files``; a folder stands for all that is below it.
        output: path or URL of the digest. If there is one, it is replaced when the new one is whole.
        reads: what files are read with; closed where this fails, so that its threads end soon.
        kind: of the items of all files; None: of each by its name.
        columns: of Parquet files, those whose chunks are items; None: all.
        seen: called with the number of files listed since the last call.
        listed: called once, with the number and bytes of all files.
        hashed: called as files are hashed or taken over.

    Raises:
        SourceError: a file can't be read, or has changed since it was listed. What was hashed is kept.
        PipelineError: ``output`` is there and no digest, or the patterns can't be read.
    """
    work = _work_path(output)
    chosen = None if columns is None else tuple(columns)
    files = _listing([_expanded(pattern) for pattern in patterns], {output, work}, kind, seen)
    with HashedRows(work, chosen) as rows:
        listed(len(files.numbers), files.bytes)
        making = _Making(files, rows, chosen, hashed)
        for about, part in rows.recover():
            making.recover(about, part)
        with contextlib.suppress(SourceNotFoundError), open_digest(output, reads) as earlier:
            for part in earlier:
                making.take_over(earlier.about, part)
        read_files, read_bytes = making.read(reads, work)
        about = DigestAbout(chosen, len(files.numbers), int(making.items.sum()))
        with draft(output) as file:
            write_digest(file, about, making.parts())
        rows.remove()
        return DigestReport(about.files, about.items, files.bytes, read_files, read_bytes)


def _work_path(output: str) -> str:
    """Path of the file that keeps what was hashed: beside the digest; in the working folder if that is at a URL."""
    if not output or output.endswith("/"):
        raise PipelineError(f"-o {output}: it has to be the name of a file")
    name = output.rpartition("/")[2] if storage.is_remote(output) else storage.local_path(output)
    return os.path.abspath(f"{name}.partial")


def _expanded(pattern: str) -> str:
    """Pattern of all files in a folder, where ``pattern`` names one."""
    if not storage.is_remote(pattern):
        path = storage.local_path(pattern)
        return os.path.join(glob.escape(path), "**") if os.path.isdir(path) else pattern
    if globs.has_glob(pattern) or "{" in pattern or storage.scheme_of(pattern).startswith("http"):
        return pattern
    bare = pattern.rstrip("/")
    if "/" in bare.partition("://")[2] and bare == pattern:
        with contextlib.suppress(SourceNotFoundError):
            storage.stat(pattern)
            return pattern
    return f"{bare}/**"


class _Listing(NamedTuple):
    """Files to be in a digest.

    Attributes:
        table: of all that was listed.
        numbers: entries of the table that are the files, each once; int32 [files].
        known: finds a file by its location; it counts files as ``order`` does.
        order: place in ``numbers`` of each file of ``known``; -1 for those that are left out; int32.
        kinds: of each file's items; uint8 [files].
        sizes: of the files, in bytes; int64 [files].
        stamps: of the files; uint64 [files].
    """

    table: SplitTable
    numbers: npt.NDArray[np.int32]
    known: KnownFiles
    order: npt.NDArray[np.int32]
    kinds: npt.NDArray[np.uint8]
    sizes: npt.NDArray[np.int64]
    stamps: npt.NDArray[np.uint64]

    @property
    def bytes(self) -> int:
        """Size of all files."""
        return int(self.sizes.sum())

    def file(self, place: int) -> HashedFile:
        """File at a place."""
        location, size = self.table.names[int(self.numbers[place])], int(self.sizes[place])
        return HashedFile(Entry(location, 0, size, int(self.stamps[place]), size), ItemKind(int(self.kinds[place])))

    def find(self, rows: DigestRows) -> npt.NDArray[np.int64]:
        """Find the place of the file that each row is about, if it is what it was; -1 for none."""
        found = self.known.find(keys_of(rows.locations, len(rows.locations)))
        places = np.where(found >= 0, self.order[found], -1)
        at = np.maximum(places, 0)
        same = (self.sizes[at] == rows.sizes) & (self.stamps[at] == rows.stamps) & (rows.stamps != 0)
        return np.where(same & (self.kinds[at] == rows.kinds), places, -1)


def _listing(patterns: Sequence[str], besides: set[str], kind: ItemKind | None, seen: ListingProgress) -> _Listing:
    """List files, each once, without those at the locations ``besides``."""
    table = table_of(expand_many(patterns, seen))
    known = KnownFiles(listed_keys(table.names))
    left_out = known.find(keys_of(map(as_written, besides), len(besides)))
    there = np.ones(len(known), bool)
    there[left_out[left_out >= 0]] = False
    files = np.argsort(known.entries, kind="stable")
    files = files[there[files]]
    order = np.full(len(known), -1, np.int32)
    order[files] = np.arange(len(files), dtype=np.int32)
    numbers = known.entries[files]
    if kind is None:
        names = table.names
        kinds = np.fromiter((kind_by_name(name) for name in names), np.uint8, len(names))[numbers]
    else:
        kinds = np.full(len(numbers), kind, np.uint8)
    if not len(numbers):
        raise SourceNotFoundError(f"{', '.join(patterns)}: nothing is there but the digest itself")
    stamps = np.fromiter(table.stamps, np.uint64, len(table.stamps))
    return _Listing(table, numbers, known, order, kinds, table.sizes.array()[numbers], stamps[numbers])


class _Making:
    """A digest that is being made.

    Attributes:
        items: number of items of each file; uint32 [files].
    """

    def __init__(
        self, files: _Listing, rows: HashedRows, columns: tuple[str, ...] | None, hashed: DigestProgress
    ) -> None:
        self._files, self._rows, self._columns, self._hashed = files, rows, columns, hashed
        self._row_of = np.full(len(files.numbers), -1, np.int32)
        self._next = 0

    @property
    def items(self) -> npt.NDArray[np.uint32]:
        return np.frombuffer(self._rows.items, np.uint32)[self._row_of]

    def recover(self, about: DigestAbout, rows: DigestRows) -> None:
        """Note rows that an earlier process left."""
        numbers = np.arange(self._next, self._next + len(rows.locations))
        self._next += len(numbers)
        places = self._wanted(about, rows)
        self._note(places[places >= 0], numbers[places >= 0])

    def take_over(self, about: DigestAbout, rows: DigestRows) -> None:
        """Add what an earlier digest knows of files that have not changed."""
        places = self._wanted(about, rows)
        chosen = np.flatnonzero(places >= 0)
        if len(chosen):
            self._note(places[chosen], np.array(self._rows.append(rows.chosen(chosen)), np.int64))

    def _wanted(self, about: DigestAbout, rows: DigestRows) -> npt.NDArray[np.int64]:
        """Places of the files that rows are about; -1 where they are known already, or the row does not fit."""
        places = self._files.find(rows)
        if about.columns != self._columns:
            places = np.where(rows.kinds == ItemKind.CHUNK, -1, places)
        return np.where(self._row_of[places] < 0, places, -1)

    def _note(self, places: npt.NDArray[np.int64], numbers: npt.NDArray[np.int64]) -> None:
        self._row_of[places] = numbers
        self._hashed(len(places), int(self._files.sizes[places].sum()))

    def read(self, reads: Reads, work: str) -> tuple[int, int]:
        """Read and hash all files that nothing is known of; return their number and bytes."""
        missing = np.flatnonzero(self._row_of < 0)
        failures = _Failures()
        stopping = threading.Event()

        def check() -> None:
            if stopping.is_set():
                raise AbandonedError

        def hash_group(group: list[int]) -> None:
            self._hash(group, reads, failures, check)

        try:
            _beside(hash_group, self._groups(missing, failures), check)
        except BaseException:
            stopping.set()
            reads.close()
            raise
        failures.check(work)
        return len(missing), int(self._files.sizes[missing].sum())

    def _groups(self, places: npt.NDArray[np.int64], failures: _Failures) -> Iterator[list[int]]:
        """Cut files into groups that are hashed at once: small ones together, others each alone."""
        group: list[int] = []
        size = 0
        for place in places.tolist():
            if failures.many:
                return
            own = int(self._files.sizes[place])
            if self._files.kinds[place] != ItemKind.FILE or own > _TOGETHER_BYTES:
                yield [place]
                continue
            if len(group) == _TOGETHER or size + own > _TOGETHER_BYTES:
                yield group
                group, size = [], 0
            group.append(place)
            size += own
        if group:
            yield group

    def _hash(self, places: list[int], reads: Reads, failures: _Failures, check: Callable[[], None]) -> None:
        files = [self._files.file(place) for place in places]
        try:
            rows = hash_together(files, reads) if len(files) > 1 else hash_alone(files[0], self._columns, reads, check)
        except (SourceChangedError, SourceCorruptError, SourceNotFoundError) as error:
            if len(files) == 1:
                failures.add(error)
                return
            for place in places:
                self._hash([place], reads, failures, check)
        else:
            self._note(np.array(places), np.array(self._rows.append(rows), np.int64))

    def parts(self) -> Iterator[DigestRows]:
        """Read the rows of all files, in order, some at a time."""
        items = self.items
        start = 0
        while start < len(items):
            ends = np.cumsum(items[start : start + _PART_FILES], dtype=np.int64)
            stop = start + max(1, int(np.searchsorted(ends, _PART_ITEMS, "right")))
            yield self._rows.rows(self._row_of[start:stop].astype(np.int64))
            start = stop


def _beside(work: Callable[[list[int]], None], groups: Iterator[list[int]], check: Callable[[], None]) -> None:
    """Call ``work`` on groups as they come, on some threads, until all are done or one fails.

    Args:
        work: of one group.
        groups: asked by one thread at a time.
        check: called between groups; it raises once they are no longer wanted.
    """
    ended: SimpleQueue[BaseException | None] = SimpleQueue()
    turn = threading.Lock()

    def run() -> None:
        try:
            while True:
                check()
                with turn:
                    group = next(groups, None)
                if group is None:
                    break
                work(group)
        except BaseException as error:  # noqa: BLE001 - handed to who waits
            ended.put(error)
        else:
            ended.put(None)

    threads = [threading.Thread(target=run, name="millrace-digest", daemon=True) for _ in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    for _ in threads:
        if (failure := ended.get()) is not None:
            raise failure
