"""Table of samples on disk: an SQLite database that several processes read and write, bounded in bytes or samples."""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import threading
import weakref
import zlib
from collections.abc import Iterator, Sequence
from typing import Literal

from millrace.errors import CacheError, StoreFullError
from millrace.folder_lock import folder_lock
from millrace.private_folder import private

Eviction = Literal["fifo", "lru", "random"]
EVICTIONS: tuple[Eviction, ...] = ("fifo", "lru", "random")

_PAGE_BYTES = 4096
_BUSY_S = 60.0
_LAYOUT = 3
"""Number of this layout; a database of another one is thrown away."""
_TABLES = """
create table if not exists samples (
    id integer primary key, turn integer not null, name text not null, number integer not null, size integer not null,
    checksum integer not null
);
create table if not exists contents (id integer primary key, value blob not null);
create unique index if not exists by_turn on samples (turn);
create unique index if not exists by_name on samples (name, number);
create table if not exists total (
    one integer primary key check (one = 1), count integer not null, size integer not null, turn integer not null
);
insert or ignore into total values (1, 0, 0, 0);
"""
_OLDEST = "select id, size from samples order by turn limit 64"
_ANY = """
select id, size from samples
where turn >= (select min(turn) + abs(random()) % (max(turn) - min(turn) + 1) from samples) order by turn limit 1
"""
_FIRST = {"fifo": _OLDEST, "lru": _OLDEST, "random": _ANY}

_HELD = "select number from samples where name = ? and number in (select value from json_each(?))"

_sqlite = threading.RLock()
"""Held by whoever is inside SQLite, with whatever table; a fork waits for it."""


