"""Bytes that the dispatcher keeps for workers without looking into them: functions of jobs, split tables."""

from __future__ import annotations

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
        if self._bytes + len(data) > self._limit:
            raise ServiceError(
                f"the dispatcher keeps {self._bytes:,} bytes for its jobs and cannot take {len(data):,} more "
                f"(limit {self._limit:,}); end a job, or read large data from files, not from variables of functions"
            )
        self._blobs[digest] = data
        self._bytes += len(data)

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
                blob = self._blobs.pop(digest, None)
                self._bytes -= len(blob) if blob is not None else 0
