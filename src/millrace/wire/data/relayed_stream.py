"""Relayed stream: TLS on a connected TCP socket, spoken by a relay; this process has a Unix socket to it."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from millrace.errors import ServiceUnreachableError, TlsError
from millrace.wire.data.relay_passage import LENGTH, Asked, pack
from millrace.wire.data.relays import RELAYS, Relay
from millrace.wire.data.socket_options import set_socket_options
from millrace.wire.tls_files import TlsFiles
from millrace.wire.tls_names import describe

if TYPE_CHECKING:
    from typing_extensions import Buffer

BUFFER_BYTES = 512 << 10
"""Bytes of either direction that may lie between this process and the relay, if the kernel allows so many."""


class RelayedStream:
    """Stream of bytes through a relay, with what frames need of a blocking socket.

    Args:
        relay: borrowed; given back when the stream is closed.
        sock: connected; belongs to the stream from now on.
        files: certificates of this host.
        peer: the other end's ``host:port``, for messages.
        host: whom this end has connected to; empty: it has been connected to.
    """

    def __init__(self, relay: Relay, sock: socket.socket, files: TlsFiles, peer: str, host: str = "") -> None:
        self._relay: Relay | None = relay
        self._tcp, self._files, self._peer, self._host = sock, files, peer, host
        self._data, self._theirs = socket.socketpair()
        self._side, self._their_side = socket.socketpair()
        for each in (self._data, self._theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)

    def shake_hands(self, seconds: float) -> None:
        """Come to know the peer, which has so many seconds.

        Raises:
            TlsError: it is not who it should be, or does not speak TLS.
            ServiceUnreachableError: the relay has ended.
        """
        deadline = time.monotonic() + seconds
        certificates = self._files.certificates()
        asked = Asked(
            self._peer,
            self._host,
            self._files.folder,
            self._files.demands,
            *(part.decode("ascii", "replace") for part in certificates),
        )
        try:
            self._side.settimeout(max(seconds, 0.001))
            self._hand_over()
            self._side.sendall(pack(asked._asdict()))
            answer = self._hear(deadline)
            if answer is not None and "refused" in answer:
                while not self._host and self._hear(deadline) is not None:  # the relay lets the peer read why not
                    pass
        except TimeoutError as error:
            raise TlsError(describe(error, self._peer, self._files.folder, listening=not self._host)) from error
        except OSError:
            answer = None
        if answer is None:
            raise ServiceUnreachableError(f"the process that speaks TLS for this one ended, or closed {self._peer}")
        if "refused" in answer:
            raise TlsError(answer["refused"])

    def _hand_over(self) -> None:
        assert self._relay is not None
        set_socket_options(self._tcp, connects=bool(self._host))
        given = (self._tcp, self._theirs, self._their_side)
        self._relay.take([each.fileno() for each in given])
        for each in given:
            each.close()

    def _hear(self, deadline: float) -> dict[str, Any] | None:
        """Hear what the relay says of the connection; None: nothing more."""
        head = self._take(LENGTH.size, deadline)
        text = self._take(LENGTH.unpack(head)[0], deadline) if head else b""
        return json.loads(text) if text else None

    def _take(self, size: int, deadline: float) -> bytes:
        self._side.settimeout(max(deadline - time.monotonic(), 0.001))
        return self._side.recv(size, socket.MSG_WAITALL)

    def trouble(self) -> Exception | None:
        """Say why the connection broke off before the peer had said anything, if the relay knows."""
        try:
            said = self._hear(time.monotonic() + 1.0)
        except OSError:
            return None
        if said is None:
            return None
        return TlsError(said["refused"]) if "refused" in said else ConnectionError(said["lost"])

    def settle(self) -> None:
        """Want to know no more of the connection than its bytes."""
        self._side.close()

    # -- as a socket ---------------------------------------------------------------------------------------------------

    def sendmsg(self, buffers: Iterable[Buffer], ancillary: tuple[()] = (), flags: int = 0, /) -> int:
        """Send a part of ``buffers``; return its bytes."""
        return self._data.sendmsg(buffers, ancillary, flags)

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        """Receive into ``buffer`` as a socket does."""
        return self._data.recv_into(buffer, nbytes, flags)

    def recvmsg_into(
        self, buffers: Iterable[memoryview], ancillary_bytes: int = 0, flags: int = 0, /
    ) -> tuple[int, list[Any], int, Any]:
        """Receive into ``buffers`` as a socket does."""
        return self._data.recvmsg_into(buffers, ancillary_bytes, flags)

    def settimeout(self, seconds: float | None) -> None:
        """Have each call take so many seconds at most; None: for ever."""
        self._data.settimeout(seconds)

    @property
    def family(self) -> int:
        """Family of this process's socket, which is no TCP socket."""
        return self._data.family

    def setsockopt(self, level: int, option: int, value: int) -> None:
        """Set an option of this process's socket."""
        self._data.setsockopt(level, option, value)

    def fileno(self) -> int:
        """File descriptor of this process's socket; -1 once closed."""
        return self._data.fileno()

    def shutdown(self, how: int) -> None:
        """Shut down, which wakes whoever waits for it."""
        self._data.shutdown(how)

    def close(self) -> None:
        """Close the connection. Nobody uses it."""
        relay, self._relay = self._relay, None
        for sock in (self._data, self._side, self._theirs, self._their_side, self._tcp):
            sock.close()
        if relay is not None:
            RELAYS.give_back(relay)

    def taken_over(self) -> RelayedStream:
        """Return this stream for another owner; this object closes nothing any more."""
        taken = RelayedStream.__new__(RelayedStream)
        taken.__dict__.update(self.__dict__)
        self._relay = None
        self._data = self._side = self._theirs = self._their_side = self._tcp = socket.socket()
        self._data.close()
        return taken
