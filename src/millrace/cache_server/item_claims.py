"""Item claims: who is to fetch what is missing in a cache server, so that each item is fetched once for all. Pure.

Quiver calls this co-operative miss handling (section 5.2).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable
from typing import NamedTuple


class Asker(NamedTuple):
    """Question of a peer.

    Attributes:
        peer: who asks.
        number: by which the peer knows the question.
    """

    peer: Hashable
    number: int


class _Claim:
    """Claim on a missing item.

    Attributes:
        owner: who is to fetch it.
        until: time at which the claim passes on.
        waiting: those who asked meanwhile, in order.
    """

    __slots__ = ("owner", "until", "waiting")

    def __init__(self, owner: Asker, until: float) -> None:
        self.owner, self.until = owner, until
        self.waiting: list[Asker] = []


class ItemClaims:
    """Claims on what is missing.

    Args:
        claim_s: seconds that a fetch may take before somebody else is to try.
    """

    def __init__(self, claim_s: float) -> None:
        self._claim_s = claim_s
        self._claims: dict[bytes, _Claim] = {}  # in the order in which they run out
        self._keys: dict[Hashable, set[bytes]] = {}  # by peer, of claims that it owns or waits for
        self._askers = Counter[Hashable]()  # by peer, its questions that own a claim or wait for one

    def __len__(self) -> int:
        return len(self._claims)

    def asked_by(self, peer: Hashable) -> int:
        """Count the questions of a peer for what it fetches or waits for."""
        return self._askers[peer]

    def ask(self, key: bytes, asker: Asker, now: float) -> bool:
        """Take in a question for what is missing.

        Returns:
            whether the asker is to fetch it; if not, it waits for who does.
        """
        self._keys.setdefault(asker.peer, set()).add(key)
        self._askers[asker.peer] += 1
        claim = self._claims.get(key)
        if claim is None:
            self._claims[key] = _Claim(asker, now + self._claim_s)
            return True
        claim.waiting.append(asker)
        return False

    def inserted(self, key: bytes) -> list[Asker]:
        """End the claim on what is there now.

        Returns:
            those who wait for it, in order.
        """
        claim = self._claims.pop(key, None)
        if claim is None:
            return []
        askers = [claim.owner, *claim.waiting]
        self._answered(askers)
        self._forget(key, askers)
        return claim.waiting

    def release(self, key: bytes, peer: Hashable, now: float) -> Asker | None:
        """Have somebody else fetch what ``peer`` could not.

        Returns:
            who is to fetch it; None if nobody waits, or the claim isn't the peer's any more.
        """
        claim = self._claims.get(key)
        if claim is None or claim.owner.peer != peer:
            return None
        return self._pass_on(key, claim, now)

    def leave(self, peer: Hashable, now: float) -> list[Asker]:
        """Let go of all that a peer fetches and waits for, which has gone.

        Returns:
            those who are to fetch in its place.
        """
        heirs = []
        for key in sorted(self._keys.pop(peer, ())):
            claim = self._claims[key]
            claim.waiting = [asker for asker in claim.waiting if asker.peer != peer]
            if claim.owner.peer == peer and (heir := self._pass_on(key, claim, now)) is not None:
                heirs.append(heir)
        self._askers.pop(peer, None)
        return heirs

    def expire(self, now: float) -> list[Asker]:
        """Pass on the claims whose owners have taken too long.

        Returns:
            those who are to fetch in their place.
        """
        over = []
        for key, claim in self._claims.items():
            if claim.until > now:
                break
            over.append((key, claim))
        return [heir for key, claim in over if (heir := self._pass_on(key, claim, now)) is not None]

    @property
    def next_expiry(self) -> float | None:
        """Time at which a claim passes on, if nothing happens before; None: there is no claim."""
        return next((claim.until for claim in self._claims.values()), None)

    def _pass_on(self, key: bytes, claim: _Claim, now: float) -> Asker | None:
        del self._claims[key]
        before = claim.owner
        self._answered([before])
        if not claim.waiting:
            self._forget(key, [before])
            return None
        claim.owner, claim.until = claim.waiting.pop(0), now + self._claim_s
        self._claims[key] = claim
        if all(asker.peer != before.peer for asker in (claim.owner, *claim.waiting)):
            self._forget(key, [before])
        return claim.owner

    def _answered(self, askers: Iterable[Asker]) -> None:
        for asker in askers:
            self._askers[asker.peer] -= 1
            if self._askers[asker.peer] <= 0:
                del self._askers[asker.peer]

    def _forget(self, key: bytes, askers: Iterable[Asker]) -> None:
        for peer in {asker.peer for asker in askers}:
            keys = self._keys.get(peer)
            if keys is not None:
                keys.discard(key)
                if not keys:
                    del self._keys[peer]
