"""Calls by which workers and consumers ask the dispatcher for blobs."""

from __future__ import annotations

import functools
from collections.abc import Callable

from millrace.control.membership.access import lacking
from millrace.dispatcher.blob_store import BlobStore
from millrace.dispatcher.shortage import ShortageError, UnwritableError, retry_while_short
from millrace.elements.sealed_memory import MemoryLoan
from millrace.protocol.caller import Caller
from millrace.wire.control import blob_transfer as wire
from millrace.wire.control import rpc
from millrace.wire.control.control_server import CallHandler
from millrace.wire.error_codec import error_of


def blob_calls(store: Callable[[], BlobStore], lacks: Callable[[str], None]) -> dict[str, CallHandler]:
    """Make the calls of :mod:`millrace.wire.control.blob_transfer`.

    Args:
        store: returns the blobs, which are others once a work_dir was read.
        lacks: is told what there is no room for, and "" when there is.
    """

    def check(caller: Caller) -> None:
        if not (caller.runs or caller.works):
            raise error_of(lacking(caller, "run = true", "hand over or fetch functions").failure)

    async def has(digest: str, caller: Caller) -> bool:
        if not (caller.runs or caller.works):
            return True  # it begins no jobs, so that nobody needs what it would send
        return store().promise(digest)

    async def put(blob: wire.Blob, caller: Caller) -> str:
        check(caller)
        keep = functools.partial(store().put, blob.digest, blob.data)
        await (retry_while_short(keep, UnwritableError, lacks) if blob.waits else keep())
        store().promise(blob.digest)
        return blob.digest

    async def fetch(digest: str, caller: Caller) -> bytes:
        check(caller)
        return await retry_while_short(functools.partial(store().get, digest), ShortageError, lacks)

    async def lend(offer: wire.BlobOffer, caller: Caller) -> bool:
        if not (caller.runs or caller.works):
            return True
        here = store().borrow(offer.loan)
        return here and (not offer.joins or store().promise(offer.loan.digest))

    async def locate(digest: str, caller: Caller) -> MemoryLoan | None:
        check(caller)
        return await store().locate(digest)

    return {
        wire.HAS: CallHandler(str, has),
        wire.PUT: CallHandler(wire.Blob, put, rpc.MAX_CALL_BYTES),
        wire.FETCH: CallHandler(str, fetch, reply_bytes=lambda digest: store().size(digest)),
        wire.LEND: CallHandler(wire.BlobOffer, lend),
        wire.LOCATE: CallHandler(str, locate),
    }
