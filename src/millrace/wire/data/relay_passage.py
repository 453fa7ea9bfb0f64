"""Passage: one connection of a relay process, from TLS to a peer and back.

What is said about it goes over a socket of its own: what its parent wants, first, and why nothing came of it.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import select
import socket
import ssl
import struct
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from millrace.wire.tls_names import WORKER_NAME, describe, is_named, misnamed

if TYPE_CHECKING:
    from millrace.wire.data.relay_process import RelayLoop

LENGTH = struct.Struct("<I")
"""Before what is said about a connection, JSON: its bytes."""
MOST_ASKED_BYTES = 16 << 20

AHEAD_BYTES = 1 << 20
"""Decrypted bytes of a connection that may wait for its reader, who was busy otherwise and finds them ready."""
ALL_AHEAD_BYTES = 32 << 20
"""The same of all connections; above, a connection that has some waiting takes no more."""
PIECE_BYTES = 128 << 10
"""Bytes that are moved at once."""

_TURN = 1 << 20
"""Bytes that a connection moves before it is another one's turn."""
_RECORD = 16 << 10
_IOV = 64
_LAST_READS = 8
_IN, _OUT, _HUP = select.EPOLLIN, select.EPOLLOUT, select.EPOLLHUP


class Asked(NamedTuple):
    """Wishes of the parent about a connection.

    Attributes:
        peer: the other end's ``host:port``, for messages.
        host: whom the parent has connected to; empty: it has been connected to.
        folder: of the certificates, for messages.
        demands: who connected has to show a certificate.
        authority: certificates of whom is trusted, PEM.
        chain: certificate of this host, PEM; may be empty.
        key: of the certificate, PEM.
    """

    peer: str
    host: str
    folder: str
    demands: bool
    authority: str
    chain: str
    key: str

    @property
    def context(self) -> tuple[Any, ...]:
        """Parts that the TLS context follows from."""
        return bool(self.host), self.demands, self.authority, self.chain, self.key


def pack(message: dict[str, Any]) -> bytes:
    """Pack what is said about a connection."""
    text = json.dumps(message).encode()
    return LENGTH.pack(len(text)) + text


