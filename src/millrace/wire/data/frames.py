"""Frames of bulk data: a fixed prefix, a small msgpack header, any number of payload bytes.

    offset  size  field (little-endian)
    0       4     magic "MRCE"
    4       2     version of this layout
    6       2     how the payload is stored: 0 as it is, else the code of a compression
    8       4     header length h, at most 1 MiB
    12      8     payload length p, before compression
    20      h     header, msgpack
    20 + h  p     payload, or the blocks of :mod:`~millrace.wire.data.compression`

Nothing is joined before it is sent and nothing is copied after it arrived: sending is vectored, and the payload is
received into memory that the caller provides. Limits count bytes as they are after decompression.
"""

from __future__ import annotations

import os
import socket
import struct
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.elements.layout import ALIGNMENT
from millrace.errors import ProtocolError, VersionMismatchError
from millrace.message_budget import MALFORMED, check_containers
from millrace.wire.data import compression

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAGIC = b"MRCE"
LAYOUT = 2
MAX_HEADER_BYTES = 1 << 20
DEFAULT_LIMIT = 1 << 32
"""Bytes of payload that a receiver accepts unless it says otherwise."""

_PREFIX = struct.Struct("<4sHHIQ")
PREFIX_BYTES = _PREFIX.size
# What one sendmsg takes at most; POSIX promises 16.
IOV_MAX = os.sysconf("SC_IOV_MAX") if "SC_IOV_MAX" in os.sysconf_names else 16

_encoder = msgspec.msgpack.Encoder()

H = TypeVar("H")


class Sender(Protocol):
    """Sending part of a blocking socket."""

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int:
        """Send a part of ``buffers``; return its bytes."""
        ...


class Receiver(Protocol):
    """Receiving part of a blocking socket."""

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        """Write up to ``nbytes`` into ``buffer``; return their number; 0: the peer closed."""
        ...


class ReadAhead:
    """Receiver that asks the socket for more than is wanted, so that a small frame takes one call and not three.

    A payload larger than ``size`` is received where it belongs, but for its first bytes.

    Args:
        sock: a socket that nobody else receives from.
        fetch: receives what there is, at least a byte, into all of a buffer; ``sock.recv_into`` if None.
        size: bytes to ask for.
    """

    def __init__(self, sock: Receiver, fetch: Callable[[memoryview], int] | None = None, size: int = 4096) -> None:
        self._sock = sock
        self._fetch = fetch or (lambda view: sock.recv_into(view, view.nbytes, 0))
        self._memory = memoryview(bytearray(size))
        self._start = self._stop = 0

    @property
    def waiting(self) -> int:
        """Bytes that were received and not asked for yet."""
        return self._stop - self._start

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        """Receive as a socket does."""
        if self._start == self._stop:
            if nbytes >= len(self._memory):
                return self._sock.recv_into(buffer, nbytes, flags)
            self._start, self._stop = 0, self._fetch(self._memory)
        count = min(nbytes, self._stop - self._start)
        memoryview(buffer).cast("B")[:count] = self._memory[self._start : self._start + count]
        self._start += count
        return count


def aligned_buffer(size: int) -> npt.NDArray[np.uint8]:
    """Allocate uninitialised memory: uint8, shape (size,), starting at a multiple of 64 bytes."""
    if not size:
        return np.empty(0, np.uint8)
    raw = np.empty(size + ALIGNMENT, np.uint8)
    start = -raw.ctypes.data % ALIGNMENT
    return raw[start : start + size]


def send_frame(
    sock: Sender,
    header: msgspec.Struct,
    buffers: Iterable[Buffer | npt.NDArray[Any]] = (),
    compressed: str | None = None,
) -> int:
    """Send one frame whose payload is ``buffers`` (C-contiguous), in order; return the payload's size in bytes.

    Args:
        sock: blocking.
        header: of any type that the other side has a decoder for.
        buffers: the payload.
        compressed: a key of :data:`~millrace.wire.data.compression.CODES`, or None; not used for payloads under 4 KiB.

    Raises:
        ProtocolError: the header is over 1 MiB; nothing was sent.
        OSError: the connection broke; part of the frame may have been sent.
    """
    views = [view.cast("B") for view in (memoryview(cast("Buffer", buffer)) for buffer in buffers) if view.nbytes]
    payload = sum(view.nbytes for view in views)
    code = compression.CODES[compressed] if compressed and payload >= compression.LEAST_BYTES else 0
    head = memoryview(encode_head(header, payload, code))
    if code:
        send_all(sock, [head])
        for block in compression.store(code, views):
            send_all(sock, block)
    else:
        send_all(sock, [head, *views])
    return payload


