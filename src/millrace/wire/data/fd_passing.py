"""Descriptor passing: on one host large buffers stay where they are, and the peer is told where that is.

Each frame of :mod:`.frames` is preceded by 4 bytes of length (little-endian) and a msgpack :class:`Preamble`. It says
of which parts the payload is made: bytes of shared memory (:mod:`millrace.elements.shared`), of files, or of the
frame's own payload, which holds the rest. File descriptors that the peer has not seen travel with the preamble's first
byte. Preambles the other way carry the loans that are over. Only the side that has an arena lends or passes anything;
docs/design/0003-data-plane.md says what is lent, passed and copied, and when.
"""

from __future__ import annotations

import array
import errno
import os
import socket
import struct
from collections.abc import Callable, Iterable
from itertools import count
from typing import TYPE_CHECKING, Any, TypeVar, cast

import msgspec
import numpy as np

from millrace.elements import file_mapping
from millrace.elements.file_mapping import OpenFile
from millrace.elements.layout import ALIGNMENT
from millrace.elements.recycled_arrays import Bytes
from millrace.elements.scattered_buffer import ScatteredBuffer
from millrace.elements.shared import Arena, BorrowedSegments, Segment
from millrace.errors import ProtocolError
from millrace.message_budget import MALFORMED, check_containers
from millrace.wire.data.frames import IOV_MAX, ReadAhead, drop, encode_head, receive_all, receive_frame, send_all

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_DESCRIPTORS = 64
"""Most new segments and files of one frame; the kernel takes 253 descriptors in a message."""

_COPIED_PIECE = 16 << 10
_COPIED_TOTAL = 64 << 10
"""Bytes of pieces and payloads below which they aren't worth a segment."""
MAX_PREAMBLE_BYTES = 1 << 20
"""Most bytes of a preamble; a payload of more pieces than fit into it goes with the frame, as it is."""
_LENGTH = struct.Struct("<I")
_TRUNCATED = int(socket.MSG_CTRUNC)  # of the enumeration its & would cost more than the call
_ANCILLARY_BYTES = socket.CMSG_SPACE(MAX_DESCRIPTORS * array.array("i").itemsize)
_INLINE = -1

H = TypeVar("H")


class PayloadPart(msgspec.Struct, frozen=True, array_like=True):
    """Part of the payload: ``size`` bytes from byte ``start`` of a loan or file range (-1: of the frame's payload)."""

    loan: int
    start: int
    size: int


class Preamble(msgspec.Struct, frozen=True, array_like=True, omit_defaults=True):
    """Message before a frame.

    Attributes:
        parts: of the payload, in order; none if it is the frame's payload as it is.
        loans: (number, segment) of each new loan.
        segments: (number, bytes) of each segment whose descriptor comes along, in that order.
        gone: segments that will be lent no more.
        returned: loans that are over.
        doubtful: loans that are over here, but a forked child may still see what was lent.
        ranges: (number, start, bytes) of each range of a file whose descriptor comes along, behind those of segments;
            numbers are none of a loan's.
        private: the segments that come along are lent to others, too, and are to be mapped privately.
    """

    parts: list[PayloadPart] = []
    loans: list[tuple[int, int]] = []
    segments: list[tuple[int, int]] = []
    gone: list[int] = []
    returned: list[int] = []
    doubtful: list[int] = []
    ranges: list[tuple[int, int, int]] = []
    private: bool = False


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(Preamble)


