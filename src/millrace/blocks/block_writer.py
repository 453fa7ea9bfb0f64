"""Block writer: writes a block item by item."""

from __future__ import annotations

import array
from collections.abc import Sequence
from typing import Any, Protocol
from zlib import crc32

import numpy as np

from millrace.blocks.block_format import MAGIC, MESSAGE_BYTES, TRAILER, VERSION, BlockInfo, Index, encode_index
from millrace.blocks.block_keys import KEY_BYTES, block_name
from millrace.elements.codec import encode
from millrace.elements.encode_columns import Piece
from millrace.elements.layout import ALIGNMENT
from millrace.elements.tree import nbytes_of
from millrace.wire.data.compression import CODES, Compression, codec_of, compressed

_ITEM_BYTES = KEY_BYTES + 4
_MESSAGE_HEAD_BYTES = 2048
"""Estimated bytes of a message and its row of the index, without the elements."""
_COMPRESSED_MAX = 1 << 30
"""Largest message in bytes that LZ4 compresses."""


class Writable(Protocol):
    """File that a block is written to."""

    def write(self, data: Piece, /) -> object:
        """Append all of ``data``, which may not change until the block is whole."""


class BlockWriter:
    """Writer that puts items into a file as they come; holds no more than one message of them.

    Args:
        file: takes the bytes from its start on. Who made it publishes it after :meth:`finish`, or throws it away.
        compression: of messages that become smaller by it; None: of none.
        writer: the tenant for whose job the block is made; empty where there are no tenants.

    Attributes:
        items: number of items so far.
        nbytes_written: bytes that the file has so far.
    """

    def __init__(self, file: Writable, compression: Compression | None = None, writer: str = "") -> None:
        self._file = file
        self._compression = compression
        self._name = writer
        self.items = 0
        self._keys = bytearray()
        self._counts, self._rows, self._checksums = array.array("I"), array.array("I"), array.array("I")
        self._sizes, self._lengths = array.array("Q"), array.array("Q")
        self.nbytes_written = 0
        self._pending: list[Any] = []
        self._pending_bytes = 0

    @property
    def nbytes(self) -> int:
        """Estimated size in bytes of the block if it were finished now."""
        waiting = self._pending_bytes + _MESSAGE_HEAD_BYTES if self._pending else 0
        return self.nbytes_written + waiting + _ITEM_BYTES * self.items + _MESSAGE_HEAD_BYTES

    def add(self, key: bytes, elements: Sequence[Any]) -> None:
        """Write the next item, whole: :meth:`begin` and :meth:`extend`."""
        self.begin(key)
        self.extend(elements)

    def begin(self, key: bytes) -> None:
        """Begin the next item; its key has 16 bytes."""
        if len(key) != KEY_BYTES:
            raise ValueError(f"an item key of {len(key)} bytes, where {KEY_BYTES} are needed")
        self._keys += key
        self._counts.append(0)
        self.items += 1

    def extend(self, elements: Sequence[Any]) -> None:
        """Append elements to the item that was begun last. They must not be changed until the block is finished.

        Raises:
            CodecError: an element has no form as bytes; the block has to be thrown away.
            StoreFullError, CacheError: whatever the file raises; the block has to be thrown away.
        """
        self._counts[-1] += len(elements)
        for element in elements:
            size = nbytes_of((element,))
            if self._pending_bytes + size > MESSAGE_BYTES:
                self._flush()
            if size >= MESSAGE_BYTES:
                self._write([element])
            else:
                self._pending.append(element)
                self._pending_bytes += size

    def finish(self) -> BlockInfo:
        """Write what is left; the file is then complete."""
        self._flush()
        index = encode_index(
            Index(
                keys=bytes(self._keys),
                counts=_packed(self._counts),
                rows=_packed(self._rows),
                sizes=_packed(self._sizes),
                lengths=_packed(self._lengths),
                checksums=_packed(self._checksums),
                compression=self._compression,
                writer=self._name,
            )
        )
        trailer = TRAILER.pack(MAGIC, VERSION, crc32(index), len(index))
        self._put(index)
        self._put(trailer)
        return BlockInfo(block_name(bytes(self._keys)), self.nbytes_written, self.items)

    def _flush(self) -> None:
        if self._pending:
            self._write(self._pending)
            self._pending, self._pending_bytes = [], 0

    def _write(self, elements: list[Any]) -> None:
        pieces = encode(elements)
        length = sum(map(len, pieces))
        smaller = self._compressed(pieces) if length <= _COMPRESSED_MAX else None
        checksum, start = 0, self.nbytes_written
        # So that each message begins where its arrays are aligned, as they are by its start.
        stored = [*pieces, bytes(-length % ALIGNMENT)] if smaller is None else [smaller]
        for piece in stored:
            checksum = crc32(piece, checksum)
            self._put(piece)
        self._rows.append(len(elements))
        self._sizes.append(self.nbytes_written - start)
        self._lengths.append(0 if smaller is None else length)
        self._checksums.append(checksum)

    def _compressed(self, pieces: list[Piece]) -> memoryview | None:
        """Compress the message, if that is wanted and worth it."""
        if self._compression is None:
            return None
        return compressed(codec_of(CODES[self._compression]), b"".join(pieces))

    def _put(self, piece: Piece) -> None:
        self._file.write(piece)
        self.nbytes_written += len(piece)


def _packed(column: array.array[int]) -> bytes:
    return np.array(column, f"<u{column.itemsize}").tobytes()
