"""Data connections: frames over TCP, plain or with TLS, blocking sockets, one thread per connection.

A connection starts with a handshake (:mod:`.handshake`), in which both ends prove that they know the same key; then
both may send frames as they like. :class:`DataConnection` is what the rest of millrace sees: ``send``, ``receive`` and
``close``.
On one host memory is passed instead of copied (:mod:`.fd_passing`); where a round trip is long, a connection is made of
several sockets (:mod:`.striping`). docs/design/0003-data-plane.md says why sockets are used as they are.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
import socket
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import msgspec
import numpy.typing as npt

from millrace.elements.shared import AVAILABLE, Arena
from millrace.errors import MillraceError, ProtocolError, ServiceError, ServiceUnreachableError, ShippingError, TlsError
from millrace.wire.address import format_address, listen
from millrace.wire.auth import check_exposure, check_token_form
from millrace.wire.data.acceptor import Acceptor, Newcomer, listen_locally, may_share
from millrace.wire.data.compression import Compression
from millrace.wire.data.data_keys import Credential, of_token
from millrace.wire.data.dialing import Dialer, connect_locally, reason_of
from millrace.wire.data.fd_passing import FdChannel
from millrace.wire.data.frames import DEFAULT_LIMIT, ReadAhead, Receiver, aligned_buffer, receive_frame, send_frame
from millrace.wire.data.handshake import exchange_hello, receive_hello, refuse, send_welcome
from millrace.wire.data.links import Link, secured
from millrace.wire.data.striping import (
    PendingSockets,
    Striped,
    StripePart,
    round_trip_s,
    same_host,
    sockets_for,
    window_bytes,
)
from millrace.wire.data.tls_stream import begins_tls
from millrace.wire.own_token import resolve
from millrace.wire.peer_log import PeerLog
from millrace.wire.tls_files import TlsFiles
from millrace.wire.tls_names import NO_TLS_HERE

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_CONNECTIONS = 1024
"""Most connections of one server that were let in; each costs a thread."""
HELLO_TIMEOUT_S = 10.0
"""Seconds for whoever connects to say hello, to be let in, and to say what for."""

_AF_UNIX = getattr(socket, "AF_UNIX", -1)

_logger = logging.getLogger(__name__)
_peers = PeerLog(_logger)

H = TypeVar("H")

Stream = Link | Striped


class DataConnection:
    """Open connection. ``send`` may be called by several threads, ``receive`` by one, ``close`` by any.

    Attributes:
        peer: the other end's ``host:port``, for messages.
        claims: what the peer may ask for, as its key says; empty: everything.
    """

    def __init__(
        self, sock: Stream, peer: str, local: FdChannel | None = None, compression: Compression | None = None
    ) -> None:
        self.peer = peer
        self.claims = b""
        self._sock = sock
        self._compression = compression
        self._local = local
        self._receiver = _receiver(sock)
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._users = 0
        self._closed = False
        self._awaited: Callable[[], object] | None = None

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, here or because of an error."""
        return self._closed

    def send(
        self, header: msgspec.Struct, buffers: Iterable[Buffer | npt.NDArray[Any]] = (), *, shared: bool = False
    ) -> int:
        """Send a frame without copying; block while the peer has no room. Return the size of its payload in bytes.

        Args:
            header: of the frame.
            buffers: its payload.
            shared: others are sent the same buffers, or may be: on one host each maps them privately.

        Raises:
            ProtocolError: the header is over 1 MiB; nothing was sent and the connection is still good.
            ServiceUnreachableError: the connection is broken or closed.
        """
        with self._sending, self.borrowed("send") as sock:
            if self._local is not None:
                return self._local.send(header, buffers, shared=shared)
            return send_frame(sock, header, buffers, self._compression)

    def receive(
        self,
        decoder: msgspec.msgpack.Decoder[H],
        allocate: Callable[[int], Any] = aligned_buffer,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[H, Any]:
        """Wait for a frame: its header, and the buffer of ``allocate(payload size)``, filled from its first byte.

        On one host the payload may be a :class:`millrace.elements.scattered_buffer.ScatteredBuffer`, of memory that is
        shared with the peer until nobody looks at it any more.

        Args:
            decoder: of the header's type.
            allocate: gives a writable, C-contiguous buffer of at least that many bytes; may wait for room, and may
                raise, which closes the connection.
            limit: bytes of payload to accept.

        Raises:
            ServiceUnreachableError: the connection is broken or closed; every later call raises it too.
            ProtocolError: malformed or over the limits; the connection is closed.
        """
        with self.borrowed("receive"):
            if self._local is not None:
                found = self._local.receive(decoder, allocate, limit)
            else:
                found = receive_frame(self._receiver, decoder, allocate, limit)
        if self._awaited is not None:
            awaited, self._awaited = self._awaited, None
            awaited()
        return found

    def give_up_after(self, seconds: float) -> None:
        """Take the connection, of one socket, for broken when nothing more comes, or is taken, for so many seconds."""
        assert not isinstance(self._sock, Striped), "that waits for all of its sockets at a time"
        self._sock.settimeout(seconds)

    def await_first(self, awaited: Callable[[], object]) -> None:
        """Have ``awaited`` called once the peer has said something; for this module."""
        self._awaited = awaited

    def switch_to(self, sock: Stream, compression: Compression | None) -> None:
        """Go on over ``sock``, which this one's is a part of, and compress what is sent; for this module."""
        with self._state:
            self._sock = sock
            self._receiver = _receiver(sock)
            self._compression = compression

    def close(self) -> None:
        """Close the connection; wake threads that block in it. May be called any number of times."""
        with self._state:
            if self._closed:
                return
            self._closed = True
            with contextlib.suppress(OSError):  # the peer was faster
                self._sock.shutdown(socket.SHUT_RDWR)
            # Closing under a thread that is about to read could make it read from another connection of the same
            # number, so the last one to leave does it.
            if not self._users:
                self._end()

    def _end(self) -> None:
        self._sock.close()
        if self._local is not None:
            self._local.close()

    @contextlib.contextmanager
    def borrowed(self, action: str) -> Iterator[Stream]:
        """Lend the socket (or sockets) to this room, open meanwhile. Errors are translated and close the connection."""
        with self._state:
            if self._closed:
                raise ServiceUnreachableError(f"cannot {action}: the connection with {self.peer} is closed")
            self._users += 1
        try:
            yield self._sock
        except BaseException as error:  # also Ctrl-C: in the middle of a frame the stream is out of step
            reason = "it was closed here" if self.closed else reason_of(error)
            unsent = action == "send" and isinstance(error, ProtocolError) and self._local is None
            if not unsent:
                self.close()
            if isinstance(error, (EOFError, OSError)) and not isinstance(error, MillraceError):
                raise ServiceUnreachableError(f"lost the connection with {self.peer}: {reason}") from error
            raise
        finally:
            with self._state:
                self._users -= 1
                if self.closed and not self._users:
                    self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("a DataConnection cannot be pickled: send its address and connect again on the other side")


def _receiver(sock: Stream) -> Receiver:
    # Sockets side by side share out each read between them; there is nothing to read ahead of.
    return sock if isinstance(sock, Striped) else ReadAhead(sock)


class DataServer:
    """Server that runs ``on_connection(connection)`` in a thread per peer that was let in.

    The connection is closed when the callback returns. An error that it raises is logged and ends its connection only.

    Args:
        host: where to listen; other than loopback demands a token.
        on_connection: the callback; it ends when its connection is closed.
        port: 0 takes a free one.
        token: token that peers have to know; None: on loopback this user's own.
        arena: memory that peers on this host are lent; None: everything goes through TCP.
        key_of: finds the key of a peer by its claims, in place of the token; its errors are told to the peer.
        tls: certificates of this host, which peers on others have to speak TLS with; None: nobody does.
        insecure: that what is said can be heard on other networks than loopback is no mistake.

    Raises:
        AddressInUseError: the port is taken.
        AuthenticationError: not on loopback and no token.
        ServiceError: ``host`` is not of this machine, or not loopback and without TLS.
    """

    def __init__(
        self,
        host: str,
        on_connection: Callable[[DataConnection], object],
        *,
        port: int = 0,
        token: str | None = None,
        arena: Arena | None = None,
        key_of: Callable[[bytes], bytes] | None = None,
        tls: TlsFiles | None = None,
        insecure: bool = False,
    ) -> None:
        self._tls = None if tls is None else tls.listening()
        token, _ = resolve(format_address(host, port), token)
        check_exposure(host, port, token, private=tls is not None or insecure)
        key = of_token(token).key
        self._key_of = key_of or (lambda claims: key)
        self._arena = arena
        listener = listen(host, port)
        self.port: int = listener.getsockname()[1]
        self.address = format_address(host, self.port)
        self._on_connection = on_connection
        self._lock = threading.Lock()
        self._let_in_now: set[DataConnection] = set()
        self._serving: dict[DataConnection, threading.Thread] = {}
        self._listeners = [listener]
        self._pending = PendingSockets()
        self._local_name = ""
        if arena is not None and AVAILABLE:
            self._local_name = f"millrace-{uuid.uuid4().hex}"
            self._listeners.append(listen_locally(self._local_name))
        self._acceptor = Acceptor(
            self._listeners, self._begin, HELLO_TIMEOUT_S, f"millrace-data-{self.port}", self.address
        )
        self._acceptor.start()

    def close(self) -> None:
        """Stop listening, close all connections and wait for their threads. May be called from one of them."""
        self._acceptor.close()
        for listener in self._listeners:
            listener.close()
        with self._lock:
            serving = dict(self._serving)
        self._pending.close()
        for connection in serving:
            connection.close()
        for thread in serving.values():
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _begin(self, newcomer: Newcomer) -> None:
        """Serve a peer that has begun to speak, in a thread of its own."""
        near = newcomer.sock.family == _AF_UNIX
        if near and not may_share(newcomer.sock):
            _peers.warning("refused a process of another user on this host")
            self._acceptor.lobby.leave(newcomer)
            newcomer.sock.close()
            return
        if near:
            connection = DataConnection(newcomer.sock, "this host", FdChannel(newcomer.sock, self._arena))
        else:
            connection = DataConnection(newcomer.sock, format_address(*newcomer.address[:2]))
        newcomer.hang_up = connection.close
        thread = threading.Thread(
            target=self._serve, args=(connection, newcomer), name=f"millrace-data-{connection.peer}", daemon=True
        )
        with self._lock:
            try:
                thread.start()
            except RuntimeError as error:  # out of memory, or of what the container may start
                refused = str(error)
            else:
                self._serving[connection] = thread
                return
        _peers.warning("refused %s: %s", connection.peer, refused)
        self._acceptor.lobby.leave(newcomer)
        connection.close()

    def _serve(self, connection: DataConnection, newcomer: Newcomer) -> None:
        lobby = self._acceptor.lobby
        near = newcomer.sock.family == _AF_UNIX
        try:
            with connection.borrowed("welcome"):
                sock: Link = newcomer.sock
                if self._tls is not None and not near:
                    sock = self._secure(connection, newcomer.sock, self._tls)
                part, shown = self._let_in(connection, sock)
                self._count(connection)
                if part is not None and part.index:
                    lobby.leave(newcomer)
                    with self._pending.waiting(part, sock, HELLO_TIMEOUT_S) as lent:
                        send_welcome(lent, shown)
                    return
                send_welcome(sock, shown, "" if near else self._local_name)
            connection.await_first(lambda: lobby.leave(newcomer))
            lobby.let_in(newcomer)
            self._on_connection(connection)
        except ServiceUnreachableError as error:
            if isinstance(error, TlsError):
                _peers.warning("refused %s: %s", connection.peer, error)
            else:
                _logger.debug("%s left: %s", connection.peer, error)
        except MillraceError as error:
            _peers.warning("connection with %s ended: %s", connection.peer, error)
        except Exception:
            _logger.exception("connection with %s failed", connection.peer)
        finally:
            connection.close()
            lobby.leave(newcomer)
            with self._lock:
                self._let_in_now.discard(connection)
                del self._serving[connection]

    def _secure(self, connection: DataConnection, sock: socket.socket, files: TlsFiles) -> Link:
        """Speak TLS with a peer.

        Raises:
            TlsError: it does not, or is not who it should be.
        """
        if not begins_tls(sock):
            error = TlsError(f"{self.address} speaks TLS, {NO_TLS_HERE}")
            refuse(sock, error)
            raise error
        # Who is on this host goes on by its memory, most likely: a relay would be started for one greeting.
        near = bool(self._local_name) and same_host(sock)
        stream = secured(sock, files, connection.peer, relayed=not near)
        connection.switch_to(stream, None)
        stream.shake_hands(HELLO_TIMEOUT_S)
        return stream

    def _count(self, connection: DataConnection) -> None:
        """Count a peer that was let in.

        Raises:
            ServiceError: there are too many.
        """
        with self._lock:
            if len(self._let_in_now) >= MAX_CONNECTIONS:
                raise ServiceError(f"{MAX_CONNECTIONS} connections are open")
            self._let_in_now.add(connection)

    def _let_in(self, connection: DataConnection, sock: Link) -> tuple[StripePart | None, bytes]:
        hello, shown = receive_hello(sock, HELLO_TIMEOUT_S, self._key_of)
        part = hello.part
        try:
            if part is not None:
                part.check()
            if part is None or part.index == 0:
                others = self._pending.collect(part) if part is not None else []
                connection.switch_to(Striped([sock, *others]) if others else sock, hello.compression)
        except MillraceError as error:
            refuse(sock, error)
            raise
        connection.claims = hello.claims
        return part, shown


def open_data_connection(
    address: str,
    token: str | None = None,
    timeout: float = 10.0,
    *,
    local: bool = True,
    compression: Compression | None = None,
    sockets: int | None = None,
    credential: Credential | None = None,
    tls: TlsFiles | None = None,
) -> DataConnection:
    """Connect to a :class:`DataServer`.

    Args:
        address: ``host:port``.
        token: as the server demands; None: on loopback this user's own.
        timeout: seconds until the welcome must have arrived.
        local: share memory with a server on this host.
        compression: of payloads that go through TCP, in both directions.
        sockets: how many the connection is made of, 1 to 8; None: as the link wants it
            (:func:`~millrace.wire.data.striping.sockets_for`).
        credential: what this process shows in place of the token.
        tls: certificates, if the server has one; None: it is talked to as it is.

    Raises:
        ServiceUnreachableError: nobody answered in time.
        TlsError: who answered has no certificate for this address, or wants one, or only one end speaks TLS.
        AuthenticationError: no token or the wrong one.
        VersionMismatchError: the server is another version of millrace.
        ProtocolError: what answers is not millrace.
        ServiceError: ``address`` is malformed, or who answers there does not know the key of this process.
    """
    if credential is None:
        token, _ = resolve(address, token)
        check_token_form(token)
        credential = of_token(token)
    shown = credential
    dialer = Dialer(address, timeout, tls)

    def join(part: StripePart) -> Link:
        sock = dialer.secured(dialer.dial())
        exchange_hello(sock, shown, dialer.deadline, part=part)
        return sock

    try:
        dialled = dialer.dial()
        others: list[Link] = []
        part = None
        count = sockets or sockets_for(round_trip_s(dialled), window_bytes(), same_host=same_host(dialled))
        # Who is on this host is read by its memory, most likely: a relay would be started for one greeting.
        near = local and AVAILABLE and same_host(dialled)
        first = dialer.secured(dialled, relayed=not near)
        if count > 1:
            identity = secrets.token_hex(16)
            part, *parts = [StripePart(identity, index, count) for index in range(count)]
            with ThreadPoolExecutor(count - 1, "millrace-dial") as pool:
                others = list(pool.map(join, parts))
        name = exchange_hello(first, shown, dialer.deadline, compression, part)
        dialer.settle()
        nearer = connect_locally(name, shown, dialer.deadline) if local and name else None
        if nearer is None and near and tls is not None:
            dialer.close()
            return open_data_connection(
                address,
                token,
                timeout,
                local=False,
                compression=compression,
                sockets=sockets,
                credential=shown,
                tls=tls,
            )
        if nearer is None:
            return DataConnection(Striped([first, *others]) if others else first, dialer.where, compression=compression)
        dialer.close()
        return DataConnection(nearer, dialer.where, FdChannel(nearer))
    except BaseException as error:
        translated = dialer.translate(error)
        dialer.close()
        if translated is not None:
            raise translated from error
        raise
