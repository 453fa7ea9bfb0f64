"""Memory store: blocks in this process's memory."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence

import numpy as np

from millrace.blocks.stores.block_store import OpenBlock, check_names
from millrace.elements.encode_columns import Piece
from millrace.elements.recycled_arrays import Bytes
from millrace.errors import BlockMissingError, StoreFullError


class MemoryStore:
    """Store (:class:`~millrace.blocks.stores.block_store.BlockStore`) whose blocks are gone with it.

    Args:
        capacity: bytes of all blocks, drafts included; None: no limit.
    """

    def __init__(self, capacity: int | None = None) -> None:
        self.location = "the memory of this process"
        self._capacity = capacity
        self._lock = threading.Lock()
        self._blocks: dict[tuple[str, str], bytes] = {}
        self._bytes = 0

    @contextlib.contextmanager
    def draft(self) -> Iterator[_Draft]:
        """Begin a draft; its bytes count as it grows."""
        draft = _Draft(self)
        try:
            yield draft
        finally:
            draft.discard()

    def open(self, point: str, name: str) -> _Block:
        """Open the block; it stays as it is, whatever becomes of it in the store."""
        check_names(point, name)
        with self._lock:
            data = self._blocks.get((point, name))
        location = f"{self.location}, block {point}/{name}"
        if data is None:
            raise BlockMissingError(f"{location} does not exist, or not any more")
        return _Block(name, location, data)

    def blocks(self, point: str | None = None) -> dict[tuple[str, str], int]:
        """List the bytes of each block as (point, name)."""
        with self._lock:
            return {key: len(data) for key, data in self._blocks.items() if point in (None, key[0])}

    def delete(self, point: str, name: str) -> None:
        """Remove a block, if it is there."""
        check_names(point, name)
        with self._lock:
            self._bytes -= len(self._blocks.pop((point, name), b""))

    def free_bytes(self) -> int | None:
        """Bytes left of the capacity; None if it has none."""
        return None if self._capacity is None else self._capacity - self._bytes

    def take(self, size: int) -> None:
        """Reserve ``size`` more bytes for a draft."""
        with self._lock:
            if self._capacity is not None and self._bytes + size > self._capacity:
                raise StoreFullError(
                    f"{self.location} has room for {self._capacity:,} bytes of blocks, and {self._bytes:,} are in use"
                )
            self._bytes += size

    def put(self, key: tuple[str, str], data: bytes) -> None:
        """Publish the bytes that a draft has reserved."""
        with self._lock:
            self._bytes -= len(self._blocks.get(key, b""))
            self._blocks[key] = data

    def release(self, size: int) -> None:
        """Give back the bytes that a draft has reserved."""
        with self._lock:
            self._bytes -= size


class _Draft:
    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self._data = bytearray()

    def write(self, data: Piece, /) -> None:
        self._store.take(len(data))
        self._data += data

    def publish(self, point: str, name: str) -> None:
        check_names(point, name)
        self._store.put((point, name), bytes(self._data))
        self._data = bytearray()

    def discard(self) -> None:
        self._store.release(len(self._data))
        self._data = bytearray()


class _Block(OpenBlock):
    def __init__(self, name: str, location: str, data: bytes) -> None:
        self.name = name
        self.location = location
        self.nbytes = len(data)
        self._data = data

    def read(self, ranges: Sequence[tuple[int, int]]) -> list[Bytes]:
        return [np.frombuffer(bytearray(memoryview(self._data)[start:stop]), np.uint8) for start, stop in ranges]

    def version(self) -> object:
        return id(self._data)
