"""Item store: stored bytes on a local disk, in segments, with an index in SQLite; bounded in bytes.

Items lie one behind the other in segment files, so that small ones cost no file each and room is made by removing one
file. Nothing is synced: after a crash of the machine, an item that was damaged is found by its checksum and is as if it
had never been there.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import re
import sqlite3
import threading
import zlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from millrace.cache_server.item_index import is_damaged, load_index
from millrace.errors import CacheError
from millrace.policies.caching.source_eviction import IDLE_S, SegmentUse, victim
from millrace.private_folder import make_private, private
from millrace.protocol.source_cache_messages import DATA_NAME_BYTES

if TYPE_CHECKING:
    from typing_extensions import Buffer

_INDEX = "index.db"
_LOCK = "lock"
_OURS = re.compile(r"index\.db(-wal|-shm|-journal)?|lock|\d{8}\.segment")
_SEGMENTS = 256
"""Segments that a full store has, about: so much of it goes at a time."""
_SEGMENT_BYTES = 1 << 20, 1 << 30
"""Least and most bytes of a segment."""
_OPEN_FILES = 128
_LABELS_AT_ONCE = 16
"""Labels that are written at a time, each to a segment of its own."""
_LEAST_COUNTED = 16
"""A segment counts as this part of a full one at least, so that there are not many more than full ones would be."""
_logger = logging.getLogger(__name__)


class StoredItem(NamedTuple):
    """Item that is in the store.

    Attributes:
        segment: number of the file that it lies in.
        start: its first byte there.
        size: in bytes.
        checksum: CRC-32 of the bytes.
    """

    segment: int
    start: int
    size: int
    checksum: int


class _Writing(NamedTuple):
    """Segment that is written to, and its file."""

    number: int
    handle: int


_Found = list[StoredItem | None]


class ItemStore:
    """Items of one folder, which one process uses at a time. Thread-safe.

    Args:
        folder: where they are kept; made if it is not there, its owner's alone.
        most_bytes: bytes of segments to keep at most.
        clock: seconds, monotonic.
        idle_s: see :func:`~millrace.policies.caching.source_eviction.victim`.

    Raises:
        CacheError: the folder can't be used, or another process uses it.
    """

    def __init__(self, folder: str, most_bytes: int, clock: Callable[[], float], idle_s: float = IDLE_S) -> None:
        self._folder, self._most, self._clock, self._idle_s = folder, most_bytes, clock, idle_s
        least, most = _SEGMENT_BYTES
        self._segment_bytes = min(max(most_bytes // _SEGMENTS, least), most, most_bytes)
        self._lock = threading.Lock()
        self._files: OrderedDict[int, int] = OrderedDict()
        self._closed = False
        self._complained = False
        self._last = 0
        with _errors(folder):
            self._held = _opened(folder)
            try:
                _hold(self._held, folder)
                self._writing: dict[bytes, _Writing] = {}  # by label, the one that was written last at the end
                self._kept: dict[bytes, frozenset[bytes]] = {}  # labels, by the data that they are of
                self._load()
                while sum(self._sizes.values()) > most_bytes:
                    self._remove(min(self._sizes))
            except BaseException:
                os.close(self._held)
                raise

    # -- reading -------------------------------------------------------------------------------------------------------

    def find(self, contents: Sequence[bytes], names: Sequence[bytes]) -> tuple[_Found, _Found]:
        """Look up items, in the order of what is asked.

        Args:
            contents: hashes of items.
            names: that they may have been inserted under.

        Returns:
            those of ``contents`` and those of ``names``; None: it isn't there.
        """
        now = self._clock()
        try:
            with self._lock, self._index() as base:
                found = [_found(base, _BY_CONTENT, _place_of(content)) for content in contents]
                named = [_found(base, _BY_NAME, name) for name in names]
                for item in (*found, *named):
                    if item is not None:
                        self._used[item.segment] = now
        except sqlite3.Error as error:
            self._failed("read", error)
            return [None] * len(contents), [None] * len(names)
        return found, named

    def read(self, item: StoredItem) -> bytes | None:
        """Read an item, and check it; None: it has gone meanwhile, or is damaged and goes now."""
        try:
            with self._lock:
                handle = self._opened(item.segment)
                if handle is None:
                    return None
                handle = os.dup(handle)  # another thread may close it to open others
            try:
                data = os.pread(handle, item.size, item.start)
            finally:
                os.close(handle)
        except (OSError, sqlite3.Error) as error:
            self._failed("read", error)
            return None
        if len(data) == item.size and zlib.crc32(data) == item.checksum:
            return data
        _logger.warning("an item in segment %d of %s is damaged; it goes", item.segment, self._folder)
        try:
            with self._lock, self._index() as base:
                gone = base.execute("delete from items where segment = ? and start = ?", (item.segment, item.start))
                self._count -= gone.rowcount
        except sqlite3.Error as error:
            self._failed("written", error)
        return None

    # -- writing -------------------------------------------------------------------------------------------------------

    def add(self, data: Buffer, content: bytes, name: bytes | None = None, label: bytes = b"") -> StoredItem | None:
        """Keep an item.

        Args:
            data: its bytes.
            content: their hash.
            name: under which it is to be found, too; one that leads to an item goes on leading to that.
            label: of what goes together with it, see :meth:`keep_labels`; empty: it goes when it is not used.

        Returns:
            the item as it is there now; None: there is no room, or the disk has failed, which is said once.
        """
        view = memoryview(data).cast("B")
        checksum = zlib.crc32(view)
        try:
            with self._lock, self._index() as base:
                place = _place_of(content)
                item = _found(base, _BY_CONTENT, place)
                if item is None:
                    item = self._append(view, checksum, label)
                    if item is None:
                        return None
                    base.execute("insert into items values (?, ?, ?, ?, ?)", (place, *item))
                    self._count += 1
                if name is not None and _found(base, _BY_NAME, name) is None:
                    base.execute("insert or replace into names values (?, ?)", (name, place))
                self._used[item.segment] = self._clock()
                return item
        except (OSError, sqlite3.Error) as error:
            self._failed("written", error)
            return None

    def keep_labels(self, sets: Mapping[bytes, Collection[bytes]]) -> None:
        """Keep of what is labelled this alone, from now on.

        Args:
            sets: by names of data, with which labels begin, those that are kept; all of them where the name is among
                them. Of other data all are kept that nobody of these needs the room of.
        """
        try:
            with self._lock, self._index():
                self._kept = {beginning: frozenset(labels) for beginning, labels in sets.items()}
                for number, label in list(self._labels.items()):
                    if not self._keeps(label):
                        self._remove(number)
        except (OSError, sqlite3.Error) as error:
            self._failed("written", error)

    def _keeps(self, label: bytes) -> bool:
        kept = self._kept.get(label[:DATA_NAME_BYTES]) if label else None
        return kept is None or label in kept or label[:DATA_NAME_BYTES] in kept

    def _given(self, label: bytes) -> bool:
        return label[:DATA_NAME_BYTES] in self._kept

    def _append(self, view: memoryview, checksum: int, label: bytes) -> StoredItem | None:
        """Write bytes behind the last ones of their label, there or in a new segment; None: there is no room."""
        size = view.nbytes
        if size > self._most or not self._keeps(label):
            return None
        writing = self._open_segment(label)
        if writing is None or self._sizes[writing.number] + size > max(self._segment_bytes, size):
            if not self._make_room(max(self._segment_bytes, size), given=self._given(label)):
                return None
            writing = self._begin_segment(label)
        start = self._sizes[writing.number]
        at = start
        while view:
            written = os.pwrite(writing.handle, view, at)
            view, at = view[written:], at + written
        self._sizes[writing.number] = at
        self._base.execute("update segments set size = ? where number = ?", (at, writing.number))
        return StoredItem(writing.number, start, size, checksum)

    def _make_room(self, size: int, *, given: bool) -> bool:
        """Make room for a segment, if one is not in use, or that of this one was given to it."""
        now = self._clock()
        while self._taken() + size > self._most:
            uses = [SegmentUse(each, self._used[each], self._given(self._labels[each])) for each in self._sizes]
            number = victim(uses, now, self._idle_s, given=given)
            if number is None:
                return False
            self._remove(number)
        return True

    def _taken(self) -> int:
        """Bytes that segments take, or may yet: those that are written to grow, and many small files cost as well."""
        growing = {writing.number for writing in self._writing.values()}
        least = self._segment_bytes // _LEAST_COUNTED
        return sum(
            max(size, self._segment_bytes if number in growing else least) for number, size in self._sizes.items()
        )

    def _open_segment(self, label: bytes) -> _Writing | None:
        """Find the segment that is written to for a label, or go on with its last one; None: that is full."""
        writing = self._writing.pop(label, None)
        if writing is None:
            number = max((number for number, other in self._labels.items() if other == label), default=None)
            if number is None or not self._may_grow(number):
                return None
            try:
                writing = _Writing(number, private(self._path(number), os.O_RDWR | os.O_CLOEXEC))
            except FileNotFoundError:
                self._remove(number)
                return None
        self._writing[label] = writing  # it comes last now
        self._close_others()
        return writing

    def _may_grow(self, number: int) -> bool:
        """Whether a segment that was left can be filled: it isn't full, and what came later has left room for that."""
        counted = max(self._sizes[number], self._segment_bytes // _LEAST_COUNTED)
        return counted < self._segment_bytes and self._taken() - counted + self._segment_bytes <= self._most

    def _close_others(self) -> None:
        while len(self._writing) > _LABELS_AT_ONCE:
            self._end_segment(next(iter(self._writing)))

    def _begin_segment(self, label: bytes) -> _Writing:
        self._end_segment(label)
        self._last = number = self._last + 1  # whatever fails, it is never used again
        self._base.execute("insert into segments values (?, 0, ?)", (number, label))
        handle = private(self._path(number), os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC)
        self._sizes[number], self._used[number], self._labels[number] = 0, self._clock(), label
        self._writing[label] = writing = _Writing(number, handle)
        self._close_others()
        return writing

    def _end_segment(self, label: bytes) -> None:
        if (writing := self._writing.pop(label, None)) is not None:
            os.close(writing.handle)

    def _remove(self, number: int) -> None:
        """Remove a segment and all that lies in it."""
        label = self._labels[number]
        if label in self._writing and self._writing[label].number == number:
            self._end_segment(label)
        self._base.execute(_DROP_NAMES, (number,))
        self._count -= self._base.execute("delete from items where segment = ?", (number,)).rowcount
        self._base.execute("delete from segments where number = ?", (number,))
        del self._sizes[number], self._used[number], self._labels[number]
        if (handle := self._files.pop(number, None)) is not None:
            os.close(handle)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(number))

    def clear(self) -> int:
        """Remove all items; return the bytes that they took."""
        with self._lock, self._index():
            freed = sum(self._sizes.values())
            for number in list(self._sizes):
                self._remove(number)
            return freed

    @property
    def totals(self) -> tuple[int, int]:
        """Items, and bytes of segments."""
        with self._lock:
            return self._count, sum(self._sizes.values())

    def close(self) -> None:
        """Close all files; others may use the folder. Idempotent."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._close_files()
            os.close(self._held)

    def _close_files(self) -> None:
        for label in list(self._writing):
            self._end_segment(label)
        while self._files:
            os.close(self._files.popitem()[1])
        self._base.close()

    # -- files ---------------------------------------------------------------------------------------------------------

    def _path(self, number: int) -> str:
        return os.path.join(self._folder, f"{number:08}.segment")

    def _opened(self, number: int) -> int | None:
        """Open a segment to read, or find it open; None: it isn't there."""
        if number not in self._sizes:
            return None
        handle = self._files.pop(number, None)
        if handle is None:
            try:
                handle = private(self._path(number), os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self._remove(number)
                return None
            while len(self._files) >= _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        self._files[number] = handle
        return handle

    @contextlib.contextmanager
    def _index(self) -> Iterator[sqlite3.Connection]:
        """Lend the index, with the lock held; what is written in the body is written together."""
        if self._closed:
            raise CacheError(f"the cache in {self._folder} was closed")
        self._base.execute("begin")
        try:
            yield self._base
        finally:
            if self._base.in_transaction:  # a full disk may have ended it
                self._base.execute("commit")

    def _load(self) -> None:
        """Open the index, and learn what there is; nothing is where it is damaged.

        Raises:
            CacheError: it can't be used now.
        """
        path = os.path.join(self._folder, _INDEX)
        try:
            loaded = load_index(path)
        except sqlite3.DatabaseError as error:
            if not is_damaged(error):
                raise CacheError(f"{path}: {error}") from error
            self._remove_files(error)
            loaded = load_index(path)
        self._base, rows, self._count = loaded
        self._sizes: dict[int, int] = {number: size for number, size, _ in rows}
        self._labels: dict[int, bytes] = {number: label for number, _, label in rows}
        self._used = dict.fromkeys(self._sizes, self._clock())
        self._last = max(self._sizes, default=0)
        self._remove_strangers()

    def _remove_files(self, error: sqlite3.Error) -> None:
        _logger.warning("the index in %s can't be read (%s): the cache begins empty", self._folder, error)
        for name in os.listdir(self._folder):
            if is_own(name) and name != _LOCK:
                os.unlink(os.path.join(self._folder, name))

    def _remove_strangers(self) -> None:
        """Remove segments that the index doesn't know, and forget those that are not there."""
        there = {int(name[:8]) for name in os.listdir(self._folder) if name.endswith(".segment")}
        for number in there - self._sizes.keys():
            os.unlink(self._path(number))
        for number in self._sizes.keys() - there:
            self._remove(number)

    def _failed(self, what: str, error: Exception) -> None:
        """Begin empty if the index is damaged; else say, once, that nothing is read or written."""
        if isinstance(error, sqlite3.Error) and is_damaged(error):
            with contextlib.suppress(CacheError, OSError, sqlite3.Error), self._lock:
                if not self._closed:
                    self._close_files()
                    self._remove_files(error)
                    self._load()
        elif not self._complained:
            self._complained = True
            _logger.warning(
                "the cache in %s can't be %s: %s. What is asked for is read from where it is stored; this is said once",
                self._folder,
                what,
                error,
            )


_DROP_NAMES = "delete from names where place in (select place from items where segment = ?)"
_BY_CONTENT = "select segment, start, size, checksum from items where place = ?"
_BY_NAME = "select segment, start, size, checksum from names join items using (place) where name = ?"


def _place_of(content: bytes) -> bytes:
    """Derive an item's place in the index from its hash.

    In the order of hashes, a look-up for one that begins as another does would find the page of the index warm that
    was read for that: who has a part of a hash could tell by the time whether the item is there.
    """
    return hashlib.sha256(content).digest()


def _found(base: sqlite3.Connection, statement: str, key: bytes) -> StoredItem | None:
    row = base.execute(statement, (key,)).fetchone()
    return None if row is None else StoredItem(*row)


def is_own(name: str) -> bool:
    """Whether a store makes files of this name in its folder."""
    return _OURS.fullmatch(name) is not None


def check_folder(folder: str) -> None:
    """Check that a cache server could use a folder, which is made if it is not there; another one may use it yet.

    Raises:
        CacheError: it can't be used.
    """
    with _errors(folder):
        os.close(_opened(folder))


def _opened(folder: str) -> int:
    """Make the folder if need be, and open the file that whoever uses it holds."""
    make_private(folder, is_own)
    return private(os.path.join(folder, _LOCK), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)


def _hold(handle: int, folder: str) -> None:
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise CacheError(f"another cache server uses {folder}: give this one a folder of its own") from None


@contextlib.contextmanager
def _errors(folder: str) -> Iterator[None]:
    try:
        yield
    except CacheError:
        raise
    except OSError as error:
        raise CacheError(f"{folder}: {error.strerror or error}; name another folder for the cache") from error
