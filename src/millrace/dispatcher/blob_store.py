"""Blob store: bytes that the dispatcher keeps for workers unread: functions of jobs, split tables."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections import Counter
from collections.abc import Iterable

from millrace.dispatcher.shortage import UnwritableError, unusable
from millrace.dispatcher.work_dir import sync_folder
from millrace.elements.sealed_memory import MemoryLoan, SealedMemory, open_loan
from millrace.errors import ProtocolError, ServiceError
from millrace.private_folder import private
from millrace.wire.control.blob_transfer import digest_of

MOST_BORROWED = 256
"""Most pieces of memory of other processes; each takes a descriptor."""
PROMISED_S = 900.0
"""Seconds in which a client joins that was told of a blob; one that has sent it then may have been refused."""
AWAITED_S = 240.0
"""Seconds for the lender of a blob to come back, after a dispatcher was started anew."""


class BlobFolder:
    """Blobs as files named by their digests, in a folder that nobody else writes to. Thread-safe."""

    def __init__(self, path: str) -> None:
        self.path = path

    def write(self, digest: str, data: bytes) -> None:
        """Write a blob; return when it is durable."""
        path = self._path(digest)
        temporary = f"{path}.{uuid.uuid4().hex}"
        try:
            with open(temporary, "wb", opener=private) as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.rename(temporary, path)
            sync_folder(self.path)
        except OSError as error:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise UnwritableError(f"{self.path} cannot be written: {error.strerror}") from error

    def read(self, digest: str) -> bytes:
        """Read a blob.

        Raises:
            ShortageError: there is no file descriptor left, say; it may be read later.
            ServiceError: it is not there, or not what was written.
        """
        path = self._path(digest)
        try:
            with open(path, "rb") as file:
                data = file.read()
        except OSError as error:
            raise unusable(f"blob {path} cannot be read", error) from error
        if digest_of(data) != digest:
            raise ServiceError(f"blob {path} is damaged")
        return data

    def remove(self, digest: str) -> None:
        """Remove a blob, if it is there."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self._path(digest))

    def sizes(self) -> dict[str, int]:
        """List the bytes of each file, whole or left over from an end in between."""
        with os.scandir(self.path) as entries:
            return {entry.name: entry.stat().st_size for entry in entries}

    def _path(self, digest: str) -> str:
        return os.path.join(self.path, digest)


