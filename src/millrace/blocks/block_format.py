"""Block format: items of cached elements in one immutable file, in which each can be found and read by itself.

    message | message | ... | index | trailer

* A *message* holds consecutive elements as :mod:`millrace.elements.codec` encodes them, about :data:`MESSAGE_BYTES` of
  them; a larger element is alone in its message. It is padded to a multiple of 64 bytes, or compressed.
* The *index* (:class:`Index`, as MessagePack) has packed little-endian columns with a row per item and per message.
  Elements follow one another in the order of their items, so that an item is found by adding up counts; it may have no
  elements, or more than a message holds.
* The *trailer* has a fixed size, and says how long the index is.

Where a block lies on a disk of the machine, large ranges are mapped rather than read, privately, so that elements are
writable without a copy. Arrays have to be aligned for it, so messages are.

Checksums cover all but the trailer, whose damage shows as the index not fitting. They are CRC-32 as zlib has it: part
of Python, computed without the interpreter's lock, and once for what is written and once for what is read.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

import msgspec

from millrace.wire.data.compression import Compression

MAGIC = b"millrace"
VERSION = 1
MESSAGE_BYTES = 64 << 10
"""Bytes up to which small elements are collected into a message: with less, the cost of a message would show; with
more, random access to single elements would read too many others."""

TRAILER = struct.Struct("<8sIIQ")
"""Magic, version, checksum of the index, bytes of the index."""


class Index(msgspec.Struct, frozen=True, array_like=True):
    """Index of a block: its items, and where they are.

    Attributes:
        keys: 16 bytes per item, in the order of their elements.
        counts: uint32 per item: its elements.
        rows: uint32 per message: elements in it.
        sizes: uint64 per message: bytes in the file. Messages follow one another without gaps.
        lengths: uint64 per message: bytes before compression, or 0 if it is stored as it is.
        checksums: uint32 per message, of its bytes in the file.
        compression: how those messages are compressed that are.
        writer: the tenant for whose job the block was made; empty where there are no tenants.
    """

    keys: bytes
    counts: bytes
    rows: bytes
    sizes: bytes
    lengths: bytes
    checksums: bytes
    compression: Compression | None = None
    writer: str = ""


encode_index = msgspec.msgpack.Encoder().encode
decode_index = msgspec.msgpack.Decoder(Index).decode


class BlockInfo(NamedTuple):
    """Written block: its name, its size in bytes, and the number of its items."""

    name: str
    nbytes: int
    items: int
