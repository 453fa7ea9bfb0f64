"""Blobs: bytes that the dispatcher keeps for others without looking into them, named by the hash of what they are."""

from __future__ import annotations

import hashlib

import msgspec

from millrace.errors import ProtocolError
from millrace.wire.control.control_client import ControlChannel

HAS = "HasBlob"
"""Call: digest -> whether the dispatcher has it."""
PUT = "PutBlob"
"""Call: :class:`Blob` -> its digest."""
FETCH = "FetchBlob"
"""Call: digest -> bytes."""

TIMEOUT_S = 300.0
"""For a gibibyte over a slow link."""


class Blob(msgspec.Struct, frozen=True):
    """Bytes under their digest."""

    digest: str
    data: bytes
    waits: bool = False
    """A full disk is waited out; else it is said, and nothing is kept."""


def digest_of(data: bytes) -> str:
    """The name of a blob: BLAKE2b, 128 bits, hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def put_blob(channel: ControlChannel, data: bytes, *, waits: bool = False) -> str:
    """Gives ``data`` to the dispatcher, unless it has it; returns the digest.

    Args:
        channel: to the dispatcher.
        data: up to a gibibyte.
        waits: until there is room on the dispatcher's disk.

    Raises:
        ServiceError: if it can't be handed over.
    """
    digest = digest_of(data)
    known: bool = channel.call(HAS, digest, bool)
    if not known:
        digest = channel.call(PUT, Blob(digest, data, waits), str, TIMEOUT_S)
    return digest


def fetch_blob(channel: ControlChannel, digest: str) -> bytes:
    """The bytes of ``digest``, checked.

    Raises:
        ProtocolError: if other bytes came.
        ServiceError: if the dispatcher can't be asked, or does not have them.
    """
    data: bytes = channel.call(FETCH, digest, bytes, TIMEOUT_S)
    if digest_of(data) != digest:
        raise ProtocolError(
            f"the dispatcher sent other bytes than those of digest {digest}; were they damaged on the way?"
        )
    return data
