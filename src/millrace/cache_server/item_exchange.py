"""Item exchange: answers of a cache server to its peers, as they ask, insert, release and go. Pure.

The shell around it (:mod:`millrace.cache_server.item_server`) has connections, threads and the store of items.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

from millrace.cache_server.item_claims import Asker, ItemClaims
from millrace.errors import ProtocolError
from millrace.protocol import source_cache_messages as msg

if TYPE_CHECKING:
    from typing_extensions import Buffer


class Stored(Protocol):
    """Item as its store has it."""

    @property
    def size(self) -> int:
        """Bytes of it."""


I = TypeVar("I", bound=Stored)  # noqa: E741 - an item
Find = Callable[[Sequence[bytes], Sequence[bytes]], tuple[list[I | None], list[I | None]]]
"""Looks up contents and names: the items of both, None where there is none."""


class ItemReply(NamedTuple, Generic[I]):
    """Answer to a question: an item, or its bytes where it isn't kept, or neither: whoever asked is to fetch it."""

    peer: Hashable
    number: int
    item: I | None = None
    data: bytes | None = None

    @property
    def fetch(self) -> bool:
        """Whether who asked is to fetch it."""
        return self.item is None and self.data is None


class Insert(NamedTuple):
    """Item that a peer inserts.

    Attributes:
        key: under which it is asked for, the tenant put into it if it is a name.
        content: hash of its bytes.
        name: under which it is kept, too; None: under none.
        right: whether the bytes are what the key says.
    """

    key: bytes
    content: bytes
    name: bytes | None
    right: bool


class ItemExchange(Generic[I]):
    """Answers of a cache server. Not thread-safe: between a look-up and the claim that follows nothing may be inserted.

    Args:
        find: looks up items in the store.
        claim_s: see :class:`~millrace.cache_server.item_claims.ItemClaims`.

    Attributes:
        counts: by name, see :class:`~millrace.protocol.cache_server_messages.SourceCounts`.
    """

    def __init__(self, find: Find[I], claim_s: float) -> None:
        self._find = find
        self._claims = ItemClaims(claim_s)
        self.counts = Counter[str]()

    @property
    def next_expiry(self) -> float | None:
        """Time at which a claim passes on, if nothing happens before; None: there is no claim."""
        return self._claims.next_expiry

    def asked(self, peer: Hashable, tenant: bytes, asked: msg.AskItems, unsent: int, now: float) -> list[ItemReply[I]]:
        """Take in questions of a peer.

        Args:
            peer: who asks.
            tenant: for whom.
            asked: the questions.
            unsent: answers that wait to be sent to it.
            now: time, in seconds.

        Raises:
            ProtocolError: the peer must not ask so.
        """
        if len(asked.numbers) != len(asked.keys):
            raise ProtocolError(f"{len(asked.numbers)} numbers came for {len(asked.keys)} keys")
        if self._claims.asked_by(peer) + unsent + len(asked.keys) > msg.MOST_ASKED:
            raise ProtocolError(f"more than {msg.MOST_ASKED} questions wait for their answers")
        if not asked.keys:
            return [ItemReply(peer, 0, data=b"")]  # it lives, under a number that is nobody's
        keys = [checked_key(tenant, key) for key in asked.keys]
        return [
            answer
            for number, key, item in zip(asked.numbers, keys, self._look_up(keys), strict=True)
            if (answer := self._answer(Asker(peer, number), key, item, now)) is not None
        ]

    def _look_up(self, keys: Sequence[bytes]) -> list[I | None]:
        contents = [key[1:] for key in keys if key[:1] == msg.CONTENT]
        names = [key[1:] for key in keys if key[:1] == msg.NAME]
        by_content, by_name = map(iter, self._find(contents, names))
        return [next(by_content if key[:1] == msg.CONTENT else by_name) for key in keys]

    def _answer(self, asker: Asker, key: bytes, item: I | None, now: float) -> ItemReply[I] | None:
        """Answer a question; None: the answer comes once who fetches the item has inserted it."""
        if item is not None:
            self.counts["hits"] += 1
            self.counts["hit_bytes"] += item.size
            return ItemReply(*asker, item)
        if self._claims.ask(key, asker, now):
            self.counts["misses"] += 1
            return ItemReply(*asker)
        self.counts["joined"] += 1
        return None

    def inserted(
        self, insert: Insert, peer: Hashable, data: memoryview, kept: I | None, now: float
    ) -> list[ItemReply[I]]:
        """Take in what a peer has inserted.

        Args:
            insert: from :func:`examined`.
            peer: who has inserted it.
            data: its bytes.
            kept: the item as it is in the store now; None: it isn't kept.
            now: time, in seconds.
        """
        if not insert.right:
            # The file has changed since its digest was made, or somebody lies: either is that peer's own trouble.
            self.counts["wrong"] += 1
            return self.released(insert.key, peer, now)
        waiting = self._claims.inserted(insert.key)
        self.counts["inserted"] += 1
        self.counts["inserted_bytes"] += data.nbytes
        self.counts["refused"] += kept is None
        copy = bytes(data) if waiting and kept is None else None
        return [ItemReply(*asker, kept, copy) for asker in waiting]

    def released(self, key: bytes, peer: Hashable, now: float) -> list[ItemReply[I]]:
        """Have somebody else fetch what a peer could not; ``key`` is from :func:`checked_key`."""
        heir = self._claims.release(key, peer, now)
        return self._orders([] if heir is None else [heir])

    def left(self, peer: Hashable, now: float) -> list[ItemReply[I]]:
        """Have others fetch what a peer was to, which has gone."""
        return self._orders(self._claims.leave(peer, now))

    def expired(self, now: float) -> list[ItemReply[I]]:
        """Have others fetch what those who were to have taken too long for."""
        return self._orders(self._claims.expire(now))

    def _orders(self, heirs: Sequence[Asker]) -> list[ItemReply[I]]:
        self.counts["passed_on"] += len(heirs)
        return [ItemReply(*heir) for heir in heirs]


def examined(tenant: bytes, key: bytes, data: memoryview, label: bytes) -> Insert:
    """Examine what a peer of a tenant inserts.

    Raises:
        ProtocolError: the key or the label is none.
    """
    checked = checked_key(tenant, key)
    if len(label) > msg.MOST_LABEL_BYTES:
        raise ProtocolError(f"{len(label)} bytes came as the label of an item")
    content = content_of(data)
    right = checked[:1] != msg.CONTENT or checked[1:] == content
    return Insert(checked, content, checked[1:] if checked[:1] == msg.NAME else None, right)


def content_of(data: Buffer) -> bytes:
    """Hash an item's bytes: SHA-256."""
    return hashlib.sha256(data).digest()


def checked_key(tenant: bytes, key: bytes) -> bytes:
    """Check a key, and put the tenant into it if it is a name.

    Raises:
        ProtocolError: it is none.
    """
    if len(key) != msg.KEY_BYTES or key[:1] not in {msg.NAME, msg.CONTENT}:
        raise ProtocolError(f"{len(key)} bytes came as the key of an item")
    if key[:1] == msg.CONTENT:
        return key
    return msg.NAME + hashlib.sha256(len(tenant).to_bytes(4, "big") + tenant + key[1:]).digest()
