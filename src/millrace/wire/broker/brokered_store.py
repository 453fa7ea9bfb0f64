"""Brokered store: a store that this process may not look into, reached through a process of its owner's."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
from collections.abc import Iterator
from typing import Any

import msgspec

from millrace.blocks.stores.file_store import FileBlock
from millrace.elements.encode_columns import Piece
from millrace.elements.file_mapping import OpenFile
from millrace.errors import CacheError
from millrace.wire.broker import broker_messages as msg
from millrace.wire.broker.store_broker import ERRORS

_CREDENTIALS = struct.Struct("3i")
"""Process, user and group, as the kernel says them."""


class BrokeredStore:
    """Store (:class:`~millrace.blocks.stores.block_store.BlockStore`) whose files another process opens. Thread-safe.

    Args:
        fd: this process's end of a pair of sockets, of which a :class:`~.store_broker.StoreBroker` has the other.

    Attributes:
        location: path or URL, for messages.
        owner: id of the process that opens the files.
    """

    def __init__(self, fd: int) -> None:
        self._sock = socket.socket(fileno=fd)
        self._sock.set_inheritable(False)
        self._lock = threading.Lock()
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(msg.BrokerAnswer)
        credentials = self._sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        self.owner, *_ = _CREDENTIALS.unpack(credentials)
        self.location = ""

    def use(self, location: str) -> None:
        """Say where the store is. The first one counts, so it is said before any user code runs.

        Raises:
            CacheError: it is another one than before, or cannot be used.
        """
        self._ask(msg.UseStore(location))
        self.location = location

    @contextlib.contextmanager
    def draft(self) -> Iterator[_Draft]:
        """Begin a draft, which is written by the other process."""
        number = self._ask(msg.BeginDraft())[0].number
        try:
            yield _Draft(self, number)
        finally:
            with contextlib.suppress(CacheError):  # the broker has ended, and removed it
                self._ask(msg.DiscardDraft(number))

    def open(self, point: str, name: str) -> FileBlock:
        """Open a block: its descriptor comes from the other process, and is for reading alone."""
        answer, (fd, *_) = self._ask(msg.FetchBlock(point, name))
        return FileBlock(name, answer.location, OpenFile(fd))

    def blocks(self, point: str | None = None) -> dict[tuple[str, str], int]:
        """Refuse: which blocks there are is nothing that user code is to see."""
        raise CacheError(f"a worker of another user does not list {self.location}")

    def delete(self, point: str, name: str) -> None:
        """Remove a block of this worker's own measurements; others stay."""
        self._ask(msg.DeleteBlock(point, name))

    def free_bytes(self) -> int | None:
        """Bytes that the file system has left for the store's owner."""
        free = self._ask(msg.AskRoom())[0].number
        return None if free < 0 else free

    def close(self) -> None:
        """Hang up: drafts that are not published are removed."""
        self._sock.close()

    def _ask(self, request: Any) -> tuple[msg.BrokerAnswer, list[int]]:
        with self._lock:
            try:
                self._sock.send(self._encoder.encode(request))
                packet, descriptors, _, _ = socket.recv_fds(self._sock, msg.PACKET_BYTES, 1)
            except OSError as error:
                raise CacheError(f"the process that opens blocks does not answer: {error}") from error
        if not packet:
            raise CacheError("the process that opens blocks has ended")
        for fd in descriptors:
            os.set_inheritable(fd, False)
        answer = self._decoder.decode(packet)
        if answer.error:
            raise ERRORS.get(answer.error, CacheError)(answer.message)
        return answer, list(descriptors)


class _Draft:
    def __init__(self, store: BrokeredStore, number: int) -> None:
        self._store, self._number = store, number
        self._waiting = bytearray()

    def write(self, data: Piece, /) -> None:
        view = memoryview(data).cast("B")
        while view:
            some = view[: msg.PIECE_BYTES - len(self._waiting)]
            self._waiting += some
            view = view[len(some) :]
            if len(self._waiting) == msg.PIECE_BYTES:
                self._flush()

    def _flush(self) -> None:
        if self._waiting:
            self._store._ask(msg.WriteDraft(self._number, bytes(self._waiting)))  # noqa: SLF001 (its draft)
            self._waiting.clear()

    def publish(self, point: str, name: str) -> None:
        self._flush()
        self._store._ask(msg.PublishDraft(self._number, point, name))  # noqa: SLF001 (its draft)
