"""Calls by which workers and consumers ask the dispatcher for blobs."""

from __future__ import annotations

import functools
from collections.abc import Callable

from millrace.dispatcher.blob_store import BlobStore
from millrace.dispatcher.shortage import ShortageError, UnwritableError, retry_while_short
from millrace.elements.sealed_memory import MemoryLoan
from millrace.wire.control import blob_transfer as wire
from millrace.wire.control import rpc
from millrace.wire.control.control_server import CallHandler


def blob_calls(store: Callable[[], BlobStore], lacks: Callable[[str], None]) -> dict[str, CallHandler]:
    """Make the calls of :mod:`millrace.wire.control.blob_transfer`.

    Args:
        store: returns the blobs, which are others once a work_dir was read.
        lacks: is told what there is no room for, and "" when there is.
    """

    async def has(digest: str) -> bool:
        return store().promise(digest)

    async def put(blob: wire.Blob) -> str:
        keep = functools.partial(store().put, blob.digest, blob.data)
        await (retry_while_short(keep, UnwritableError, lacks) if blob.waits else keep())
        store().promise(blob.digest)
        return blob.digest

    async def fetch(digest: str) -> bytes:
        return await retry_while_short(functools.partial(store().get, digest), ShortageError, lacks)

    async def lend(offer: wire.BlobOffer) -> bool:
        here = store().borrow(offer.loan)
        return here and (not offer.joins or store().promise(offer.loan.digest))

    async def locate(digest: str) -> MemoryLoan | None:
        return await store().locate(digest)

    return {
        wire.HAS: CallHandler(str, has),
        wire.PUT: CallHandler(wire.Blob, put, rpc.MAX_CALL_BYTES),
        wire.FETCH: CallHandler(str, fetch),
        wire.LEND: CallHandler(wire.BlobOffer, lend),
        wire.LOCATE: CallHandler(str, locate),
    }
