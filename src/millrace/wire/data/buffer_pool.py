"""Buffer pool: memory for payloads that come through a socket, reused when nobody looks at it any more.

A fresh buffer of some megabytes costs a page fault for each of its pages, which is a good part of what receiving into
it costs. So a buffer goes back to its pool when the last view of it has died, and to no one before.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from typing import Any

from millrace.elements.recycled_arrays import Bytes, export, round_up
from millrace.wire.data.frames import aligned_buffer

LEAST_BYTES = 64 << 10
"""Size in bytes below which buffers come from malloc's own stock anyway."""


class BufferPool:
    """Pool of buffers as :func:`~millrace.wire.data.frames.aligned_buffer` gives them, old ones reused. Thread-safe.

    Args:
        limit: bytes to hold of buffers that nobody uses.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._died: deque[Bytes] = deque()
        self._idle: dict[int, list[Bytes]] = {}
        self._bytes = 0
        self._kinds: dict[int, Any] = {}

    @property
    def idle_bytes(self) -> int:
        """Bytes held of buffers that nobody uses; at most the limit."""
        with self._lock:
            self._collect()
            return self._bytes

    def allocate(self, size: int) -> Bytes:
        """Allocate memory of any content: uint8, shape (size,), starting at a multiple of 64 bytes."""
        if size < LEAST_BYTES:
            return aligned_buffer(size)
        room = round_up(size)
        with self._lock:
            self._collect()
            memory = self._take(room) if room in self._idle else aligned_buffer(room)
            # ctypes makes a class for each size and keeps it: there are few, as sizes are rounded.
            kind = self._kinds.setdefault(room, ctypes.c_ubyte * room)
        return export(kind.from_buffer(memory), self._died.append, memory)[:size]

    def _collect(self) -> None:
        """Take back what has died meanwhile; give up what is over the limit, the sizes longest unused first."""
        while self._died:
            memory = self._died.popleft()
            same = self._idle.pop(memory.nbytes, [])
            same.append(memory)
            self._idle[memory.nbytes] = same  # at the end: the sizes in use are the last to go
            self._bytes += memory.nbytes
        while self._bytes > self._limit:
            self._take(next(iter(self._idle)))

    def _take(self, size: int) -> Bytes:
        memory = self._idle[size].pop()
        self._bytes -= size
        if not self._idle[size]:
            del self._idle[size]
        return memory
