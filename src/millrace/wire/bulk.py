"""Bulk data: frames over plain TCP, blocking sockets, one thread per connection.

A connection starts with a hello of the connecting side (token, versions) and a welcome of the other; then both may
send frames as they like. :class:`BulkConnection` is what the rest of millrace sees: ``send``, ``receive``, ``close``.

On one host memory is passed instead of copied (:mod:`.local`). The welcome names a Unix socket in Linux's abstract
namespace, where the server listens too; who can connect to it is on the same host and in the same network namespace,
says hello there, and closes the first connection. Who can't, e.g. in a container of its own, stays with TCP.

A peer that vanished (power, cable) is noticed within about 20 s by whoever waits for bytes, by keepalive probes.
TCP_USER_TIMEOUT is left alone on purpose: Linux counts the time in which a live peer has no room as well, and would cut
off a consumer that pauses. Who blocks in ``send`` to a vanished peer is woken by ``close()``, when the dispatcher
says that the peer is lost. Socket buffers are left to the kernel's autotuning.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, NoReturn, Self, TypeVar

import msgspec
import numpy.typing as npt

from millrace.control.messages import Failure
from millrace.elements.shared import AVAILABLE, Arena
from millrace.errors import MillraceError, ProtocolError, ServiceUnreachableError, ShippingError
from millrace.wire.access import OWN, Identity, check_exposure, check_protocol, check_token, check_token_form
from millrace.wire.address import format_address, listen, parse_address
from millrace.wire.failures import error_of, failure_of
from millrace.wire.frames import DEFAULT_LIMIT, aligned_buffer, receive_frame, send_frame
from millrace.wire.local import LocalEnd

if TYPE_CHECKING:
    from typing_extensions import Buffer

MAX_CONNECTIONS = 1024
"""Of one server; each costs a thread."""
HELLO_TIMEOUT_S = 10.0
"""Time for whoever connects to say hello."""

_HELLO_BYTES = 16 << 10
_AF_UNIX = getattr(socket, "AF_UNIX", -1)
_KEEPALIVE = {"TCP_KEEPIDLE": 10, "TCP_KEEPINTVL": 3, "TCP_KEEPCNT": 3}
_ACCEPT_PAUSE_S = 1.0

_logger = logging.getLogger(__name__)

H = TypeVar("H")


class Hello(msgspec.Struct, frozen=True):
    """First frame of the connecting side."""

    identity: Identity
    token: str | None = None


class Welcome(msgspec.Struct, frozen=True):
    """Answer to :class:`Hello`; with a failure the connection ends here. ``local``: an abstract Unix socket, or ""."""

    identity: Identity
    failure: Failure | None = None
    local: str = ""


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_welcome_decoder = msgspec.msgpack.Decoder(Welcome)


class BulkConnection:
    """One open connection. ``send`` may be called by several threads, ``receive`` by one, ``close`` by any.

    Attributes:
        peer: the other end's ``host:port``, for messages.
    """

    def __init__(self, sock: socket.socket, peer: str, local: LocalEnd | None = None) -> None:
        self.peer = peer
        self._sock = sock
        self._local = local
        self._sending = threading.Lock()
        self._state = threading.Lock()
        self._users = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called, here or because of an error."""
        return self._closed

    def send(self, header: msgspec.Struct, buffers: Iterable[Buffer | npt.NDArray[Any]] = ()) -> int:
        """Sends a frame without copying; blocks while the peer has no room. Returns the size of its payload in bytes.

        Raises:
            ProtocolError: the header is over 1 MiB; nothing was sent and the connection is still good.
            ServiceUnreachableError: the connection is broken or closed.
        """
        with self._sending, self.borrowed("send") as sock:
            return send_frame(sock, header, buffers) if self._local is None else self._local.send(sock, header, buffers)

    def receive(
        self,
        decoder: msgspec.msgpack.Decoder[H],
        allocate: Callable[[int], Any] = aligned_buffer,
        limit: int = DEFAULT_LIMIT,
    ) -> tuple[H, Any]:
        """Waits for a frame: its header, and what ``allocate(payload size)`` gave, filled from its first byte.

        On one host the payload may be :class:`millrace.elements.pieces.Pieces`, of memory that is shared with the peer
        until nobody looks at it any more.

        Args:
            decoder: of the header's type.
            allocate: gives a writable, C-contiguous buffer of at least that many bytes; may wait for room, and may
                raise, which closes the connection.
            limit: bytes of payload to accept.

        Raises:
            ServiceUnreachableError: the connection is broken or closed; every later call raises it too.
            ProtocolError: malformed or over the limits; the connection is closed.
        """
        with self.borrowed("receive") as sock:
            end = receive_frame if self._local is None else self._local.receive
            return end(sock, decoder, allocate, limit)

    def close(self) -> None:
        """Closes the connection; wakes threads that block in it. May be called any number of times."""
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
    def borrowed(self, action: str) -> Iterator[socket.socket]:
        """The socket, which stays open meanwhile; for this module. Errors are translated and close the connection."""
        with self._state:
            if self._closed:
                raise ServiceUnreachableError(f"cannot {action}: the connection with {self.peer} is closed")
            self._users += 1
        try:
            yield self._sock
        except BaseException as error:  # also Ctrl-C: in the middle of a frame the stream is out of step
            reason = "it was closed here" if self.closed else _reason(error)
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
        raise ShippingError("a BulkConnection cannot be pickled: send its address and connect again on the other side")


