"""Journal file, in which events become durable before anybody hears of what follows from them.

An SQLite file in WAL mode with full sync. Events are written in groups, a row and a sync for all that was decided
while the group before was being written. Every so many events a snapshot of the state is written with them; the one
before it and the events since that stay until the next, all older ones go.

A journal that an earlier version wrote is always understood: events and snapshots only ever gain fields with defaults.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import errno
import hashlib
import os
import sqlite3
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import msgspec

from millrace.control.journal.event import Event
from millrace.control.journal.replay import AnyEvent
from millrace.dispatcher.shortage import UnwritableError
from millrace.dispatcher.work_dir import sync_folder
from millrace.errors import ServiceError
from millrace.message_budget import MALFORMED

SCHEMA = 1
"""Version of the tables; raised when they change in a way that this version could not read."""
SNAPSHOT_EVENTS = 50_000
"""Events from one snapshot to the next: a fraction of a second to apply."""
MARK_EVENTS = 1_000
"""Events from one sync of the mark to the next; what is not synced outlives the process, but not its host."""
WAL_BYTES = 16 << 20
"""Bytes to which the write-ahead log is cut once it was copied into the file."""

_TABLES = """
CREATE TABLE IF NOT EXISTS groups (first INTEGER PRIMARY KEY, count INTEGER, at REAL, body BLOB, checksum BLOB);
CREATE TABLE IF NOT EXISTS snapshots (sequence INTEGER PRIMARY KEY, at REAL, body BLOB, checksum BLOB);
"""
_SUFFIXES = ("-wal", "-shm", "-last", "")
"""Suffixes of the names of the files that make up a journal."""
decode_events = msgspec.msgpack.Decoder(list[AnyEvent]).decode
"""Decodes a group of events; raises what is in :data:`~millrace.message_budget.MALFORMED`."""


class Journal:
    """Append-only list of events. This one remembers nothing: a restarted dispatcher starts empty."""

    @property
    def due(self) -> bool:
        """Whether the next group should bring a snapshot."""
        return False

    async def append(self, events: Sequence[Event | msgspec.Raw], at: float, snapshot: bytes | None = None) -> None:
        """Return when these events are durable, all or none.

        Args:
            events: in order, be they encoded already.
            at: the dispatcher's clock, in seconds.
            snapshot: of the state after the last of them.

        Raises:
            UnwritableError: nothing was written.
        """

    def close(self) -> None:
        """End appending."""


@dataclasses.dataclass
class JournalContents:
    """Contents of a journal.

    Attributes:
        snapshot: the newest good one, None if there is none.
        events: those since, by the groups in which they were written.
        base: number of the last event before the snapshot, counted from 1.
        last: number of the last event.
        at: the dispatcher's clock when it was written.
        damage: a sentence about the first thing that is wrong, empty if nothing is.
        lost: events that are known to have been behind that.
    """

    snapshot: bytes | None = None
    events: list[list[Event]] = dataclasses.field(default_factory=list)
    base: int = 0
    last: int = 0
    at: float = 0.0
    damage: str = ""
    lost: int = 0


class HighWaterMark:
    """Number of the last event that is durable, in a file of its own.

    It is written behind each group and synced now and then: a mark that is behind the journal is none the worse, and
    one that is ahead of it never becomes so by itself.

    Args:
        path: of the file; made with the first number.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._file: int | None = None

    def read(self) -> int | None:
        """Read the number; None if none was ever written.

        Raises:
            ValueError: the file is not what was written.
            OSError: it cannot be read.
        """
        try:
            with open(self._path, "rb") as file:
                data = file.read()
        except FileNotFoundError:
            return None
        last = int.from_bytes(data[:8])
        if data != _marked(last):
            raise ValueError(f"{self._path} is not what was written")
        return last

    def write(self, last: int) -> None:
        """Replace the number. The file is there with a number or not at all, also where the disk is full."""
        if self._file is not None:
            os.pwrite(self._file, _marked(last), 0)
            return
        draft = f"{self._path}.new"
        with contextlib.suppress(FileNotFoundError):
            os.unlink(draft)
        file = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _write_whole(file, _marked(last))
            os.rename(draft, self._path)
        except BaseException:
            os.close(file)
            with contextlib.suppress(OSError):
                os.unlink(draft)
            raise
        self._file = file

    def sync(self) -> None:
        """Make the number durable."""
        if self._file is not None:
            os.fdatasync(self._file)

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            os.close(self._file)
            self._file = None