class FdChannel:
    """One end of a connection over a Unix socket. One thread at a time sends, one receives.

    Args:
        sock: blocking; closed by the caller.
        arena: where this end's memory is lent from; None if it lends nothing.
    """

    def __init__(self, sock: socket.socket, arena: Arena | None = None) -> None:
        self._sock = sock
        self._ahead = ReadAhead(sock, self._fetch)
        self._descriptors: list[int] = []
        self._arena = arena
        self._borrowed = BorrowedSegments()
        self._lent: dict[int, Segment] = {}
        self._shown: dict[int, bool] = {}  # segments that the peer has mapped, whether privately
        self._numbers = count()
        self._borrower = object()
        self._copies = object(), object()  # owners of segments for copies, of what the peer maps as it is and privately

    def send(
        self, header: msgspec.Struct, buffers: Iterable[Buffer | np.ndarray[Any, Any]] = (), *, shared: bool = False
    ) -> int:
        """Send like :func:`millrace.wire.data.frames.send_frame`; what is lent must not be written any more.

        Args:
            header: of the frame.
            buffers: its payload.
            shared: others are sent the same buffers, or may be.
        """
        views = [_bytes_of(view) for view in (memoryview(cast("Buffer", buffer)) for buffer in buffers) if view.nbytes]
        returned, doubtful = self._borrowed.take_ended()
        load = _PayloadLayout() if self._arena is None else self._lay_out(self._arena, views, shared=shared)
        while True:
            preamble = _encoder.encode(
                Preamble(load.parts, load.loans, load.segments, load.gone, returned, doubtful, load.ranges, shared)
            )
            if load.parts and len(preamble) > MAX_PREAMBLE_BYTES:
                self._take_back(load)
                continue
            inline = load.inline if load.parts else views
            head = _LENGTH.pack(len(preamble)) + preamble + encode_head(header, sum(map(len, inline)))
            unsent = [memoryview(head), *(view.data for view in inline)]
            try:
                self._send(unsent, load.descriptors + [file.fd for file in load.files])
                break
            except OSError as error:
                # Consumers that stand still have so many of this user's waiting as one process may have open.
                if error.errno != errno.ETOOMANYREFS or not load.files:
                    raise
                load.inline_files(views)
        send_all(self._sock, unsent)
        return sum(map(len, views))

    def _send(self, views: list[memoryview], descriptors: list[int]) -> None:
        """Send descriptors and the first of ``views``, mostly all of them, so that the peer wakes once for a frame."""
        rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))] if descriptors else []
        drop(views, self._sock.sendmsg(views[:IOV_MAX], rights))

    def _lay_out(self, arena: Arena, views: list[Bytes], *, shared: bool) -> _PayloadLayout:
        load = _PayloadLayout(shared=shared)
        if sum(map(len, views)) < _COPIED_TOTAL:
            return load
        for number in arena.removed(set(self._shown)):
            del self._shown[number]
            load.gone.append(number)
        places = [self._lend(arena, view, load) if len(view) >= _COPIED_PIECE else None for view in views]
        self._show(views, places, load)
        self._copy(arena, views, places, load)
        load.assign(views, places)
        return load

    def _take_back(self, load: _PayloadLayout) -> None:
        """Lend and pass nothing of a payload; segments that were named for it stay known to the peer."""
        assert self._arena is not None
        for loan, _ in load.loans:
            self._arena.take_back(self._lent.pop(loan))
        for each in (load.loans, load.ranges, load.files, load.parts):
            each.clear()

    def _lend(self, arena: Arena, view: Bytes, load: _PayloadLayout) -> tuple[int, int] | None:
        """Lend ``view``, if it can be lent from where it lies: (loan, start)."""
        if len(load.descriptors) + len(load.files) == MAX_DESCRIPTORS:
            return None
        found = arena.lend(view, self._borrower if load.shared else None)
        if found is None:
            return None
        segment, start = found
        if self._shown.get(segment.number, load.shared) != load.shared:
            arena.take_back(segment)
            return None
        loan = next(self._numbers)
        self._lent[loan] = segment
        load.loans.append((loan, segment.number))
        if segment.number not in self._shown:
            self._shown[segment.number] = load.shared
            load.segments.append((segment.number, segment.size))
            load.descriptors.append(segment.fd)
        return loan, start

    def _show(self, views: list[Bytes], places: list[tuple[int, int] | None], load: _PayloadLayout) -> None:
        """Pass the files that hold the larger views that are not lent, where there are such."""
        others = [(i, view) for i, view in enumerate(views) if places[i] is None and len(view) >= _COPIED_PIECE]
        for found in file_mapping.mapped_ranges(others):
            if len(load.descriptors) + len(load.files) == MAX_DESCRIPTORS:
                return
            number = next(self._numbers)
            load.ranges.append((number, found.start, found.size))
            load.files.append(found.file)
            for index, start in found.views:
                places[index] = number, start

    def _copy(
        self, arena: Arena, views: list[Bytes], places: list[tuple[int, int] | None], load: _PayloadLayout
    ) -> None:
        """Lend copies of the larger views that are neither lent nor in files, if there is room."""
        at = size = 0
        copies: list[tuple[int, int]] = []
        for index, (view, place) in enumerate(zip(views, places, strict=True)):
            if place is None and len(view) >= _COPIED_PIECE:
                start = _aligned_like(size, at)
                copies.append((index, start))
                size = start + len(view)
            at += len(view)
        if size < _COPIED_TOTAL:
            return
        memory = arena.take(size, self._copies[load.shared])
        if memory is None:
            return
        for index, start in copies:
            memory[start : start + len(views[index])] = views[index]
        place = self._lend(arena, memory[:size], load)
        if place is not None:
            for index, start in copies:
                places[index] = place[0], start

    def receive(
        self,
        decoder: msgspec.msgpack.Decoder[H],
        allocate: Callable[[int], Any],
        limit: int,
    ) -> tuple[H, Any]:
        """Receive like :func:`millrace.wire.data.frames.receive_frame`; a payload may be a :class:`ScatteredBuffer`.

        Raises:
            ProtocolError: also if a preamble says what cannot be.
        """
        preamble = self._receive_preamble()
        files = [(each, OpenFile(self._descriptors.pop(0))) for each in preamble.ranges]
        if (
            sum(size for _, _, size in preamble.ranges) > 2 * limit
        ):  # what lies between those that are wanted comes along
            raise ProtocolError(f"the peer passed files with far more than {limit} bytes")
        header, payload = receive_frame(self._ahead, decoder, allocate, limit)
        if self._descriptors and not self._ahead.waiting:
            raise ProtocolError(f"{len(self._descriptors)} file descriptors came that the peer did not announce")
        for over, retire in ((preamble.returned, False), (preamble.doubtful, True)):
            for loan in over:
                segment = self._lent.pop(loan, None)
                if segment is None or self._arena is None:
                    raise ProtocolError(f"the peer gave back loan {loan}, which it does not have")
                self._arena.take_back(segment, retire=retire)
        if preamble.parts:
            payload = self._put_together(preamble, files, payload, limit)
        for number in preamble.gone:
            self._borrowed.forget(number)
        return header, payload

    def _put_together(
        self, preamble: Preamble, files: list[tuple[tuple[int, int, int], OpenFile]], inline: Any, limit: int
    ) -> ScatteredBuffer:
        if sum(part.size for part in preamble.parts) > limit:
            raise ProtocolError(f"the peer announced a payload of over {limit} bytes")
        lent = {loan: self._borrowed.view(segment, loan) for loan, segment in preamble.loans}
        lent |= {number: file_mapping.map_or_read(file, start, start + size) for (number, start, size), file in files}
        lent[_INLINE] = _bytes_of(memoryview(inline))
        pieces = []
        for part in preamble.parts:
            source = lent.get(part.loan)
            if source is None or part.start < 0 or part.size < 0 or part.start + part.size > len(source):
                raise ProtocolError(f"the peer announced bytes that it did not pass: {part}")
            pieces.append(source[part.start : part.start + part.size])
        return ScatteredBuffer(pieces)

    def _receive_preamble(self) -> Preamble:
        prefix = bytearray(_LENGTH.size)
        receive_all(self._ahead, memoryview(prefix), "")
        (length,) = _LENGTH.unpack(prefix)
        if length > MAX_PREAMBLE_BYTES:
            raise ProtocolError(f"the peer announced a preamble of {length} bytes")
        encoded = bytearray(length)
        receive_all(self._ahead, memoryview(encoded), " inside a preamble")
        check_containers(encoded, "the preamble of a frame")
        try:
            preamble = _decoder.decode(encoded)
        except MALFORMED as error:
            raise ProtocolError(f"the peer sent a malformed preamble: {error}") from error
        passed = len(preamble.segments) + len(preamble.ranges)
        if self._arena is not None and (passed or preamble.loans or self._descriptors):
            raise ProtocolError("the peer passed memory to a process that lends it, and borrows none")
        if passed > len(self._descriptors):
            raise ProtocolError(f"{len(self._descriptors)} file descriptors came for {passed} segments and files")
        for number, size in preamble.segments:
            if size <= 0:
                raise ProtocolError(f"the peer passed a segment of {size} bytes")
            self._borrowed.adopt(number, size, self._descriptors.pop(0), private=preamble.private)
        return preamble

    def _fetch(self, view: memoryview) -> int:
        """Receive what there is, and keep the descriptors that come along until their preamble has been read.

        The kernel ends what it gives at once behind the bytes that descriptors came with.
        """
        received, ancillary, flags, _ = self._sock.recvmsg_into([view], _ANCILLARY_BYTES, socket.MSG_CMSG_CLOEXEC)
        self._descriptors += _descriptors(ancillary)
        # Those of a preamble that has come in part may wait, and those of the next.
        if len(self._descriptors) > 2 * MAX_DESCRIPTORS:
            raise ProtocolError("the peer passed more file descriptors than it announced")
        if flags & _TRUNCATED:
            # More than a frame may have, or this process can't have more: then another way is left.
            raise OSError(errno.EMFILE, "not all file descriptors that the peer passed could be received")
        return received

    def close(self) -> None:
        """Account for the connection's end: the peer may look at lent memory for ever. Nobody sends or receives."""
        while self._lent:
            _, segment = self._lent.popitem()
            assert self._arena is not None
            self._arena.take_back(segment, retire=True)
        self._borrowed = BorrowedSegments()
        while self._descriptors:
            os.close(self._descriptors.pop())


