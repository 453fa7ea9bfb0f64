"""Source cache: stored bytes by way of cache servers, as a worker's reads ask for them.

A cache server that doesn't answer is none: then the store is asked, as it would be without.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import queue
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.errors import MillraceError, ProtocolError
from millrace.planning import rendezvous
from millrace.planning.split_table import stamp_of
from millrace.protocol import source_cache_messages as msg
from millrace.sources.read_scheduler import Request
from millrace.sources.store_requests import Entry, RequestWatch
from millrace.wire.address import parse_address
from millrace.wire.backoff import delays
from millrace.wire.data.data_connection import DataConnection, open_data_connection
from millrace.wire.data.data_keys import Credential
from millrace.wire.data.frames import aligned_buffer
from millrace.wire.tls_files import TlsFiles, beyond_loopback
from millrace.worker.item_questions import FETCH, ItemAnswer, ItemQuestions, NextStep, next_step

_CONNECT_S = 10.0
PING_S = 1.0
"""Seconds after which a server that owes an answer is asked whether it lives."""
SILENT_S = 4.0
"""Seconds after which a server that owes an answer, and says nothing at all, is taken to hang."""
LEAST_RATE = 4 << 20
"""Bytes a second at which an item is sent or received at least, unless the other end hangs."""
WAIT_S = 90.0
"""Seconds for which others may fetch what is waited for: three of them in turn."""
_TOGETHER = 256
"""Questions and inserts that are sent without looking for more."""
_UNSENT_BYTES = 64 << 20
"""Bytes of inserts that wait to be sent to a server, at most; who has more to insert waits."""

_logger = logging.getLogger(__name__)


def key_of(entry: Entry) -> bytes | None:
    """Make the key of an entry's bytes: of their hash if a digest has it, else of where they lie.

    None: nobody would see that they changed, or they are too many. The size of a shard is not known where a piece of it
    was listed; its version is another one as soon as it has changed.
    """
    if entry.content and 0 < entry.bytes <= msg.MOST_ITEM_BYTES:
        return msg.CONTENT + entry.content
    stamp = stamp_of(entry.version) if isinstance(entry.version, str) else entry.version
    if not stamp or not 0 < entry.bytes <= msg.MOST_ITEM_BYTES:
        return None
    what = (entry.location, entry.size, stamp, entry.start, entry.stop)
    return msg.NAME + hashlib.sha256(msgspec.msgpack.encode(what)).digest()


def connect(address: str, tenant: str, key: bytes, tls: TlsFiles | None) -> DataConnection:
    """Connect to a cache server, for jobs of a tenant.

    Raises:
        ServiceError: it can't be reached, or isn't the one that knows the key.
    """
    return open_data_connection(
        address,
        None,
        _CONNECT_S,
        local=False,
        sockets=1,
        credential=Credential(key, tenant.encode()),
        tls=beyond_loopback(tls, parse_address(address)[0]),
    )


class SourceCache:
    """Cache of stored bytes, for the reads of one job in this process. Thread-safe.

    Args:
        connect: opens a connection to the cache server of an address.
        servers: their addresses.

    Attributes:
        label: finds the label of what was read; None: there are no labels.
        past: whether the store is asked for all, as the job is measured without the cache.
    """

    def __init__(self, connect: Callable[[str], DataConnection], servers: Sequence[str]) -> None:
        self._connect = connect
        self.label: Callable[[Entry], bytes] | None = None
        self.past = False
        self._lock = threading.Lock()
        self._links: dict[str, _Link] = {}
        self._order: list[_Link] = []
        self._owners: npt.NDArray[np.int32] = np.zeros(0, np.int32)
        self._under_way: dict[bytes, Future[bytes]] = {}
        self._closed = False
        self.use(servers)

    def use(self, servers: Sequence[str]) -> None:
        """Ask these servers from now on; a key belongs to the same one for all who know the same servers."""
        with self._lock:
            if self._closed:
                return
            gone = [link for address, link in self._links.items() if address not in servers]
            self._links = {each: self._links.get(each) or _Link(each, self._connect) for each in servers}
            self._order = list(self._links.values())
            if self._order:
                self._owners = rendezvous.owners(list(self._links))
        for link in gone:
            link.close()

    @property
    def there(self) -> bool:
        """Whether there is any cache server."""
        return bool(self._order)

    def tier(self, fetch: Request) -> Request:
        """Make a request that asks the cache first, from one that asks the store."""

        def read(entry: Entry, watch: RequestWatch) -> bytes:
            # A second request is made where the first one takes long at the store.
            key = None if watch.second or self.past else key_of(entry)
            return fetch(entry, watch) if key is None else self._read(key, entry, lambda: fetch(entry, watch))

        return read

    def _read(self, key: bytes, entry: Entry, fetch: Callable[[], bytes]) -> bytes:
        """Read the bytes of a key; two threads that ask for the same ones read them once."""
        with self._lock:
            future = self._under_way.get(key)
            mine = future is None
            if future is None:
                future = self._under_way[key] = Future()
        if not mine:
            # Whatever keeps the other from it (that nobody wants it there any more, say) need not keep this one.
            return fetch() if future.exception() is not None else future.result()
        try:
            data = self._obtain(key, entry, fetch)
        except BaseException as error:
            future.set_exception(error)
            raise
        else:
            future.set_result(data)
            return data
        finally:
            with self._lock:
                del self._under_way[key]

    def _obtain(self, key: bytes, entry: Entry, fetch: Callable[[], bytes]) -> bytes:
        with self._lock:
            link = self._order[self._owners[rendezvous.slot_of(key)]] if self._order else None
        answer = None if link is None else link.ask(key)
        step = next_step(answer, entry.bytes)
        if step is NextStep.USE:
            assert isinstance(answer, bytes)
            if not entry.content or hashlib.sha256(answer).digest() == entry.content:
                return answer
            assert link is not None
            link.warn_of_other_bytes()
            return fetch()
        if link is None or step is NextStep.FETCH:
            return fetch()
        try:
            data = fetch()
        except BaseException:
            link.release(key)
            raise
        link.insert(key, data, b"" if self.label is None else self.label(entry))
        return data

    def close(self) -> None:
        """End the connections; what is asked for later comes from the store. Idempotent."""
        with self._lock:
            self._closed = True
            links, self._links, self._order = self._order, {}, []
        for link in links:
            link.close()


class _Link:
    """Link to a cache server, which is connected when it is first asked, and anew after it was lost."""

    def __init__(self, address: str, connect: Callable[[str], DataConnection]) -> None:
        self.address, self._connect = address, connect
        self._connecting = threading.Lock()
        self._session: _Session | None = None
        self._pauses = delays()
        self._not_before = 0.0
        self._failed = self._told = self._closed = self._gave_others = False

    def warn_of_other_bytes(self) -> None:
        """Say, once, that the server has given bytes under a hash that is not theirs."""
        if not self._gave_others:
            self._gave_others = True
            _logger.warning(
                "cache server %s gave bytes whose hash is not the one that it was asked for: its disk or memory is "
                "damaged, or it is none of ours; the store is asked for these",
                self.address,
            )

    def ask(self, key: bytes) -> ItemAnswer:
        """Ask for a key, and wait for the answer."""
        session = self._opened()
        if session is None:
            return None
        answer = session.ask(key)
        if answer is not None:
            self._pauses = delays()
        return answer

    def insert(self, key: bytes, data: bytes, label: bytes) -> None:
        """Have an item kept; waits while too much is on its way."""
        if (session := self._session) is not None:
            session.insert(key, data, label)

    def release(self, key: bytes) -> None:
        """Have others fetch what could not be fetched here."""
        if (session := self._session) is not None:
            session.say(msg.ReleaseItem(key))

    def _opened(self) -> _Session | None:
        """Find the session, or open it; None: the server can't be reached."""
        if not self._failed:
            self._open_first()
        session = self._session
        if session is not None and session.live:
            return session
        self._failed = True
        # Nobody waits for a server that is away: it is looked for beside.
        with contextlib.suppress(RuntimeError):  # no thread is to be had
            self._look_again()
        return None

    def _open_first(self) -> None:
        with self._connecting:
            if self._session is None and not self._failed:
                self._open()

    def _look_again(self) -> None:
        if not self._connecting.acquire(blocking=False):
            return
        try:
            now = time.monotonic()
            if now >= self._not_before and not self._closed:
                self._not_before = now + next(self._pauses)
                threading.Thread(target=self._open_again, name="millrace-cache-connect", daemon=True).start()
        finally:
            self._connecting.release()

    def _open_again(self) -> None:
        with self._connecting:
            if not self._closed and (self._session is None or not self._session.live):
                self._open()

    def _open(self) -> None:
        """Connect, with the lock held."""
        try:
            session = _Session(self._connect(self.address))
        except (MillraceError, RuntimeError) as error:  # also if no threads are to be had
            level = logging.INFO if self._told else logging.WARNING
            _logger.log(level, "cache server %s can't be asked, so the store is: %s", self.address, error)
            self._failed = self._told = True
            return
        self._told = False
        self._session = session
        if self._closed:  # meanwhile
            session.close()

    def close(self) -> None:
        """End the session; does not wait."""
        self._closed = True
        if (session := self._session) is not None:
            session.close()


