"""Item server: gives workers what it has, has one of them fetch what is missing, and keeps what that one inserts."""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from millrace.cache_server.item_exchange import ItemExchange, ItemReply, checked_key, examined
from millrace.cache_server.item_store import ItemStore, StoredItem
from millrace.errors import MillraceError
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

_Answer = ItemReply[StoredItem]

_logger = logging.getLogger(__name__)


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
        self._exchange = ItemExchange(store.find, claim_s)
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
            return SourceCounts(**self._exchange.counts, items=items, bytes=size)

    # -- peers ---------------------------------------------------------------------------------------------------------

    def _serve(self, connection: DataConnection) -> None:
        peer = _Peer(connection, self._store)
        tenant = connection.claims
        try:
            while True:
                message, payload = connection.receive(msg.CACHE_REQUEST, limit=msg.MOST_ITEM_BYTES)
                match message:
                    case msg.AskItems():
                        self._asked(peer, tenant, message)
                    case msg.InsertItem():
                        self._inserted(peer, tenant, message, memoryview(payload).cast("B"))
                    case msg.ReleaseItem(key=key):
                        self._released(peer, checked_key(tenant, key))
        finally:
            self._left(peer)

    def _asked(self, peer: _Peer, tenant: bytes, asked: msg.AskItems) -> None:
        # With the lock held, as what is inserted between the look-up and the claim would be fetched again.
        with self._lock:
            self._give(self._exchange.asked(peer, tenant, asked, peer.unsent, time.monotonic()))

    def _inserted(self, peer: _Peer, tenant: bytes, message: msg.InsertItem, data: memoryview) -> None:
        insert = examined(tenant, message.key, data, message.label)
        kept = self._store.add(data, insert.content, insert.name, message.label) if insert.right else None
        with self._lock:
            self._give(self._exchange.inserted(insert, peer, data, kept, time.monotonic()))

    def _released(self, peer: _Peer, key: bytes) -> None:
        with self._lock:
            self._give(self._exchange.released(key, peer, time.monotonic()))

    def _left(self, peer: _Peer) -> None:
        with self._lock:
            self._give(self._exchange.left(peer, time.monotonic()))
        peer.close()

    def _give(self, answers: Sequence[_Answer]) -> None:
        """Have answers sent, with the lock held."""
        for answer in answers:
            assert isinstance(answer.peer, _Peer)
            answer.peer.give(answer)
        if any(answer.fetch for answer in answers):
            self._changed.notify_all()  # a claim has begun

    def _pass_on_late(self) -> None:
        """Pass on claims whose time is over; on a thread of its own."""
        with self._lock:
            while not self._over:
                due = self._exchange.next_expiry
                self._changed.wait(None if due is None else max(0.0, due - time.monotonic()))
                self._give(self._exchange.expired(time.monotonic()))


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
                answer = ItemReply(self, answer.number)
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
        except Exception:  # a bug of ours must not leave the peer waiting
            _logger.exception("cannot answer %s", self._connection.peer)
            self._connection.close()

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
