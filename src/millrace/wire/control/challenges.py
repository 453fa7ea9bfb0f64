"""Challenges: callers prove that they know a token, for each call anew, and the service that it does; it never travels.

caller                                       service
  | Challenge(name, nonce) -------------->     |  a call that everybody may make
  | <------------- Challenged(nonce, proof)    |
  | call, with the header Proof(count) --->    |  each call and each session; no count is taken twice
  | <--- what it gives, with a header again    |  that has a proof about the caller's
"""

from __future__ import annotations

import hmac
import itertools
import secrets
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from millrace.errors import AuthenticationError, ProtocolError, ServiceUnreachableError
from millrace.message_budget import MALFORMED
from millrace.protocol.caller import Caller, Rights
from millrace.wire.auth import OWN, REFUSED_TOKEN, Identity
from millrace.wire.token_keys import TokenHolder
from millrace.wire.token_registry import TokenEntry

CHALLENGE = "Challenge"
"""Call that every server answers, also to who is not let in."""
PROOF = "millrace-proof-bin"
"""Header of all other calls and of sessions, and of what they give."""
NONCE_BYTES = 16
MOST_BYTES = 1 << 10
"""Most bytes of a challenge."""
WINDOW = 1024
"""Counts of one challenge that may come out of order, or never."""
MOST = 20_000
"""Challenges that have been used and are remembered."""
_INDEX_BYTES = 8
_TAG_BYTES = 16

NOBODY = Caller("nobody", rights=Rights(run=False, join="none", control="none", status="none"))
"""Caller of a challenge, who has proven nothing yet."""

Headers = tuple[tuple[str, str | bytes], ...]


class StaleChallengeError(ServiceUnreachableError):
    """The service does not take the proof: the caller asks for another challenge.

    ``repeated``: as it was taken before, from somebody else or the caller, if it is no older than others by far.
    """

    repeated = False


class Challenge(msgspec.Struct, frozen=True):
    """Question of a caller: the name of its token's keys, and a nonce."""

    name: str
    nonce: bytes


class Challenged(msgspec.Struct, frozen=True):
    """Answer of the service: a nonce, and the proof that it knows the token."""

    nonce: bytes
    proof: bytes


class Proof(msgspec.Struct, frozen=True):
    """Proof of a caller for one call: what was asked and answered, how many calls there were, a proof of all that."""

    asked: Challenge
    nonce: bytes
    count: int
    proof: bytes


_encoder = msgspec.msgpack.Encoder()
_proof_decoder = msgspec.msgpack.Decoder(Proof)


def read_proof(headers: Mapping[str, str | bytes]) -> Proof:
    """Read the proof in the headers of a call.

    Raises:
        AuthenticationError: there is none; with what to do.
        ProtocolError: it is malformed.
    """
    encoded = headers.get(PROOF)
    if not isinstance(encoded, bytes):
        raise AuthenticationError(
            "the service demands a token and got none: set MILLRACE_TOKEN or pass token=...; without one only "
            "processes of the user who started it are let in, on the same machine"
        )
    try:
        return _proof_decoder.decode(encoded)
    except MALFORMED as error:
        raise ProtocolError(f"the proof of a call is malformed: {error}") from error


class Prover:
    """Caller's end: holds the token, and makes the headers of calls. Thread-safe once it was challenged.

    Args:
        token: of the caller; None: it has none.
    """

    def __init__(self, token: str | None) -> None:
        self._holder = TokenHolder(token) if token is not None else None
        self._known: tuple[Challenge, bytes] | None = None
        self._counts = itertools.count()

    @property
    def tokenless(self) -> bool:
        """Whether there is nothing to prove."""
        return self._holder is None

    @property
    def challenged(self) -> bool:
        """Whether calls can be made: the service has been asked, or there is nothing to prove."""
        return self.tokenless or self._known is not None

    def ask(self) -> Challenge:
        """Make the question; only for who has a token."""
        assert self._holder is not None
        return Challenge(self._holder.keys.name, secrets.token_bytes(NONCE_BYTES))

    def accept(self, asked: Challenge, answer: Challenged) -> None:
        """Take the answer.

        Raises:
            ServiceUnreachableError: who has answered does not know the token.
        """
        self._check(answer.proof, _of_service(asked, answer.nonce))
        self._known = asked, answer.nonce

    def check(self, sent: Headers, answered: Iterable[tuple[str, Any]]) -> None:
        """Check the headers of what a call has given, by those that it was sent with.

        Raises:
            ServiceUnreachableError: they are not of who knows the token.
        """
        self._check(dict(answered).get(PROOF), _of_answer(read_proof(dict(sent))))

    def _check(self, proof: object, said: bytes) -> None:
        assert self._holder is not None
        if not isinstance(proof, bytes) or not hmac.compare_digest(proof, self._holder.keys.server_proof(said)):
            raise ServiceUnreachableError(
                "what answers there does not know the token, and was not told it: it is not the service that is meant"
            )

    def forget(self) -> None:
        """Forget the answer, as the service has."""
        self._known = None

    def headers(self, method: str) -> Headers:
        """Make the proof for one call; nothing without a token, or before there was an answer."""
        known = self._known
        if self._holder is None or known is None:
            return ()
        asked, nonce = known
        count = next(self._counts)
        proof = self._holder.prove(_of_caller(method, OWN, asked, nonce, count))
        return ((PROOF, _encoder.encode(Proof(asked, nonce, count, proof))),)


