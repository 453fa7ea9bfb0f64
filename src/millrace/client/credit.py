"""Credit of workers: how much each may send to a consumer, whose buffer bounds what it holds. Pure.

A consumer's bytes are granted to workers ahead of time, which send without asking. A worker whose next message is
larger than its credit gives the credit back and names the size (``Short``); it is served as soon as so much is free.
Beyond the buffer comes what is needed to get on: a message that the user waits for, or tasks that other ranks wait for.
"""

from __future__ import annotations

AHEAD = 2
"""One part in so many of the buffer is granted ahead of time, to all workers together."""


class CreditPool:
    """Share ``total`` bytes out to workers. Callers hold a lock.

    At all times, what is granted and what has arrived and was not used is at most ``total``, or one message more for
    each :meth:`force`. Where a user waits that is one message, as it is used before the next one is needed. A consumer
    that may not use yet what it has forces message after message of the tasks that others wait for.

    Methods that return a dict say what to grant now: bytes by worker.
    """

    def __init__(self, total: int) -> None:
        self.total = total
        self.held = 0
        """Bytes that have arrived and were not used."""
        self._granted: dict[str, int] = {}
        self._short: dict[str, int] = {}  # by worker, the size of the message it could not send; oldest first
        self._forced: str | None = None

    @property
    def free(self) -> int:
        """Bytes that are neither granted nor held; negative after :meth:`force`."""
        return self.total - self.held - sum(self._granted.values())

    @property
    def share(self) -> int:
        """Bytes that are granted ahead to each worker."""
        return max(self.total // (AHEAD * max(1, len(self._granted))), 1)

    def join(self, worker: str) -> dict[str, int]:
        """Note that there is a connection to ``worker``."""
        self.leave(worker)
        self._granted[worker] = 0
        return self._top_up(worker)

    def leave(self, worker: str) -> dict[str, int]:
        """Note that the connection is gone."""
        self._granted.pop(worker, None)
        self._short.pop(worker, None)
        if self._forced == worker:
            self._forced = None
        return self._serve()

    def arrived(self, worker: str, size: int) -> None:
        """Note a payload of ``size`` bytes from ``worker``; 0: the bare mark of an end, which takes no credit."""
        if not size:
            return  # if the worker is short, it still is, of another task
        self.held += size
        if worker in self._granted:
            self._granted[worker] -= size
        self._short.pop(worker, None)  # it could send after all, with credit that was on its way
        if self._forced == worker:
            self._forced = None

    def clear(self) -> dict[str, int]:
        """Drop all that has arrived."""
        self.held = 0
        grants = self._serve()
        for worker in self._granted:
            for name, amount in self._top_up(worker).items():
                grants[name] = grants.get(name, 0) + amount
        return grants

    def used(self, worker: str, size: int) -> dict[str, int]:
        """Note that a payload was handed to the user, or dropped."""
        self.held -= size
        grants = self._serve()
        if worker in self._granted:
            for name, amount in self._top_up(worker).items():
                grants[name] = grants.get(name, 0) + amount
        return grants

    def short(self, worker: str, size: int, returned: int) -> dict[str, int]:
        """Take back ``returned`` bytes from ``worker``, whose next message has ``size``; 0: it has none any more."""
        if worker not in self._granted:
            return {}
        self._granted[worker] -= returned
        self._short.pop(worker, None)
        if size:
            self._short[worker] = size
        if self._forced == worker:  # part of what was granted came back with it
            self._forced = None
        return self._serve()

    def force(self, worker: str | None) -> dict[str, int]:
        """Let in one message of ``worker`` (None: of any) that somebody waits for, even if that exceeds the total."""
        if self._forced is not None or not self._short:
            return {}
        name = min(self._short, key=self._short.__getitem__) if worker is None else worker
        if name not in self._short:
            return {}
        self._forced = name
        return {name: self._grant(name)}

    def _serve(self) -> dict[str, int]:
        """Serve those that wait, oldest first; nobody overtakes, so that large messages get through."""
        grants = {}
        while self._short:
            name, size = next(iter(self._short.items()))
            if size - self._granted[name] > self.free:
                break
            grants[name] = self._grant(name)
        return grants

    def _grant(self, name: str) -> int:
        amount = max(self._short.pop(name) - self._granted[name], 0)
        self._granted[name] += amount
        return amount

    def _top_up(self, name: str) -> dict[str, int]:
        """Grant ahead of need, in pieces worth a message, unless somebody waits."""
        share, granted = self.share, self._granted[name]
        amount = min(share - granted, self.free)
        if self._short or granted > share - max(share // 4, 1) or amount <= 0:
            return {}
        self._granted[name] += amount
        return {name: amount}
