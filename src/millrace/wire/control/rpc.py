"""Conventions of the control protocol: methods, headers, limits, and how errors travel.

All methods live in the gRPC service ``millrace.Control``. ``Session`` is one bidirectional stream of msgpack messages,
one gRPC message each. ``Call.NAME`` is a request and a reply; each is msgpack cut into frames of at most 1 MiB, so that
a bundle of functions or a large split table needs no other path than a small question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import grpc
import msgspec

from millrace.errors import (
    AuthenticationError,
    MillraceError,
    ProtocolError,
    ServiceError,
    ServiceUnreachableError,
    VersionMismatchError,
)
from millrace.message_budget import MALFORMED
from millrace.protocol.messages import Failure
from millrace.wire.auth import OWN, Identity
from millrace.wire.control.challenges import StaleChallengeError
from millrace.wire.error_codec import error_of, failure_of, shorten

FRAME_BYTES = 1 << 20
"""Bytes of a frame of requests and replies."""
MAX_CALL_BYTES = 1 << 30
"""Most bytes of one request or reply, encoded."""
MAX_MESSAGE_BYTES = 16 << 20
"""Most bytes of one message of a session, encoded."""
MAX_OUTBOX_BYTES = 64 << 20
"""Most bytes of messages of a session that wait for the peer to read."""

MAX_TEXT_CHARS = 8_000
"""Most characters of an error's message or traceback: they travel in headers, whose size is bounded."""

SESSION_METHOD = "/millrace.Control/Session"
CALL_PREFIX = "/millrace.Control/Call."
HELLO = "Hello"
"""Call that every server answers, with its :class:`~millrace.wire.auth.Identity`."""

_FAILURE_KEY = "millrace-failure-bin"
_HEADER_BYTES = 128 << 10

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_metadata_size", _HEADER_BYTES),
    ("grpc.absolute_max_metadata_size", _HEADER_BYTES),
    # A peer that hangs or vanished is noticed after 20 s, whether or not messages flow.
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # of the pings that measure bandwidth; keepalive waits behind them
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
)

CODES: dict[type[MillraceError], grpc.StatusCode] = {
    AuthenticationError: grpc.StatusCode.UNAUTHENTICATED,
    VersionMismatchError: grpc.StatusCode.FAILED_PRECONDITION,
    ProtocolError: grpc.StatusCode.INVALID_ARGUMENT,
    ServiceUnreachableError: grpc.StatusCode.UNAVAILABLE,
    StaleChallengeError: grpc.StatusCode.UNAUTHENTICATED,
}
"""Status codes for tools that know gRPC but not millrace, which reads the failure. Every other error is ABORTED."""


class UnsendableError(ProtocolError):
    """Message of this process that no session can carry: it is too large, or holds what can't be encoded."""


_encoder = msgspec.msgpack.Encoder()
_failure_decoder = msgspec.msgpack.Decoder(Failure)


def encode(message: Any) -> bytes:
    """Encode ``message`` in msgpack."""
    return _encoder.encode(message)


def encode_message(message: Any) -> bytes:
    """Encode ``message`` of a session in msgpack.

    Raises:
        UnsendableError: it is too large, or has a value that msgpack does not have.
    """
    try:
        encoded = _encoder.encode(message)
    except (OverflowError, RecursionError, TypeError, ValueError) as error:  # text that is none is a ValueError
        raise UnsendableError(f"the message {type(message).__name__} cannot be encoded: {error}") from error
    if len(encoded) > MAX_MESSAGE_BYTES:
        raise UnsendableError(
            f"the message {type(message).__name__} takes {len(encoded):,} bytes; a message between the service's "
            f"processes is at most {MAX_MESSAGE_BYTES:,} bytes long"
        )
    return encoded


def about_job(message: Any) -> str:
    """Name of the job that a message of a session is about; empty if it is about none."""
    ref = getattr(message, "ref", None)
    return str(getattr(message if ref is None else ref, "job", ""))


IDENTITY = (
    ("millrace-protocol", str(OWN.protocol)),
    ("millrace-version", OWN.version),
    ("millrace-python", OWN.python),
)
"""Headers of every stream and call that say who asks."""


def identity_of(metadata: Mapping[str, str | bytes]) -> Identity:
    """Read the asker's identity from its headers.

    Raises:
        ProtocolError: it is not millrace.
    """
    try:
        protocol, version, python = (str(metadata[name]) for name, _ in IDENTITY)
        return Identity(int(protocol), version, python)
    except (KeyError, ValueError) as error:
        raise ProtocolError("the request has no valid millrace-protocol, -version and -python headers") from error


def cut(encoded: bytes) -> Iterator[bytes]:
    """Cut ``encoded`` into frames."""
    if len(encoded) <= FRAME_BYTES:
        yield encoded
        return
    view = memoryview(encoded)
    for start in range(0, len(view), FRAME_BYTES):
        yield bytes(view[start : start + FRAME_BYTES])


def check_call_size(size: int, what: str) -> None:
    """Refuse a request or reply that is too large to carry.

    Raises:
        ProtocolError: naming the bound.
    """
    if size > MAX_CALL_BYTES:
        raise ProtocolError(
            f"{what} takes {size / 2**30:.2f} GiB or more, and the dispatcher carries at most"
            f" {MAX_CALL_BYTES / 2**30:g} GiB at once: keep large objects in files that workers can read"
        )


def trailers_of(error: MillraceError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Convert ``error`` to a gRPC status: code, one line, and headers from which :func:`error_in` restores it."""
    failure = failure_of(error)
    failure = msgspec.structs.replace(
        failure,
        message=shorten(failure.message, MAX_TEXT_CHARS),
        user_traceback=shorten(failure.user_traceback, MAX_TEXT_CHARS),
    )
    line = failure.message.partition("\n")[0][:200]
    return CODES.get(type(error), grpc.StatusCode.ABORTED), line, ((_FAILURE_KEY, _encoder.encode(failure)),)


def is_stale(error: grpc.RpcError) -> bool:
    """Whether a caller was refused as the service does not know its challenge any more: it may ask for another one."""
    unauthenticated = error.code() is grpc.StatusCode.UNAUTHENTICATED
    return unauthenticated and isinstance(error_in(error.trailing_metadata()), ServiceUnreachableError)


def error_in(trailers: Iterable[tuple[str, Any]] | None) -> MillraceError | None:
    """Restore the millrace error that a peer put into its status, if it did."""
    for key, value in trailers or ():
        if key == _FAILURE_KEY:
            try:
                return error_of(_failure_decoder.decode(value))
            except MALFORMED as error:
                return ServiceError(f"the service failed, and its reason is malformed: {error}")
    return None
