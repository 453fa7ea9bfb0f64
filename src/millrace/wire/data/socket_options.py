"""Options of a new TCP socket; docs/design/0003-data-plane.md says why these."""

from __future__ import annotations

import socket
from typing import Protocol

UNACKNOWLEDGED_MS = 20_000
"""Milliseconds after which the end that has connected gives up a peer that takes in nothing of what was sent to it."""
KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}


class Adjustable(Protocol):
    """Socket, or what has the options of one."""

    @property
    def family(self) -> int:
        """Family of its addresses."""
        ...

    def setsockopt(self, level: int, option: int, value: int, /) -> None:
        """Set an option."""
        ...


def set_socket_options(sock: Adjustable, *, connects: bool = False) -> None:
    """Set the options of a new TCP socket.

    Args:
        sock: the socket.
        connects: it is of the end that has connected: it sends questions and receipts alone, which peers always read.
            While one is on its way Linux sends no probes, and would wait for a quarter of an hour.
    """
    if sock.family not in {socket.AF_INET, socket.AF_INET6}:
        return  # whoever holds the other end is on this host: its death closes it
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in KEEPALIVE.items():
        if hasattr(socket, name):  # macOS calls the first TCP_KEEPALIVE; two hours will do there
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
    if connects and hasattr(socket, "TCP_USER_TIMEOUT"):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_MS)
