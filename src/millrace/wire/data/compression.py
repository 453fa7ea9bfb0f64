"""Compression of payloads of frames in blocks, for links that are slower than a compressor.

A payload is then a sequence of blocks of at most 1 MiB each. A block is its raw length, its stored length (u32 each,
little-endian) and the stored bytes, which are the raw bytes themselves where both lengths are equal. So compressing,
sending, receiving and expanding overlap, memory for one block is all that is needed at either end, and what does not
shrink is sent as it lies.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, Literal

from millrace.errors import ProtocolError

if TYPE_CHECKING:
    from typing_extensions import Buffer

Compression = Literal["lz4", "zstd"]

CODES: dict[str, int] = {"lz4": 1, "zstd": 2}
"""Code of each compression in a frame's prefix; 0 is a payload as it is."""
LEAST_BYTES = 4 << 10
"""Bytes below which payloads, and runs of small buffers within one, aren't worth a compressor's call."""
BLOCK_BYTES = 1 << 20

_WORTH = 0.9
"""Share of its size above which a compressed block is stored as it is."""
_BLOCK = struct.Struct("<II")
_ARROW: dict[int, tuple[str, int | None]] = {1: ("lz4_raw", None), 2: ("zstd", 1)}


def codec_of(code: int) -> Any:
    """Arrow's codec for a code."""
    from pyarrow import Codec

    name, level = _ARROW[code]
    return Codec(name, compression_level=level)


def compressed(codec: Any, raw: Buffer) -> memoryview | None:
    """Compress ``raw`` (of bytes); None if it does not become so much smaller that it is worth it."""
    smaller = memoryview(codec.compress(raw)).cast("B")
    return smaller if smaller.nbytes <= _WORTH * memoryview(raw).nbytes else None


def store(code: int, views: Iterable[memoryview]) -> Iterator[list[memoryview]]:
    """Store the payload made of ``views`` (one-dimensional, of bytes) in blocks; yields what to send, block by block.

    A buffer whose first block does not shrink is not tried any further: pictures beside tokens cost one attempt.
    """
    codec = codec_of(code)
    for whole in _joined(views):
        worth = whole.nbytes >= LEAST_BYTES
        for start in range(0, whole.nbytes, BLOCK_BYTES):
            raw = whole[start : start + BLOCK_BYTES]
            smaller = compressed(codec, raw) if worth else None
            worth = smaller is not None
            stored = raw if smaller is None else smaller
            yield [memoryview(_BLOCK.pack(raw.nbytes, stored.nbytes)), stored]


def _joined(views: Iterable[memoryview]) -> Iterator[memoryview]:
    """Join runs of small buffers: a block each would cost more than the copy."""
    run: list[memoryview] = []
    size = 0
    for view in views:
        if view.nbytes < LEAST_BYTES and size < BLOCK_BYTES:
            run.append(view)
            size += view.nbytes
            continue
        if run:
            yield memoryview(b"".join(run))
            run, size = [], 0
        yield view
    if run:
        yield memoryview(b"".join(run))


def restore(code: int, receive: Callable[[memoryview], None], target: memoryview) -> None:
    """Fill ``target`` with the payload that :func:`store` cut into blocks.

    Args:
        code: how it is compressed, from the frame's prefix.
        receive: fills a view with the next bytes of the connection.
        target: of the payload's raw size, bytes. Nothing is written outside it whatever arrives.

    Raises:
        ProtocolError: the blocks are malformed, or compressed in no way known here.
    """
    if code not in _ARROW:
        raise ProtocolError(f"the peer sent a payload compressed in a way ({code}) that this process does not know")
    codec = codec_of(code)
    head = memoryview(bytearray(_BLOCK.size))
    scratch = memoryview(bytearray(min(BLOCK_BYTES, target.nbytes)))
    filled = 0
    while filled < target.nbytes:
        receive(head)
        raw, stored = _BLOCK.unpack(head)
        if not 0 < stored <= raw <= min(BLOCK_BYTES, target.nbytes - filled):
            raise ProtocolError(
                f"the peer sent a compressed block of {stored} bytes for {raw}, where at most"
                f" {min(BLOCK_BYTES, target.nbytes - filled)} are left of the payload"
            )
        place = target[filled : filled + raw]
        if stored == raw:
            receive(place)
        else:
            receive(scratch[:stored])
            place[:] = _expanded(codec, scratch[:stored], raw)
        filled += raw


def _expanded(codec: Any, stored: memoryview, size: int) -> memoryview:
    try:
        expanded = memoryview(codec.decompress(stored, size)).cast("B")
    except (OSError, ValueError) as error:  # how Arrow says that the bytes are no such thing
        raise ProtocolError(f"the peer sent a compressed block that cannot be expanded: {error}") from error
    if expanded.nbytes != size:
        raise ProtocolError(f"the peer sent a compressed block of {expanded.nbytes} bytes and announced {size}")
    return expanded
