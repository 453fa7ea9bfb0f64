"""Shared memory that a worker writes and a consumer on the same host reads, without a copy between them.

The worker owns an :class:`Arena` of *segments*: anonymous files (memfd) that it maps, writes batches into, and passes
as file descriptors. The consumer maps them as :class:`BorrowedSegments`. A segment that was passed is *lent* until the
last view of it has died in the consumer; only then, and when the worker's own views have died too, is it written
again. Nobody unlinks anything: what neither side maps any more is gone, whoever died.

Two rules keep a view's bytes from ever changing under it. Memory that may still be seen on the other side after the
worker has lost track of it (the connection ended, the consumer forked) is *retired*: never written again, and given up
as soon as the worker itself lets go. And bytes that were lent once are lent no second time, but copied, so that a
consumer that writes into its batch changes nobody else's. What several consumers are sent is lent to each, once; they
map it privately, so that each writes to pages of its own, and a seal lets them map it in no other way.

None of this trusts the consumer to have let go of what it says that it has. So a segment has an *owner*, a job or a
connection, and is never used again for another one: who keeps a mapping has what was its own job's anyway.

Memory is allocated for real (``posix_fallocate``) and sealed against shrinking: else a full machine, or a peer, could
kill a reader by SIGBUS. (Files of a cache, which :mod:`millrace.wire.data.fd_passing` passes as well, can't be sealed.)
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import threading
import weakref
from bisect import bisect_right
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.elements.file_mapping import Mapping
from millrace.elements.recycled_arrays import Bytes, round_up
from millrace.errors import ProtocolError

AVAILABLE = hasattr(os, "memfd_create") and hasattr(fcntl, "F_ADD_SEALS")
"""Whether this platform can pass memory so: Linux."""

LEAST_BYTES = 256 << 10
"""Size in bytes from which an array gets a segment; smaller ones are copied into one when they are sent."""
MAX_SEGMENTS = 512
"""Most segments of one arena; each costs the worker a file descriptor."""
_FUTURE_WRITE = getattr(fcntl, "F_SEAL_FUTURE_WRITE", 0x10)
"""Seal by which nobody maps a file for writing from now on; Python knows its name since 3.13, Linux since 5.1."""
MOST_BORROWED_SEGMENTS = MAX_SEGMENTS + 64
"""Most segments that are mapped at a time for one peer: those of its arena, and those that are about to go."""

_logger = logging.getLogger(__name__)


class Segment:
    """One piece of shared memory, made and changed by its arena only.

    Attributes:
        number: never used again in the arena's life.
        size: in bytes, a multiple of the page.
        fd: to pass to a consumer.
        close: closes ``fd``; the memory goes with the last view.
        mapping: in this process.
        views: number of live arrays over it in this process.
        loans: number of loans that are not over.
        lent: (start, stop, borrower) of each loan, in bytes, since the segment was last allocated.
        owner: for whom it may be used again.
        private: whether others can map it privately only; None: nobody else has been shown it.
        retired: it will not be written again.
    """

    __slots__ = (
        "__weakref__",
        "close",
        "fd",
        "lent",
        "loans",
        "mapping",
        "number",
        "owner",
        "private",
        "retired",
        "size",
        "views",
    )

    def __init__(self, number: int, size: int, owner: object) -> None:
        self.number, self.size, self.owner = number, size, owner
        self.private: bool | None = None
        self.fd = os.memfd_create("millrace", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        self.close = weakref.finalize(self, os.close, self.fd)
        self.close.atexit = False
        try:
            os.posix_fallocate(self.fd, 0, size)
            fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
            self.mapping = Mapping(self.fd, size)
        except BaseException:
            self.close()
            raise
        self.views = 0
        self.loans = 0
        self.retired = False
        self.lent: list[tuple[int, int, object]] = []

    def show(self, *, private: bool) -> bool:
        """Prepare it for being passed; False: it can't be shown so, or others were shown it in the other way."""
        if self.private is None:
            try:
                fcntl.fcntl(self.fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SEAL | (_FUTURE_WRITE if private else 0))
            except OSError:  # a kernel that has no such seal
                return False
            self.private = private
        return self.private is private


