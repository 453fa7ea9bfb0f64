"""Credit of sources: how much each may send to a consumer, whose buffer bounds what it holds. Pure.

A source is a worker or, where a consumer reads several slots, one slot of a worker: so that what lies ready in one slot
cannot take the room of what is read next in another. A consumer's bytes are granted to sources ahead of time, which
send without asking. A source whose next message is larger than its credit gives the credit back and names the size
(``Short``); it is served as soon as so much is free. Beyond the buffer comes what is needed to get on: a message that
the user waits for, or tasks that other ranks wait for.
"""

from __future__ import annotations

from millrace.client.epoch_buffer import Source
from millrace.errors import ElementTooLargeError

AHEAD = 2
"""One part in so many of the buffer is granted ahead of time, to all sources together."""


class CreditPool:
    """Share ``total`` bytes out to sources. Callers hold a lock.

    At all times, what is granted and what has arrived and was not used is at most ``total``, or one message more for
    each :meth:`force`. Where a user waits that is one message, as it is used before the next one is needed. A consumer
    that may not use yet what it has forces message after message of the tasks that others wait for.

    Methods that return a dict say what to grant now: bytes by source.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        """Bytes that have arrived and were not used."""
        self._granted: dict[Source, int] = {}
        self._short: dict[Source, int] = {}  # by source, the size of the message it could not send; oldest first
        self._forced: Source | None = None

    @property
    def free(self) -> int:
        """Bytes that are neither granted nor held; negative after :meth:`force`."""
        return self.total - self.held - sum(self._granted.values())

    @property
    def share(self) -> int:
        """Bytes that are granted ahead to each source."""
        return max(self.total // (AHEAD * max(1, len(self._granted))), 1)

    def join(self, source: Source) -> dict[Source, int]:
        """Note that there is a connection to ``source``."""
        self._drop(source)
        self._granted[source] = 0
        return self._top_up(source)

    def has(self, source: Source) -> bool:
        """Whether there is a connection to ``source``."""
        return source in self._granted

    def leave(self, address: str) -> dict[Source, int]:
        """Note that the connection to a worker is gone, and so all sources there."""
        for source in [source for source in self._granted if source[0] == address]:
            self._drop(source)
        return self._serve()

    def _drop(self, source: Source) -> None:
        self._granted.pop(source, None)
        self._short.pop(source, None)
        if self._forced == source:
            self._forced = None

    def arrived(self, source: Source, size: int) -> None:
        """Note a payload of ``size`` bytes from ``source``; 0: the bare mark of an end, which takes no credit."""
        if not size:
            return  # if the source is short, it still is, of another task
        self.held += size
        if source in self._granted:
            self._granted[source] -= size
        self._short.pop(source, None)  # it could send after all, with credit that was on its way
        if self._forced == source:
            self._forced = None

    def clear(self) -> dict[Source, int]:
        """Drop all that has arrived."""
        self.held = 0
        grants = self._serve()
        for source in self._granted:
            for topped, amount in self._top_up(source).items():
                grants[topped] = grants.get(topped, 0) + amount
        return grants

    def used(self, source: Source, size: int) -> dict[Source, int]:
        """Note that a payload was handed to the user, or dropped."""
        self.held -= size
        grants = self._serve()
        if source in self._granted:
            for topped, amount in self._top_up(source).items():
                grants[topped] = grants.get(topped, 0) + amount
        return grants

    def short(self, source: Source, size: int, returned: int, *, dropped: bool = False) -> dict[Source, int]:
        """Take back ``returned`` bytes from ``source``, whose next message has ``size``; 0: it has none any more.

        What may be ``dropped`` as it comes takes no room, and others may wait until it has come.
        """
        if source not in self._granted:
            return {}
        self._granted[source] -= returned
        self._short.pop(source, None)
        if size:
            self._short[source] = size
        if self._forced == source:  # part of what was granted came back with it
            self._forced = None
        grants = self._serve()
        return grants | {source: self._grant(source)} if dropped and source in self._short else grants

    def force(self, source: Source | None) -> dict[Source, int]:
        """Let in one message of ``source`` (None: of any) that somebody waits for, even if that exceeds the total."""
        if self._forced is not None or not self._short:
            return {}
        chosen = min(self._short, key=self._short.__getitem__) if source is None else source
        if chosen not in self._short:
            return {}
        self._forced = chosen
        return {chosen: self._grant(chosen)}

    def _serve(self) -> dict[Source, int]:
        """Serve those that wait, oldest first; nobody overtakes, so that large messages get through."""
        grants = {}
        while self._short:
            source, size = next(iter(self._short.items()))
            if size - self._granted[source] > self.free:
                break
            grants[source] = self._grant(source)
        return grants

    def _grant(self, source: Source) -> int:
        amount = max(self._short.pop(source) - self._granted[source], 0)
        self._granted[source] += amount
        return amount

    def _top_up(self, source: Source) -> dict[Source, int]:
        """Grant ahead of need, in pieces worth a message, unless somebody waits."""
        share, granted = self.share, self._granted[source]
        amount = min(share - granted, self.free)
        if self._short or granted > share - max(share // 4, 1) or amount <= 0:
            return {}
        self._granted[source] += amount
        return {source: amount}


def too_large(size: int, total: int) -> ElementTooLargeError:
    """Error for one element of ``size`` bytes where a consumer holds ``total`` at most."""
    return ElementTooLargeError(
        f"an element of {size:,} bytes is more than this process's buffer of {total:,}: "
        f"yield smaller elements (smaller batches), or raise with_options(buffer_bytes=...)"
    )