class _PayloadLayout:
    """Load of a frame, as it is put together; the attributes are those of :class:`Preamble`, and what comes along."""

    def __init__(self, *, shared: bool = False) -> None:
        self.shared = shared
        self.parts: list[PayloadPart] = []
        self.loans: list[tuple[int, int]] = []
        self.segments: list[tuple[int, int]] = []
        self.gone: list[int] = []
        self.descriptors: list[int] = []
        self.ranges: list[tuple[int, int, int]] = []
        self.files: list[OpenFile] = []
        self.inline: list[Bytes] = []
        self._inline_size = 0
        self._places: list[tuple[int, int] | None] = []

    def assign(self, views: list[Bytes], places: list[tuple[int, int] | None]) -> None:
        """Lay out the payload, if any of it lies elsewhere: what has no place goes along."""
        self._places = places
        if any(places):
            at = 0
            for view, place in zip(views, places, strict=True):
                self._add(view, place, at)
                at += len(view)

    def inline_files(self, views: list[Bytes]) -> None:
        """Leave out all files: bytes that lie in one go with the frame."""
        kept = {number for number, _, _ in self.ranges}
        for each in (self.ranges, self.files, self.parts, self.inline):
            each.clear()
        self._inline_size = 0
        self.assign(views, [None if place is None or place[0] in kept else place for place in self._places])

    def _add(self, view: Bytes, place: tuple[int, int] | None, at: int) -> None:
        """Add the next bytes of the payload, which start at its byte ``at``."""
        if place is None:
            start = _aligned_like(self._inline_size, at)
            if start > self._inline_size:
                self.inline.append(np.zeros(start - self._inline_size, np.uint8))
            self.inline.append(view)
            self._inline_size = start + len(view)
            place = _INLINE, start
        loan, start = place
        last = self.parts[-1] if self.parts else None
        if last is not None and last.loan == loan and last.start + last.size == start:
            self.parts[-1] = PayloadPart(loan, last.start, last.size + len(view))
        else:
            self.parts.append(PayloadPart(loan, start, len(view)))


def _aligned_like(start: int, at: int) -> int:
    """First place from ``start`` on that is as far from a multiple of 64 as ``at`` is."""
    return start + (at - start) % ALIGNMENT


def _descriptors(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found = array.array("i")
    for level, kind, data in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            found.frombytes(data[: len(data) - len(data) % found.itemsize])
    return found.tolist()


def _bytes_of(view: memoryview) -> Bytes:
    return np.frombuffer(view.cast("B") if view.nbytes else b"", np.uint8)
