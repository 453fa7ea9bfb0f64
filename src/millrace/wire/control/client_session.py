"""Session of a client: a stream of messages with the dispatcher, for threads."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, NoReturn, Self

import grpc
import msgspec

from millrace.errors import MillraceError, ProtocolError, ServiceError, ServiceUnreachableError, ShippingError
from millrace.message_budget import MALFORMED
from millrace.wire.control import rpc
from millrace.wire.control.fork_gate import forks

if TYPE_CHECKING:
    from millrace.wire.control.control_client import ControlChannel

CLOSE_S = 2.0
"""Seconds for the dispatcher to take what was sent before a session was closed."""


class ClientSession:
    """Stream of messages with the dispatcher, from :meth:`ControlChannel.open_session`.

    ``for message in session`` waits for messages in the caller's thread; it ends when the session is closed by either
    side and raises the dispatcher's error, or ServiceUnreachableError when the stream breaks. One thread iterates; any
    may :meth:`send` and :meth:`close`.
    """

    def __init__(
        self, channel: ControlChannel, start: Callable[..., Any], check: Callable[..., None], message: Any
    ) -> None:
        self._channel = channel
        self._check: Callable[..., None] | None = check  # until there was a message
        self._decoder = msgspec.msgpack.Decoder(message)
        # Entered again where a signal handler closes the session in the middle of its sending.
        self._sending = threading.RLock()
        self._outbox: SimpleQueue[bytes | None] = SimpleQueue()
        self._put_bytes = self._sent_bytes = 0
        self._outbox_ended = self._closed = False
        self._receiving = threading.Lock()
        self._ended = False
        self._failure: MillraceError | None = None
        self._call = start(self._outgoing())
        channel.remember_end_of(self._call)
        self._call.add_done_callback(self._on_done)

    def send(self, message: Any) -> None:
        """Queue ``message``; never wait.

        Raises:
            ServiceUnreachableError: the stream is broken, or the dispatcher left 64 MiB unread.
            MillraceError: the error that the dispatcher ended the session with.
            ProtocolError: the message is over 16 MiB encoded; nothing was queued.
            ServiceError: the session is closed.
        """
        self._channel.check_usable()
        encoded = rpc.encode_message(message)
        with self._sending:
            ended = self._outbox_ended
            if not ended:
                self._put_bytes += len(encoded)
                self._outbox.put(encoded)
            waiting = self._put_bytes - self._sent_bytes
        if ended:
            if self._closed or self._call.code() is grpc.StatusCode.OK:
                raise ServiceError(f"the session with {self._channel.address} is closed")
            raise self._channel.translate(self._call, "the session")
        if waiting > rpc.MAX_OUTBOX_BYTES:
            self._call.cancel()
            raise ServiceUnreachableError(
                f"the dispatcher at {self._channel.address} left {waiting} bytes of messages unread and was given up"
            )

    def __iter__(self) -> ClientSession:
        return self

    def __next__(self) -> Any:
        self._channel.check_usable()
        with self._receiving:
            encoded = self._take()
            while self._closed:  # what still comes is nobody's, but has to be read for the stream to end in order
                encoded = self._take()
            try:
                return self._decoder.decode(encoded)
            except MALFORMED as error:
                self._call.cancel()
                self._ended = True
                self._failure = ProtocolError(
                    f"the dispatcher at {self._channel.address} sent a malformed message: {error}"
                )
                raise self._failure from error

    def close(self) -> None:
        """End the session: what was sent still arrives (2 s at most), what was not yet iterated is dropped.

        The thread that waits for messages is woken. Harmless in a forked child.
        """
        if self._closed or not self._channel.owned():
            return
        self._closed = True
        self._end_outbox()
        timer = threading.Timer(CLOSE_S, self._call.cancel)
        timer.daemon = True
        timer.start()
        try:
            with self._receiving, contextlib.suppress(StopIteration, MillraceError):
                while True:
                    self._take()
        finally:
            self._call.cancel()
            timer.cancel()
            timer.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("a session cannot be pickled: send the dispatcher's address and connect on the other side")

    def _take(self) -> bytes:
        """Take the next message's bytes. The caller holds ``_receiving``."""
        if not self._ended:
            try:
                return self._checked(next(self._call))
            except StopIteration:
                self._ended = True
            except grpc.RpcError as error:
                self._ended = True
                self._failure = self._channel.translate(error, "the session")
            except BaseException:  # Ctrl-C while waiting: gRPC can't be asked for the same message again
                self._ended = True
                self._call.cancel()
                raise
        if self._failure is None or self._closed:
            raise StopIteration
        raise self._failure

    def _checked(self, encoded: bytes) -> bytes:
        """Return a message, the first one if it is the service that answers."""
        check, self._check = self._check, None
        if check is not None:
            check(self._call.initial_metadata())
        return encoded

    def _outgoing(self) -> Iterator[bytes]:
        """Messages to send, as gRPC takes them in a thread of its own."""
        self._channel.remember_thread()
        while (encoded := self._outbox.get()) is not None:
            self._sent_bytes += len(encoded)
            with forks.sending():  # gRPC comes back when it is sent
                yield encoded

    def _end_outbox(self) -> None:
        """End the outbox: nothing more will be put; what is there is still sent."""
        with self._sending:
            self._outbox_ended = True
            self._outbox.put(None)

    def _on_done(self, _: Any) -> None:
        if self._channel.owned():
            self._end_outbox()
            self._channel.forget(self)
