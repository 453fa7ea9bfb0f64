"""Contract of block stores, and the names that all of them keep to.

A block is at ``POINT/NAME``. It is there wholly or not at all: it is written as a draft that nobody sees, and published
in one step. Whoever publishes a name that is there replaces it, which whoever reads it does not notice; both were made
of the same items. What a writer that died left behind is not listed, and goes when the store is opened again.

Every method may be called from any thread.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from millrace.elements.encode_columns import Piece
from millrace.elements.recycled_arrays import Bytes
from millrace.errors import CacheError

NAME = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")
"""Valid names of points and blocks: mostly hashes in hexadecimal digits. No name leads out of a store."""

FULL = {
    errno.ENOSPC: "free some room there, or lower cache_bytes",
    errno.EDQUOT: "the quota is used up: raise it, or lower cache_bytes",
    errno.EFBIG: "a file may not be so large here: raise the limit (ulimit -f)",
}
"""Errors of the system where there is no room, and what to do."""


class Draft(Protocol):
    """Block that is being written, by one thread at a time."""

    def write(self, data: Piece, /) -> object:
        """Append all of ``data``, which may not change until the draft is published.

        Raises:
            StoreFullError: there is no room for it.
            CacheError: it cannot be written.
        """

    def publish(self, point: str, name: str) -> None:
        """End the draft: the block is there, for everybody and at once."""


class OpenBlock(Protocol):
    """Open block: it can be read even if it is deleted meanwhile, where the store can do that.

    Attributes:
        name: without its point.
        location: where it is, for messages.
        nbytes: its size in bytes.
    """

    name: str
    location: str
    nbytes: int

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Read bytes ``start`` to ``stop`` for each of ``ranges``, uint8, writable, in memory of their own.

        There are fewer where the block ends before, which only a damaged one does. Where reading waits for a network,
        the ranges of one call are read at once.

        Raises:
            BlockMissingError: the block has been removed.
            CacheError: it cannot be read.
        """

    def version(self) -> object:
        """Token that differs once the block has been replaced or written to, as far as the store can tell."""

    def drop(self) -> bool:
        """Let the operating system give up what it holds of the block in memory; False: no system holds any."""
        return False

    def close(self) -> None:
        """End reading; what was read stays."""
        return


class BlockStore(Protocol):
    """Store of blocks under points.

    Attributes:
        location: path or URL, for messages.
    """

    location: str

    def draft(self) -> AbstractContextManager[Draft]:
        """Begin a draft; who leaves its context without publishing it leaves nothing behind."""

    def open(self, point: str, name: str) -> OpenBlock:
        """Open a block, to be closed.

        Raises:
            BlockMissingError: it is not there.
            CacheError: it cannot be opened.
        """

    def blocks(self, point: str | None = None) -> dict[tuple[str, str], int]:
        """List the bytes of each block as (point, name), of one point or of all, whole blocks only.

        Raises:
            CacheError: the store cannot be listed.
        """

    def delete(self, point: str, name: str) -> None:
        """Remove a block, if it is there.

        Raises:
            CacheError: it cannot be removed.
        """

    def free_bytes(self) -> int | None:
        """Bytes that still fit, as far as is known; None where it isn't.

        Raises:
            CacheError: the store does not answer.
        """


def check_names(*names: str) -> None:
    """Refuse invalid names of points and blocks.

    Raises:
        CacheError: one of ``names`` is invalid.
    """
    for name in names:
        if not NAME.fullmatch(name):
            raise CacheError(f"{name!r} is no name of a point or block: digits and small letters, 64 at most")
