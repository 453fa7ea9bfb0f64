"""Striping: several sockets as one stream of bytes, for links that one TCP connection does not fill.

The stream is cut into slices of equal size, dealt to the sockets in turn. Both ends count bytes, so which socket
carries a byte needs no word on the wire, and a message smaller than a slice is one packet on one socket. Each socket
moves on by itself within a call: one that lost a packet, or whose window is still small, holds up none of the others.

No deadlock can come of it: a sender that waits has handed the kernel, for every socket, all that precedes what it waits
to send there; so whatever the receiver waits for is on its way or next.
"""

from __future__ import annotations

import contextlib
import math
import os
import select
import socket
import struct
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

import msgspec

from millrace.errors import ProtocolError, ServiceUnreachableError
from millrace.wire.data.frames import IOV_MAX, drop
from millrace.wire.data.links import Link

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_SOCKETS = 8
"""Most sockets of one connection."""
SLICE_BYTES = 256 << 10
"""Bytes of a slice: so few that a batch of some megabytes occupies all sockets, so many that it is few system calls."""
REACH = 3e9
"""Bytes a second that a sending and a receiving thread of Python move at best; more sockets don't make it more."""

_RTT = struct.Struct("I")
_RTT_OFFSET = 68
"""Offset of tcpi_rtt, microseconds, in the kernel's struct tcp_info."""


def stripe(views: Iterable[memoryview], position: int, count: int) -> list[list[memoryview]]:
    """Deal ``views`` (of bytes), which begin at ``position`` of the stream, to ``count`` sockets."""
    shares: list[list[memoryview]] = [[] for _ in range(count)]
    for view in views:
        start = 0
        while start < view.nbytes:
            number, offset = divmod(position, SLICE_BYTES)
            step = min(SLICE_BYTES - offset, view.nbytes - start)
            shares[number % count].append(view[start : start + step])
            start += step
            position += step
    return shares


class Striped:
    """Connected, blocking sockets that together act like one, as far as frames need it.

    One thread may send while another receives. :meth:`shutdown` wakes both.
    """

    def __init__(self, sockets: Sequence[Link]) -> None:
        self._sockets = tuple(sockets)
        self._sent = self._received = 0

    def sendmsg(self, buffers: Iterable[Buffer], /) -> int:
        """Send all of ``buffers`` (of bytes); return their size in bytes."""
        views = [memoryview(buffer) for buffer in buffers]
        size = sum(view.nbytes for view in views)
        shares = stripe(views, self._sent, len(self._sockets))
        self._sent += size
        self._move(shares, _send, select.POLLOUT)
        return size

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        """Fill ``buffer`` with ``nbytes``; 0 if the peer closed one of the sockets."""
        shares = stripe([memoryview(buffer)[:nbytes]], self._received, len(self._sockets))
        self._received += nbytes
        return nbytes if self._move(shares, _receive, select.POLLIN) else 0

    def _move(self, shares: list[list[memoryview]], move: Callable[[Link, list[memoryview]], int], event: int) -> bool:
        """Move each socket's share as fast as that socket goes; False: the peer has closed one."""
        waiting = {sock.fileno(): (sock, share) for sock, share in zip(self._sockets, shares, strict=True) if share}
        poll = select.poll()
        for number in waiting:
            poll.register(number, event)
        ready = list(waiting)
        while waiting:
            for number in ready:
                sock, share = waiting[number]
                try:
                    count = move(sock, share[:IOV_MAX])
                except BlockingIOError:
                    continue
                if not count:
                    return False
                drop(share, count)
                if not share:
                    del waiting[number]
                    poll.unregister(number)
            ready = [number for number, _ in poll.poll()] if waiting else []
        return True

    def fileno(self) -> int:
        """File descriptor of the first socket; -1 once closed."""
        return self._sockets[0].fileno()

    def shutdown(self, how: int) -> None:
        """Shut down all sockets, however many are broken already."""
        errors = []
        for sock in self._sockets:
            try:
                sock.shutdown(how)
            except OSError as error:
                errors.append(error)
        if errors:
            raise errors[0]

    def close(self) -> None:
        """Close all sockets."""
        for sock in self._sockets:
            sock.close()


def _send(sock: Link, views: list[memoryview]) -> int:
    return sock.sendmsg(views, (), socket.MSG_DONTWAIT)


def _receive(sock: Link, views: list[memoryview]) -> int:
    return sock.recvmsg_into(views, 0, socket.MSG_DONTWAIT)[0]


# -- how many ----------------------------------------------------------------------------------------------------------


