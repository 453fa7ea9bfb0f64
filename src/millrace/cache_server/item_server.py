"""Item server: gives workers what it has, has one of them fetch what is missing, and keeps what that one inserts."""

from __future__ import annotations

import hashlib
import logging
import queue
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from millrace.cache_server.item_claims import Asker, ItemClaims
from millrace.cache_server.item_store import ItemStore, StoredItem, content_of
from millrace.errors import MillraceError, ProtocolError
from millrace.protocol import source_cache_messages as msg
from millrace.protocol.cache_server_messages import SourceCounts
from millrace.wire.data.data_connection import DataConnection, DataServer
from millrace.wire.tls_files import TlsFiles

CLAIM_S = 30.0
"""Seconds after which somebody else is to fetch what the owner of a claim has not inserted."""
_ANSWER_BYTES = 4 << 20
"""Bytes of items in one answer, about."""
_QUEUED_BYTES = 64 << 20
"""Bytes of items that aren't kept and wait to be sent to a peer, at most; others it has to read from the store."""

_logger = logging.getLogger(__name__)


class _Answer(NamedTuple):
    """Answer that waits to be sent: an item, or its bytes where it isn't kept, or neither: it is to be fetched."""

    number: int
    item: StoredItem | None = None
    data: bytes | None = None


_ALIVE = _Answer(0, data=b"")
"""Answer to a question without keys, under a number that is nobody's."""


class ItemServer:
    """Data port of a cache server, with threads for its peers.

    Args:
        host: where to listen; other than loopback demands a token and TLS, as of every data port.
        store: of the items; closed by the caller.
        port: 0 takes a free one.
        token: of the service; None: on loopback this user's own.
        key_of: finds the key of a peer by the tenant that it claims; None: the token is the key, of no tenant.
        tls: certificates of this host; None: none.
        insecure: that what is said can be heard on other networks than loopback is no mistake.
        claim_s: see :data:`CLAIM_S`.

    Attributes:
        address: ``host:port``.
    """

    def __init__(
        self,
        host: str,
        store: ItemStore,
        *,
        port: int = 0,
        token: str | None = None,
        key_of: Callable[[bytes], bytes] | None = None,
        tls: TlsFiles | None = None,
        insecure: bool = False,
        claim_s: float = CLAIM_S,
    ) -> None:
        self._store = store
        self._lock = threading.Lock()
        self._claims = ItemClaims(claim_s)
        self._counts = Counter[str]()
        self._changed = threading.Condition(self._lock)
        self._over = False
        self._watch = threading.Thread(target=self._pass_on_late, name="millrace-claims", daemon=True)
        self._server = DataServer(host, self._serve, port=port, token=token, key_of=key_of, tls=tls, insecure=insecure)
        self.address = self._server.address
        self._watch.start()

    def close(self) -> None:
        """End all connections. Idempotent."""
        with self._lock:
            self._over = True
            self._changed.notify_all()
        self._server.close()
        self._watch.join()

    @property
    def counts(self) -> SourceCounts:
        """Count what was asked for so far, and what there is."""
        items, size = self._store.totals
        with self._lock:
            return SourceCounts(**self._counts, items=items, bytes=size)

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _serve(self, connection: DataConnection) -> None:
        peer = _Peer(connection, self._store)
        tenant = connection.claims
        try:
            while True:
                message, payload = connection.receive(msg.CACHE_REQUEST, limit=msg.MOST_ITEM_BYTES)
                match message:
                    case msg.AskItems(numbers=numbers, keys=keys):
                        self._asked(peer, tenant, numbers, keys)
                    case msg.InsertItem(key=key, label=label):
                        self._inserted(peer, tenant, key, memoryview(payload).cast("B"), label)
                    case msg.ReleaseItem(key=key):
                        self._released(peer, _checked(tenant, key))
        finally:
            self._left(peer)

    def _asked(self, peer: _Peer, tenant: bytes, numbers: list[int], keys: list[bytes]) -> None:
        if len(numbers) != len(keys):
            raise ProtocolError(f"{len(numbers)} numbers came for {len(keys)} keys")
        if not keys:
            peer.give(_ALIVE)
            return
        checked = [_checked(tenant, key) for key in keys]
        # With the lock held, as what is inserted between the look-up and the claim would be fetched again.
        with self._lock:
            if self._claims.asked_by(peer) + peer.unsent + len(keys) > msg.MOST_ASKED:
                raise ProtocolError(f"more than {msg.MOST_ASKED} questions wait for their answers")
            found = self._look_up(checked)
            now = time.monotonic()
            for number, key, item in zip(numbers, checked, found, strict=True):
                if item is not None:
                    self._counts["hits"] += 1
                    self._counts["hit_bytes"] += item.size
                    peer.give(_Answer(number, item))
                elif self._claims.ask(key, Asker(peer, number), now):
                    self._counts["misses"] += 1
                    peer.give(_Answer(number))
                    self._changed.notify_all()
                else:
                    self._counts["joined"] += 1

    def _look_up(self, keys: list[bytes]) -> list[StoredItem | None]:
        contents = [key[1:] for key in keys if key[:1] == msg.CONTENT]
        names = [key[1:] for key in keys if key[:1] == msg.NAME]
        by_content, by_name = map(iter, self._store.find(contents, names))
        return [next(by_content if key[:1] == msg.CONTENT else by_name) for key in keys]

    def _inserted(self, peer: _Peer, tenant: bytes, key: bytes, data: memoryview, label: bytes) -> None:
        checked = _checked(tenant, key)
        if len(label) > msg.MOST_LABEL_BYTES:
            raise ProtocolError(f"{len(label)} bytes came as the label of an item")
        content = content_of(data)
        if checked[:1] == msg.CONTENT and checked[1:] != content:
            # The file has changed since its digest was made, or somebody lies: either is that peer's own trouble.
            with self._lock:
                self._counts["wrong"] += 1
            self._released(peer, checked)
            return
        name = checked[1:] if checked[:1] == msg.NAME else None
        kept = self._store.add(data, content, name, label)
        with self._lock:
            waiting = self._claims.inserted(checked)
            self._counts["inserted"] += 1
            self._counts["inserted_bytes"] += data.nbytes
            self._counts["refused"] += kept is None
            copy = bytes(data) if waiting and kept is None else None
            for asker in waiting:
                assert isinstance(asker.peer, _Peer)
                asker.peer.give(_Answer(asker.number, kept, copy))

    def _released(self, peer: _Peer, key: bytes) -> None:
        with self._lock:
            heir = self._claims.release(key, peer, time.monotonic())
            self._tell([] if heir is None else [heir])

    def _left(self, peer: _Peer) -> None:
        with self._lock:
            self._tell(self._claims.leave(peer, time.monotonic()))
        peer.close()

    def _tell(self, heirs: Sequence[Asker]) -> None:
        """Tell those who are to fetch in another's place, with the lock held."""
        self._counts["passed_on"] += len(heirs)
        for asker in heirs:
            assert isinstance(asker.peer, _Peer)
            asker.peer.give(_Answer(asker.number))
        if heirs:
            self._changed.notify_all()

    def _pass_on_late(self) -> None:
        """Pass on claims whose time is over; on a thread of its own."""
        with self._lock:
            while not self._over:
                due = self._claims.next_expiry
                self._changed.wait(None if due is None else max(0.0, due - time.monotonic()))
                self._tell(self._claims.expire(time.monotonic()))


