"""Lobby: peers that have connected and are not let in yet, so many of each address and so many in all, for so long.

Who has said nothing yet goes first, and of those who has been there longest: an honest peer speaks as soon as it is
connected, so that it passes however many others come and are silent.
"""

from __future__ import annotations

import threading
from collections import Counter
from typing import Generic, TypeVar

K = TypeVar("K")


class _Waiting:
    __slots__ = ("address", "since", "spoke")

    def __init__(self, address: str, since: float) -> None:
        self.address, self.since, self.spoke = address, since, False


class Lobby(Generic[K]):
    """Peers that are not let in yet. Thread-safe.

    Args:
        seconds: that a peer may take, from its connection until what it is there for.
        per_address: peers of one address at a time.
        most: peers at a time.
    """

    def __init__(self, seconds: float, per_address: int, most: int) -> None:
        self._seconds, self._per_address, self._most = seconds, per_address, most
        self._lock = threading.Lock()
        self._waiting: dict[K, _Waiting] = {}  # the oldest first
        self._let_in: dict[K, float] = {}  # since when it is there, of those whose time runs on
        self._counts: Counter[str] = Counter()

    def __len__(self) -> int:
        return len(self._waiting)

    def __contains__(self, peer: K) -> bool:
        return peer in self._waiting

    def enter(self, peer: K, address: str, now: float) -> K | None:
        """Add a peer; return who has to go for it, if anybody has."""
        with self._lock:
            gone = None
            if self._counts[address] >= self._per_address:
                gone = self._first_of(address)
            elif len(self._waiting) >= self._most:
                ((most, _),) = self._counts.most_common(1)
                gone = self._first_of(most)
            if gone is not None:
                self._remove(gone)
            self._waiting[peer] = _Waiting(address, now)
            self._counts[address] += 1
            return gone

    def spoke(self, peer: K) -> None:
        """Note that a peer has begun to speak."""
        with self._lock:
            if peer in self._waiting:
                self._waiting[peer].spoke = True

    def let_in(self, peer: K) -> None:
        """Note that a peer is known: it counts no more, but its time runs on until :meth:`leave`."""
        with self._lock:
            if peer in self._waiting:
                self._let_in[peer] = self._waiting[peer].since
                self._remove(peer)

    def leave(self, peer: K) -> None:
        """Forget a peer: it is all right, or gone."""
        with self._lock:
            self._let_in.pop(peer, None)
            if peer in self._waiting:
                self._remove(peer)

    def turn_away(self) -> K | None:
        """Remove the one who has said nothing for longest, to make room; None if all have spoken."""
        with self._lock:
            gone = next((peer for peer, each in self._waiting.items() if not each.spoke), None)
            if gone is not None:
                self._remove(gone)
            return gone

    def overdue(self, now: float) -> list[K]:
        """Remove those whose time is over."""
        with self._lock:
            late = [peer for peer, each in self._waiting.items() if now >= each.since + self._seconds]
            for peer in late:
                self._remove(peer)
            known = [peer for peer, since in self._let_in.items() if now >= since + self._seconds]
            for peer in known:
                del self._let_in[peer]
            return late + known

    def deadline(self) -> float | None:
        """When the next one's time is over, on the clock of :meth:`enter`; None: nobody is there."""
        with self._lock:
            first = next(iter(self._waiting.values()), None)
            since = [*self._let_in.values()] if first is None else [first.since, *self._let_in.values()]
            return min(since) + self._seconds if since else None

    def _first_of(self, address: str) -> K:
        peers = [(each.spoke, peer) for peer, each in self._waiting.items() if each.address == address]
        return next((peer for spoke, peer in peers if not spoke), peers[0][1])

    def _remove(self, peer: K) -> None:
        address = self._waiting.pop(peer).address
        self._counts[address] -= 1
        if not self._counts[address]:
            del self._counts[address]