class Passage:
    """One connection: TLS to a peer, and its bytes to and from the parent.

    Args:
        relay: it is one of.
        tcp: to the peer.
        data: to the parent, for the bytes.
        side: to the parent, for what is said about the connection.
    """

    def __init__(self, relay: RelayLoop, tcp: socket.socket, data: socket.socket, side: socket.socket) -> None:
        self._relay = relay
        self._tcp, self._data, self._side = tcp, data, side
        self._masks: dict[socket.socket, int] = {}
        self._over: set[socket.socket] = set()
        """Sockets of which no more is heard, as they are shut at both ends: what they still have is read at once."""
        self._said = bytearray()
        self._asked: Asked | None = None
        self._tls: ssl.SSLObject | None = None
        self._inward, self._outward = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._unsent = memoryview(b"")
        self._arrived: deque[memoryview | bytes] = deque()
        self._arrived_bytes = 0
        self._peer_ended = self._parent_ended = False
        self._peer_deaf = self._parent_deaf = False
        self._last_reads = _LAST_READS
        self._step = self._listen
        for sock in (tcp, data, side):
            sock.setblocking(False)
            self._watch(sock, _IN if sock is side else 0)

    # -- events --------------------------------------------------------------------------------------------------------

    def ready(self, number: int, event: int) -> None:
        """Go on, as something is to be had of a socket."""
        sock = next(each for each in (self._tcp, self._data, self._side) if each.fileno() == number)
        if event & _HUP:
            self._ignore(sock)
            self._over.add(sock)
            if sock is self._side:
                sock.close()  # the parent wants to know no more
            if sock is not self._tcp and self._step != self._move:
                self.end()
                return
        self._step()

    def hang_up(self) -> None:
        """Close, as the parent would; what it has sent before may take a while."""
        if self._step == self._move:
            with contextlib.suppress(OSError):
                self._data.shutdown(socket.SHUT_RD)  # which leaves what has come
            self._over.add(self._data)
            self._ignore(self._data)
            self._move()
        else:
            self.end()

    def end(self) -> None:
        """Close the connection at both ends."""
        for sock in (self._tcp, self._data, self._side):
            self._ignore(sock)
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            sock.close()
        self._relay.waiting_bytes -= self._arrived_bytes
        self._arrived_bytes = 0
        self._relay.forget(self)
        self._step = _nothing

    def _watch(self, sock: socket.socket, mask: int) -> None:
        if sock not in self._over:
            self._relay.watch(self, sock, mask, self._masks.get(sock))
            self._masks[sock] = mask

    def _ignore(self, sock: socket.socket) -> None:
        if self._masks.pop(sock, None) is not None:
            self._relay.ignore(sock)

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _listen(self) -> None:
        """Hear what the parent wants."""
        try:
            self._said += self._side.recv(1 << 16)
        except BlockingIOError:
            return
        if len(self._said) < LENGTH.size:
            return
        size = LENGTH.unpack_from(self._said)[0]
        if size > MOST_ASKED_BYTES:
            self.end()
        elif len(self._said) == LENGTH.size + size:
            asked = self._asked = Asked(**json.loads(self._said[LENGTH.size :]))
            self._said.clear()
            try:
                self._tls = self._relay.context(asked).wrap_bio(
                    self._inward, self._outward, server_side=not asked.host, server_hostname=asked.host or None
                )
            except (OSError, ValueError) as error:
                self._refuse(describe(error, asked.peer, asked.folder, listening=not asked.host))
                return
            self._step = self._shake
            self._shake()

    def _shake(self) -> None:
        """Shake hands with the peer."""
        asked, tls = self._asked, self._tls
        assert asked is not None
        assert tls is not None
        try:
            while not self._shaken(tls):
                self._send()
                if not self._receive():
                    self._watch(self._tcp, _IN | (_OUT if self._unsent else 0))
                    return
        except (OSError, ValueError) as error:
            self._refuse(describe(error, asked.peer, asked.folder, listening=not asked.host))
            return
        self._send()
        certificate: dict[str, Any] = dict(tls.getpeercert() or {})
        if asked.host and not is_named(certificate, asked.host, WORKER_NAME):
            self._refuse(misnamed(certificate, asked.peer, asked.host))
            return
        self._say({})
        self._step = self._move
        self._decrypt()  # some may have come already
        self._move()

    @staticmethod
    def _shaken(tls: ssl.SSLObject) -> bool:
        """Whether hands are shaken; False: TLS wants to read."""
        try:
            tls.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def _receive(self) -> bool:
        """Have TLS read what has come from the peer; False: nothing has."""
        try:
            count = self._tcp.recv_into(self._relay.scratch)
        except BlockingIOError:
            return False
        if count:
            self._inward.write(self._relay.scratch[:count])
        else:
            self._inward.write_eof()
        return True

    def _say(self, message: dict[str, Any]) -> None:
        with contextlib.suppress(OSError):  # it has gone, or was told that it is over and reads nothing
            self._side.send(pack(message))

    def _refuse(self, reason: str) -> None:
        """Say that nothing comes of it."""
        self._say({"refused": reason})
        self._send()
        if self._asked is not None and self._asked.host:
            self.end()
            return
        # The peer may think it is let in, and is to read why not: bytes that nobody reads reset a connection.
        with contextlib.suppress(OSError):
            self._tcp.shutdown(socket.SHUT_WR)
        self._step = self._hear_out
        self._watch(self._tcp, _IN)

    def _hear_out(self) -> None:
        """Read what the peer has to say, until it hangs up or the parent has had enough."""
        try:
            while self._last_reads and self._tcp.recv_into(self._relay.scratch, _RECORD):
                self._last_reads -= 1
        except BlockingIOError:
            return
        except OSError:
            pass  # it is over, too
        self.end()

    # -- bytes ---------------------------------------------------------------------------------------------------------

    def _move(self) -> None:
        """Move what can be moved, both ways."""
        self._move_in()
        self._move_out()
        if (self._peer_ended and not self._arrived) or (self._parent_ended and not self._unsent):
            self.end()
            return
        if self._data in self._over:
            self._relay.linger(self)
        takes = not self._peer_ended and not self._parent_deaf and not self._is_full()
        self._watch(self._tcp, (_IN if takes else 0) | (_OUT if self._unsent else 0))
        gives = not self._parent_ended and not self._peer_deaf and not self._unsent
        self._watch(self._data, (_IN if gives else 0) | (_OUT if self._arrived else 0))

    def _move_in(self) -> None:
        """Move from the peer to the parent."""
        moved = 0
        while True:
            self._hand_over()
            if self._peer_ended or self._parent_deaf or self._is_full():
                return
            if moved >= _TURN and self._tcp not in self._over:
                return
            try:
                if not self._receive():
                    return
            except OSError as error:
                self._lose(error)
                return
            moved += PIECE_BYTES
            self._decrypt()

    def _is_full(self) -> bool:
        most = AHEAD_BYTES if self._relay.waiting_bytes < ALL_AHEAD_BYTES else 1
        return self._arrived_bytes >= most

    def _decrypt(self) -> None:
        """Decrypt all that has come."""
        assert self._tls is not None
        size = 0
        try:
            while piece := self._tls.read(_RECORD):
                self._arrived.append(piece)
                size += len(piece)
            self._peer_ended = True
        except ssl.SSLWantReadError:
            pass
        except OSError as error:
            self._lose(error)
        self._arrived_bytes += size
        self._relay.waiting_bytes += size
        if size and self._side not in self._over:  # whoever lets in and whoever does not has said so
            self._ignore(self._side)
            self._side.close()
            self._over.add(self._side)
        if self._outward.pending:  # TLS has to answer something
            self._send()

    def _lose(self, error: OSError) -> None:
        """Note that nothing more comes from the peer, and why."""
        self._peer_ended = True
        if self._side in self._over or self._asked is None:
            return
        if isinstance(error, ssl.SSLError) and "ALERT" in str(error.reason):
            self._say({"refused": describe(error, self._asked.peer, self._asked.folder)})
        elif not isinstance(error, ssl.SSLEOFError | ssl.SSLZeroReturnError):
            self._say({"lost": str(error.strerror or error)})

    def _hand_over(self) -> None:
        """Hand to the parent what has arrived, as far as there is room."""
        while self._arrived and not self._parent_deaf:
            try:
                count = self._data.sendmsg(list(itertools.islice(self._arrived, _IOV)))
            except BlockingIOError:
                return
            except OSError:
                self._parent_deaf = True
                count = self._arrived_bytes
            self._arrived_bytes -= count
            self._relay.waiting_bytes -= count
            while count:
                first = self._arrived.popleft()
                if len(first) > count:
                    self._arrived.appendleft(memoryview(first)[count:])
                    break
                count -= len(first)

    def _move_out(self) -> None:
        """Move from the parent to the peer."""
        assert self._tls is not None
        moved = 0
        while True:
            self._send()
            if self._unsent or self._parent_ended or self._peer_deaf:
                return
            if moved >= _TURN and self._data not in self._over:
                return
            try:
                count = self._data.recv_into(self._relay.scratch)
            except BlockingIOError:
                return
            except ConnectionError:
                count = 0
            self._parent_ended = not count
            try:
                for at in range(0, count, _RECORD):
                    self._tls.write(self._relay.scratch[at : min(at + _RECORD, count)])
            except OSError:  # the peer has ended TLS
                self._be_ignored()
            moved += count

    def _send(self) -> None:
        """Send what TLS has for the peer, as far as there is room."""
        while self._unsent or self._outward.pending:
            if not self._unsent:
                self._unsent = memoryview(self._outward.read())
            try:
                self._unsent = self._unsent[self._tcp.send(self._unsent) :]
            except BlockingIOError:
                return
            except OSError:
                self._be_ignored()
                return

    def _be_ignored(self) -> None:
        """Send no more, as the peer takes no more."""
        self._outward.read()
        self._unsent = memoryview(b"")
        self._peer_deaf = True
        with contextlib.suppress(OSError):
            self._data.shutdown(socket.SHUT_RD)  # so that the parent does not wait for room


def _nothing() -> None:
    """Do nothing: the passage has ended."""