class BulkServer:
    """Listens, and runs ``on_connection(connection)`` in a thread per peer that was let in.

    The connection is closed when the callback returns. What it raises is logged and ends its connection only.

    Args:
        host: where to listen; other than loopback demands a token.
        on_connection: the callback; it ends when its connection is closed.
        port: 0 takes a free one.
        token: what peers have to present.
        arena: memory that peers on this host are lent; None: everything goes through TCP.

    Raises:
        AddressInUseError: the port is taken.
        AuthenticationError: not on loopback and no token.
        ServiceError: ``host`` is not of this machine.
    """

    def __init__(
        self,
        host: str,
        on_connection: Callable[[BulkConnection], object],
        *,
        port: int = 0,
        token: str | None = None,
        arena: Arena | None = None,
    ) -> None:
        check_exposure(host, port, token)
        self._arena = arena
        listener = listen(host, port)
        self.port: int = listener.getsockname()[1]
        self.address = format_address(host, self.port)
        self._on_connection = on_connection
        self._token = token
        self._lock = threading.Lock()
        self._closing = threading.Event()
        self._serving: dict[BulkConnection, threading.Thread] = {}
        self._listeners = [listener]
        self._local_name = ""
        if arena is not None and AVAILABLE:
            self._local_name = f"millrace-{uuid.uuid4().hex}"
            self._listeners.append(_listen_locally(self._local_name))
        self._acceptors = [
            threading.Thread(target=self._accept, args=(each,), name=f"millrace-bulk-{self.port}", daemon=True)
            for each in self._listeners
        ]
        for acceptor in self._acceptors:
            acceptor.start()

    def close(self) -> None:
        """Stops listening, closes all connections and waits for their threads. May be called from one of them."""
        self._closing.set()
        for listener in self._listeners:
            with contextlib.suppress(OSError):  # closed before
                listener.shutdown(socket.SHUT_RDWR)  # wakes accept(), which close() would not
        for acceptor in self._acceptors:
            if acceptor is not threading.current_thread():
                acceptor.join()
        for listener in self._listeners:
            listener.close()
        with self._lock:
            serving = dict(self._serving)
        for connection in serving:
            connection.close()
        for thread in serving.values():
            if thread is not threading.current_thread():
                thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self, listener: socket.socket) -> None:
        while not self._closing.is_set():
            try:
                sock, address = listener.accept()
            except OSError as error:
                if not self._closing.is_set():
                    _logger.warning("cannot accept connections at %s: %s", self.address, error)
                    # Out of file descriptors, most likely: accept fails at once until one is free.
                    self._closing.wait(_ACCEPT_PAUSE_S)
                continue
            if sock.family == _AF_UNIX:
                connection = BulkConnection(sock, "this host", LocalEnd(self._arena))
            else:
                connection = BulkConnection(sock, format_address(*address[:2]))
            thread = threading.Thread(
                target=self._serve, args=(connection,), name=f"millrace-bulk-{connection.peer}", daemon=True
            )
            with self._lock:
                full = len(self._serving) >= MAX_CONNECTIONS
                if not full:
                    self._serving[connection] = thread
            if full:
                _logger.warning("refused %s: %d connections are open", connection.peer, MAX_CONNECTIONS)
                connection.close()
            else:
                thread.start()

    def _serve(self, connection: BulkConnection) -> None:
        try:
            with connection.borrowed("welcome") as sock:
                self._let_in(sock)
            self._on_connection(connection)
        except ServiceUnreachableError as error:
            _logger.debug("%s left: %s", connection.peer, error)
        except MillraceError as error:
            _logger.warning("connection with %s ended: %s", connection.peer, error)
        except Exception:
            _logger.exception("connection with %s failed", connection.peer)
        finally:
            connection.close()
            with self._lock:
                del self._serving[connection]

    def _let_in(self, sock: socket.socket) -> None:
        _tune(sock)
        hurried = _Hurried(sock, HELLO_TIMEOUT_S)
        hello, _ = receive_frame(hurried, _hello_decoder, limit=0, header_limit=_HELLO_BYTES)
        try:
            check_protocol(hello.identity)
            check_token(self._token, hello.token)
        except MillraceError as error:
            send_frame(sock, Welcome(OWN, failure_of(error)))
            raise
        send_frame(sock, Welcome(OWN, local="" if sock.family == _AF_UNIX else self._local_name))
        sock.settimeout(None)


