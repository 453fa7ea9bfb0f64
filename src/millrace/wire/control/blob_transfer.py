"""Blob transfer: bytes that the dispatcher keeps for others without looking into them, named by their hash."""

from __future__ import annotations

import hashlib

import msgspec
import numpy as np

from millrace.elements.recycled_arrays import Bytes
from millrace.elements.sealed_memory import MemoryLoan, SealedMemory, open_loan
from millrace.errors import ProtocolError, ShippingError
from millrace.wire.control.control_client import ControlChannel

HAS = "HasBlob"
"""Call: digest -> whether the dispatcher has the blob."""
PUT = "PutBlob"
"""Call: :class:`Blob` -> its digest."""
FETCH = "FetchBlob"
"""Call: digest -> bytes."""
LEND = "LendBlob"
"""Call: :class:`BlobOffer` -> whether the dispatcher has the blob now; if not, it can't reach the memory."""
LOCATE = "LocateBlob"
"""Call: digest -> a loan of memory that holds the blob, or None; waits until who had it before has come back with
it."""

MAX_SENT_BYTES = (1 << 30) - (1 << 16)
"""Most bytes of a blob: calls are bounded, and something comes along."""
TIMEOUT_S = 300.0
"""Seconds that a transfer may take: enough for a gibibyte over a slow link."""


class Blob(msgspec.Struct, frozen=True):
    """Bytes under their digest."""

    digest: str
    data: bytes
    waits: bool = False
    """Whether a full disk is waited out; else it is said, and nothing is kept."""


class BlobOffer(msgspec.Struct, frozen=True):
    """Memory that the dispatcher may use. ``joins``: by a consumer that is about to join a job for the first time."""

    loan: MemoryLoan
    joins: bool = True


def digest_of(data: bytes) -> str:
    """Name of a blob: BLAKE2b, 128 bits, hexadecimal."""
    return hashlib.blake2b(data, digest_size=16).hexdigest()


def put_blob(channel: ControlChannel, data: bytes, *, waits: bool = False) -> str:
    """Give ``data``, up to a gibibyte, to the dispatcher, unless it has it; return the digest.

    ``waits``: until there is room on the dispatcher's disk.
    """
    digest = digest_of(data)
    known: bool = channel.call(HAS, digest, bool)
    if not known:
        digest = channel.call(PUT, Blob(digest, data, waits), str, TIMEOUT_S)
    return digest


def offer(channel: ControlChannel, memory: SealedMemory, job: str, *, joins: bool = True) -> None:
    """Offer the arrays of ``job`` to the dispatcher; they stay where they are on one host, and else are sent.

    Raises:
        ShippingError: they have to be sent, and are over a gibibyte.
        ServiceError: they can't be handed over.
    """
    here: bool = channel.call(LEND, BlobOffer(memory.loan, joins), bool)
    if here:
        return
    if memory.size > MAX_SENT_BYTES:
        raise ShippingError(
            f"the arrays of job {job!r} take {memory.size:,} bytes, and this service can't share this process's "
            f"memory, as it is on another host or another user's: at most {MAX_SENT_BYTES:,} bytes can be sent to it. "
            "Write the arrays to files that its workers can open, and read those: from_parquet(), say, or "
            "from_map_style() of what np.load(path, mmap_mode='r') gives"
        )
    put_blob(channel, memory.view().tobytes())


def fetch_memory(channel: ControlChannel, digest: str) -> Bytes:
    """Fetch the bytes of ``digest``, uint8, read-only: mapped where they are on this host, else a copy."""
    loan: MemoryLoan | None = channel.call(LOCATE, digest, MemoryLoan | None, TIMEOUT_S)
    memory = None if loan is None else open_loan(loan)
    return np.frombuffer(fetch_blob(channel, digest), np.uint8) if memory is None else memory.view()


def fetch_blob(channel: ControlChannel, digest: str) -> bytes:
    """Fetch the bytes of ``digest``, checked.

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
