"""Control server: the dispatcher's end of the control protocol, on asyncio."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any, NamedTuple

import grpc
import grpc.aio
import msgspec

from millrace.errors import MillraceError, ProtocolError, ServiceError, ServiceUnreachableError
from millrace.message_budget import MALFORMED, check_containers
from millrace.protocol.caller import Caller
from millrace.wire.address import format_address, listen, parse_address
from millrace.wire.auth import OWN, Identity, check_exposure, check_protocol
from millrace.wire.control import connection_sweep, rpc
from millrace.wire.control.challenges import (
    CHALLENGE,
    MOST_BYTES,
    NOBODY,
    PROOF,
    Challenge,
    Challenged,
    Challenges,
    Headers,
    StaleChallengeError,
    read_proof,
)
from millrace.wire.control.connection_sweep import ConnectionSweep
from millrace.wire.control.tls_channel import server_credentials
from millrace.wire.control.uploads import LARGE_BYTES, Uploads
from millrace.wire.own_token import resolve
from millrace.wire.peer_log import PeerLog
from millrace.wire.tls_files import TlsFiles
from millrace.wire.token_registry import TokenEntry, TokenRegistry

LARGE_REPLIES = 2
"""Large replies that are in memory at a time: workers that open a job together may all ask for its functions."""

_FLUSH_S = 2.0
"""Seconds for a peer to read what was queued before its session was closed."""

_OPTIONS = (
    *rpc.OPTIONS,
    ("grpc.so_reuseport", 0),  # on by default: two dispatchers would share a port and each see half of the peers
    ("grpc.http2.min_recv_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    ("grpc.max_concurrent_streams", 100),  # of a connection: a process has one session and a few calls
    ("grpc.server_handshake_timeout_ms", 10_000),
)

_logger = logging.getLogger(__name__)
_peers = PeerLog(_logger)


class CallHandler(NamedTuple):
    """Question that peers may ask: ``reply = await handler(request, caller)``, request decoded as ``request``.

    Errors of :mod:`millrace.errors` that the handler raises are raised at the peer; any other is logged, and becomes a
    ServiceError there.

    Attributes:
        request: type of the request.
        handler: answers it.
        most_bytes: of a request, encoded.
        reply_bytes: tells about how many bytes the reply to a request takes.
    """

    request: Any
    handler: Callable[[Any, Caller], Awaitable[Any]]
    most_bytes: int = rpc.FRAME_BYTES
    reply_bytes: Callable[[Any], int] = lambda request: 0


class Admitted(NamedTuple):
    """Peer that was let in, and the headers by which it knows that this is the service."""

    identity: Identity
    entry: TokenEntry
    headers: Headers


class Session:
    """Stream of one peer. ``async for message in session`` ends when the peer left, vanished, or the session is closed.

    Nothing is read ahead: a peer is held back until its message was taken. It belongs to the event loop: not to be
    touched from other threads.

    Attributes:
        peer: the peer's address as gRPC writes it, e.g. ``ipv4:10.0.0.7:41234``.
        identity: identity that the peer stated.
        entry: by which the peer was let in.
    """

    def __init__(self, context: grpc.aio.ServicerContext, admitted: Admitted, decode: Callable[[bytes], Any]) -> None:
        self.peer: str = context.peer()
        self.identity, self.entry = admitted.identity, admitted.entry
        self.error: MillraceError | None = None
        self._context = context
        self._decode = decode
        self._outbox: asyncio.Queue[bytes | None] = asyncio.Queue()
        self._outbox_bytes = 0
        self._closing = asyncio.Event()

    @property
    def caller(self) -> Caller:
        """Caller that has begun it."""
        return self.entry.caller

    @property
    def closed(self) -> bool:
        """Whether nothing more can be sent."""
        return self._closing.is_set()

    def send(self, message: Any) -> None:
        """Queue ``message``; never wait. A closed session drops it.

        A peer that leaves 64 MiB unread is taken to hang: its session is closed with an error that says so.
        """
        encoded = rpc.encode_message(message)
        if self.closed:
            return
        self._outbox.put_nowait(encoded)
        self._outbox_bytes += len(encoded)
        if self._outbox_bytes > rpc.MAX_OUTBOX_BYTES:
            while not self._outbox.empty():
                self._outbox.get_nowait()
            error = f"{self.peer} left {self._outbox_bytes} bytes of messages unread and was given up"
            self.close(ServiceError(error))

    def close(self, error: MillraceError | None = None) -> None:
        """End the session once what was queued is sent, 2 s at most; the peer's iteration ends or raises ``error``."""
        if self.closed:
            return
        self.error = error
        self._closing.set()
        self._outbox.put_nowait(None)

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    async def __anext__(self) -> Any:
        if self.closed:
            raise StopAsyncIteration
        try:
            encoded = await self._context.read()
        except Exception as error:
            _logger.debug("session with %s broke: %r", self.peer, error)
            raise StopAsyncIteration from error
        if encoded is grpc.aio.EOF or self.closed:
            raise StopAsyncIteration
        try:
            return self._decode(encoded)
        except (*MALFORMED, MillraceError) as error:
            _peers.warning("session with %s ended: malformed message: %s", self.peer, error)
            raise ProtocolError(f"the dispatcher got a malformed message: {error}") from error

    # The rest is for the server.

    async def pump(self) -> None:
        """Write what is queued, until the session is closed and nothing is left."""
        while (encoded := await self._outbox.get()) is not None:
            await self._context.write(encoded)
            self._outbox_bytes -= len(encoded)

    async def until_closed(self) -> None:
        """Wait for :meth:`close`."""
        await self._closing.wait()


