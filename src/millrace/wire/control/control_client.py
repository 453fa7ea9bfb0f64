"""Control client: the workers' and consumers' end of the control protocol, for threads."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any, NoReturn, Self, TypeVar, cast

import grpc
import msgspec

from millrace.errors import MillraceError, ProtocolError, ServiceError, ServiceUnreachableError, ShippingError, TlsError
from millrace.message_budget import MALFORMED
from millrace.wire.address import dialled, refuses
from millrace.wire.auth import Identity, check_token_form
from millrace.wire.control import rpc
from millrace.wire.control.challenges import CHALLENGE, Challenged, Headers, Prover
from millrace.wire.control.client_session import CLOSE_S, ClientSession
from millrace.wire.control.fork_gate import GatedCall, forks
from millrace.wire.control.tls_channel import channel_credentials, speaks_tls, why_refused
from millrace.wire.own_token import check_listener, resolve
from millrace.wire.tls_files import TlsFiles
from millrace.wire.tls_names import NO_TLS_HERE

_OPTIONS = (
    *rpc.OPTIONS,
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    # Connections are not shared between channels, so that closing one and opening another really starts anew.
    ("grpc.use_local_subchannel_pool", 1),
    # A dispatcher is a neighbour; http_proxy is meant for the world outside.
    ("grpc.enable_http_proxy", 0),
)
_PROBE_S = 1.0

T = TypeVar("T")


class ControlChannel:
    """Connection to the dispatcher; may be used by several threads, and by the process that made it only.

    Args:
        address: of the dispatcher, see :func:`~millrace.wire.address.parse_address`.
        token: as the dispatcher demands; None: on loopback this user's own.
        timeout: seconds that :meth:`connect` tries.
        tls: certificates, if the dispatcher has one; None: it is talked to as it is.

    Raises:
        ServiceError: ``address`` is malformed, or this process was forked while gRPC was in use.
        AuthenticationError: ``token`` is malformed.
    """

    def __init__(
        self, address: str, token: str | None = None, timeout: float = 10.0, tls: TlsFiles | None = None
    ) -> None:
        self.address = dialled(address)
        token, self._own = resolve(address, token)
        check_token_form(token)
        if forks.stranded:
            raise ServiceError(
                f"this process was forked while gRPC was in use, and {forks.stranded}. Or start processes with"
                " multiprocessing_context='spawn'"
            )
        self._timeout = timeout
        self._prover = Prover(token)
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._sessions: set[ClientSession] = set()
        self._threads: set[threading.Thread] = set()
        self._closed = False
        self._tls, self._held = tls, None if tls is None else tls.certificates()
        self._former: list[grpc.Channel] = []
        self._channel = self._opened()

    def connect(self) -> Identity:
        """Wait for the dispatcher to answer and to accept this process; return its identity.

        Raises:
            ServiceUnreachableError: nobody answered in time.
            TlsError: who answered has no certificate for this address, or wants one, or does not speak TLS.
            AuthenticationError: no token or the wrong one.
            VersionMismatchError: the dispatcher is another version.
        """
        self.check_usable()
        self._renew()
        if self._tls is not None and (reason := why_refused(self.address, self._tls)):
            raise TlsError(f"{reason}. Nothing was said to it")
        try:
            if self._own:  # whose it is can be seen once somebody listens
                self._wait_for_listener()
            self._prove(self._timeout, wait=True)
            return cast("Identity", self._ask_known(rpc.HELLO, None, Identity, self._timeout, wait=True))
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.DEADLINE_EXCEEDED:
                raise self.translate(error, rpc.HELLO, self._timeout) from error
            cause = error
        raise ServiceUnreachableError(
            f"no dispatcher answered at {self.address} within {self._timeout:g} s ({self._why_unreachable()}): is"
            f" `millrace dispatcher` running there? Check the address, and that no firewall is between"
        ) from cause

    def is_refused(self) -> bool:
        """Whether nobody listens at the address any more."""
        return refuses(self.address, _PROBE_S)

    def _wait_for_listener(self) -> None:
        try:
            self._ask(rpc.HELLO, None, Identity, self._timeout, wait=True, known=False)
        except grpc.RpcError as error:
            check_listener(self.address)
            if error.code() is not grpc.StatusCode.UNAUTHENTICATED:
                raise
            # The error is the call itself, which its traceback's frames hold: without it they, and all that called
            # them, a dataset with its embedded service too, would live until Python looks for cycles.
            error.__traceback__ = None

    def call(self, name: str, request: Any, reply_type: type[T] | Any, timeout: float = 60.0) -> T:
        """Ask the dispatcher and wait for its reply.

        Args:
            name: of the call.
            request: anything msgspec encodes, up to 1 GiB.
            reply_type: what to decode the reply as.
            timeout: seconds until the reply must be here.

        Raises:
            ServiceUnreachableError: the dispatcher is gone or did not answer in time.
            ProtocolError: too large, malformed, or a call that the dispatcher doesn't know.
            MillraceError: whatever the dispatcher answers with.
        """
        self.check_usable()
        try:
            return cast("T", self._ask_known(name, request, reply_type, timeout, wait=False))
        except grpc.RpcError as error:
            raise self.translate(error, name, timeout) from error

    def open_session(self, message: Any) -> ClientSession:
        """Open a stream of messages; those of the dispatcher are decoded as ``message``. Errors: :meth:`connect`."""
        self.check_usable()
        self._renew()
        if self._own:
            check_listener(self.address)
        if not self._prover.challenged:
            try:
                self._prove(self._timeout, wait=False)
            except grpc.RpcError as error:
                raise self.translate(error, CHALLENGE, self._timeout) from error
        stream = self._channel.stream_stream(rpc.SESSION_METHOD)
        metadata = self.headers(rpc.SESSION_METHOD)
        start = functools.partial(self._begun, stream, metadata=metadata)
        session = ClientSession(self, start, functools.partial(self._prover.check, metadata), message)
        with self._lock:
            self._sessions.add(session)
        return session

    def close(self) -> None:
        """Close all sessions and the connection, and wait for gRPC's threads to end. Harmless in a forked child."""
        if not self.owned():
            return
        with self._lock:
            if self._closed:
                return
            self._closed = True
            sessions = tuple(self._sessions)
        for session in sessions:
            session.close()
        for channel in (*self._former, self._channel):
            forks.close(channel)
        for thread in self._threads - {threading.current_thread()}:
            thread.join(CLOSE_S)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError(
            f"a ControlChannel cannot be pickled: send its address ({self.address}) and connect again on the other side"
        )

    # -- for sessions --------------------------------------------------------------------------------------------------

    def owned(self) -> bool:
        """Whether this is the process that made the channel."""
        return self._pid == os.getpid()

    def check_usable(self) -> None:
        """Raise ServiceError in a forked child, and once closed."""
        if not self.owned():
            raise ServiceError(
                f"this ControlChannel belongs to process {self._pid} and is used in process {os.getpid()}, forked from"
                f" it: open another one here"
            )
        if self._closed:
            raise ServiceError(f"this ControlChannel to {self.address} is closed")

    def headers(self, method: str) -> Headers:
        """Make the headers of one call, or session, which say who asks and prove it."""
        return (*rpc.IDENTITY, *self._prover.headers(method))

    def _opened(self) -> grpc.Channel:
        credentials = None if self._held is None else channel_credentials(self._held)
        return forks.open(f"dns:///{self.address}", _OPTIONS, credentials)

    def _renew(self) -> None:
        """Go on with the certificates of now: gRPC has those that a channel was opened with, as long as it is open."""
        with self._lock:
            if self._tls is None or self._closed or (held := self._tls.certificates()) == self._held:
                return
            self._held = held
            self._former.append(self._channel)  # until the end: somebody may wait for an answer on it
            self._channel = self._opened()

    def _prove(self, timeout: float, *, wait: bool) -> None:
        """Have the dispatcher prove that it knows the token, so that this process can prove that it does."""
        if self._prover.tokenless:
            return
        if self._own:
            check_listener(self.address)
        asked = self._prover.ask()
        self._prover.accept(asked, self._ask(CHALLENGE, asked, Challenged, timeout, wait=wait, known=False))

    def _ask_known(self, name: str, request: Any, reply_type: Any, timeout: float, *, wait: bool) -> Any:
        """Ask as who this process is, once more if the dispatcher has been exchanged for another one meanwhile."""
        if not self._prover.challenged:
            self._prove(timeout, wait=wait)
        try:
            return self._ask(name, request, reply_type, timeout, wait=wait)
        except grpc.RpcError as error:
            if not rpc.is_stale(error):
                raise
            error.__traceback__ = None  # as in _wait_for_listener
        self._prove(timeout, wait=wait)
        return self._ask(name, request, reply_type, timeout, wait=wait)

    def _ask(self, name: str, request: Any, reply_type: Any, timeout: float, *, wait: bool, known: bool = True) -> Any:
        if self._own and known:
            check_listener(self.address)
        encoded = rpc.encode(request)
        rpc.check_call_size(len(encoded), f"the request {name}")
        path = rpc.CALL_PREFIX + name
        options = {
            "timeout": timeout,
            "metadata": (sent := self.headers(path) if known else rpc.IDENTITY),
            "wait_for_ready": wait,
        }
        # Never in gRPC's single-threaded way: a thread that waits inside gRPC makes a child that is forked then hang.
        if len(encoded) <= rpc.FRAME_BYTES:  # on the wire the same stream; here it needs no thread that sends
            replies = self._begun(self._channel.unary_stream(path), encoded, **options)
        else:
            replies = self._begun(self._channel.stream_stream(path), self._remembered(rpc.cut(encoded)), **options)
        self.remember_end_of(replies)
        del encoded
        try:
            reply = bytearray()
            for frame in replies:
                reply += frame
                rpc.check_call_size(len(reply), f"the reply to {name}")
            if known:
                self._prover.check(sent, replies.initial_metadata())
        finally:
            replies.cancel()
        try:
            return msgspec.msgpack.decode(reply, type=reply_type)
        except MALFORMED as error:
            raise ProtocolError(
                f"the dispatcher at {self.address} sent a malformed reply to {name}: {error}"
            ) from error

    def _begun(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        """Begin a call of gRPC's, which Ctrl-C does not cut in two."""
        begin = functools.partial(self._begin, call, *args, **options)
        return _uninterrupted(begin) if threading.current_thread() is threading.main_thread() else begin()

    def _begin(self, call: Callable[..., Any], *args: Any, **options: Any) -> Any:
        try:
            with forks.gate:
                begun = call(*args, **options)
                begun._call = GatedCall(begun._call)  # noqa: SLF001 (who waits for an answer first asks through it)
                forks.calls.add(begun)
                return begun
        except ValueError:  # another thread has closed the channel since it was found usable
            self.check_usable()
            raise

    def _remembered(self, frames: Iterator[bytes]) -> Iterator[bytes]:
        self.remember_thread()
        for frame in frames:
            with forks.sending():
                yield frame

    def remember_thread(self) -> None:
        """Remember a thread that gRPC started for this channel, on which this is called; :meth:`close` waits for it."""
        if not self.owned():
            return  # forked: gRPC has cancelled the call, and who holds the lock may be in the parent
        with self._lock:
            self._threads = {thread for thread in self._threads if thread.is_alive()} | {threading.current_thread()}

    def remember_end_of(self, call: Any) -> None:
        """Remember the thread on which gRPC says that ``call`` has ended."""
        caller = threading.current_thread()

        def ended(_: Any) -> None:
            if threading.current_thread() is not caller:  # else it had ended already, and gRPC says so at once
                self.remember_thread()

        call.add_done_callback(ended)

    def _why_unreachable(self) -> str:
        """Try once more, without waiting, to learn what fails."""
        if self._tls is None and speaks_tls(self.address):
            return f"it speaks TLS, {NO_TLS_HERE}"
        try:
            self._ask(rpc.HELLO, None, Identity, _PROBE_S, wait=False, known=False)
        except grpc.RpcError as error:
            if error.code() is grpc.StatusCode.UNAVAILABLE:
                return str(error.details()).rsplit(": ", 1)[-1].strip("[] ").lower()
        except MillraceError as error:
            return str(error)
        return "no answer at all"

    def forget(self, session: ClientSession) -> None:
        """Forget ``session``, which has ended."""
        with self._lock:
            self._sessions.discard(session)

    def translate(self, error: grpc.RpcError, name: str, timeout: float = 0.0) -> MillraceError:
        """Translate a gRPC status into the millrace error that it stands for."""
        code, details = error.code(), error.details()
        if rpc.is_stale(error):
            self._prover.forget()
        carried = rpc.error_in(error.trailing_metadata())
        if carried is not None:
            return carried
        if code is grpc.StatusCode.DEADLINE_EXCEEDED:
            return ServiceUnreachableError(
                f"the dispatcher at {self.address} did not answer {name} within {timeout:g} s"
            )
        if code in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED}:
            return ServiceUnreachableError(f"lost the dispatcher at {self.address}: {details}")
        if code is grpc.StatusCode.UNIMPLEMENTED:
            return ServiceUnreachableError(f"what answers at {self.address} is no millrace dispatcher: {details}")
        return ProtocolError(f"{name} failed between here and the dispatcher at {self.address}: {code.name}: {details}")


def _uninterrupted(begin: Callable[[], Any]) -> Any:
    """Begin a call in a thread of its own: an interrupt reaches the main thread, which waits for it, and no other one.

    Of a call whose beginning is interrupted gRPC knows, and it has no thread that waits for its end: closing the
    channel waits for that for ever.
    """
    begun: Future[Any] = Future()

    def run() -> None:
        try:
            begun.set_result(begin())
        except BaseException as error:  # noqa: BLE001 (the caller raises it)
            begun.set_exception(error.with_traceback(None))  # whose frames hold this, and it the error

    thread = threading.Thread(target=run, name="millrace-call", daemon=True)
    try:
        thread.start()
        thread.join()
        return begun.result()
    except BaseException:  # of Ctrl-C, if not of the call itself: nobody will read what it gives
        begun.add_done_callback(lambda done: None if done.exception() else done.result().cancel())
        raise
