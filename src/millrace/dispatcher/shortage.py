"""Shortages of the machine, such as a full disk or no free file descriptor, which are waited out."""

from __future__ import annotations

import asyncio
import errno
import sqlite3
from collections.abc import Awaitable, Callable
from typing import TypeVar

from millrace.errors import ServiceError
from millrace.wire.backoff import delays

T = TypeVar("T")

SHORTAGES = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EMFILE, errno.ENFILE, errno.ENOMEM}
"""Errors of the system for want of room on the disk, file descriptors or memory."""
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}


class UnwritableError(ServiceError):
    """Failure to make something durable; trying again may succeed, e.g. once there is room on the disk."""


class ShortageError(ServiceError):
    """Failure to open or read something for a shortage of the machine; trying again may succeed."""


def unusable(what: str, error: OSError | sqlite3.Error) -> ServiceError:
    """Make the error about something that cannot be used: a shortage, or one that stays."""
    if isinstance(error, sqlite3.Error):
        short = getattr(error, "sqlite_errorcode", 0) & 0xFF in _FULL
        return (ShortageError if short else ServiceError)(f"{what}: {error}")
    return (ShortageError if error.errno in SHORTAGES else ServiceError)(f"{what}: {error.strerror}")


async def retry_while_short(
    attempt: Callable[[], Awaitable[T]], kind: type[ServiceError], said: Callable[[str], None]
) -> T:
    """Call ``attempt`` until it does not fail for a shortage, every few seconds; return its result.

    Args:
        attempt: has changed nothing if it fails.
        kind: error that it raises for a shortage.
        said: gets the reason each time, and at last an empty one if there was any.
    """
    pauses = delays(1.0, 5.0)
    waited = False
    while True:
        try:
            found = await attempt()
        except kind as error:
            waited = True
            said(str(error))
            await asyncio.sleep(next(pauses))
        else:
            if waited:
                said("")
            return found
