"""Acceptor: the thread that accepts connections, and hands those on whose peers speak.

A peer that says nothing costs a descriptor and no thread; it goes when its time is over, or for another one
(:mod:`millrace.wire.lobby`).
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from millrace.wire.lobby import Lobby
from millrace.wire.peer_log import PeerLog

PER_ADDRESS = 128
"""Most peers of one address that are not let in yet."""
MOST = 512
"""Most peers that are not let in yet; each that speaks has a thread."""

_PAUSE_S = 1.0
_AF_UNIX = getattr(socket, "AF_UNIX", -1)
_CREDENTIALS = struct.Struct("3i")
"""Process, user and group of a Unix socket's peer."""

_logger = logging.getLogger(__name__)
_peers = PeerLog(_logger)


class Newcomer:
    """Peer that has connected.

    Attributes:
        sock: of the connection.
        address: as ``accept`` gives it.
        hang_up: ends the connection, whoever has it.
    """

    __slots__ = ("address", "hang_up", "sock")

    def __init__(self, sock: socket.socket, address: Any) -> None:
        self.sock, self.address = sock, address
        self.hang_up: Callable[[], object] = sock.close

    @property
    def host(self) -> str:
        """Whom it is counted with: its host, of IPv6 its network, or this host's processes."""
        if self.sock.family == socket.AF_INET6:
            return ":".join(str(self.address[0]).split(":")[:4])
        return str(self.address[0]) if self.sock.family == socket.AF_INET else "this host"


class Acceptor:
    """Acceptor of the connections of a server, with a thread of its own from :meth:`start` to :meth:`close`.

    Args:
        listeners: sockets that listen, closed by the caller.
        begin: told of a peer that speaks, whose ``hang_up`` it may replace; called in the acceptor's thread.
        seconds: that a peer has until it says what it is there for.
        name: of the thread.
        where: the server's address, for messages.

    Attributes:
        lobby: peers that are not let in yet.
    """

    def __init__(
        self,
        listeners: Sequence[socket.socket],
        begin: Callable[[Newcomer], object],
        seconds: float,
        name: str,
        where: str,
    ) -> None:
        self.lobby = Lobby[Newcomer](seconds, PER_ADDRESS, MOST)
        self._begin = begin
        self._where = where
        self._closing = False
        self._paused_until = 0.0
        self._listeners = listeners
        self._selector = selectors.DefaultSelector()
        self._wake, woken = socket.socketpair()
        self._woken = woken
        self._selector.register(woken, selectors.EVENT_READ)
        for listener in listeners:
            listener.setblocking(False)
            self._selector.register(listener, selectors.EVENT_READ)
        self.thread = threading.Thread(target=self._run, name=name, daemon=True)

    def start(self) -> None:
        """Begin to accept."""
        self.thread.start()

    def close(self) -> None:
        """Accept no more, and hang up on who has said nothing yet. May be called more than once."""
        if not self._closing:
            self._closing = True
            with contextlib.suppress(OSError):  # of a thread that something else has woken, and which has ended by now
                self._wake.send(b"x")
        if self.thread is not threading.current_thread():
            self.thread.join()

    def _run(self) -> None:
        try:
            while not self._closing:
                for key, _ in self._selector.select(self._patience()):
                    self._ready(key.fileobj, key.data)
                now = time.monotonic()
                for late in self.lobby.overdue(now):
                    self._turn_away(late)
                if self._paused_until and now >= self._paused_until:
                    self._listen(now=True)
        finally:
            for key in list(self._selector.get_map().values()):
                if key.data is not None:
                    key.data.sock.close()
            self._selector.close()
            self._wake.close()
            self._woken.close()

    def _patience(self) -> float | None:
        due = [each for each in (self.lobby.deadline(), self._paused_until or None) if each is not None]
        return max(0.0, min(due) - time.monotonic()) if due else None

    def _ready(self, found: Any, newcomer: Newcomer | None) -> None:
        if newcomer is not None:
            if newcomer in self.lobby:  # else it was turned away a moment ago
                self._selector.unregister(newcomer.sock)
                if _has_gone(newcomer.sock):
                    self.lobby.leave(newcomer)
                    newcomer.hang_up()
                else:
                    self.lobby.spoke(newcomer)
                    self._begin(newcomer)
        elif found is not self._woken:
            self._accept(found)

    def _accept(self, listener: socket.socket) -> None:
        try:
            sock, address = listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return  # it has gone meanwhile
        except OSError as error:
            _peers.warning("cannot accept connections at %s: %s", self._where, error)
            silent = self.lobby.turn_away()  # out of descriptors, most likely
            if silent is not None:
                self._turn_away(silent)
            else:
                self._listen(now=False)  # accept fails at once until one is free
            return
        sock.setblocking(True)
        newcomer = Newcomer(sock, address)
        gone = self.lobby.enter(newcomer, newcomer.host, time.monotonic())
        if gone is not None:
            _peers.warning("hung up on %s: too many connections of it are not let in yet", gone.host)
            self._turn_away(gone)
        self._selector.register(sock, selectors.EVENT_READ, newcomer)

    def _listen(self, *, now: bool) -> None:
        """Accept again, or not for a second."""
        paused = self._paused_until > 0
        if paused is not now:  # as it is already, since another listener failed in the same moment
            return
        self._paused_until = 0.0 if now else time.monotonic() + _PAUSE_S
        for listener in self._listeners:
            if now:
                self._selector.register(listener, selectors.EVENT_READ)
            else:
                self._selector.unregister(listener)

    def _turn_away(self, newcomer: Newcomer) -> None:
        with contextlib.suppress(KeyError, ValueError):  # it has spoken
            self._selector.unregister(newcomer.sock)
        newcomer.hang_up()


def _has_gone(sock: socket.socket) -> bool:
    """Whether a peer from which something has come has hung up without a word."""
    try:
        return not sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except OSError:
        return True


def may_share(sock: socket.socket) -> bool:
    """Whether a local socket's peer is a process of this user, or of root: nobody else is passed memory."""
    credentials = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    _, uid, _ = _CREDENTIALS.unpack(credentials)
    return uid in {os.geteuid(), 0}


def listen_locally(name: str) -> socket.socket:
    """Listen on an abstract Unix socket of this name."""
    listener = socket.socket(_AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener
