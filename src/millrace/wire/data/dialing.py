"""Dialing: the connecting side's sockets until they are a connection, and what goes wrong meanwhile."""

from __future__ import annotations

import logging
import socket
import ssl
import time

from millrace.elements.shared import AVAILABLE
from millrace.errors import MillraceError, ProtocolError, ServiceUnreachableError, TlsError
from millrace.wire.address import format_address, parse_address
from millrace.wire.data.data_keys import Credential
from millrace.wire.data.handshake import exchange_hello
from millrace.wire.data.links import Link, secured
from millrace.wire.data.relayed_stream import RelayedStream
from millrace.wire.tls_files import TlsFiles
from millrace.wire.tls_names import describe

_AF_UNIX = getattr(socket, "AF_UNIX", -1)

_logger = logging.getLogger(__name__)


class Dialer:
    """Dialer of the sockets of one connection.

    Args:
        address: ``host:port`` to connect to.
        timeout: seconds for all of it.
        tls: certificates; None: sockets are plain.

    Attributes:
        where: the address, for messages.
        deadline: end of the timeout, of ``time.monotonic``.
    """

    def __init__(self, address: str, timeout: float, tls: TlsFiles | None) -> None:
        self._host, self._port = parse_address(address)
        self.where = format_address(self._host, self._port)
        self.deadline = time.monotonic() + timeout
        self._timeout, self._tls = timeout, tls
        self._opened: list[Link] = []

    def dial(self) -> socket.socket:
        """Connect a socket."""
        try:
            sock = socket.create_connection((self._host, self._port), max(self.deadline - time.monotonic(), 0.001))
        except OSError as error:
            raise ServiceUnreachableError(
                f"nobody answered at {self.where} within {self._timeout:g} s: {reason_of(error)}. Does anything listen"
                " there, and is no firewall between?"
            ) from error
        self._opened.append(sock)
        return sock

    def secured(self, sock: socket.socket, *, relayed: bool = True) -> Link:
        """Speak TLS through a socket, if that is spoken: in a process of its own, or in this one."""
        if self._tls is None:
            return sock
        stream = secured(sock, self._tls, self.where, self._host, relayed=relayed)
        self._opened.append(stream)
        stream.shake_hands(self.deadline - time.monotonic())
        return stream

    def settle(self) -> None:
        """Note that the peer has welcomed this process on all sockets."""
        for sock in self._opened:
            if isinstance(sock, RelayedStream):
                sock.settle()

    def close(self) -> None:
        """Close all sockets."""
        for sock in self._opened:
            sock.close()

    def translate(self, error: BaseException) -> MillraceError | None:
        """Translate an error of dialing, or of the handshake that follows; None: it says enough. Before closing."""
        if isinstance(error, (EOFError, OSError)) and not isinstance(error, MillraceError):
            known = (each.trouble() for each in self._opened if isinstance(each, RelayedStream))
            error = next((trouble for trouble in known if trouble is not None), error)
        if isinstance(error, TlsError):
            return error
        # Who listens says so only now if it wants to know who this is.
        if isinstance(error, ssl.SSLError) and self._tls is not None and "ALERT" in str(error.reason):
            return TlsError(describe(error, self.where, self._tls.folder))
        if isinstance(error, ProtocolError):
            return ProtocolError(f"{self.where} does not answer as a worker does: {error}")
        if isinstance(error, (EOFError, OSError)) and not isinstance(error, MillraceError):
            return ServiceUnreachableError(
                f"{self.where} was reached but did not welcome this process within {self._timeout:g} s:"
                f" {reason_of(error)}"
            )
        return None


def connect_locally(name: str, credential: Credential, deadline: float) -> socket.socket | None:
    """Connect to a server's Unix socket, up to the welcome; None if it can't be seen from here."""
    if not AVAILABLE:
        return None
    sock = socket.socket(_AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            sock.connect(f"\0{name}")
        except OSError as error:
            _logger.debug("no shared memory with %s: %s", name, reason_of(error))
            sock.close()
            return None
        exchange_hello(sock, credential, deadline)
    except BaseException as error:
        sock.close()
        if isinstance(error, (EOFError, ConnectionError)) and not isinstance(error, MillraceError):
            return None  # it does not share with processes of other users
        raise
    return sock


def reason_of(error: BaseException) -> str:
    """Say what an error of a socket is, in a few words."""
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return str(error)