class _Session:
    """One connection to a cache server, with a thread that sends and one that receives."""

    def __init__(self, connection: DataConnection) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._unsent = 0
        self._questions = ItemQuestions[Future[ItemAnswer]](SILENT_S, LEAST_RATE)
        self._queue: queue.SimpleQueue[tuple[int | msg.CacheRequest, bytes] | None] = queue.SimpleQueue()
        self.live = True
        self._threads = [
            threading.Thread(target=work, name=f"millrace-cache-{connection.peer}", daemon=True)
            for work in (self._send_all, self._receive_all)
        ]
        try:
            for thread in self._threads:
                thread.start()
        except RuntimeError:
            self.close()
            raise

    def ask(self, key: bytes) -> ItemAnswer:
        future: Future[ItemAnswer] = Future()
        with self._lock:
            if not self.live:
                return None
            number = self._questions.ask(future, time.monotonic())
        self._queue.put((number, key))
        until = time.monotonic() + WAIT_S
        while (left := until - time.monotonic()) > 0:
            try:
                return future.result(min(left, PING_S))
            except TimeoutError:
                self._end_if_silent()  # the thread that sends may be what the other end keeps
        with self._lock:
            self._questions.forget(number)
        return FETCH  # also for those who still wait

    def say(self, message: msg.CacheRequest) -> None:
        self._queue.put((message, b""))

    def insert(self, key: bytes, data: bytes, label: bytes) -> None:
        while not self._reserve(len(data)):
            self._end_if_silent()
        if self.live:
            self._queue.put((msg.InsertItem(key, label), data))

    def _reserve(self, size: int) -> bool:
        """Wait for room for an insert of so many bytes; False: there was none for a while."""
        with self._room:
            fits = self._room.wait_for(
                lambda: not (self.live and self._unsent) or self._unsent + size <= _UNSENT_BYTES, PING_S
            )
            self._unsent += size if fits else 0
            return fits

    def close(self) -> None:
        """End the connection, and tell all who wait that there is no answer."""
        self._connection.close()
        with self._lock:
            self.live = False
            waiting = self._questions.end()
            self._room.notify_all()
        self._queue.put(None)
        for future in waiting:
            future.set_result(None)

    def _send_all(self) -> None:
        try:
            while (items := self._take()) is not None:
                asked = [(first, second) for first, second in items if isinstance(first, int)]
                if asked or not items:  # an empty question has the server say that it lives
                    self._connection.send(msg.AskItems([number for number, _ in asked], [key for _, key in asked]))
                for first, second in items:
                    if not isinstance(first, int):
                        self._send(first, second)
        except MillraceError as error:
            self._lost(error)

    def _take(self) -> list[tuple[int | msg.CacheRequest, bytes]] | None:
        """Wait for what is to be sent; nothing, after a while in which an answer is owed; None: the end."""
        with self._lock:
            owed = self._questions.owed
        try:
            items = [self._queue.get(timeout=PING_S if owed else None)]
        except queue.Empty:
            self._end_if_silent()
            return []
        with contextlib.suppress(queue.Empty):
            while len(items) < _TOGETHER and items[-1] is not None:
                items.append(self._queue.get_nowait())
        return None if items[-1] is None else [item for item in items if item is not None]

    def _send(self, message: msg.CacheRequest, data: bytes) -> None:
        with self._lock:
            self._questions.sends(len(data), time.monotonic())
        self._connection.send(message, [data])
        with self._room:
            self._questions.sent()
            self._unsent -= len(data)
            self._room.notify_all()

    def _end_if_silent(self) -> None:
        """End this session if its other end hangs."""
        with self._lock:
            silent = self._questions.is_silent(time.monotonic())
        if silent:
            self._lost(ProtocolError(f"{self._connection.peer} has said nothing for {SILENT_S:g} s"))

    def _allocate(self, size: int) -> Any:
        with self._lock:
            self._questions.moves(size, time.monotonic())
        return aligned_buffer(size)

    def _receive_all(self) -> None:
        try:
            while True:
                header, payload = self._connection.receive(msg.CACHE_ANSWER, self._allocate)
                self._take_in(header, memoryview(payload).cast("B"))
        except MillraceError as error:
            self._lost(error)

    def _take_in(self, header: msg.CacheAnswer, payload: memoryview) -> None:
        with self._lock:
            found = self._questions.heard(header, payload, time.monotonic())
        for future, answer in found:
            future.set_result(answer)

    def _lost(self, error: MillraceError) -> None:
        if self.live:
            _logger.warning("lost a cache server: %s. The store is asked meanwhile", error)
        self.close()