def encode_head(header: msgspec.Struct, payload: int, code: int = 0) -> bytes:
    """Encode prefix and header of a frame with ``payload`` bytes of payload, stored as ``code`` says."""
    encoded = _encoder.encode(header)
    if len(encoded) > MAX_HEADER_BYTES:
        raise ProtocolError(
            f"the header {type(header).__name__} is {len(encoded)} bytes; a frame's header is at most"
            f" {MAX_HEADER_BYTES}: put large parts into the payload"
        )
    return _PREFIX.pack(MAGIC, LAYOUT, code, len(encoded), payload) + encoded


def send_all(sock: Sender, views: list[memoryview]) -> None:
    """Send all of ``views`` (of bytes), which is empty then."""
    while views:
        drop(views, sock.sendmsg(views[:IOV_MAX]))


def drop(views: list[memoryview], count: int) -> None:
    """Drop the first ``count`` bytes of ``views`` (of bytes), which have been sent or received."""
    done = 0
    while done < len(views) and count >= views[done].nbytes:
        count -= views[done].nbytes
        done += 1
    del views[:done]
    if count:
        views[0] = views[0][count:]


def decode_prefix(
    prefix: Buffer, limit: int = DEFAULT_LIMIT, header_limit: int = MAX_HEADER_BYTES
) -> tuple[int, int, int]:
    """Decode the first :data:`PREFIX_BYTES` of a frame: lengths of header and payload and the payload's compression.

    Raises:
        ProtocolError: these are not the first bytes of a frame, or one longer than the limits.
        VersionMismatchError: it is a frame of another version of this layout.
    """
    magic, layout, code, header, payload = _PREFIX.unpack(prefix)
    if magic != MAGIC:
        raise ProtocolError(f"expected a frame and got bytes that start with {magic!r}: the peer is not millrace")
    if layout != LAYOUT:
        raise VersionMismatchError(
            f"the peer sends frames of layout {layout}, this process reads layout {LAYOUT}: install the same version of"
            f" millrace on both sides"
        )
    if header > header_limit:
        raise ProtocolError(f"the peer announced a header of {header} bytes; at most {header_limit} are accepted")
    if payload > limit:
        raise ProtocolError(f"the peer announced a payload of {payload} bytes; at most {limit} are accepted")
    return header, payload, code


def receive_frame(
    sock: Receiver,
    decoder: msgspec.msgpack.Decoder[H],
    allocate: Callable[[int], Any] = aligned_buffer,
    limit: int = DEFAULT_LIMIT,
    header_limit: int = MAX_HEADER_BYTES,
) -> tuple[H, Any]:
    """Receive one frame: its header, and the buffer of ``allocate(payload size)`` with the payload in its first bytes.

    After any error the stream is out of step and of no further use.

    Args:
        sock: a blocking socket.
        decoder: of the header's type.
        allocate: gives a writable, C-contiguous buffer of at least that many bytes; may wait for room.
        limit: bytes of payload to accept.
        header_limit: bytes of header to accept.

    Raises:
        ProtocolError: the bytes are not a frame, or over the limits, or header or compression are malformed.
        VersionMismatchError: the peer's frames have another layout.
        EOFError: the peer closed the connection.
        OSError: the connection broke.
    """
    prefix = bytearray(PREFIX_BYTES)
    receive_all(sock, memoryview(prefix), "")
    header_size, payload_size, code = decode_prefix(prefix, limit, header_limit)
    encoded = bytearray(header_size)
    receive_all(sock, memoryview(encoded), " inside a header")
    check_containers(encoded, "the header of a frame")
    try:
        header = decoder.decode(encoded)
    except MALFORMED as error:
        raise ProtocolError(f"the peer sent a malformed header: {error}") from error
    buffer = allocate(payload_size)
    if payload_size:
        target = memoryview(buffer).cast("B")[:payload_size]
        if code:
            compression.restore(code, lambda view: receive_all(sock, view, " inside a payload"), target)
        else:
            receive_all(sock, target, " inside a payload")
    return header, buffer


def receive_all(sock: Receiver, view: memoryview, where: str) -> None:
    """Fill ``view`` (of bytes)."""
    total = view.nbytes
    received = 0
    while received < total:
        # One call fetches everything; it returns early only for signals, timeouts and the end.
        count = sock.recv_into(view[received:], total - received, socket.MSG_WAITALL)
        if count == 0:
            progress = f"{where} ({received} of {total} bytes)" if where or received else ""
            raise EOFError(f"the peer closed the connection{progress}")
        received += count
