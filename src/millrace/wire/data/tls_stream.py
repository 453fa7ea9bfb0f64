"""TLS stream: TLS on a connected TCP socket, to be used by one thread that sends and another that receives.

OpenSSL's state of a connection must not be used by two threads at once, and a call of it may wait. So the socket does
not block: calls are made with a lock held, and waiting, for the socket itself, is done without. What OpenSSL has
decrypted and not handed out yet is taken first, as nothing about it is to be seen at the socket.
"""

from __future__ import annotations

import contextlib
import functools
import select
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

from millrace.errors import TlsError
from millrace.wire.tls_files import TlsFiles
from millrace.wire.tls_names import WORKER_NAME, describe, is_named, misnamed

if TYPE_CHECKING:
    from typing_extensions import Buffer

RECORD_BYTES = 16384
"""Most bytes of a TLS record; OpenSSL writes and reads one for each call."""
_CALL_BYTES = 1 << 20
_LAST_READS = 8
_HANDSHAKE = b"\x16"
"""First byte of whoever speaks TLS."""


def begins_tls(sock: socket.socket) -> bool:
    """Whether what has come from a peer, a byte at least, begins as TLS does."""
    return sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT) == _HANDSHAKE


class TlsStream:
    """Stream of bytes through TLS, with what frames need of a blocking socket.

    Args:
        sock: connected; belongs to the stream from now on.
        files: certificates of this host.
        peer: the other end's ``host:port``, for messages.
        host: whom this end has connected to; empty: it has been connected to.
    """

    def __init__(self, sock: socket.socket, files: TlsFiles, peer: str, host: str = "") -> None:
        self._files, self._peer, self._host = files, peer, host
        context = files.client_context() if host else files.server_context()
        self._sock: socket.socket = context.wrap_socket(
            sock,
            server_side=not host,
            server_hostname=host or None,
            do_handshake_on_connect=False,
            suppress_ragged_eofs=True,  # frames say how long they are, so nobody can cut one short unseen
        )
        self._lock = threading.Lock()
        self._timeout: float | None = None

    @property
    def _tls(self) -> ssl.SSLSocket:
        if not isinstance(self._sock, ssl.SSLSocket):
            raise OSError("the connection was taken over")
        return self._sock

    def shake_hands(self, seconds: float) -> None:
        """Come to know the peer, which has so many seconds.

        Raises:
            TlsError: it is not who it should be, or does not speak TLS.
        """
        sock, deadline = self._tls, time.monotonic() + seconds
        try:
            sock.settimeout(max(seconds, 0.001))
            sock.do_handshake()
            sock.setblocking(False)
            certificate = sock.getpeercert() or {}
        except (OSError, ValueError) as error:
            if not self._host:
                self._hear_out(deadline)
            raise TlsError(describe(error, self._peer, self._files.folder, listening=not self._host)) from error
        if self._host and not is_named(certificate, self._host, WORKER_NAME):
            raise TlsError(misnamed(certificate, self._peer, self._host))

    def _hear_out(self, deadline: float) -> None:
        """Let the peer, which may think it is let in, read why not: bytes that nobody reads reset a connection."""
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self._sock, socket.SHUT_WR)
            for _ in range(_LAST_READS):
                self._sock.settimeout(max(deadline - time.monotonic(), 0.001))
                if not socket.socket.recv(self._sock, RECORD_BYTES):
                    return

    # -- as a socket ---------------------------------------------------------------------------------------------------

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()] = (), flags: int = 0, /) -> int:
        """Send all of ``buffers``, or with MSG_DONTWAIT what can be sent at once; return how many bytes that were."""
        sock = self._tls
        sent = 0
        with self._hurried(flags) as wait:
            for chunk in _chunks(buffers):
                at = 0
                while at < chunk.nbytes:
                    piece = chunk[at : at + _CALL_BYTES]
                    count = self._move(functools.partial(sock.write, piece), wait, begun=sent + at)
                    if count is None:
                        return sent + at
                    at += count
                sent += at
        return sent

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        """Receive into ``buffer`` up to ``nbytes``, or with MSG_WAITALL as many; 0: the peer has closed."""
        return self.recvmsg_into([memoryview(buffer).cast("B")[:nbytes]], 0, flags)[0]

    def recvmsg_into(
        self, buffers: Iterable[memoryview], ancillary_bytes: int = 0, flags: int = 0, /
    ) -> tuple[int, list[None], int, None]:
        """Receive into ``buffers`` as :meth:`recv_into` does, or with MSG_DONTWAIT what is there."""
        sock = self._tls
        received = 0
        with self._hurried(flags) as wait:
            for view in buffers:
                at = 0
                while at < view.nbytes:
                    rest = view[at : at + _CALL_BYTES]
                    count = self._move(functools.partial(sock.read, rest.nbytes, rest), wait, begun=received + at)
                    if not count:
                        return received + at, [], 0, None
                    at += count
                    if not flags & (socket.MSG_WAITALL | socket.MSG_DONTWAIT):
                        return received + at, [], 0, None
                received += at
        return received, [], 0, None

    @contextlib.contextmanager
    def _hurried(self, flags: int) -> Iterator[Callable[[int], bool]]:
        """Give what waits for an event of the socket, as long as a call may take; False: it doesn't wait."""
        if flags & socket.MSG_DONTWAIT:
            yield lambda _: False
            return
        deadline = None if self._timeout is None else time.monotonic() + self._timeout

        def wait(event: int) -> bool:
            poll = select.poll()
            poll.register(self._sock.fileno(), event)
            left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1e3
            if not poll.poll(left):
                raise TimeoutError("timed out")
            return True

        yield wait

    def _move(self, call: Callable[[], Any], wait: Callable[[int], bool], *, begun: int) -> int | None:
        """Move a part with OpenSSL once the socket lets it; None: it doesn't now, and something was moved before."""
        while True:
            try:
                with self._lock:
                    return int(call())
            except ssl.SSLWantReadError:
                event = select.POLLIN
            except ssl.SSLWantWriteError:
                event = select.POLLOUT
            if not wait(event):
                if begun:
                    return None
                raise BlockingIOError

    def settimeout(self, seconds: float | None) -> None:
        """Have each call take so many seconds at most; None: for ever."""
        self._timeout = seconds

    @property
    def family(self) -> int:
        """Family of the socket's addresses."""
        return self._sock.family

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of the socket."""
        self._sock.setsockopt(level, option, value)

    def fileno(self) -> int:
        """File descriptor of the socket; -1 once closed."""
        return self._sock.fileno()

    def shutdown(self, how: int) -> None:
        """Shut the socket down, which wakes whoever waits for it; nothing more is said to the peer."""
        socket.socket.shutdown(self._sock, how)  # SSLSocket's own would go on as if there had never been TLS

    def close(self) -> None:
        """Close the socket. Nobody uses it."""
        self._sock.close()

    def taken_over(self) -> TlsStream:
        """Return this stream for another owner; this object closes nothing any more."""
        taken = TlsStream.__new__(TlsStream)
        taken.__dict__.update(self.__dict__)
        self._sock = socket.socket()
        self._sock.close()
        return taken


def _chunks(buffers: Iterable[Buffer]) -> Iterator[memoryview]:
    """Join small buffers that follow one another, so that they are a record, and no packets of their own."""
    joined = bytearray()
    for buffer in buffers:
        view = memoryview(buffer).cast("B")
        if joined and len(joined) + view.nbytes > RECORD_BYTES:
            yield memoryview(joined)
            joined = bytearray()
        if view.nbytes >= RECORD_BYTES // 2:
            if joined:
                yield memoryview(joined)
                joined = bytearray()
            yield view
        else:
            joined += view
    if joined:
        yield memoryview(joined)
