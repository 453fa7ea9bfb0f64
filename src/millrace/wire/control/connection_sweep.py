"""Sweep of a server's connections: gRPC tells nobody of those that it accepts, so they are looked up and hung up on.

gRPC takes any number of connections, from anybody, and waits for two minutes until they speak. What is looked at here
are this process's own sockets, as Linux lists them; elsewhere nothing is swept.
"""

from __future__ import annotations

import os
import socket
import urllib.parse
from collections.abc import Iterator

from millrace.wire.lobby import Lobby

SECONDS = 10.0
"""Seconds that a peer has until its first call or session is let in."""
PER_ADDRESS = 256
"""Most peers of one address that have not been let in; there may be a job's worth of them on one host."""
MOST = 1024
"""Most peers that have not been let in."""
PERIOD_S = 1.0
"""Seconds from one sweep to the next."""
MANY = 100
"""Connections hung up on at a time from which on the next sweep follows at once."""
_FEW = 128
"""Descriptors beside those of peers that are known; with so many there is nothing to look at."""
_DESCRIPTORS = "/proc/self/fd"


class ConnectionSweep:
    """Sweep of the connections to one port of this process.

    Args:
        port: of the listener.

    Attributes:
        lobby: peers that were seen and have not been let in, as ``host:port``.
    """

    def __init__(self, port: int) -> None:
        self.lobby = Lobby[str](SECONDS, PER_ADDRESS, MOST)
        self._port = port
        self._known: set[str] = set()
        self._let_in = 0
        self._seen: set[str] = set()

    def let_in(self, peer: str) -> None:
        """Note that a peer, as gRPC writes it, is known from now on."""
        name = _plain(peer)
        self._let_in += name not in self._known
        self._known.add(name)
        self.lobby.leave(name)

    @property
    def due(self) -> bool:
        """Whether there is anything to look at, or many were let in, of whom some have gone since."""
        try:
            return bool(self._seen) or self._let_in > _FEW or len(os.listdir(_DESCRIPTORS)) > len(self._known) + _FEW
        except OSError:
            return False

    def sweep(self, now: float) -> int:
        """Hang up on who has been silent too long, and on who is too many; return how many these were.

        Peers may be let in meanwhile, by another thread.

        Args:
            now: in seconds.
        """
        known_before, self._let_in = self._known.copy(), 0
        there = dict(self._connections())
        self._known -= known_before - there.keys()
        for name in self._seen - there.keys():
            self.lobby.leave(name)
        gone = set(self.lobby.overdue(now))
        for name in there.keys() - self._seen - self._known:
            turned_away = self.lobby.enter(name, name.rpartition(":")[0], now)
            if turned_away is not None:
                gone.add(turned_away)
        gone = (gone & there.keys()) - self._known
        for name in gone:
            self._peer(there[name], gone=name)
        for name in self._known & there.keys():
            self.lobby.leave(name)
        self._seen = {name for name in there if name in self.lobby}
        return len(gone)

    def _connections(self) -> Iterator[tuple[str, int]]:
        """Find the sockets that are connected to the port: the names of their peers, and their descriptors."""
        for entry in os.listdir(_DESCRIPTORS):
            name = self._peer(int(entry))
            if name:
                yield name, int(entry)

    def _peer(self, descriptor: int, gone: str = "") -> str:
        """Name the peer of a connection to the port, and hang up if that is ``gone``; empty: it is no such descriptor.

        It is not duplicated: who closes a duplicate of a file ends all locks that this process has on it, as SQLite has
        on the journal; and there might be no descriptor left for that.
        """
        try:
            sock = socket.socket(fileno=descriptor)
        except OSError:  # it is no socket, or was closed meanwhile
            return ""
        try:
            if sock.family not in {socket.AF_INET, socket.AF_INET6} or sock.getsockname()[1] != self._port:
                return ""
            host, port = sock.getpeername()[:2]
            name = f"{_unscoped(host)}:{port}"
            if name == gone:
                sock.shutdown(socket.SHUT_RDWR)  # gRPC sees that it has, and closes it
        except OSError:  # it listens, or its peer has gone by itself
            return ""
        finally:
            sock.detach()
        return name


def _unscoped(host: str) -> str:
    """IP address without the network of a link-local one, for which there are names and numbers."""
    return host.removeprefix("::ffff:").partition("%")[0]


def _plain(peer: str) -> str:
    """Peer as ``host:port``, of what gRPC has as ``ipv4:10.0.0.7:41234`` or ``ipv6:%5B::1%5D:41234``."""
    host, _, port = urllib.parse.unquote(peer).partition(":")[2].rpartition(":")
    return f"{_unscoped(host.strip('[]'))}:{port}"