def _listen_locally(name: str) -> socket.socket:
    listener = socket.socket(_AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(f"\0{name}")
        listener.listen(1024)
    except BaseException:
        listener.close()
        raise
    return listener


def bulk_connect(
    address: str, token: str | None = None, timeout: float = 10.0, *, local: bool = True
) -> BulkConnection:
    """Connects to a :class:`BulkServer`.

    Args:
        address: ``host:port``.
        token: as the server demands.
        timeout: seconds until the welcome must have arrived.
        local: share memory with a server on this host.

    Raises:
        ServiceUnreachableError: nobody answered in time.
        AuthenticationError: no token or the wrong one.
        VersionMismatchError: the server is another version of millrace.
        ProtocolError: what answers is not millrace.
        ServiceError: ``address`` is malformed.
    """
    check_token_form(token)
    host, port = parse_address(address)
    where = format_address(host, port)
    deadline = time.monotonic() + timeout
    try:
        sock = socket.create_connection((host, port), timeout)
    except OSError as error:
        raise ServiceUnreachableError(
            f"nobody answered at {where} within {timeout:g} s: {_reason(error)}. Has the worker ended, or is a firewall"
            f" between?"
        ) from error
    try:
        name = _greet(sock, token, deadline - time.monotonic())
        nearer = _connect_locally(name, token, deadline) if local and name else None
    except BaseException as error:
        sock.close()
        if isinstance(error, ProtocolError):
            raise ProtocolError(f"{where} does not answer as a worker does: {error}") from error
        if isinstance(error, (EOFError, OSError)) and not isinstance(error, MillraceError):
            raise ServiceUnreachableError(
                f"{where} was reached but did not welcome this process within {timeout:g} s: {_reason(error)}"
            ) from error
        raise
    if nearer is None:
        return BulkConnection(sock, where)
    sock.close()
    return BulkConnection(nearer, where, LocalEnd())


def _connect_locally(name: str, token: str | None, deadline: float) -> socket.socket | None:
    """The server's Unix socket, after the welcome; None if it can't be seen from here."""
    if not AVAILABLE:
        return None
    sock = socket.socket(_AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(max(deadline - time.monotonic(), 0.001))
        try:
            sock.connect(f"\0{name}")
        except OSError as error:
            _logger.debug("no shared memory with %s: %s", name, _reason(error))
            sock.close()
            return None
        _greet(sock, token, deadline - time.monotonic())
    except BaseException:
        sock.close()
        raise
    return sock


def _greet(sock: socket.socket, token: str | None, seconds: float) -> str:
    _tune(sock)
    send_frame(sock, Hello(OWN, token))
    welcome, _ = receive_frame(_Hurried(sock, seconds), _welcome_decoder, limit=0, header_limit=_HELLO_BYTES)
    if welcome.failure is not None:
        raise error_of(welcome.failure)
    sock.settimeout(None)
    return welcome.local


class _Hurried:
    """A socket whose next receives have to be done within ``seconds`` altogether, however the peer trickles."""

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._deadline = time.monotonic() + seconds

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
        return self._sock.recv_into(buffer, nbytes, flags)


def _tune(sock: socket.socket) -> None:
    if sock.family == _AF_UNIX:
        return  # whoever holds the other end is on this host: its death closes it
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in _KEEPALIVE.items():
        if hasattr(socket, name):  # macOS calls the first TCP_KEEPALIVE; two hours will do there
            sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)


def _reason(error: BaseException) -> str:
    if isinstance(error, OSError):
        return str(error.strerror or error)
    return str(error)
