"""Links: what connections are made of, and which one speaks TLS."""

from __future__ import annotations

import socket

from millrace.wire.data.relayed_stream import RelayedStream
from millrace.wire.data.relays import RELAYS
from millrace.wire.data.tls_stream import TlsStream
from millrace.wire.tls_files import TlsFiles

Link = socket.socket | TlsStream | RelayedStream
"""One connection of TCP, as it is or with TLS, or of a Unix socket."""


def secured(
    sock: socket.socket, files: TlsFiles, peer: str, host: str = "", *, relayed: bool = True
) -> TlsStream | RelayedStream:
    """Make a link that speaks TLS, once hands are shaken.

    Args:
        sock: connected; belongs to the link from now on.
        files: certificates of this host.
        peer: the other end's ``host:port``, for messages.
        host: whom this end has connected to; empty: it has been connected to.
        relayed: in a process of its own, if there can be one; else in this one.
    """
    relay = RELAYS.borrow() if relayed else None
    if relay is None:
        return TlsStream(sock, files, peer, host)
    try:
        return RelayedStream(relay, sock, files, peer, host)
    except BaseException:
        RELAYS.give_back(relay)
        raise