def sockets_for(round_trip_s: float, window_bytes: float, *, same_host: bool) -> int:
    """Choose the number of a connection's sockets: ``ceil(REACH * round trip / window)``, 1 to :data:`MAX_SOCKETS`.

    A socket has at most a window of bytes on the way, and they take a round trip to be acknowledged: it carries at most
    ``window / round trip`` bytes per second, whatever the link can do. So many sockets as it takes to carry REACH
    hide the round trip, and more than that have no effect, because the threads at the ends are the limit then. Within
    a host, and between neighbours, one socket is as fast as several and cheaper.

    Args:
        round_trip_s: as measured while connecting, in seconds.
        window_bytes: most that the kernel lets a socket have on the way, in bytes.
        same_host: both ends are on one machine.
    """
    if same_host:
        return 1
    return min(MAX_SOCKETS, max(1, math.ceil(REACH * round_trip_s / window_bytes)))


def same_host(sock: socket.socket) -> bool:
    """Whether a connected TCP socket leads to this machine itself."""
    return bool(sock.getsockname()[0] == sock.getpeername()[0])


def round_trip_s(sock: socket.socket) -> float:
    """Round trip of a connected TCP socket as the kernel measured it, in seconds; 0.0 where it doesn't say."""
    if not hasattr(socket, "TCP_INFO"):
        return 0.0
    found = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _RTT_OFFSET + _RTT.size)
    return float(_RTT.unpack_from(found, _RTT_OFFSET)[0]) / 1e6 if len(found) >= _RTT_OFFSET + _RTT.size else 0.0


def window_bytes(directory: str = "/proc/sys/net/ipv4") -> float:
    """Most bytes that autotuning lets a TCP socket of this machine have on the way; infinite where it doesn't say.

    It is half of the buffers' limits, because the kernel counts its own bookkeeping in them (``tcp_adv_win_scale``).
    """
    limits = []
    for name in ("tcp_rmem", "tcp_wmem"):
        try:
            with open(os.path.join(directory, name)) as file:
                limits.append(int(file.read().split()[2]))
        except (OSError, ValueError, IndexError):
            return math.inf
    return max(1, min(limits) / 2)


# -- how they find each other ------------------------------------------------------------------------------------------


class StripePart(msgspec.Struct, frozen=True):
    """Place of a socket in its connection; said in its hello.

    Attributes:
        connection: random, drawn by the connecting side.
        index: 0 is said last, when all others have been welcomed.
        count: sockets of the connection.
    """

    connection: str
    index: int
    count: int

    def check(self) -> None:
        """Refuse impossible numbers."""
        if not 0 <= self.index < self.count <= MAX_SOCKETS:
            raise ProtocolError(
                f"socket {self.index} of {self.count} was offered; a connection has at most {MAX_SOCKETS}"
            )


class PendingSockets:
    """Waiting room of sockets for the first one of their connection. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._waiting: dict[tuple[str, int], Link] = {}
        self._closed = False

    @contextlib.contextmanager
    def waiting(self, part: StripePart, sock: Link, seconds: float) -> Iterator[Link]:
        """Take ``sock`` over, yield it to be told so, and then wait until it was collected.

        Raises:
            ProtocolError: there is one of that number already.
            ServiceUnreachableError: nobody collected it within so many seconds, or until :meth:`close`; it is closed.
        """
        key = (part.connection, part.index)
        with self._changed:
            if key in self._waiting:
                raise ProtocolError(f"socket {part.index} of a connection came twice")
            # Whoever holds the old object closes nothing any more.
            lent = socket.socket(fileno=sock.detach()) if isinstance(sock, socket.socket) else sock.taken_over()
            self._waiting[key] = lent
        try:
            yield lent
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting.get(key) is not lent, seconds)
        finally:
            with self._changed:
                left = self._waiting.get(key) is lent
                if left:
                    del self._waiting[key]
            if left:
                lent.close()
        if left:
            raise ServiceUnreachableError("the first socket of its connection did not come")

    def collect(self, part: StripePart) -> list[Link]:
        """Collect the sockets 1, 2, ... of the connection, which belong to the caller from now on."""
        keys = [(part.connection, index) for index in range(1, part.count)]
        with self._changed:
            if any(key not in self._waiting for key in keys):
                raise ProtocolError(f"a connection of {part.count} sockets came before all of them were there")
            found = [self._waiting.pop(key) for key in keys]
            self._changed.notify_all()
        return found

    def close(self) -> None:
        """End all waiting."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
