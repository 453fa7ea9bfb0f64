"""Item index: the SQLite database by which an item store finds its items again."""

from __future__ import annotations

import contextlib
import os
import sqlite3

from millrace.private_folder import private

_LAYOUT = 3
_TABLES = f"""
create table if not exists segments (number integer primary key, size integer not null, label blob not null);
create table if not exists items (
    place blob primary key, segment integer not null, start integer not null, size integer not null,
    checksum integer not null
) without rowid;
create index if not exists by_segment on items (segment);
create table if not exists names (name blob primary key, place blob not null) without rowid;
create index if not exists by_place on names (place);
pragma user_version = {_LAYOUT};
"""
_FORGET_STRANGERS = """
delete from names where place in (
    select place from items where segment not in (select number from segments)
);
delete from items where segment not in (select number from segments);
"""
"""Of items in segments that the index doesn't know, as a full disk kept these from being noted."""


def load_index(path: str) -> tuple[sqlite3.Connection, list[tuple[int, int, bytes]], int]:
    """Open an index, which is made if it isn't there.

    Returns:
        a connection in which each statement is a transaction; (number, size, label) of each segment; number of items.

    Raises:
        sqlite3.DatabaseError: it is damaged, or of another layout.
        sqlite3.OperationalError: it can't be read or written now.
    """
    base = _connected(path)
    try:
        base.executescript(_FORGET_STRANGERS)
        rows = base.execute("select number, size, label from segments").fetchall()
        (count,) = base.execute("select count(*) from items").fetchone()
    except BaseException:
        base.close()
        raise
    return base, rows, count


def is_damaged(error: Exception) -> bool:
    """Whether an error says that the file is no index any more, and not that it can't be used now."""
    return type(error) is sqlite3.DatabaseError


def _connected(path: str) -> sqlite3.Connection:
    with contextlib.suppress(FileExistsError):
        os.close(private(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC))
    base = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        base.execute("pragma journal_mode = wal")
        base.execute("pragma synchronous = off")
        base.execute(f"pragma journal_size_limit = {4 << 20}")
        _check_layout(base)
        base.executescript(_TABLES)
    except BaseException:
        base.close()
        raise
    return base


def _check_layout(base: sqlite3.Connection) -> None:
    (layout,) = base.execute("pragma user_version").fetchone()
    if layout not in {0, _LAYOUT}:
        raise sqlite3.DatabaseError(f"it has layout {layout}")
