"""Keys of data ports: who may ask what of a worker, and the proofs that both ends know the same key.

A key never travels: each end draws a nonce and sends a MAC of both (HMAC-SHA-256). The dispatcher and a job's workers
share a key of that job; a consumer has one that follows from it and from what the consumer may ask for, its claims. So
workers need no list of consumers, and no key opens more than its claims say.
"""

from __future__ import annotations

import hmac
import secrets
from typing import Literal, NamedTuple

import msgspec

from millrace.errors import ProtocolError
from millrace.message_budget import MALFORMED
from millrace.protocol.data_messages import Open

NONCE_BYTES = 32
A_WORKER = -1
"""Number in the claims of a worker that asks for leftovers of a job, in place of a consumer's."""

_encoder = msgspec.msgpack.Encoder()
_claims_decoder = msgspec.msgpack.Decoder(Open)


class Credential(NamedTuple):
    """Credential of a peer.

    Attributes:
        key: that the peer and the server know.
        claims: what it lets the peer ask for; empty: everything.
    """

    key: bytes
    claims: bytes = b""


def draw_key() -> bytes:
    """Draw a key, or a nonce."""
    return secrets.token_bytes(NONCE_BYTES)


def of_token(token: str | None) -> Credential:
    """Make the credential of whoever has a token."""
    return Credential(_mac((token or "").encode(), "port"))


def job_key(secret: bytes, job: str, generation: int) -> bytes:
    """Derive the key of a job, which its workers get, from the secret of the service."""
    return _mac(secret, "job", job, generation)


def source_secret(secret: bytes) -> bytes:
    """Derive the secret of the service's cache servers from that of the service."""
    return _mac(secret, "cache servers")


def source_key(secret_of_servers: bytes, tenant: bytes) -> bytes:
    """Derive the key of a tenant's jobs at cache servers; what its holder claims is the tenant."""
    return _mac(secret_of_servers, "tenant", tenant)


def consumer_key(key_of_job: bytes, opening: Open) -> bytes:
    """Derive the key of a consumer from that of its job."""
    return _mac(key_of_job, "consumer", _encoder.encode(opening))


def consumer_credential(key: bytes, opening: Open) -> Credential:
    """Make the credential of a consumer that was given its key."""
    return Credential(key, _encoder.encode(opening))


def worker_credential(key_of_job: bytes, job: str, generation: int) -> Credential:
    """Make the credential of one of a job's workers with another one."""
    opening = Open(job, A_WORKER, generation=generation)
    return consumer_credential(consumer_key(key_of_job, opening), opening)


def read_claims(claims: bytes) -> Open:
    """Read what a peer claims.

    Raises:
        ProtocolError: it is malformed.
    """
    try:
        return _claims_decoder.decode(claims)
    except MALFORMED as error:
        raise ProtocolError(f"the peer's claims are malformed: {error}") from error


def proof(key: bytes, end: Literal["client", "server"], claims: bytes, asked: bytes, answered: bytes) -> bytes:
    """Make the proof by which one end shows that it knows ``key``, from the nonces of the client and the server."""
    return _mac(key, end, claims, asked, answered)


def _mac(key: bytes, *parts: object) -> bytes:
    return hmac.digest(key, _encoder.encode(("millrace", *parts)), "sha256")
