"""Messages of workers and cache servers to one another on a data connection.

    worker                                cache server
      | AskItems(1: key, 2: key, 3: key) ->   |
      | <----- FoundItems(1: size) + payload  |  it is there
      | <--------------------- FetchItems(2)  |  it is missing: this worker is to read it from the store
      | InsertItem(key of 2) + payload --->   |  or ReleaseItem(key of 2), if it could not
      | <----- FoundItems(3: size) + payload  |  another worker has inserted it meanwhile

Each number is answered once, in any order.
"""

from __future__ import annotations

import hashlib

import msgspec

from millrace.protocol.data_messages import BulkMessage

KEY_BYTES = 33
"""Bytes of a key: one that says what it is made of, and a SHA-256."""
NAME, CONTENT = b"n", b"c"
"""First bytes of keys: of where the bytes lie, and of the bytes themselves."""
MOST_ITEM_BYTES = 64 << 20
"""Bytes of an item at most; what is larger is read from the store each time."""
MOST_ASKED = 4096
"""Numbers of a connection that may wait for their answers at a time."""


DATA_NAME_BYTES = 16
"""Bytes of the name of a data set, with which its labels begin."""
MOST_LABEL_BYTES = DATA_NAME_BYTES + 8
"""Bytes of a label at most."""


def name_of_data(source: str) -> bytes:
    """Name the data of a source by what identifies its listing: the same in each job that reads them."""
    return hashlib.blake2b(source.encode(errors="surrogateescape"), digest_size=DATA_NAME_BYTES).digest()


def chunk_label(data: bytes, chunks: int, chunk: int) -> bytes:
    """Label the items of a chunk of a data set; all its labels begin with its name."""
    return data + chunks.to_bytes(4, "big") + chunk.to_bytes(4, "big")


class AskItems(BulkMessage, frozen=True, tag="AskItems"):
    """Ask for the items of these keys, each under a positive number that isn't used meanwhile.

    Without any, it is asked whether the server lives: it answers with an empty item of number 0.
    """

    numbers: list[int]
    keys: list[bytes]


class InsertItem(BulkMessage, frozen=True, tag="InsertItem"):
    """Keep the payload under this key, and give it to those who wait for it.

    ``label`` is that of the chunk which it belongs to; empty: of none.
    """

    key: bytes
    label: bytes = b""


class ReleaseItem(BulkMessage, frozen=True, tag="ReleaseItem"):
    """Somebody else may fetch this, as it could not be read here."""

    key: bytes


class FoundItems(BulkMessage, frozen=True, tag="FoundItems"):
    """Items that were asked for under these numbers, of these sizes in bytes; the payload is one behind the other."""

    numbers: list[int]
    sizes: list[int]


class FetchItems(BulkMessage, frozen=True, tag="FetchItems"):
    """Order to read from the store what was asked for under these numbers, and to insert or release it."""

    numbers: list[int]


CacheRequest = AskItems | InsertItem | ReleaseItem
CacheAnswer = FoundItems | FetchItems

CACHE_REQUEST: msgspec.msgpack.Decoder[CacheRequest] = msgspec.msgpack.Decoder(CacheRequest)
"""Reads headers that a cache server is sent."""
CACHE_ANSWER: msgspec.msgpack.Decoder[CacheAnswer] = msgspec.msgpack.Decoder(CacheAnswer)
"""Reads headers that a cache server sends."""