class ControlServer:
    """Server of sessions and calls at one address.

    Args:
        address: where to listen, see :func:`~millrace.wire.address.parse_address`; other than loopback demands a token.
        on_session: run as a task per peer; when it returns the session is closed, when it raises the peer is told, and
            when the session is closed it is cancelled.
        message: the type of peers' messages, e.g. a union of tagged structs; a message that doesn't decode strictly
            closes the session with a ProtocolError.
        check: called with each message that decodes; an error of :mod:`millrace.errors` closes the session.
        calls: questions that peers may ask, by name.
        token: token that peers have to present; None: on loopback this user's own. It is an administrator's.
        tokens: file of tokens of others, see :mod:`millrace.wire.token_registry`; empty: none.
        worker_token: token of workers that the service starts.
        owner: process that the server ends with for good; empty: it may come back.
        tls: this host's certificates; None: none, and what is said can be heard.
        insecure: that it can be heard on other networks than loopback is no mistake.

    Raises:
        AuthenticationError: not on loopback and no token.
        ServiceError: ``address`` is malformed, or not on loopback and without TLS.
    """

    def __init__(
        self,
        address: str,
        *,
        on_session: Callable[[Session], Awaitable[None]],
        message: Any,
        check: Callable[[Any], None] = lambda message: None,
        calls: Mapping[str, CallHandler] | None = None,
        token: str | None = None,
        tokens: str = "",
        worker_token: str | None = None,
        owner: str = "",
        tls: TlsFiles | None = None,
        insecure: bool = False,
    ) -> None:
        self._host, self._port = parse_address(address)
        self._tls = None if tls is None else tls.listening()
        token, _ = resolve(address, token)
        check_exposure(self._host, self._port, token, tokens, private=tls is not None or insecure)
        self._on_session = on_session
        self._decoder = msgspec.msgpack.Decoder(message)
        self._check = check
        self._identity = Identity(owner=owner)
        self._calls = {
            rpc.HELLO: CallHandler(None, self._hello),
            CHALLENGE: CallHandler(Challenge, self._challenge, MOST_BYTES),
            **(calls or {}),
        }
        self._registry = TokenRegistry(tokens, token, worker_token)
        self._challenges = Challenges(self._registry.find)
        self._server: grpc.aio.Server | None = None
        self._sessions: set[Session] = set()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._uploads = Uploads()
        self._large_replies = asyncio.Semaphore(LARGE_REPLIES)
        self._sweep: ConnectionSweep | None = None

    async def start(self) -> str:
        """Start to listen; return the address as ``host:port`` with the port that was taken."""
        if self._port:
            # gRPC says no more than that it failed, and on stderr; a socket of our own says why.
            listen(self._host, self._port).close()
        where = format_address(self._host, self._port)
        server = grpc.aio.server(options=_OPTIONS)
        server.add_generic_rpc_handlers((_Router(self._route),))
        try:
            if self._tls is None:
                port = server.add_insecure_port(where)
            else:
                port = server.add_secure_port(where, server_credentials(self._tls))
        except RuntimeError as error:
            listen(self._host, self._port).close()  # somebody was faster
            raise ServiceError(f"cannot listen on {where}: {error}") from error
        await server.start()
        self._server = server
        self._sweep = ConnectionSweep(port)
        sweeping = asyncio.create_task(self._sweep_connections(self._sweep))
        self._tasks.add(sweeping)
        sweeping.add_done_callback(self._tasks.discard)
        return format_address(self._host, port)

    async def stop(self, grace: float = 1.0) -> None:
        """Tell peers that the service stops, wait up to ``grace`` seconds for them, then end everything."""
        for session in tuple(self._sessions):
            session.close(ServiceUnreachableError("the dispatcher was stopped"))
        if self._server is not None:
            await self._server.stop(grace)
        tasks = self._tasks - {asyncio.current_task()}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _sweep_connections(self, sweep: ConnectionSweep) -> None:
        loop = asyncio.get_running_loop()
        count = 0
        while True:  # nobody says when somebody connects
            await asyncio.sleep(connection_sweep.PERIOD_S if count < connection_sweep.MANY else 0)
            count = await asyncio.to_thread(sweep.sweep, loop.time()) if sweep.due else 0
            if count:
                _peers.warning("hung up on %d connections that were not let in", count)

    def _known(self, context: grpc.aio.ServicerContext) -> None:
        if self._sweep is not None:
            self._sweep.let_in(context.peer())

    def _route(self, details: grpc.HandlerCallDetails) -> Any:
        """Find the handler of a stream; this runs before any of its data is read."""
        metadata = {str(key): value for key, value in details.invocation_metadata}
        return grpc.stream_stream_rpc_method_handler(self._handler(details.method, metadata))

    def _handler(self, method: str, metadata: Mapping[str, str | bytes]) -> Callable[..., Awaitable[None]]:
        name = method.removeprefix(rpc.CALL_PREFIX)
        try:
            shown = None if name == CHALLENGE else read_proof(metadata)
            identity = rpc.identity_of(metadata)
            check_protocol(identity)  # before the proof, as another version may prove in another way who it is
            if shown is None:
                return functools.partial(self._serve_call, name, None)
            admitted = Admitted(identity, *self._challenges.check(method, identity, shown))
        except MillraceError as error:
            # Whoever asks whether somebody listens, before it says who it is, is no stranger.
            asks = name == rpc.HELLO and PROOF not in metadata
            stale = isinstance(error, StaleChallengeError) and not error.repeated
            return functools.partial(_refuse if asks or stale else _turn_away, error)
        if method == rpc.SESSION_METHOD:
            return functools.partial(self._serve_session, admitted)
        if name not in self._calls:
            return functools.partial(_refuse, ProtocolError(f"millrace {OWN.version} does not know the call {name!r}"))
        return functools.partial(self._serve_call, name, admitted)

    async def _hello(self, _: None, __: Caller) -> Identity:
        return self._identity

    async def _challenge(self, asked: Challenge, _: Caller) -> Challenged:
        return self._challenges.answer(asked)

    def expel(self) -> None:
        """Read the file of tokens again if it has changed, and end sessions whose entries went or changed."""
        self._registry.refresh()
        for session in tuple(self._sessions):
            reason = self._registry.ended(session.entry)
            if reason is not None:
                session.close(reason)

    # -- calls ---------------------------------------------------------------------------------------------------------

    async def _serve_call(
        self, name: str, admitted: Admitted | None, _: Any, context: grpc.aio.ServicerContext
    ) -> None:
        if admitted is not None:
            self._known(context)
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)  # a peer that sends no more ends with the server
        task.add_done_callback(self._tasks.discard)
        async with contextlib.AsyncExitStack() as held:
            await self._answer(name, admitted, context, held)

    async def _answer(
        self, name: str, admitted: Admitted | None, context: grpc.aio.ServicerContext, held: contextlib.AsyncExitStack
    ) -> None:
        """Read a request and write the reply; what is ``held`` is let go of once it is written."""
        call = self._calls[name]
        try:
            async with self._uploads.receive(name, context.peer(), context.read, call.most_bytes) as encoded:
                if call.most_bytes <= rpc.MAX_MESSAGE_BYTES:  # larger ones are bytes for their most part
                    check_containers(encoded, f"the request {name}")
                try:
                    request = msgspec.msgpack.decode(encoded, type=call.request)
                except MALFORMED as error:
                    raise ProtocolError(f"the request {name} is malformed: {error}") from error
            if call.reply_bytes(request) > LARGE_BYTES:  # in memory until its reader has taken it, however slow that is
                await held.enter_async_context(self._large_replies)
            reply = rpc.encode(await call.handler(request, NOBODY if admitted is None else admitted.entry.caller))
            rpc.check_call_size(len(reply), f"the reply to {name}")
        except MillraceError as error:
            failure = error
        except Exception as error:
            _logger.exception("call %s failed", name)
            failure = ServiceError(f"the dispatcher failed in {name}: {type(error).__name__}: {error}; see its log")
        else:
            await context.send_initial_metadata(() if admitted is None else admitted.headers)
            for frame in rpc.cut(reply):
                await context.write(frame)
            return
        await (_turn_away if admitted is None else _refuse)(failure, None, context)

    # -- sessions ------------------------------------------------------------------------------------------------------

    async def _serve_session(self, admitted: Admitted, _: Any, context: grpc.aio.ServicerContext) -> None:
        self._known(context)
        await context.send_initial_metadata(admitted.headers)
        session = Session(context, admitted, self._decode)
        self._sessions.add(session)
        writer = asyncio.create_task(session.pump())
        run = asyncio.create_task(self._run(session))
        self._tasks.add(run)
        run.add_done_callback(self._tasks.discard)
        try:
            await session.until_closed()
            run.cancel()
            await asyncio.wait((writer,), timeout=_FLUSH_S)
        finally:  # gRPC cancels this coroutine when the peer vanishes and when the server's grace is over
            session.close()
            self._sessions.discard(session)
            run.cancel()
            writer.cancel()
            for outcome in await asyncio.gather(run, writer, return_exceptions=True):
                if isinstance(outcome, Exception):
                    _logger.debug("session with %s broke: %r", session.peer, outcome)
        if session.error is not None:
            await _refuse(session.error, None, context)

    def _decode(self, encoded: bytes) -> Any:
        check_containers(encoded, "a message")
        message = self._decoder.decode(encoded)
        self._check(message)
        return message

    async def _run(self, session: Session) -> None:
        try:
            await self._on_session(session)
        except MillraceError as error:
            session.close(error)
        except Exception as error:
            _logger.exception("session with %s failed", session.peer)
            session.close(ServiceError(f"the dispatcher failed: {type(error).__name__}: {error}; see its log"))
        finally:
            session.close()


class _Router(grpc.GenericRpcHandler):  # type: ignore[misc]  # grpc has no types
    def __init__(self, route: Callable[[grpc.HandlerCallDetails], Any]) -> None:
        self._route = route

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:
        return self._route(handler_call_details)


async def _turn_away(error: MillraceError, _: Any, context: grpc.aio.ServicerContext) -> None:
    _peers.warning("refused %s: %s", context.peer(), error)
    await _refuse(error, _, context)


async def _refuse(error: MillraceError, _: Any, context: grpc.aio.ServicerContext) -> None:
    code, line, trailers = rpc.trailers_of(error)
    await context.abort(code, line, trailers)
