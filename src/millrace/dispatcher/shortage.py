"""What the machine is short of for a while, a full disk or no free file descriptor, is waited out."""

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
"""What the machine is short of now: room on the disk, file descriptors, memory."""
_FULL = {sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_NOMEM}


class UnwritableError(ServiceError):
    """Nothing could be made durable; trying again may succeed, e.g. once there is room on the disk."""


class ShortageError(ServiceError):
    """Something cannot be opened or read for want of what the machine is short of; trying again may succeed."""


def unusable(what: str, error: OSError | sqlite3.Error) -> ServiceError:
    """The error about something that cannot be used: a shortage, or one that stays."""
    if isinstance(error, sqlite3.Error):
        short = getattr(error, "sqlite_errorcode", 0) & 0xFF in _FULL
        return (ShortageError if short else ServiceError)(f"{what}: {error}")
    return (ShortageError if error.errno in SHORTAGES else ServiceError)(f"{what}: {error.strerror}")


async def retry_while_short(
    attempt: Callable[[], Awaitable[T]], kind: type[ServiceError], said: Callable[[str], None]
) -> T:
    """What ``attempt()`` gives once it no longer fails for a shortage: tried every few seconds, up to half a minute.

    Args:
        attempt: has changed nothing if it fails.
        kind: what it raises for a shortage.
        said: gets the reason each time, and at last an empty one if there was any.
    """
    pauses = delays(2.0, 30.0)
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
