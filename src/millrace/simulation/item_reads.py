"""Reads of stored files by a worker: :class:`millrace.worker.source_cache.SourceCache`, without threads and sockets.

What is asked whom, and what comes after an answer, is decided as there; a lost connection is looked for beside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import TYPE_CHECKING, NamedTuple

from millrace.planning import rendezvous
from millrace.protocol import source_cache_messages as msg
from millrace.simulation.virtual_network import Connection
from millrace.sources.store_requests import Entry
from millrace.wire.backoff import delays
from millrace.worker.chunk_labels import Label
from millrace.worker.item_questions import ItemAnswer, ItemQuestions, NextStep, next_step
from millrace.worker.source_cache import LEAST_RATE, PING_S, SILENT_S, key_of

if TYPE_CHECKING:
    from millrace.simulation.cache_server_fleet import Mishap
    from millrace.simulation.simulated_worker import SimulatedWorker

WAIT_S = 18.0
"""Seconds for which others may fetch what is waited for: three of them in turn, as in the service."""
_owners = lru_cache(256)(lambda servers: rendezvous.owners(servers).tolist())


@dataclass(eq=False)
class ItemsRead:
    """Files, or pieces of shards, that a run reads of its task: ``over`` once it has all.

    Attributes:
        lane: of the run.
        job: whose files they are.
        label: finds the label of what is read; None: the epoch is read as a whole.
        left: items that have not come.
    """

    lane: int
    job: str
    label: Label | None
    left: int

    @property
    def over(self) -> bool:
        """Whether all have come."""
        return not self.left


class Wanted(NamedTuple):
    """Item that a run waits for."""

    read: ItemsRead
    entry: Entry
    key: bytes


class Link:
    """Link to a cache server, for one job; as in the real one, it is opened when it is first needed."""

    def __init__(self, job: str, address: str) -> None:
        self.job, self.address = job, address
        self.session: Connection | None = None
        self.questions = ItemQuestions[Wanted](SILENT_S, LEAST_RATE)
        self.failed = self.closed = self.pinging = False
        self.not_before = 0.0
        self.pauses: Iterator[float] | None = None


class ItemReads:
    """Reads of one worker.

    Args:
        worker: that reads.

    Attributes:
        servers: addresses of the cache servers that it knows.
        past: jobs that read past them, to be measured.
        stored: bytes that came from the store, by job.
        cached: bytes that came from cache servers, by job.
    """

    def __init__(self, worker: SimulatedWorker) -> None:
        self._worker, self._network = worker, worker.network
        self._sources = worker.cluster.sources
        self.servers: list[str] = []
        self.past: list[str] = []
        self.stored, self.cached = Counter[str](), Counter[str]()
        self._links: dict[tuple[str, str], Link] = {}
        self._by_session: dict[Connection, Link] = {}

    def use(self, addresses: list[str], past: list[str]) -> None:
        """Ask these servers from now on, and for these jobs none."""
        self.servers, self.past = addresses, past
        for key, link in list(self._links.items()):
            if link.address not in addresses:
                del self._links[key]
                self._close(link)

    def read(self, lane: int, job: str, entries: Sequence[Entry], label: Label | None) -> ItemsRead:
        """Begin to read files, all at a time; the run goes on once it has all of them."""
        read = ItemsRead(lane, job, label, len(entries))
        asks: dict[Link, list[tuple[int, bytes]]] = {}
        for entry in entries:
            self._obtain(read, entry, asks)
        self._send(asks)
        return read

    def close_job(self, job: str) -> None:
        """End the connections of a job that is over."""
        for key, link in list(self._links.items()):
            if link.job == job:
                del self._links[key]
                self._close(link)

    # -- questions -----------------------------------------------------------------------------------------------------

    def _obtain(self, read: ItemsRead, entry: Entry, asks: dict[Link, list[tuple[int, bytes]]]) -> None:
        key = key_of(entry)
        assert key is not None, "a stored file has a version"
        wanted = Wanted(read, entry, key)
        if read.job in self.past:
            self._fetch(wanted, None, "probed")
            return
        link = self._owner(read.job, key)
        if link is None or not self._open(link):
            self._fetch(wanted, None, "no server" if link is None else "not reached")
            return
        self._sources.invariants.asks(self._worker, wanted, link.address)
        number = link.questions.ask(wanted, self._network.now)
        asks.setdefault(link, []).append((number, key))
        self._worker.after(WAIT_S, self._waited, link, link.questions, number, wanted)

    def _send(self, asks: dict[Link, list[tuple[int, bytes]]]) -> None:
        for link, asked in asks.items():
            assert link.session is not None
            link.session.send(self._worker, msg.AskItems([number for number, _ in asked], [key for _, key in asked]))
            if not link.pinging:
                link.pinging = True
                self._worker.after(PING_S, self._ping, link, link.session)

    def _owner(self, job: str, key: bytes) -> Link | None:
        if not self.servers:
            return None
        servers = tuple(dict.fromkeys(self.servers))
        address = servers[_owners(servers)[rendezvous.slot_of(key)]]
        return self._links.setdefault((job, address), Link(job, address))

    def _ping(self, link: Link, session: Connection) -> None:
        """Ask a server that owes an answer whether it lives, and end the session if it has been silent for long."""
        if link.session is not session:
            return
        if not link.questions.owed:
            link.pinging = False
            return
        if link.questions.is_silent(self._network.now):
            self._worker.cluster.fired["silent cache server given up"] += 1
            self._lose(link)
            return
        session.send(self._worker, msg.AskItems([], []))
        self._worker.after(PING_S, self._ping, link, session)

    def _waited(self, link: Link, questions: ItemQuestions[Wanted], number: int, wanted: Wanted) -> None:
        if questions.forget(number):
            self._fetch(wanted, link, "waited too long")

    def heard(self, connection: Connection, header: msg.CacheAnswer, payload: bytes) -> bool:
        """Take in what a cache server says; False if this is no connection to one."""
        link = self._by_session.get(connection)
        if link is None:
            return False
        for wanted, answer in link.questions.heard(header, memoryview(payload), self._network.now):
            link.pauses = None
            self._answered(link, wanted, answer)
        return True

    def _answered(self, link: Link, wanted: Wanted, answer: ItemAnswer) -> None:
        match next_step(answer, wanted.entry.bytes):
            case NextStep.USE:
                assert isinstance(answer, bytes)
                self._sources.invariants.found(wanted, answer)
                self._got(wanted, self.cached)
            case NextStep.FETCH:
                self._fetch(wanted, None, "it is another one")
            case NextStep.FETCH_FOR_ALL:
                self._fetch(wanted, link, "")

    # -- the store -----------------------------------------------------------------------------------------------------

    def _fetch(self, wanted: Wanted, link: Link | None, why: str) -> None:
        """Read an item from the store, for all if a cache server has said so (``link``)."""
        self._sources.invariants.fetches(wanted, why)
        mishap = self._sources.mishap(self._worker, wanted.key, ordered=link is not None)
        if mishap.dies:
            self._worker.end()
            return
        self._worker.after(mishap.seconds, self._fetched, wanted, link, mishap)

    def _fetched(self, wanted: Wanted, link: Link | None, mishap: Mishap) -> None:
        if link is not None and not mishap.late and (more := self._sources.held_up(wanted, link.address)):
            self._worker.after(more, self._fetched, wanted, link, mishap._replace(late=True))
            return
        if mishap.fails:
            if link is not None and link.session is not None:
                link.session.send(self._worker, msg.ReleaseItem(wanted.key))
            self._worker.after(self._network.rng.uniform(0.1, 1.0), self._again, wanted)
            return
        if link is not None and link.session is not None:
            label = b"" if wanted.read.label is None else wanted.read.label(wanted.entry)
            data = self._sources.bytes_of(wanted.read.job, wanted.entry)
            self._sources.invariants.inserts(wanted)
            inserted = bytes(reversed(data)) if mishap.damaged else data
            link.session.send(self._worker, (msg.InsertItem(wanted.key, label), inserted))
        self._got(wanted, self.stored)

    def _again(self, wanted: Wanted) -> None:
        asks: dict[Link, list[tuple[int, bytes]]] = {}
        self._obtain(wanted.read, wanted.entry, asks)
        self._send(asks)

    def _got(self, wanted: Wanted, source: Counter[str]) -> None:
        source[wanted.read.job] += wanted.entry.bytes
        wanted.read.left -= 1
        if wanted.read.over:
            self._worker.go_on(wanted.read.lane)

    # -- connections ---------------------------------------------------------------------------------------------------

    def _open(self, link: Link) -> bool:
        """Open a link that was never tried; one that has failed or was lost is looked for beside."""
        if link.session is None and not link.failed:
            self._try(link)
        if link.session is None:
            link.failed = True
            if self._network.now >= link.not_before:
                link.pauses = link.pauses or delays(draw=self._network.rng.random)
                link.not_before = self._network.now + next(link.pauses)
                self._worker.after(self._network.delay(), self._try, link)
        return link.session is not None

    def _try(self, link: Link) -> None:
        server = self._sources.by_address.get(link.address)
        if link.closed or link.session is not None or server is None or not server.welcomed:
            return
        if self._network.reachable(self._worker, server):
            tenant = self._worker.cluster.tenants[link.job]
            link.session = Connection(self._network, self._worker, server, tenant)
            link.questions, link.pinging = ItemQuestions[Wanted](SILENT_S, LEAST_RATE), False
            self._by_session[link.session] = link

    def broken(self, connection: Connection) -> bool:
        """Note that a connection has ended; False if it is none to a cache server."""
        link = self._by_session.get(connection)
        if link is not None:
            self._lose(link)
        return link is not None

    def _close(self, link: Link) -> None:
        link.closed = True
        if link.session is not None:
            self._lose(link)

    def _lose(self, link: Link) -> None:
        """End a session; what it has not answered is read from the store."""
        session, link.session = link.session, None
        assert session is not None
        del self._by_session[session]
        session.close(self._worker)
        for wanted in link.questions.end():
            self._worker.after(0.0, partial(self._fetch, wanted, None, "lost"))