class SampleTable:
    """Samples by (name of a dataset, index), as bytes. Thread-safe, and usable in forked children.

    It is a cache: nothing is synced to the disk. A sample that a crash of the machine has damaged is found by its
    checksum and thrown away, and so is a database that SQLite can't open.

    Args:
        path: of the database.
        most_bytes: bytes of samples to keep at most; None: no bound.
        most_samples: samples to keep at most; None: no bound.
        eviction: which samples leave first: those that came first, those that were read longest ago, or any.

    Raises:
        CacheError: the database can't be made or opened.
    """

    def __init__(
        self, path: str, *, most_bytes: int | None, most_samples: int | None, eviction: Eviction = "fifo"
    ) -> None:
        self._path = path
        self._most = most_samples, most_bytes
        self._eviction = eviction
        self._base: sqlite3.Connection | None = None
        self._closed = False
        with self._connected(anew=True):
            _tables.add(self)

    def get(self, name: str, index: int) -> bytes | None:
        """Look up a sample; None if it isn't there, or is damaged and was thrown away."""
        with self._connected() as base:
            found = base.execute(
                "select checksum, value from samples left join contents using (id) where name = ? and number = ?",
                (name, index),
            ).fetchone()
            if found is None:
                return None
            checksum, value = found
            if not isinstance(value, bytes) or checksum != _checksum(name, index, value):
                self._drop(base, name, index)
                return None
            if self._eviction == "lru":
                with _transaction(base):
                    _move(base, name, index, _next_turn(base))
            return value

    def held(self, name: str, indices: Sequence[int]) -> list[int]:
        """Look up which of these samples are there, without reading them or having them go any later."""
        with self._connected() as base:
            return [number for (number,) in base.execute(_HELD, (name, json.dumps(list(indices))))]

    def drop(self, name: str, index: int) -> None:
        """Let go of a sample, if it is there."""
        with self._connected() as base:
            self._drop(base, name, index)

    def _drop(self, base: sqlite3.Connection, name: str, index: int) -> None:
        with _transaction(base):
            gone = base.execute("delete from samples where name = ? and number = ? returning id, size", (name, index))
            for number, size in gone.fetchall():
                base.execute("delete from contents where id = ?", (number,))
                base.execute("update total set count = count - 1, size = size - ?", (size,))

    def renew(self, name: str, index: int) -> int | None:
        """Have a sample go no sooner than one that comes now, if it is there; else take a turn for it.

        Samples go in the order of their turns. Who is about to fetch samples at the same time takes a turn for each
        first: then they go in the order in which they were asked for, however their fetches end.

        Returns:
            A turn for :meth:`put`; None if the sample is there.
        """
        with self._connected() as base, _transaction(base):
            turn = _next_turn(base)
            return None if _move(base, name, index, turn) else turn

    def renew_all(self, name: str, indices: Sequence[int]) -> None:
        """Have those of these samples that are there go no sooner than what comes now, in the order given."""
        with self._connected() as base, _transaction(base):
            for index in indices:
                _move(base, name, index, _next_turn(base))

    def put(self, name: str, index: int, value: bytes, turn: int | None = None) -> int:
        """Keep a sample, and let others go to make room for it.

        Args:
            name: of the dataset.
            index: of the sample in it.
            value: the sample.
            turn: that :meth:`renew` has taken for it; None: it goes last.

        Returns:
            How many went; -1 if this one is larger than all that may be kept, and was not.

        Raises:
            StoreFullError: the disk is full.
        """
        most_samples, most_bytes = self._most
        if (most_bytes is not None and len(value) > most_bytes) or most_samples == 0:
            return -1
        with self._connected() as base, _transaction(base):
            added = base.execute(
                "insert or ignore into samples (turn, name, number, size, checksum) values (?, ?, ?, ?, ?) "
                "returning id",
                (turn or _next_turn(base), name, index, len(value), _checksum(name, index, value)),
            ).fetchone()
            if added is None:  # it is there
                return 0
            base.execute("insert into contents values (?, ?)", (*added, value))
            base.execute("update total set count = count + 1, size = size + ?", (len(value),))
            return self._make_room(base)

    def _make_room(self, base: sqlite3.Connection) -> int:
        count, size = base.execute("select count, size from total").fetchone()
        most_samples, most_bytes = self._most
        gone = 0

        def over() -> bool:
            return (most_samples is not None and count > most_samples) or (most_bytes is not None and size > most_bytes)

        while over():
            rows: Sequence[tuple[int, int]] = base.execute(_FIRST[self._eviction]).fetchall()
            if not rows:  # the total was damaged
                count = size = 0
            for number, nbytes in rows:
                if not over():
                    break
                base.execute("delete from samples where id = ?", (number,))
                base.execute("delete from contents where id = ?", (number,))
                count, size, gone = count - 1, size - nbytes, gone + 1
        if gone or not count:
            base.execute("update total set count = ?, size = ?", (count, size))
        return gone

    def totals(self) -> tuple[int, int]:
        """Count the (samples, bytes of them) that are kept."""
        with self._connected() as base:
            count, size = base.execute("select count, size from total").fetchone()
            return count, size

    def close(self) -> None:
        """Close the database. Idempotent."""
        with _sqlite:
            self._closed = True
            self.disconnect()

    # -- the connection ------------------------------------------------------------------------------------------------

    def disconnect(self) -> None:
        """Close the connection until the database is used again."""
        if self._base is not None:
            self._base.close()
            self._base = None

    @contextlib.contextmanager
    def _connected(self, *, anew: bool = False) -> Iterator[sqlite3.Connection]:
        with _sqlite:
            if self._closed:
                raise CacheError(f"{self._path} was closed")
            if self._base is None:
                self._base = self._connect(anew=anew)
            try:
                yield self._base
            except sqlite3.OperationalError as error:
                if error.sqlite_errorname in {"SQLITE_FULL", "SQLITE_IOERR_WRITE"}:
                    raise StoreFullError(f"{self._path} cannot grow: {error}") from error
                raise CacheError(f"{self._path}: {error}") from error
            except sqlite3.DatabaseError as error:
                raise CacheError(f"{self._path}: {error}; remove it, as it is only a cache") from error

    def _connect(self, *, anew: bool) -> sqlite3.Connection:
        try:
            return self._opened()
        except sqlite3.DatabaseError as error:
            if not anew or isinstance(error, sqlite3.OperationalError):
                raise CacheError(f"{self._path}: {error}") from error
        except OSError as error:
            raise CacheError(f"{self._path} cannot be opened: {error.strerror or error}") from error
        for ending in ("", "-wal", "-shm"):  # damaged, or of another layout: it is only a cache
            with contextlib.suppress(FileNotFoundError):
                os.unlink(self._path + ending)
        return self._opened()

    def _opened(self) -> sqlite3.Connection:
        with contextlib.suppress(FileExistsError):  # closing one that is there would take another connection's locks
            os.close(private(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
        base = sqlite3.connect(self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            with folder_lock(
                os.path.dirname(self._path)
            ):  # SQLite waits for nobody who switches a new file to its log, too
                base.execute(f"pragma page_size = {_PAGE_BYTES}")
                base.execute("pragma journal_mode = wal")
            base.execute("pragma synchronous = off")
            base.execute(f"pragma journal_size_limit = {4 << 20}")
            _check_layout(base)
            with _transaction(base):
                for statement in _TABLES.split(";"):
                    base.execute(statement)
                base.execute(f"pragma user_version = {_LAYOUT}")
                self._make_room(base)  # the bound may be smaller than when it was filled
        except BaseException:
            base.close()
            raise
        return base


_tables: weakref.WeakSet[SampleTable] = weakref.WeakSet()


def _disconnect() -> None:
    """Close all connections before a fork: SQLite's locks and its memory aren't to be found halfway by a child."""
    _sqlite.acquire()
    for table in _tables:
        table.disconnect()


os.register_at_fork(before=_disconnect, after_in_parent=_sqlite.release, after_in_child=_sqlite.release)


def _checksum(name: str, index: int, value: bytes) -> int:
    """Sum of a sample and of which one it is, as an index of the database may be damaged as well."""
    return zlib.crc32(value, zlib.crc32(f"{index} {name}".encode()))


def _check_layout(base: sqlite3.Connection) -> None:
    layout = base.execute("pragma user_version").fetchone()[0]
    if layout not in (0, _LAYOUT):
        raise sqlite3.DatabaseError(f"it has layout {layout}")


def _next_turn(base: sqlite3.Connection) -> int:
    (turn,) = base.execute("update total set turn = turn + 1 returning turn").fetchone()
    return int(turn)


def _move(base: sqlite3.Connection, name: str, index: int, turn: int) -> bool:
    """Give a sample another turn; False if it is not there."""
    moved = base.execute("update samples set turn = ? where name = ? and number = ?", (turn, name, index))
    return moved.rowcount > 0


@contextlib.contextmanager
def _transaction(base: sqlite3.Connection) -> Iterator[None]:
    """Write, as the only one who does; Ctrl-C in the middle leaves nothing half done."""
    try:
        base.execute("begin immediate")  # may wait for others for a minute, and Ctrl-C comes as it returns
        yield
        base.execute("commit")
    except BaseException:
        if base.in_transaction:  # a full disk may have ended it
            base.execute("rollback")
        raise