def _write_whole(file: int, data: bytes) -> None:
    if os.pwrite(file, data, 0) < len(data):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    os.fdatasync(file)  # a name that is durable before what it names would be an empty file


def _marked(last: int) -> bytes:
    number = last.to_bytes(8)
    return number + hashlib.blake2b(number, digest_size=16).digest()


class SqliteJournal(Journal):
    """Journal in a file.

    Args:
        path: of the file; made if it is not there.

    Raises:
        ServiceError: it is of a newer version of millrace.
        sqlite3.Error: it is damaged, or can't be written.
    """

    def __init__(self, path: str) -> None:
        # Used in one thread at a time: here, and from then on in the writer's.
        self._mark = HighWaterMark(f"{path}-last")
        self._synced = 0
        # SQLite gives the log the mode of the file.
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600))
        self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
        try:
            for setting in (
                "locking_mode = EXCLUSIVE",  # there is one dispatcher; needs no shared memory beside the file
                "journal_mode = WAL",
                "synchronous = FULL",
                f"journal_size_limit = {WAL_BYTES}",
            ):
                self._db.execute(f"PRAGMA {setting}")
            [(schema,)] = self._db.execute("PRAGMA user_version")
            _check_schema(path, schema)
            self._db.executescript(_TABLES)
            self._db.execute(f"PRAGMA user_version = {SCHEMA}")
        except BaseException:
            self._db.close()
            raise
        self._writer = ThreadPoolExecutor(1, thread_name_prefix="millrace-journal")
        self._last = self._base = 0

    @property
    def due(self) -> bool:
        """Whether the next group should bring a snapshot."""
        return self._last - self._base >= SNAPSHOT_EVENTS

    def read(self) -> JournalContents:
        """Read everything, up to the first thing that is wrong. To be called once, before the first :meth:`append`.

        Raises:
            OSError: there is no file descriptor left, say; it may be read later.
        """
        past = JournalContents()
        broken = marred = ""
        mark = None
        try:
            mark = self._mark.read()
        except ValueError as error:
            marred = str(error)  # which says nothing against what is in the journal
        try:
            [(found,)] = self._db.execute("PRAGMA quick_check(1)")
            if found != "ok":
                past.damage = f"SQLite finds {found}"
            for sequence, at, body, checksum in self._db.execute("SELECT * FROM snapshots ORDER BY sequence DESC"):
                if checksum == _checksum(sequence, 0, at, body):
                    past.snapshot, past.base, past.at = body, sequence, at
                    break
                past.damage = f"the snapshot after event {sequence} is not what was written"
            past.last = end = past.base
            rows = self._db.execute("SELECT * FROM groups WHERE first > ? ORDER BY first", (past.base,))
            for first, count, at, body, checksum in rows:
                end = first + count - 1
                broken = broken or _wrong(past.last + 1, first, count, at, body, checksum)
                if not broken:
                    past.events.append(decode_events(body))
                    past.last, past.at = end, at
            past.lost = end - past.last
            if mark is not None and end < mark:
                broken = broken or f"it ends after event {end}, and {mark} were durable: it is an older one, or cut off"
                past.lost = mark - past.last
        except (sqlite3.DatabaseError, *MALFORMED, TypeError, ValueError) as error:  # rows may be of anything
            broken = broken or f"what follows event {past.last} cannot be read: {error}"
        past.damage = past.damage or broken or marred
        self._last, self._base = past.last, past.base
        return past

    async def append(self, events: Sequence[Event | msgspec.Raw], at: float, snapshot: bytes | None = None) -> None:
        """Append as :meth:`Journal.append` does, in the writer's thread."""
        body = msgspec.msgpack.encode(events)
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._writer, self.write, len(events), at, body, snapshot)

    def write(self, count: int, at: float, body: bytes, snapshot: bytes | None = None) -> None:
        """Append ``count`` events that are encoded already, in the calling thread."""
        first, last = self._last + 1, self._last + count
        try:
            self._db.execute("BEGIN IMMEDIATE")
            if count:
                row: tuple[Any, ...] = (first, count, at, body, _checksum(first, count, at, body))
                self._db.execute("INSERT INTO groups VALUES (?, ?, ?, ?, ?)", row)
            if snapshot is not None:
                row = (last, at, snapshot, _checksum(last, 0, at, snapshot))
                self._db.execute("INSERT OR REPLACE INTO snapshots VALUES (?, ?, ?, ?)", row)
                self._db.execute("DELETE FROM snapshots WHERE sequence < ?", (self._base,))
                self._db.execute("DELETE FROM groups WHERE first <= ?", (self._base,))
            self._db.execute("COMMIT")
        except sqlite3.Error as error:
            with contextlib.suppress(sqlite3.Error):  # some errors have ended the transaction already
                self._db.execute("ROLLBACK")
            raise UnwritableError(f"the journal cannot be written: {error}") from error
        self._last = last
        with contextlib.suppress(OSError):  # the events are durable, and the next number will do as well
            self._mark.write(last)
            if snapshot is not None or last - self._synced >= MARK_EVENTS:
                self._mark.sync()
                self._synced = last
        if snapshot is not None:
            self._base = last
            self.checkpoint()

    def checkpoint(self) -> None:
        """Copy the write-ahead log into the file, so that as little as can be hangs on the log."""
        with contextlib.suppress(sqlite3.Error):  # a full disk: the log stays, and is taken over later
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")

    def begin(self) -> None:
        """Go on with what was read, whatever the mark said."""
        self.checkpoint()
        self._mark.write(self._last)
        self._mark.sync()

    def close(self) -> None:
        """Wait for what is being written, and close the files."""
        self._writer.shutdown()
        self._db.close()
        with contextlib.suppress(OSError):
            self._mark.sync()
        self._mark.close()