class Arena:
    """Allocator of memory to be lent. Thread-safe.

    Args:
        limit: bytes of all segments together, without retired ones.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._lock = threading.Lock()
        self._segments: dict[int, Segment] = {}
        self._free: list[Segment] = []
        self._bytes = 0
        self._next = 0
        self._died: SimpleQueue[Segment] = SimpleQueue()
        self._addresses: tuple[list[int], list[Segment]] = ([], [])
        self._warned = False

    @property
    def bytes(self) -> int:
        """Bytes of the segments there are, in use or free."""
        with self._lock:
            return self._bytes

    def allocate(self, shape: tuple[int, ...], dtype: np.dtype[Any], owner: object = None) -> npt.NDArray[Any]:
        """Allocate an array for a batch, contents arbitrary: in shared memory if it is large and there is room."""
        size = math.prod(shape) * dtype.itemsize
        memory = self.take(size, owner) if size >= LEAST_BYTES and not dtype.hasobject else None
        return np.empty(shape, dtype) if memory is None else np.ndarray(shape, dtype, memory)

    def take(self, size: int, owner: object = None) -> Bytes | None:
        """Allocate a segment of at least ``size`` bytes until its last view has died; None without room.

        One that was the same ``owner``'s may be used again.
        """
        with self._lock:
            self._collect()
            segment = self._reuse(size, owner) or self._create(round_up(size), owner)
            if segment is None:
                return None
            segment.lent.clear()
            segment.views += 1
            return segment.mapping.bytes(self._died.put, segment)

    def trim(self) -> None:
        """Release the segments that are free."""
        with self._lock:
            self._collect()
            while self._free:
                self._give_up(self._free.pop())

    def lend(self, view: Bytes, borrower: object = None) -> tuple[Segment, int] | None:
        """Lend ``view`` until :meth:`take_back`: (segment, offset); None if it has to be copied.

        Memory outside of all segments cannot be lent, nor can memory that was lent before: to a ``borrower``, who maps
        it privately, what only others of these were lent can be.
        """
        address = view.__array_interface__["data"][0]
        with self._lock:
            starts, segments = self._addresses
            index = bisect_right(starts, address) - 1
            if index < 0:
                return None
            segment = segments[index]
            start = address - segment.mapping.address
            stop = start + view.nbytes
            if stop > segment.size or segment.retired:
                return None
            for other, other_stop, who in segment.lent:
                if start < other_stop and other < stop and (borrower is None or who is None or who is borrower):
                    return None
            if not segment.show(private=borrower is not None):
                return None
            segment.lent.append((start, stop, borrower))
            segment.loans += 1
            return segment, start

    def take_back(self, segment: Segment, *, retire: bool = False) -> None:
        """End a loan; with ``retire``, somebody may still look at what was lent."""
        with self._lock:
            segment.loans -= 1
            if retire and not segment.retired:
                segment.retired = True
                self._bytes -= segment.size
            self._settle(segment)
            self._collect()

    def _collect(self) -> None:
        """Account for views that died."""
        while True:
            try:
                segment = self._died.get_nowait()
            except Empty:
                return
            segment.views -= 1
            self._settle(segment)

    def _settle(self, segment: Segment) -> None:
        if segment.views or segment.loans:
            return
        if segment.retired:
            self._remove(segment)
        else:
            self._free.append(segment)

    def _reuse(self, size: int, owner: object) -> Segment | None:
        # The one freed last is the likeliest to be in the processor's cache.
        for index in reversed(range(len(self._free))):
            free = self._free[index]
            if free.owner is owner and size <= free.size <= 2 * size:
                return self._free.pop(index)
        return None

    def _create(self, size: int, owner: object) -> Segment | None:
        while self._free and (self._bytes + size > self.limit or len(self._segments) >= MAX_SEGMENTS):
            self._give_up(self._free.pop(0))
        if self._bytes + size > self.limit or len(self._segments) >= MAX_SEGMENTS:
            self._warn()
            return None
        try:
            segment = Segment(self._next, size, owner)
        except (OSError, ValueError) as error:  # the machine's memory or this process's descriptors ran out
            _logger.warning("cannot allocate %d bytes of shared memory: %s", size, error)
            return None
        self._next += 1
        self._bytes += size
        self._segments[segment.number] = segment
        self._index()
        return segment

    def _give_up(self, free: Segment) -> None:
        self._bytes -= free.size
        self._remove(free)

    def _remove(self, segment: Segment) -> None:
        del self._segments[segment.number]
        self._index()
        segment.close()

    def removed(self, numbers: set[int]) -> set[int]:
        """Members of ``numbers`` that are no segments any more."""
        with self._lock:
            return numbers - self._segments.keys()

    def _index(self) -> None:
        ordered = sorted(self._segments.values(), key=lambda segment: segment.mapping.address)
        self._addresses = [segment.mapping.address for segment in ordered], ordered

    def _warn(self) -> None:
        if self._warned:
            return
        self._warned = True
        if len(self._segments) >= MAX_SEGMENTS:
            _logger.info(
                "all %d pieces of shared memory are in use, by small batches or elements that wait for consumers, or"
                " that these keep; whenever that is so, others are copied to them",
                MAX_SEGMENTS,
            )
        else:
            _logger.warning(
                "all %d MiB of shared memory are in use, probably by consumers that keep batches; whenever that is so,"
                " batches are copied to them. To give the worker more: --buffer-bytes",
                self.limit >> 20,
            )


# -- the consumer's side -----------------------------------------------------------------------------------------------

_forks = 0
"""Number of forks of this process; what was lent before one may be looked at by a child for ever."""


def _forked() -> None:
    global _forks  # noqa: PLW0603
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_forked)


class BorrowedSegments:
    """One connection's view of the segments that were passed on it. ``view`` is for one thread, the rest for any.

    Args:
        limit: bytes to map at a time; None: the host's memory, which an arena, having pages of its own, cannot exceed.
    """

    def __init__(self, limit: int | None = None) -> None:
        self._limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if limit is None else limit
        self._maps: dict[int, Mapping] = {}
        self._mapped: weakref.WeakSet[Mapping] = weakref.WeakSet()  # also those that only views keep
        self._over: SimpleQueue[tuple[int, int]] = SimpleQueue()
        self._lock = threading.Lock()
        self._private: dict[int, Mapping] = {}  # of loans that are not over, what is mapped privately

    def adopt(self, number: int, size: int, fd: int, *, private: bool = False) -> None:
        """Map a segment, ``private`` if others are lent it, too; ``fd`` is closed.

        Raises:
            ProtocolError: if it has fewer bytes, or could lose some, or too much is mapped for this peer.
            OSError: if it can't be mapped.
        """
        try:
            found = os.fstat(fd)
            sealed = fcntl.fcntl(fd, fcntl.F_GET_SEALS) & fcntl.F_SEAL_SHRINK
            # What has no pages yet costs the peer nothing, and this process as much as it looks at.
            if min(found.st_size, 512 * found.st_blocks) < size or not sealed:
                raise ProtocolError(f"the peer passed memory that does not hold {size} bytes for good")
            bytes_before = sum(each.size for each in self._mapped)
            if bytes_before + size > self._limit or len(self._mapped) >= MOST_BORROWED_SEGMENTS:
                raise ProtocolError(
                    f"the peer passed {size} bytes of memory and {bytes_before} before that, in {len(self._mapped)} "
                    f"segments; at most {self._limit} bytes in {MOST_BORROWED_SEGMENTS} are mapped for one peer"
                )
            mapping = Mapping(fd, size, private=private)
            self._maps[number] = mapping
            self._mapped.add(mapping)
        finally:
            os.close(fd)

    def forget(self, number: int) -> None:
        """Unmap a segment that will not be lent again. Views of it live on."""
        self._maps.pop(number, None)

    def view(self, number: int, loan: int) -> Bytes:
        """View a whole segment as a writable array; the loan is over when the last view of it has died.

        Raises:
            ProtocolError: if the segment was not passed.
        """
        if number not in self._maps:
            raise ProtocolError(f"the peer lent memory of segment {number}, which it has not passed")
        mapping = self._maps[number]
        if mapping.private:
            with self._lock:
                self._private[loan] = mapping
        return mapping.bytes(self._over.put, (loan, _forks))

    def take_ended(self) -> tuple[list[int], list[int]]:
        """Take the loans that ended since the last call: (nobody sees them any more, a forked child may)."""
        returned: list[int] = []
        doubtful: list[int] = []
        while True:
            try:
                loan, forks = self._over.get_nowait()
            except Empty:
                return returned, doubtful
            (returned if forks == _forks else doubtful).append(loan)
            with self._lock:
                mapping = self._private.pop(loan, None)
                if mapping is not None and mapping not in self._private.values():
                    mapping.revert()  # before the peer hears of it, and writes again
