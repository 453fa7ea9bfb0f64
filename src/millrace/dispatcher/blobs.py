"""Bytes that the dispatcher keeps for workers without looking into them: functions of jobs, split tables."""

from __future__ import annotations

from collections import Counter

from millrace.errors import ProtocolError, ServiceError
from millrace.wire.blobs import digest_of


class BlobStore:
    """Blobs by digest, bounded in bytes. Those of living jobs stay; others go, oldest first, when room is needed.

    Args:
        limit: bytes.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._bytes = 0
        self._blobs: dict[str, bytes] = {}
        self._holders: dict[str, set[str]] = {}
        self._promised: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._blobs)

    def has(self, digest: str) -> bool:
        """Whether it is here; if so it won't be the next to go."""
        blob = self._blobs.pop(digest, None)
        if blob is not None:
            self._blobs[digest] = blob
        return blob is not None

    def put(self, digest: str, data: bytes) -> None:
        """Keep it.

        Raises:
            ProtocolError: if ``digest`` is not that of ``data``.
            ServiceError: if there is no room left beside what living jobs need.
        """
        if digest_of(data) != digest:
            raise ProtocolError(f"these bytes do not have the digest {digest}; were they damaged on the way?")
        if self.has(digest):
            return
        for old in [name for name in self._blobs if not self._holders.get(name)]:
            if self._bytes + len(data) <= self._limit:
                break
            self._bytes -= len(self._blobs.pop(old))
            del self._promised[old]
        if self._bytes + len(data) > self._limit:
            raise ServiceError(
                f"the dispatcher keeps {self._bytes:,} bytes for its jobs and cannot take {len(data):,} more "
                f"(limit {self._limit:,}); end a job, or read large data from files, not from variables of functions"
            )
        self._blobs[digest] = data
        self._bytes += len(data)

    def promise(self, digest: str) -> bool:
        """As :meth:`has`, for a client that is about to join: if it is here it outlives the job that holds it now."""
        known = self.has(digest)
        if known:
            self._promised[digest] += 1
        return known

    def keep_promise(self, digest: str) -> None:
        """A client that was told about it has joined."""
        if self._promised[digest] > 1:
            self._promised[digest] -= 1
        else:
            del self._promised[digest]

    def get(self, digest: str) -> bytes:
        """The bytes.

        Raises:
            ServiceError: if they aren't here.
        """
        if not self.has(digest):
            raise ServiceError(f"the dispatcher has no blob {digest}; the job that it belonged to is over")
        return self._blobs[digest]

    def hold(self, job: str, digest: str) -> None:
        """The job needs it as long as it lives."""
        self._holders.setdefault(digest, set()).add(job)

    def drop(self, job: str) -> None:
        """The job is over: what nobody else needs goes."""
        for digest in [name for name, jobs in self._holders.items() if job in jobs]:
            self._holders[digest].discard(job)
            if not self._holders[digest]:
                del self._holders[digest]
                if digest not in self._promised:
                    self._bytes -= len(self._blobs.pop(digest, b""))
