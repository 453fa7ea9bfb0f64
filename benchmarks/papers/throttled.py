"""A cache and a source of a certain bandwidth, as of a network: each process waits as long as bytes would take.

    python -m benchmarks.papers.throttled MB_PER_S worker --dispatcher ADDRESS

is ``millrace worker`` where folders of blocks are read, and written, no faster than that. What is waited for is the
bytes alone, one request after the other, however many threads ask: as many of them as fit through a link in a second.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest import mock

import numpy as np

from millrace.blocks.stores import open_store as stores
from millrace.blocks.stores.block_store import BlockStore, Draft, OpenBlock
from millrace.elements.encode_columns import Piece
from millrace.elements.recycled_arrays import Bytes


def pause(seconds: float) -> None:
    """Takes so long, and computes nothing: as long as a device or a link would be waited for."""
    threading.Event().wait(seconds)


class Work:
    """Makes an array of a number in a certain time, and leaves a word that it did.

    Args:
        log: a file that all processes append to.
        seconds: that it takes.
        nbytes: of the array.
    """

    def __init__(self, log: str, seconds: float, nbytes: int) -> None:
        self._log, self._seconds, self._nbytes = log, seconds, nbytes

    def __call__(self, number: int) -> Any:
        """The array."""
        pause(self._seconds)
        with open(self._log, "a") as file:
            file.write(f"{number}\n")  # one short write, which is not torn
        return np.full(self._nbytes // 8, number)


def made_so_far(log: str) -> list[int]:
    """What was made so far."""
    with open(log) as file:
        return [int(line) for line in file]


class Link:
    """Bytes pass one after the other. Thread-safe.

    Args:
        bytes_per_s: that pass.
    """

    def __init__(self, bytes_per_s: float) -> None:
        self._s_per_byte = 1 / bytes_per_s
        self._lock = threading.Lock()
        self._free_at = 0.0
        self._late = 0.0  # whoever was let go last was woken so much later

    def take(self, nbytes: int) -> None:
        """Waits until so many bytes have passed. Being woken late is nobody's fault, and makes no link slower."""
        with self._lock:
            now = time.monotonic() - self._late
            self._late = 0.0
            free_at = self._free_at = max(now, self._free_at) + nbytes * self._s_per_byte
        wait = free_at - time.monotonic()
        if wait > 0:
            pause(wait)
        with self._lock:
            self._late = max(0.0, time.monotonic() - free_at)


class _Draft:
    def __init__(self, draft: Draft, link: Link) -> None:
        self._draft, self._link = draft, link
        self.publish = draft.publish

    def write(self, data: Piece, /) -> object:
        self._link.take(len(data))
        return self._draft.write(data)


class _Block:
    def __init__(self, block: OpenBlock, link: Link) -> None:
        self._block, self._link = block, link
        self.name, self.location, self.nbytes = block.name, block.location, block.nbytes
        self.version, self.drop, self.close = block.version, block.drop, block.close

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        self._link.take(sum(stop - start for start, stop in ranges))
        return self._block.read(ranges)


class ThrottledStore:
    """A :class:`~millrace.blocks.stores.block_store.BlockStore` behind a link for each direction."""

    def __init__(self, store: BlockStore, bytes_per_s: float) -> None:
        self._store = store
        self._out, self._in = Link(bytes_per_s), Link(bytes_per_s)
        self.location = store.location
        self.blocks, self.delete, self.free_bytes = store.blocks, store.delete, store.free_bytes

    @contextmanager
    def draft(self) -> Iterator[Draft]:
        """As of the store."""
        with self._store.draft() as draft:
            yield _Draft(draft, self._in)

    def open(self, point: str, name: str) -> OpenBlock:
        """As of the store."""
        return _Block(self._store.open(point, name), self._out)


def stores_of(bytes_per_s: float, module: Any = stores) -> Any:
    """A context in which the stores that a module opens have this bandwidth.

    Args:
        bytes_per_s: in each direction.
        module: that has ``open_store``; that of the function itself only reaches who is loaded in the context.
    """
    opened: Callable[..., BlockStore] = stores.open_store
    return mock.patch.object(
        module, "open_store", lambda *args, **kwargs: ThrottledStore(opened(*args, **kwargs), bytes_per_s)
    )


if __name__ == "__main__":
    with stores_of(1e6 * float(sys.argv[1])):
        from millrace.cli import main

        sys.exit(main(sys.argv[2:]))
