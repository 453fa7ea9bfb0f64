"""Handshake of a bulk connection: a hello of the connecting side, a welcome of the other, each in limited time."""

from __future__ import annotations

import socket
import time
from typing import TYPE_CHECKING

import msgspec

from millrace.protocol.messages import Failure
from millrace.wire.auth import OWN, Identity
from millrace.wire.data.compression import Compression
from millrace.wire.data.frames import receive_frame, send_frame
from millrace.wire.data.striping import StripePart
from millrace.wire.error_codec import error_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HELLO_BYTES = 16 << 10
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}


class Hello(msgspec.Struct, frozen=True):
    """First frame of the connecting side.

    Attributes:
        identity: of the process.
        token: that the server may demand.
        compression: of the payloads that either side sends.
        part: set if this is one of several sockets of a connection.
    """

    identity: Identity
    token: str | None = None
    compression: Compression | None = None
    part: StripePart | None = None


class Welcome(msgspec.Struct, frozen=True):
    """Answer to :class:`Hello`; with a failure the connection ends here. ``local``: an abstract Unix socket, or ""."""

    identity: Identity
    failure: Failure | None = None
    local: str = ""


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_welcome_decoder = msgspec.msgpack.Decoder(Welcome)


def exchange_hello(sock: socket.socket, hello: Hello, deadline: float) -> Welcome:
    """Send ``hello`` and wait for the welcome, until ``deadline`` (of ``time.monotonic``) at most.

    Raises:
        MillraceError: why the server does not let this process in.
        ProtocolError: what answers is not millrace.
        EOFError, OSError: the connection broke, or the time is over.
    """
    set_socket_options(sock)
    send_frame(sock, hello)
    answer, _ = receive_frame(_DeadlineSocket(sock, deadline), _welcome_decoder, limit=0, header_limit=_HELLO_BYTES)
    if answer.failure is not None:
        raise error_of(answer.failure)
    sock.settimeout(None)
    return answer


def receive_hello(sock: socket.socket, seconds: float) -> Hello:
    """Receive a new peer's hello, which has to come within ``seconds``."""
    set_socket_options(sock)
    hurried = _DeadlineSocket(sock, time.monotonic() + seconds)
    hello, _ = receive_frame(hurried, _hello_decoder, limit=0, header_limit=_HELLO_BYTES)
    sock.settimeout(None)
    return hello


def send_welcome(sock: socket.socket, failure: Failure | None = None, local: str = "") -> None:
    """Answer a hello."""
    send_frame(sock, Welcome(OWN, failure, local))


class _DeadlineSocket:
    """Socket whose next receives have to be done by ``deadline``, however the peer trickles."""

    def __init__(self, sock: socket.socket, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
        return self._sock.recv_into(buffer, nbytes, flags)


def set_socket_options(sock: socket.socket) -> None:
    """Set the options of a new TCP socket; docs/design/0003-data-plane.md says why these."""
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return  # whoever holds the other end is on this host: its death closes it
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # macOS calls the first TCP_KEEPALIVE; two hours will do there
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