def _check_schema(path: str, schema: int) -> None:
    if schema > SCHEMA:
        raise ServiceError(
            f"{path} was written by a newer version of millrace (format {schema}, this one knows {SCHEMA}): "
            "start that version, or use another work_dir"
        )


def _wrong(expected: int, first: int, count: int, at: float, body: Any, checksum: Any) -> str:
    """Say what is wrong with a group of events, empty if nothing is."""
    if first != expected:
        return f"events {expected} to {first - 1} are missing"
    if checksum != _checksum(first, count, at, body):
        return f"events {first} to {first + count - 1} are not what was written"
    return ""


def _checksum(number: int, count: int, at: float, body: Any) -> bytes:
    digest = hashlib.blake2b(body if isinstance(body, bytes) else b"", digest_size=16)
    digest.update(repr((number, count, at)).encode())
    return digest.digest()


def set_aside(path: str) -> str:
    """Rename a damaged journal with what belongs to it; return its new name."""
    number = 1
    while os.path.exists(aside := f"{path}.damaged-{number}"):
        number += 1
    move_journal(path, aside)
    return aside


def move_journal(path: str, to: str) -> None:
    """Rename a journal with what belongs to it, itself at last, and durably."""
    for ending in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.rename(path + ending, to + ending)
    sync_folder(os.path.dirname(path))


def remove_journal(path: str) -> None:
    """Remove a journal with what belongs to it, if there is any of that."""
    for ending in _SUFFIXES:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path + ending)
