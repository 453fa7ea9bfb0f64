"""Read queues: what streams and tasks will ask of a store, in order, and what was begun of it ahead of them."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Hashable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field

from millrace.sources.store_requests import Entry

Key = tuple[Hashable, ...]
Feed = Iterator[Entry | None]
"""Entries in the order in which they will be asked for; None: what follows depends on a read that has not come yet."""

STREAM, TASK, COMING = range(3)
"""Ranks of queues: an open stream's, a running task's, an announced task's."""


@dataclass(slots=True, eq=False)
class ReadAccount:
    """Reads of one source: what it may hold, and what was done for it.

    Attributes:
        budget: bytes that one running task may have under way and waiting, and all announced ones behind it together.
        held: bytes under way and waiting.
        tasks: running tasks, by owner and name, with the number of their queues.
        under_way: number of requests that are under way.
        requests: number of requests made so far.
        bytes: bytes that came from stores.
        cached: bytes that came from a cache of stored bytes.
        retried: requests that were made again, as they had failed.
        hedged: requests that were made a second time, as they took long.
        waited_s: seconds in which somebody waited for bytes.
    """

    budget: int
    held: int = 0
    tasks: Counter[Key] = field(default_factory=Counter)
    under_way: int = 0
    requests: int = 0
    bytes: int = 0
    cached: int = 0
    retried: int = 0
    hedged: int = 0
    waited_s: float = 0.0


class ScheduledRead:
    """Read of one entry: to be begun, under way, or come."""

    __slots__ = (
        "account",
        "at_store",
        "began",
        "cpu_s",
        "dropped",
        "entry",
        "hedged",
        "queue",
        "result",
        "retried",
        "round",
        "seconds",
    )

    def __init__(self, account: ReadAccount, entry: Entry, number: int, queue: Queue | None = None) -> None:
        self.account, self.entry, self.round, self.queue = account, entry, number, queue
        self.began = self.seconds = self.cpu_s = 0.0
        self.at_store = self.dropped = self.hedged = self.retried = False
        self.result: Future[bytes] = Future()


class Queue:
    """Reads of a stream or a task: entries to come, and reads begun ahead of those that were asked for.

    Args:
        account: of the source.
        rank: :data:`STREAM`, :data:`TASK` or :data:`COMING`.
        feed: the entries.
        most: entries to come that are worth knowing.
        key: of a task: its owner and name.
        before: queue of the same reads, from which this one takes over what it has begun: of a stream the queue of the
            task that reads it, of a running task that of its announcement; None: there is none.

    Attributes:
        live: what it is of runs.
    """

    def __init__(
        self, account: ReadAccount, rank: int, feed: Feed, most: int, key: Key = (), before: Queue | None = None
    ) -> None:
        self.account, self.rank, self.key, self.live = account, rank, key, rank != COMING
        self.before = before
        self._feed: Feed | None = feed
        self._most, self._bytes = most, 0
        self.coming: deque[Entry] = deque()
        self.begun: dict[ScheduledRead, None] = {}
        self.held = 0
        self.passed: Counter[Entry] = Counter()

    def line(self) -> Iterator[Queue]:
        """Go through this queue and those before it."""
        queue: Queue | None = self
        while queue is not None:
            yield queue
            queue = queue.before

    @property
    def wants_more(self) -> bool:
        """Whether less is known of what comes than is worth knowing."""
        return self._feed is not None and 2 * len(self.coming) <= self._most and self._bytes <= self.account.budget

    def top_up(self) -> None:
        """Take entries from the feed, as many as are worth knowing."""
        feed, self._feed = self._feed, None  # which may come back here through the garbage collector
        while feed is not None and len(self.coming) < self._most and self._bytes <= 2 * self.account.budget:
            entry = next(feed, self)
            if entry is self:
                return
            if entry is None:
                break
            assert isinstance(entry, Entry)
            self.coming.append(entry)
            self._bytes += entry.bytes
        self._feed = feed

    def next(self) -> Entry:
        """Take the entry that comes next."""
        entry = self.coming.popleft()
        self._bytes -= entry.bytes
        return entry

    def pass_over(self, entry: Entry) -> None:
        """Leave out an entry once, as it is read for another queue of the line, or was asked for."""
        if self.coming and self.coming[0] == entry:
            self.next()
        elif self.rank != STREAM:
            self.passed[entry] += 1

    def end(self) -> None:
        """Forget what is to come."""
        self._feed = None
        self.coming.clear()
