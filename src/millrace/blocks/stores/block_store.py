"""Where blocks lie: one contract for all stores, and what every one of them keeps to.

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
from millrace.sources.storage import is_remote, local_path

NAME = re.compile(r"[0-9a-z][0-9a-z-]{0,63}")
"""What points and blocks may be called: hashes in hexadecimal digits, mostly. No name leads out of a store."""

FULL = {
    errno.ENOSPC: "free some room there, or lower cache_bytes",
    errno.EDQUOT: "the quota is used up: raise it, or lower cache_bytes",
    errno.EFBIG: "a file may not be so large here: raise the limit (ulimit -f)",
}
"""What the system says where there is no room, and what to do."""


class Draft(Protocol):
    """A block that is being written. One thread at a time."""

    def write(self, data: Piece, /) -> object:
        """Appends all of ``data``, which may not change until the draft is published.

        Raises:
            StoreFullError: there is no room for it.
            CacheError: it cannot be written.
        """

    def publish(self, point: str, name: str) -> None:
        """Ends the draft: the block is there, for everybody and at once.

        Raises:
            As :meth:`write`.
        """


class Block(Protocol):
    """A block that is open: it can be read even if it is deleted meanwhile, where the store can do that.

    Attributes:
        name: without its point.
        location: where it is, for messages.
        nbytes: its size in bytes.
    """

    name: str
    location: str
    nbytes: int

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        """Bytes ``start`` to ``stop`` for each of ``ranges``, uint8, writable, in memory of their own.

        Fewer where the block ends before, which only a damaged one does. Where reading waits for a network, what is
        asked for together is read at once.

        Raises:
            BlockMissingError: the block has been removed.
            CacheError: it cannot be read.
        """

    def version(self) -> object:
        """Differs once the block has become another one, or was written to, as far as the store can tell that."""

    def drop(self) -> bool:
        """Lets the operating system give up what it holds of the block in memory; False: no system holds any."""

    def close(self) -> None:
        """Ends reading; what was read stays."""


class BlockStore(Protocol):
    """Blocks under points.

    Attributes:
        location: path or URL, for messages.
    """

    location: str

    def draft(self) -> AbstractContextManager[Draft]:
        """A new draft; who leaves its context without publishing it leaves nothing behind.

        Raises:
            As :meth:`Draft.write`.
        """

    def open(self, point: str, name: str) -> Block:
        """A block, to be closed.

        Raises:
            BlockMissingError: it is not there.
            CacheError: it cannot be opened.
        """

    def blocks(self, point: str | None = None) -> dict[tuple[str, str], int]:
        """Bytes of each block as (point, name), of one point or of all. Nothing but whole blocks is in it.

        Raises:
            CacheError: the store cannot be listed.
        """

    def delete(self, point: str, name: str) -> None:
        """Removes a block, if it is there.

        Raises:
            CacheError: it cannot be removed.
        """

    def free_bytes(self) -> int | None:
        """How many more bytes fit, as far as is known; None where it isn't.

        Raises:
            CacheError: the store does not answer.
        """


def checked(*names: str) -> None:
    """Refuses what is no name of a point or block.

    Raises:
        CacheError: one of ``names`` is none.
    """
    for name in names:
        if not NAME.fullmatch(name):
            raise CacheError(f"{name!r} is no name of a point or block: digits and small letters, 64 at most")


def open_store(location: str, *, durable: bool = False) -> BlockStore:
    """The store at a path (any file system that is mounted), or at ``s3://``, ``gs://``, ``az://`` or ``memory://``.

    Args:
        location: a folder, which is made if it isn't there, or a bucket with or without a prefix.
        durable: a block in a folder is published when it is on the disk. Without it a block that the machine's end
            left incomplete is found damaged when it is read, and computed again; that is much faster.

    Raises:
        CacheError: the folder cannot be made or written to.
        PipelineError: the scheme is none that blocks can be written to.
    """
    from millrace.blocks.stores.file_store import DirectoryStore
    from millrace.blocks.stores.object_store import ObjectStore

    if is_remote(location):
        return ObjectStore(location)
    return DirectoryStore(local_path(location), durable=durable)