class BlobStore:
    """Blobs by digest, bounded in bytes. Those of living jobs stay; others go, oldest first, when room is needed.

    Args:
        limit: bytes.
        folder: where they are kept; None: in memory.
    """

    def __init__(self, limit: int, folder: BlobFolder | None = None) -> None:
        self._limit = limit
        self._folder = folder
        self._bytes = 0
        self._sizes: dict[str, int] = {}
        self._memory: dict[str, bytes] = {}
        self._holders: dict[str, set[str]] = {}
        self._promised: Counter[str] = Counter()
        self._promised_at: dict[str, float] = {}
        self._lent: dict[str, SealedMemory] = {}
        self._awaited: dict[str, asyncio.Event] = {}

    def __len__(self) -> int:
        return len(self._sizes)

    def __contains__(self, digest: object) -> bool:
        return digest in self._sizes

    def size(self, digest: str) -> int:
        """Bytes of a blob; 0 if it is not here."""
        lent = self._lent.get(digest)
        return self._sizes.get(digest, 0) if lent is None else lent.loan.size

    def has(self, digest: str) -> bool:
        """Whether a blob is here; if so it won't be the next to go."""
        if digest not in self._sizes:
            return False
        self._sizes[digest] = self._sizes.pop(digest)
        return True

    async def put(self, digest: str, data: bytes) -> None:
        """Keep a blob; return when it is as durable as it will be.

        Raises:
            ProtocolError: if ``digest`` is not that of ``data``.
            UnwritableError: if the disk does not take it.
            ServiceError: if there is no room left beside what living jobs need.
        """
        if digest_of(data) != digest:
            raise ProtocolError(f"these bytes do not have the digest {digest}; were they damaged on the way?")
        if self.has(digest):
            return
        for old in [name for name in self._sizes if not self._holders.get(name)]:
            if self._bytes + len(data) <= self._limit:
                break
            self._forget(old)
            self._break_promise(old)
        if self._bytes + len(data) > self._limit:
            raise ServiceError(
                f"the dispatcher keeps {self._bytes:,} bytes for its jobs and cannot take {len(data):,} more "
                f"(limit {self._limit:,}); end a job, or read large data from files, not from variables of functions"
            )
        self._bytes += len(data)  # before it is there: others may come meanwhile
        try:
            if self._folder is not None:
                await asyncio.to_thread(self._folder.write, digest, data)
        except BaseException:
            self._bytes -= len(data)
            raise
        if digest in self._sizes:
            self._bytes -= len(data)  # somebody else was faster
            return
        self._sizes[digest] = len(data)
        if self._folder is None:
            self._memory[digest] = data
        self._came(digest)

    def borrow(self, loan: MemoryLoan) -> bool:
        """Keep memory of another process, which takes none here; False: it can't be reached, or there are too many.

        It stays as long as a job needs it, whatever becomes of that process.
        """
        self._forget_broken_promises(time.monotonic())
        for digest in [name for name in self._lent if name not in self._holders and name not in self._promised]:
            self._forget(digest)
        if self.has(loan.digest):
            return True
        memory = open_loan(loan) if len(self._lent) < MOST_BORROWED else None
        if memory is None:
            return False
        self._lent[loan.digest], self._sizes[loan.digest] = memory, 0
        self._came(loan.digest)
        return True

    async def locate(self, digest: str) -> MemoryLoan | None:
        """Find the memory that holds a blob, which others on this host can map; None: it is no memory.

        A dispatcher that was started anew waits until a consumer has lent it again, or given it.

        Raises:
            ServiceError: nobody has.
        """
        if digest not in self._sizes and digest in self._holders:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._awaited.setdefault(digest, asyncio.Event()).wait(), AWAITED_S)
        if not self.has(digest):
            raise ServiceError(f"the dispatcher has no blob {digest}, and no consumer has come back with it")
        return self._lent[digest].loan if digest in self._lent else None

    def _came(self, digest: str) -> None:
        if digest in self._awaited:
            self._awaited.pop(digest).set()

    def adopt(self, held: Iterable[tuple[str, str]]) -> None:
        """Take over the blobs in the folder that jobs need, as (job, digest); remove the rest."""
        assert self._folder is not None
        for job, digest in held:
            self.hold(job, digest)
        for name, size in self._folder.sizes().items():
            if name in self._holders:
                self._sizes[name] = size
                self._bytes += size
            else:
                self._folder.remove(name)

    def promise(self, digest: str) -> bool:
        """Promise a blob to a client about to join: it outlives the job that holds it now. False: it is not here."""
        known = self.has(digest)
        if known:
            self._promised[digest] += 1
            self._promised_at[digest] = time.monotonic()
        return known

    def _forget_broken_promises(self, now: float) -> None:
        """Clients that were told of a blob long ago and have not joined were refused, or have ended."""
        for digest, at in list(self._promised_at.items()):
            if now - at > PROMISED_S:
                del self._promised_at[digest], self._promised[digest]

    def keep_promise(self, digest: str) -> None:
        """Note that a client that was told about a blob has joined."""
        if self._promised[digest] > 1:
            self._promised[digest] -= 1
        else:
            self._break_promise(digest)

    def _break_promise(self, digest: str) -> None:
        del self._promised[digest]
        self._promised_at.pop(digest, None)

    async def get(self, digest: str) -> bytes:
        """Read a blob."""
        if not self.has(digest):
            raise ServiceError(f"the dispatcher has no blob {digest}; the job that it belonged to is over")
        if digest in self._lent:
            return await asyncio.to_thread(self._lent[digest].view().tobytes)
        if self._folder is None:
            return self._memory[digest]
        return await asyncio.to_thread(self._folder.read, digest)

    def hold(self, job: str, digest: str) -> None:
        """Keep a blob as long as the job lives."""
        self._holders.setdefault(digest, set()).add(job)

    def drop(self, job: str) -> None:
        """Forget the blobs of a job that is over, where nobody else needs them."""
        self._forget_broken_promises(time.monotonic())
        for digest in [name for name, jobs in self._holders.items() if job in jobs]:
            self._holders[digest].discard(job)
            if not self._holders[digest]:
                del self._holders[digest]
                if digest not in self._promised:
                    self._forget(digest)

    def _forget(self, digest: str) -> None:
        self._bytes -= self._sizes.pop(digest, 0)
        self._memory.pop(digest, None)
        if self._lent.pop(digest, None) is None and self._folder is not None:
            self._folder.remove(digest)