class _Peer:
    """Peer, with a thread that sends to it, so that nobody waits for one that is slow."""

    def __init__(self, connection: DataConnection, store: ItemStore) -> None:
        self._connection, self._store = connection, store
        self._queue: queue.SimpleQueue[_Answer | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._held = 0
        self.unsent = 0
        """Answers that wait to be sent."""
        self._thread = threading.Thread(target=self._send_all, name=f"millrace-items-{connection.peer}", daemon=True)
        self._thread.start()

    def give(self, answer: _Answer) -> None:
        """Have an answer sent; does not wait."""
        with self._lock:
            if answer.data is not None and self._held + len(answer.data) > _QUEUED_BYTES:
                answer = _Answer(answer.number)
            self._held += len(answer.data or b"")
            self.unsent += 1
        self._queue.put(answer)

    def close(self) -> None:
        """End the thread; the connection is at its end."""
        self._connection.close()
        self._queue.put(None)
        self._thread.join()

    def _send_all(self) -> None:
        try:
            while (first := self._queue.get()) is not None:
                over = self._send(first)
                if over:
                    return
        except MillraceError:
            self._connection.close()  # the receiving thread sees it too, and cleans up

    def _send(self, answer: _Answer | None) -> bool:
        """Send an answer and those that wait behind it; whether the end was among them."""
        numbers: list[int] = []
        payload: list[Any] = []
        missing: list[int] = []
        size = 0
        while answer is not None:
            data = answer.data if answer.item is None else self._store.read(answer.item)
            if data is None:
                missing.append(answer.number)
            else:
                numbers.append(answer.number)
                payload.append(data)
                size += len(data)
            with self._lock:
                self._held -= len(answer.data or b"")
                self.unsent -= 1
            if size >= _ANSWER_BYTES:
                break
            try:
                answer = self._queue.get_nowait()
            except queue.Empty:
                break
        if missing:
            self._connection.send(msg.FetchItems(missing))
        if numbers:
            self._connection.send(msg.FoundItems(numbers, [len(data) for data in payload]), payload)
        return answer is None


def _checked(tenant: bytes, key: bytes) -> bytes:
    """Check a key, and put the tenant into it if it is a name.

    Raises:
        ProtocolError: it is none.
    """
    if len(key) != msg.KEY_BYTES or key[:1] not in {msg.NAME, msg.CONTENT}:
        raise ProtocolError(f"{len(key)} bytes came as the key of an item")
    if key[:1] == msg.CONTENT:
        return key
    return msg.NAME + hashlib.sha256(len(tenant).to_bytes(4, "big") + tenant + key[1:]).digest()
