"""Messages of an Arrow IPC stream that comes from elsewhere: each looked at before memory is asked for.

pyarrow's own reader asks for as many bytes as a message claims to have, and inflates buffers to what they claim to be.
Here a message may claim what is left of the file and no more, and compressed buffers are refused.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, Protocol

_PREFIX = struct.Struct("<Ii")
_CONTINUED = 0xFFFFFFFF
_MOST_METADATA_BYTES = 1 << 20
_RECORD_BATCH = 3
# Fields of the tables of Arrow's Message.fbs, by their number there.
_HEADER_TYPE, _HEADER, _BODY_LENGTH = 1, 2, 3
_COMPRESSION = 3


class ByteStream(Protocol):
    """Stream of bytes."""

    def read(self, size: int, /) -> bytes:
        """Read so many bytes, or fewer at the end."""
        ...


def record_batches(stream: ByteStream, size: int, schema: Any) -> Iterator[Any]:
    """Read the record batches of a stream that has ``size`` bytes and this schema, metadata apart, each validated.

    The first thing that comes is the schema as it is written, with its metadata.

    Raises:
        ValueError: it is no such stream, or a damaged one, or ends before its end mark.
    """
    import pyarrow as pa

    messages = _messages(stream, size)
    try:
        first = next(messages, None)
        if first is None or first.type != "schema":
            raise ValueError("it has no schema")
        written = pa.ipc.read_schema(first)
        if not written.equals(schema):
            raise ValueError("its columns are others")
        yield written
        for message in messages:
            if message.type != "record batch":
                raise ValueError(f"it has a {message.type}")
            batch = pa.ipc.read_record_batch(message, written)
            batch.validate(full=True)
            yield batch
    except (pa.ArrowException, OSError, struct.error) as error:
        raise ValueError(str(error).strip() or type(error).__name__) from error


def _messages(stream: ByteStream, size: int) -> Iterator[Any]:
    """Read the messages of a stream up to its end mark."""
    import pyarrow as pa

    left = size
    while True:
        prefix = stream.read(_PREFIX.size)
        if len(prefix) < _PREFIX.size:
            raise ValueError("it is truncated")
        mark, length = _PREFIX.unpack(prefix)
        if mark != _CONTINUED:
            raise ValueError("it is no Arrow stream")
        left -= _PREFIX.size
        if not length:
            return
        if not 0 < length <= min(left, _MOST_METADATA_BYTES):
            raise ValueError("it is truncated, or damaged")
        metadata = stream.read(length)
        left -= length
        body = _body_length(metadata)
        if not 0 <= body <= left:
            raise ValueError("it is truncated, or damaged")
        left -= body
        data = stream.read(body)
        if len(metadata) < length or len(data) < body:
            raise ValueError("it is truncated")
        yield pa.ipc.read_message(pa.py_buffer(prefix + metadata + data))


def _body_length(metadata: bytes) -> int:
    """Size in bytes of what follows a message's metadata.

    Raises:
        ValueError: its buffers are compressed.
        struct.error: it is damaged.
    """
    (message,) = struct.unpack_from("<I", metadata)
    at = _field(metadata, message, _BODY_LENGTH)
    length = struct.unpack_from("<q", metadata, at)[0] if at else 0
    at = _field(metadata, message, _HEADER_TYPE)
    if at and metadata[at] == _RECORD_BATCH:
        at = _field(metadata, message, _HEADER)
        if at and _field(metadata, at + struct.unpack_from("<I", metadata, at)[0], _COMPRESSION):
            raise ValueError("it is compressed")
    return int(length)


def _field(data: bytes, table: int, number: int) -> int:
    """Offset of a field of a FlatBuffers table at an offset; 0 if the table does not have it."""
    vtable = table - struct.unpack_from("<i", data, table)[0]
    if vtable < 0:
        raise ValueError("it is damaged")
    (size,) = struct.unpack_from("<H", data, vtable)
    entry = 4 + 2 * number
    if entry + 2 > size:
        return 0
    (offset,) = struct.unpack_from("<H", data, vtable + entry)
    if offset and not 0 <= table + offset < len(data):
        raise ValueError("it is damaged")
    return table + offset if offset else 0