class Challenges:
    """Service's end: answers challenges without remembering any, and takes each proof once.

    Args:
        find: finds the entry of a token by the name of its keys; None: there is none.
    """

    def __init__(self, find: Callable[[str], TokenEntry | None]) -> None:
        self._find = find
        self._secret = secrets.token_bytes(32)
        self._indices = itertools.count(1)
        self._used: dict[bytes, _Counts] = {}
        self._horizon = 0

    def answer(self, asked: Challenge) -> Challenged:
        """Answer a challenge.

        Raises:
            AuthenticationError: nobody has such a token.
            ProtocolError: there is no nonce.
        """
        entry = self._find(asked.name)
        if entry is None:
            raise AuthenticationError(REFUSED_TOKEN)
        if len(asked.nonce) != NONCE_BYTES:
            raise ProtocolError("the challenge has no nonce")
        drawn = next(self._indices).to_bytes(_INDEX_BYTES, "big") + secrets.token_bytes(NONCE_BYTES)
        nonce = drawn + self._tag(asked, drawn)
        return Challenged(nonce, entry.keys.server_proof(_of_service(asked, nonce)))

    def check(self, method: str, identity: Identity, shown: Proof) -> tuple[TokenEntry, Headers]:
        """Find the entry of the token that the caller proves to know, and the headers of what the call gives.

        Raises:
            AuthenticationError: it proves none; with what to do.
            StaleChallengeError: it has to ask for another challenge.
        """
        entry = self._find(shown.asked.name)
        if entry is None:
            raise AuthenticationError(REFUSED_TOKEN)
        drawn, tag = shown.nonce[:-_TAG_BYTES], shown.nonce[-_TAG_BYTES:]
        if not hmac.compare_digest(tag, self._tag(shown.asked, drawn)):  # of a service that is no more
            raise StaleChallengeError("the dispatcher was started again since this process was let in")
        if not entry.keys.proven(shown.proof, _of_caller(method, identity, shown.asked, shown.nonce, shown.count)):
            raise AuthenticationError(REFUSED_TOKEN)
        self._use(shown.nonce, shown.count)
        return entry, ((PROOF, entry.keys.server_proof(_of_answer(shown))),)

    def _use(self, nonce: bytes, count: int) -> None:
        counts = self._used.pop(nonce, None)
        if counts is None:
            if int.from_bytes(nonce[:_INDEX_BYTES], "big") <= self._horizon:
                raise StaleChallengeError("the dispatcher has forgotten this process, as many others came")
            counts = _Counts()
        self._used[nonce] = counts  # the last one, as it was used last
        if len(self._used) > MOST:
            oldest = next(iter(self._used))
            del self._used[oldest]
            self._horizon = max(self._horizon, int.from_bytes(oldest[:_INDEX_BYTES], "big"))
        if not counts.take(count):
            error = StaleChallengeError("the proof of a call came twice, or far behind others")
            error.repeated = True
            raise error

    def _tag(self, asked: Challenge, drawn: bytes) -> bytes:
        return hmac.digest(self._secret, _encoder.encode((asked, drawn)), "sha256")[:_TAG_BYTES]


class _Counts:
    """Counts that were taken: all below ``_floor``, and those in ``_above``."""

    __slots__ = ("_above", "_floor")

    def __init__(self) -> None:
        self._floor = 0
        self._above: set[int] = set()

    def take(self, count: int) -> bool:
        """Take a count; False if it was taken before, or comes too late to know."""
        if count < self._floor or count in self._above:
            return False
        self._above.add(count)
        if len(self._above) > WINDOW:
            self._floor = min(self._above)
        while self._floor in self._above:
            self._above.remove(self._floor)
            self._floor += 1
        return True


def _of_service(asked: Challenge, nonce: bytes) -> bytes:
    return _encoder.encode(("millrace service", asked, nonce))


def _of_answer(shown: Proof) -> bytes:
    return _encoder.encode(("millrace answer", shown.proof))


def _of_caller(method: str, identity: Identity, asked: Challenge, nonce: bytes, count: int) -> bytes:
    stated = (identity.protocol, identity.version, identity.python)
    return _encoder.encode(("millrace caller", method, stated, asked, nonce, count))
