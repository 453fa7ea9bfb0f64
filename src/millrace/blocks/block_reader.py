"""Block reader: reads the index once, then the items that are asked for."""

from __future__ import annotations

import functools
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from zlib import crc32

import numpy as np
import numpy.typing as npt

from millrace.blocks.block_format import MAGIC, TRAILER, VERSION, Index, decode_index
from millrace.blocks.block_keys import KEY_BYTES, Keys, block_name
from millrace.blocks.stores.block_store import OpenBlock
from millrace.elements.codec import decode, row_layout
from millrace.elements.recycled_arrays import Bytes
from millrace.elements.row_access import RowLayout, maker
from millrace.errors import BlockDamagedError, CodecError
from millrace.message_budget import MALFORMED
from millrace.wire.data.compression import CODES, Compression, codec_of

_FEW_ROWS = 4
"""Most rows of one message that are read one by one, where a message has many."""
_TAIL_BYTES = 64 << 10
"""Bytes to read from the end of a block at first: the index of some 3,000 items, so that one read is mostly enough."""
_MOST_BYTES = 1 << 40
"""Most bytes of a message by its index, so that none of their sums overflows."""
_MOST_EXPANDED = 1 << 32
"""Most bytes of a compressed message before compression: the memory for it is had before it is known to be whole."""


class MessageFacts:
    """Facts about the messages of one version of a block.

    Attributes:
        version: version of the block that they are about.
        verified: bool of shape (messages,): those whose checksum was found right.
        rows: by message, the layout by which single elements of verified messages can be read; None: there is none.
    """

    def __init__(self, version: object, messages: int) -> None:
        self.version = version
        self.verified = np.zeros(messages, np.bool_)
        self.rows: list[RowLayout | None] = [None] * messages


class BlockIndex:
    """Index of a block: its items, and their positions in it.

    Attributes:
        name: the block's.
        keys: uint8 of shape (items, 16), in the order in which items were added.
        counts: int64 of shape (items,): elements of each item.
        compression: how messages are compressed that became smaller by it.
        writer: tenant that made the block, by its own word.
        starts: int64 of shape (items + 1,): number of each item's first element in the block, and of all.
        rows: int64 of shape (messages + 1,): number of each message's first element, and of all.
        offsets: int64 of shape (messages + 1,): first byte of each message, and the end of the last.
        lengths: uint64 of shape (messages,): bytes before compression; 0 if it is not compressed.
        checksums: uint32 of shape (messages,).
        seen: facts that any reader with this index has found out about the block as it is.
    """

    def __init__(self, index: Index) -> None:
        """Take an index apart.

        Raises:
            ValueError: its columns do not fit one another.
        """
        self.name = block_name(index.keys)
        self.keys: Keys = np.frombuffer(index.keys, np.uint8).reshape(-1, KEY_BYTES)
        self.counts = np.frombuffer(index.counts, "<u4").astype(np.int64)
        self.compression: Compression | None = index.compression
        self.writer = index.writer
        self.starts = _sums(self.counts)
        self.rows = _sums(np.frombuffer(index.rows, "<u4"))
        sizes = np.frombuffer(index.sizes, "<u8")
        self.lengths = np.frombuffer(index.lengths, "<u8")
        if sizes.max(initial=0) > _MOST_BYTES or self.lengths.max(initial=0) > _MOST_EXPANDED:
            raise ValueError("a message of it has more bytes than any element")
        self.offsets = _sums(sizes)
        self.checksums = np.frombuffer(index.checksums, "<u4")
        self.seen = MessageFacts(None, len(self.checksums))
        messages = {len(self.rows), len(self.offsets), len(self.lengths) + 1, len(self.checksums) + 1}
        if len(self.keys) != len(self.counts) or len(messages) > 1 or self.starts[-1] != self.rows[-1]:
            raise ValueError("its columns do not fit one another")

    def __len__(self) -> int:
        return len(self.keys)


