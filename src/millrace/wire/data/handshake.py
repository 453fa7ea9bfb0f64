"""Handshake of a bulk connection: each end proves that it knows the peer's key, in limited time.

connecting side                          listening side
  | Hello(claims, nonce) -------------->   |
  | <-------------------- Welcome(nonce)   |
  | Answer(proof) --------------------->   |
  | <-------------------- Welcome(proof)   |  or with a failure, here or before
"""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

import msgspec

from millrace.errors import AuthenticationError, MillraceError, ProtocolError, ServiceError
from millrace.protocol.messages import Failure
from millrace.wire.auth import OWN, REFUSED_TOKEN, Identity, check_protocol
from millrace.wire.data.compression import Compression
from millrace.wire.data.data_keys import NONCE_BYTES, Credential, draw_key, proof
from millrace.wire.data.frames import receive_frame, send_frame
from millrace.wire.data.links import Link
from millrace.wire.data.socket_options import set_socket_options
from millrace.wire.data.striping import StripePart
from millrace.wire.error_codec import error_of, failure_of

if TYPE_CHECKING:
    from typing_extensions import Buffer

_HELLO_BYTES = 16 << 10


M = TypeVar("M")


class Hello(msgspec.Struct, frozen=True):
    """First frame of the connecting side.

    Attributes:
        identity: of the process.
        compression: of the payloads that either side sends.
        part: set if this is one of several sockets of a connection.
        claims: what the process may ask for, by its key; empty: everything.
        nonce: drawn for this connection.
    """

    identity: Identity
    compression: Compression | None = None
    part: StripePart | None = None
    claims: bytes = b""
    nonce: bytes = b""


class Answer(msgspec.Struct, frozen=True):
    """Second frame of the connecting side: the proof that it knows the key that goes with its claims."""

    proof: bytes


class Welcome(msgspec.Struct, frozen=True):
    """Answer to :class:`Hello` with a nonce, and to :class:`Answer` with a proof; the connection ends with a failure.

    ``local``: an abstract Unix socket, or "".
    """

    identity: Identity
    failure: Failure | None = None
    local: str = ""
    nonce: bytes = b""
    proof: bytes = b""


_hello_decoder = msgspec.msgpack.Decoder(Hello)
_answer_decoder = msgspec.msgpack.Decoder(Answer)
_welcome_decoder = msgspec.msgpack.Decoder(Welcome)


def exchange_hello(
    sock: Link,
    credential: Credential,
    deadline: float,
    compression: Compression | None = None,
    part: StripePart | None = None,
) -> str:
    """Introduce this process and prove what it is, until ``deadline`` (of ``time.monotonic``) at most.

    Returns:
        The name of an abstract Unix socket of the peer's, or "".

    Raises:
        MillraceError: why the server does not let this process in.
        ServiceError: it is not the server that knows the key.
        ProtocolError: what answers is not millrace.
        EOFError, OSError: the connection broke, or the time is over.
    """
    set_socket_options(sock, connects=True)
    hurried = _DeadlineSocket(sock, deadline)
    hello = Hello(OWN, compression, part, credential.claims, draw_key())
    send_frame(sock, hello)
    asked = _welcomed(hurried)
    send_frame(sock, Answer(proof(credential.key, "client", credential.claims, hello.nonce, asked.nonce)))
    welcome = _welcomed(hurried)
    if not hmac.compare_digest(
        welcome.proof, proof(credential.key, "server", credential.claims, hello.nonce, asked.nonce)
    ):
        raise ServiceError("what answers there does not know the key that the service gave to this process")
    sock.settimeout(None)
    return welcome.local


def _welcomed(hurried: _DeadlineSocket) -> Welcome:
    welcome = _receive(hurried, _welcome_decoder)
    if welcome.failure is not None:
        raise error_of(welcome.failure)
    return welcome


def receive_hello(sock: Link, seconds: float, key_of: Callable[[bytes], bytes]) -> tuple[Hello, bytes]:
    """Receive a new peer's hello and its proof, which have to come within ``seconds``.

    Args:
        sock: connected to the peer.
        seconds: that it has.
        key_of: finds the key that goes with claims; its errors are told to the peer.

    Returns:
        The hello, and the proof for the welcome.

    Raises:
        MillraceError: the peer is not let in; it was told.
    """
    set_socket_options(sock)
    hurried = _DeadlineSocket(sock, time.monotonic() + seconds)
    hello = _receive(hurried, _hello_decoder)
    nonce = draw_key()
    try:
        key = _key_for(hello, key_of)
        send_frame(sock, Welcome(OWN, nonce=nonce))
        _check_answer(_receive(hurried, _answer_decoder), key, hello, nonce)
    except MillraceError as error:
        refuse(sock, error)
        raise
    sock.settimeout(None)
    shown = proof(key, "server", hello.claims, hello.nonce, nonce)
    return hello, shown


def _key_for(hello: Hello, key_of: Callable[[bytes], bytes]) -> bytes:
    check_protocol(hello.identity)
    if len(hello.nonce) != NONCE_BYTES:
        raise ProtocolError("the hello has no nonce")
    return key_of(hello.claims)


def _check_answer(answer: Answer, key: bytes, hello: Hello, nonce: bytes) -> None:
    if hmac.compare_digest(answer.proof, proof(key, "client", hello.claims, hello.nonce, nonce)):
        return
    if hello.claims:  # another worker may know it: the dispatcher will tell where
        raise ServiceError("this worker does not know the consumer that this process is")
    raise AuthenticationError(REFUSED_TOKEN)


def send_welcome(sock: Link, shown: bytes, local: str = "") -> None:
    """Welcome a peer, with the proof that this end knows its key."""
    send_frame(sock, Welcome(OWN, local=local, proof=shown))


def refuse(sock: Link, error: MillraceError) -> None:
    """Tell a peer why it is not let in."""
    send_frame(sock, Welcome(OWN, failure_of(error)))


def _receive(hurried: _DeadlineSocket, decoder: msgspec.msgpack.Decoder[M]) -> M:
    message, _ = receive_frame(hurried, decoder, limit=0, header_limit=_HELLO_BYTES)
    return message


class _DeadlineSocket:
    """Socket whose next receives have to be done by ``deadline``, however the peer trickles."""

    def __init__(self, sock: Link, deadline: float) -> None:
        self._sock = sock
        self._deadline = deadline

    def recv_into(self, buffer: Buffer, nbytes: int, flags: int, /) -> int:
        remaining = self._deadline - time.monotonic()
        if remaining <= 0:
            raise TimeoutError("timed out")
        self._sock.settimeout(remaining)
        return self._sock.recv_into(buffer, nbytes, flags)