def _sums(values: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    sums = np.zeros(len(values) + 1, np.int64)
    np.cumsum(values, out=sums[1:])
    return sums


def read_index(block: OpenBlock, writer: str | None = None) -> BlockIndex:
    """Read the index at the end of a block, in one read, or two where it is long.

    Args:
        block: an open block; one without a name may have any.
        writer: tenant that must have made it; None: anybody.

    Raises:
        BlockDamagedError: it is not what was written, or belongs to a block of another name or by somebody else.
        BlockMissingError, CacheError: the block cannot be read.
    """
    tail = _read_exactly(block, [(max(0, block.nbytes - _TAIL_BYTES), block.nbytes)])[0]
    if len(tail) < TRAILER.size:
        raise _damaged(block, f"it has {block.nbytes} bytes")
    magic, version, checksum, size = TRAILER.unpack_from(tail.data, len(tail) - TRAILER.size)
    if magic != MAGIC:
        raise _damaged(block, "it does not end as blocks do")
    if version != VERSION:
        raise _damaged(block, f"it is of format {version}, and this millrace reads format {VERSION}")
    end = block.nbytes - TRAILER.size
    if size > end:
        raise _damaged(block, f"its index of {size} bytes is longer than what precedes the trailer")
    if size + TRAILER.size <= len(tail):
        raw = tail[len(tail) - TRAILER.size - size : len(tail) - TRAILER.size]
    else:
        (raw,) = _read_exactly(block, [(end - size, end)])
    if crc32(raw.data) != checksum:
        raise _damaged(block, "the checksum of its index is wrong")
    try:
        index = BlockIndex(decode_index(raw.data))
    except (*MALFORMED, ValueError) as error:
        raise _damaged(block, f"its index cannot be read: {error}") from error
    if index.offsets[-1] != end - size:
        raise _damaged(block, f"its messages have {end - size} bytes, and by its index {index.offsets[-1]}")
    if block.name and index.name != block.name:
        raise _damaged(block, f"it holds the items of block {index.name}")
    if writer is not None and index.writer != writer:
        raise _damaged(block, f"it bears the name of {index.writer or 'nobody'!r}, where only {writer!r} writes")
    return index


class ReadCounter:
    """Counter of reads of blocks; time in which several reads were under way counts once. Thread-safe.

    So the throughput is the store's, however many threads read at once.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._count = self._bytes = self._active = 0
        self._since = self._seconds = 0.0

    @contextmanager
    def reading(self, count: int, nbytes: int) -> Iterator[None]:
        """Count the body as reading ``count`` ranges, of ``nbytes`` bytes together."""
        with self._lock:
            self._tick()
            self._active += 1
        try:
            yield
        finally:
            with self._lock:
                self._tick()
                self._active -= 1
                self._count += count
                self._bytes += nbytes

    def take(self) -> tuple[int, int, float]:
        """Take the ranges, bytes and seconds since the last call."""
        with self._lock:
            self._tick()
            taken = self._count, self._bytes, self._seconds
            self._count = self._bytes = 0
            self._seconds = 0.0
        return taken

    def _tick(self) -> None:
        now = self._clock()
        if self._active:
            self._seconds += now - self._since
        self._since = now


class BlockReader:
    """Reader of the elements of a block's items. Thread-safe.

    The checksum of each message is verified when it is read for the first time with this index, and again if the block
    has become another one since: verifying takes several times as long as reading from memory. Elements are writable,
    and none shares memory with another: large ones are views of what was read, small ones copies.

    Args:
        block: an open block; whoever opened it closes it.
        index: the block's, if it has been read before; None reads it.
        reads: counter of the reads.
    """

    def __init__(self, block: OpenBlock, index: BlockIndex | None = None, reads: ReadCounter | None = None) -> None:
        self._block = block
        self._reads = reads or ReadCounter()
        self.index = read_index(block) if index is None else index

    def read(self, items: Sequence[int] | npt.NDArray[np.int64]) -> list[list[Any]]:
        """Read the elements of each of ``items``, by their numbers in the block.

        The messages that they lie in are held meanwhile.

        Raises:
            BlockDamagedError: the bytes are not those that were written; nothing is returned then.
            BlockMissingError, CacheError: the block cannot be read.
        """
        wanted = np.asarray(items, np.int64)
        ascending = not len(wanted) or bool((wanted[1:] > wanted[:-1]).all())
        if not ascending and len(set(wanted.tolist())) < len(wanted):
            # An item that is asked for twice is read twice, as it isn't shared.
            return [self.read([item])[0] for item in wanted.tolist()]
        index = self.index
        starts, stops = index.starts[wanted], index.starts[wanted + 1]
        first = np.searchsorted(index.rows, starts, side="right") - 1
        if (stops - starts == 1).all():
            rows = self._rows(starts, first)
            if rows is not None:
                return rows
            if ascending and (index.rows[first + 1] - index.rows[first] == 1).all():
                return [[element] for element in self._alone(first)]
            return self._single(starts, first)
        last = np.searchsorted(index.rows, stops - 1, side="right") - 1
        places = list(zip(first.tolist(), last.tolist(), starts.tolist(), stops.tolist(), strict=True))
        spans: dict[int, tuple[int, int]] = {}
        for number, stop_number, start, stop in places:
            for message in range(number, stop_number + 1) if stop > start else ():
                low, high = spans.get(message, (start, stop))
                spans[message] = min(low, start), max(high, stop)
        decoded = self._elements(spans)
        found = []
        for number, stop_number, start, stop in places:
            elements: list[Any] = []
            for message in range(number, stop_number + 1) if stop > start else ():
                begin, some = decoded[message]
                elements += some[max(start - begin, 0) : stop - begin]
            found.append(elements)
        return found

    def _rows(self, starts: npt.NDArray[np.int64], messages: npt.NDArray[np.int64]) -> list[list[Any]] | None:
        """Read elements by their numbers, which lie in these messages, without reading their neighbours.

        The result is None where that cannot be, or wouldn't pay: messages were not read before, are compressed, have
        leaves of several sizes, hold elements of several kinds, or are wanted nearly whole.
        """
        seen, index = self.index.seen, self.index
        listed = messages.tolist()
        rows = [seen.rows[message] for message in listed]
        kinds = dict.fromkeys(rows)  # those of a block differ in how many elements there are in a message, if at all
        roots = {each.root if each else None for each in kinds}
        if len(roots) != 1 or None in roots or len(listed) > _FEW_ROWS * len(set(listed)):
            return None
        leaves = np.array([each.leaves for each in kinds if each])  # (kinds, leaves, 2)
        if len(kinds) > 1:
            numbered = {each: number for number, each in enumerate(kinds)}
            leaves = leaves[[numbered[each] for each in rows]]
        nbytes = leaves[:, :, 1]
        numbers = (starts - index.rows[messages])[:, None]
        begins = index.offsets[messages][:, None] + leaves[:, :, 0] + numbers * nbytes
        ranges = list(zip(begins.ravel().tolist(), (begins + nbytes).ravel().tolist(), strict=True))
        with self._reads.reading(len(ranges), len(listed) * int(nbytes[0].sum())):
            found = iter(_read_exactly(self._block, ranges))
        if self._block.version() != seen.version:  # behind the reads: who writes meanwhile changes the version first
            return None
        make = maker(roots.pop())
        return [[make(found)] for _ in listed]

    def _alone(self, messages: npt.NDArray[np.int64]) -> list[Any]:
        """Read the elements of messages that have one each: large items, as they lie in the block."""
        decoded = []
        for message, data in zip(messages.tolist(), self._messages(messages), strict=True):
            elements = self._decoded(message, data)
            if len(elements) != 1:
                raise _damaged(self._block, f"message {message} has not the one element of the index")
            decoded += elements
        return decoded

    def _single(self, starts: npt.NDArray[np.int64], messages: npt.NDArray[np.int64]) -> list[list[Any]]:
        """Read elements by their numbers, which lie in these messages: items of one element each, as most are."""
        up = np.sort(starts)
        of_up = np.searchsorted(self.index.rows, up, side="right") - 1
        firsts = np.flatnonzero(np.diff(of_up, prepend=-1))
        lasts = np.flatnonzero(np.diff(of_up, append=len(self.index.rows)))
        spans = zip(up[firsts].tolist(), (up[lasts] + 1).tolist(), strict=True)
        decoded = self._elements(dict(zip(of_up[firsts].tolist(), spans, strict=True)))
        found = []
        for number, start in zip(messages.tolist(), starts.tolist(), strict=True):
            begin, some = decoded[number]
            found.append([some[start - begin]])
        return found

    def _elements(self, spans: dict[int, tuple[int, int]]) -> dict[int, tuple[int, list[Any]]]:
        """Read of each message the elements from one number in the block to another, with the number of the first."""
        messages = np.array(sorted(spans), np.int64)
        rows = zip(self.index.rows[messages].tolist(), self.index.rows[messages + 1].tolist(), strict=True)
        found = {}
        for message, data, (begin, end) in zip(messages.tolist(), self._messages(messages), rows, strict=True):
            start, stop = max(spans[message][0], begin), min(spans[message][1], end)
            elements = self._decoded(message, data, start - begin, stop - begin, own=end - begin > 1)
            if len(elements) != stop - start:
                raise _damaged(self._block, f"message {message} has not the {end - begin} elements of the index")
            found[message] = start, elements
        return found

    def _decoded(self, message: int, data: Bytes, start: int = 0, stop: int = 1, *, own: bool = False) -> list[Any]:
        try:
            return decode(data, start, stop, own=own)
        except CodecError as error:
            raise _damaged(self._block, f"message {message} of {len(self.index.checksums)}: {error}") from error

    def _messages(self, messages: npt.NDArray[np.int64]) -> list[Bytes]:
        """Read these messages, in ascending order, as they were before compression."""
        index = self.index
        starts, stops = index.offsets[messages], index.offsets[messages + 1]
        with self._reads.reading(len(messages), int((stops - starts).sum())):
            found = _read_exactly(self._block, list(zip(starts.tolist(), stops.tolist(), strict=True)))
        seen = self._seen()  # behind the reads: who writes meanwhile changes the version first
        for place in np.flatnonzero(~seen.verified[messages]).tolist():
            message = int(messages[place])
            if crc32(found[place].data) != index.checksums[message]:
                raise _damaged(self._block, f"the checksum of message {message} of {len(seen.rows)} is wrong")
            seen.verified[message] = True
            if not index.lengths[message]:
                seen.rows[message] = self._row(message, found[place])
        lengths = index.lengths[messages]
        for place in np.flatnonzero(lengths).tolist():
            found[place] = self._expanded(int(messages[place]), found[place], int(lengths[place]))
        return found

    def _seen(self) -> MessageFacts:
        """Facts about the block as it is now."""
        version, seen = self._block.version(), self.index.seen
        if version != seen.version:
            seen = self.index.seen = MessageFacts(version, len(seen.rows))
        return seen

    def _row(self, message: int, data: Bytes) -> RowLayout | None:
        """Layout by which single elements of a message can be read, if there is one."""
        try:
            found = row_layout(data)
        except CodecError as error:
            raise _damaged(self._block, f"message {message} of {len(self.index.checksums)}: {error}") from error
        if found is None or found.elements != self.index.rows[message + 1] - self.index.rows[message]:
            return None
        return _shared(found)

    def _expanded(self, message: int, raw: Bytes, length: int) -> Bytes:
        """Decompress a message."""
        try:
            codec = codec_of(CODES[self.index.compression or ""])
            return np.frombuffer(codec.decompress(raw, length), np.uint8)
        except (KeyError, OSError, ValueError, MemoryError) as error:
            raise _damaged(self._block, f"message {message} cannot be expanded: {error}") from error


@functools.lru_cache(maxsize=1024)
def _shared(rows: RowLayout) -> RowLayout:
    """Return the same object for all messages that are alike: there may be millions."""
    return rows


def _read_exactly(block: OpenBlock, ranges: list[tuple[int, int]]) -> list[Bytes]:
    found = block.read(ranges)
    for raw, (start, stop) in zip(found, ranges, strict=True):
        if len(raw) != stop - start:
            raise _damaged(block, f"it ends at byte {start + len(raw)}")
    return found


def _damaged(block: OpenBlock, what: str) -> BlockDamagedError:
    found = f"{block.location} is damaged: {what}"
    error = BlockDamagedError(
        f"{found}. What it held is computed again; if this happens often, look at the disk, or at who else writes there"
    )
    error.found = found
    return error
