"""Read scheduler: which ranges of remote files are read next, how many at once, and what is held of them.

What is asked for is read before all else. While there is room for more, what streams and running tasks will ask for
next is read ahead of them, and behind that what the tasks need that were announced to come. Ahead or not, a range is
read by the same request. Who asks gets what was read ahead for the same task, never what another one will ask for, and
has at once read what was not: so announcements decide when bytes are read, never which, and never how often.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Hashable, Iterable
from typing import Protocol

from millrace.policies import read_concurrency, read_hedging
from millrace.policies.read_concurrency import InFlight, Round
from millrace.sources.read_queues import COMING, STREAM, TASK, Feed, Key, Queue, ReadAccount, ScheduledRead
from millrace.sources.store_requests import Entry, RequestWatch

Request = Callable[[Entry, RequestWatch], bytes]
"""Reads an entry, as :meth:`millrace.sources.store_requests.StoreRequests.read` does."""


class SourceTier(Protocol):
    """Cache of stored bytes before the stores."""

    @property
    def there(self) -> bool:
        """Whether it is asked at all, so that everybody is to ask for the same ranges."""
        ...

    def tier(self, fetch: Request) -> Request:
        """Make a request that asks the cache first, from one that asks the store."""
        ...


_LOOK_S = 1.0
clock = time.perf_counter


class ReadScheduler:
    """Scheduler of all reads of a pipeline in one process. Thread-safe.

    Args:
        start: runs a function without arguments on a thread.
        request: reads an entry; called on several threads at once.
        chosen: reads at once; None: as many as pay.
        tier: a cache that is asked before; None: there is none.
    """

    def __init__(
        self,
        start: Callable[[Callable[[], None]], None],
        request: Request,
        chosen: int | None = None,
        tier: SourceTier | None = None,
    ) -> None:
        self._start, self._request = start, request if tier is None else tier.tier(request)
        self._tier = tier
        # Reentrant: the garbage collector may close an abandoned task in the middle of anything.
        self._lock = threading.RLock()
        self._state = read_concurrency.begin(chosen)
        self._due: deque[ScheduledRead] = deque()
        self._running: list[Queue] = []
        self._expected: dict[Key, Queue] = {}
        self._ahead: dict[Entry, list[ScheduledRead]] = {}
        self._durations: dict[int, deque[float]] = {}
        self._under_way = self._peak = self._count = self._round = self._requests = self._hedged = 0
        self._read_s = self._waited_s = 0.0
        self._since = clock()

    @property
    def cached(self) -> bool:
        """Whether a cache is asked before the stores."""
        return self._tier is not None and self._tier.there

    @property
    def in_flight(self) -> InFlight:
        """Limit on reads under way at once, and the reason."""
        return self._state

    # -- announcing ----------------------------------------------------------------------------------------------------

    def expect(self, account: ReadAccount, owner: Hashable, tasks: Iterable[tuple[Key, Feed]]) -> None:
        """Announce the tasks that come next, in order, in place of those that ``owner`` announced before."""
        coming = {(account, owner, *key): feed for key, feed in tasks}
        with self._lock:
            mine = {key: queue for key, queue in self._expected.items() if key[:2] == (account, owner)}
            others = {key: queue for key, queue in self._expected.items() if key not in mine}
            ours = {key: queue for key, queue in mine.items() if queue.live and key[1:] in account.tasks}  # they run
            ours |= {key: mine.get(key) or self._queue(account, COMING, feed) for key, feed in coming.items()}
            gone = [queue for key, queue in mine.items() if key not in ours]
            self._expected = {**others, **ours}
            for queue in gone:
                self._drop_all(queue)
            self._begin_more()

    def begin_task(self, account: ReadAccount, owner: Hashable, key: Key, feed: Feed) -> Queue:
        """Begin a task that will ask for these entries; leave what is returned."""
        with self._lock:
            if (announced := self._expected.get((account, owner, *key))) is not None:
                announced.live = True
            queue = self._queue(account, TASK, feed, (owner, *key), announced)
            account.tasks[queue.key] += 1
            self._running.append(queue)
            self._begin_more()
        return queue

    def begin_stream(self, account: ReadAccount, feed: Feed, task: Queue | None) -> Queue:
        """Begin a stream that will ask for these entries, for ``task`` if it was announced; leave what is returned."""
        with self._lock:
            queue = self._queue(account, STREAM, feed, before=task)
            self._running.append(queue)
            self._begin_more()
        return queue

    def _queue(self, account: ReadAccount, rank: int, feed: Feed, key: Key = (), before: Queue | None = None) -> Queue:
        queue = Queue(account, rank, feed, 2 * self._state.most, key, before)
        queue.top_up()
        return queue

    def top_up(self, queue: Queue) -> None:
        """Take more entries from the feed of a running queue, on the thread that the feed belongs to."""
        if queue.wants_more:
            with self._lock:
                queue.top_up()
                self._begin_more()

    def leave(self, queue: Queue) -> None:
        """Abandon ``queue``: nobody asks for the rest of it. Idempotent."""
        with self._lock:
            if queue in self._running:
                self._running.remove(queue)
                if queue.rank == TASK:
                    queue.account.tasks -= Counter([queue.key])
            self._drop_all(queue)
            self._begin_more()

    def _drop_all(self, queue: Queue) -> None:
        queue.end()
        for read in list(queue.begun):
            self.drop(read)

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _begin_more(self) -> None:
        while self._under_way < self._state.level:
            if self._due:
                if not self._launch(read := self._due.popleft()):
                    self._due.appendleft(read)
                    return
                continue
            queue = self._next()
            if queue is None or not self._begin(queue):
                return

    def _next(self) -> Queue | None:
        """Choose the queue to begin a read of: one of what runs that holds least, else announced ones in order."""
        wanting = [queue for queue in self._running if queue.coming and self._has_room(queue)]
        if wanting:
            return min(wanting, key=lambda queue: (queue.rank, queue.held))
        full = set[ReadAccount]()
        for queue in self._expected.values():
            if not queue.coming:
                queue.top_up()
            if queue.coming and queue.account not in full:
                if self._has_room(queue):
                    return queue
                full.add(queue.account)
        return None

    def _has_room(self, queue: Queue) -> bool:
        account, size = queue.account, queue.coming[0].bytes
        if queue.rank == COMING:
            return account.held + size <= account.budget
        # What was read for tasks to come must not hold up the one that runs.
        ahead = sum(each.held for each in self._expected.values() if each.account is account)
        tasks = max(1, len(account.tasks))
        return queue.held + size <= account.budget and account.held - ahead + size <= tasks * account.budget

    def _begin(self, queue: Queue) -> bool:
        """Begin the read that comes next in ``queue``; False if the system has no thread for it."""
        entry = queue.next()
        if queue.passed[entry]:
            queue.passed[entry] -= 1
            return True
        before = list(queue.line())[1:]
        read = self._begun(before, entry)
        if read is None:
            read = ScheduledRead(queue.account, entry, self._round, queue)
            if not self._launch(read):
                queue.coming.appendleft(entry)
                return False
            self._ahead.setdefault(entry, []).append(read)
        _pass_over(before, entry, read)
        if read.queue is not queue and read.queue is not None:
            del read.queue.begun[read]
            read.queue.held -= entry.bytes
            read.queue = queue
        queue.begun[read] = None
        queue.held += entry.bytes
        return True

    def _begun(self, line: Iterable[Queue], entry: Entry) -> ScheduledRead | None:
        """Find the read of ``entry`` that was begun for the first possible queue of ``line``."""
        ahead = self._ahead.get(entry, ())
        return next((read for queue in line for read in ahead if read.queue is queue), None)

    def _launch(self, read: ScheduledRead, *, second: bool = False) -> bool:
        account = read.account
        if not second:
            read.began, read.round = clock(), self._round
            read.at_store = not self.cached
        if read.at_store:
            self._count_request(account, 1)
        self._count_under_way(account, 1)
        account.held += read.entry.bytes
        self._peak = max(self._peak, self._under_way)
        try:
            self._start(lambda: self._run(read, second=second))
        except (RuntimeError, MemoryError):
            if read.at_store:
                self._count_request(account, -1)
            self._count_under_way(account, -1)
            account.held -= read.entry.bytes
            return False
        return True

    def _count_under_way(self, account: ReadAccount, change: int) -> None:
        self._under_way += change
        account.under_way += change

    def _count_request(self, account: ReadAccount, change: int) -> None:
        """Count a request to a store."""
        account.requests += change
        self._requests += change

    def _run(self, read: ScheduledRead, *, second: bool = False) -> None:
        """Read, on a thread; raise nothing."""
        began, cpu = clock(), time.thread_time()
        data, failure = b"", None
        try:
            data = self._request(read.entry, _Watch(self, read, second=second))
        except BaseException as error:  # noqa: BLE001 - handed to whoever asks for it
            failure = error
        ended = clock()
        with self._lock:
            self._count_under_way(read.account, -1)
            if read.at_store:
                read.account.bytes += len(data)
            else:
                read.account.cached += len(data)
            if second or read.dropped:
                read.account.held -= read.entry.bytes
            if not read.result.done():
                read.seconds, read.cpu_s = ended - began, time.thread_time() - cpu
                if failure is None:
                    self._learn(read, ended)
                    read.result.set_result(data)
                else:
                    read.result.set_exception(failure)
        with self._lock:
            self._begin_more()

    def at_store(self, read: ScheduledRead) -> None:
        """Note that the store is asked now, what was asked before being a cache."""
        if not read.at_store:
            with self._lock:
                self._count_request(read.account, 1)
                read.began, read.at_store = clock(), True

    def again(self, read: ScheduledRead, *, slow_down: bool) -> None:
        """Account for a request that is made again."""
        with self._lock:
            if slow_down and read.round == self._round:  # those that were under way together count once
                self._state = read_concurrency.slow_down(self._state)
                self._begin_round(clock())
            read.retried, read.round = True, self._round
            read.account.retried += 1
            read.account.requests += 1
            self._requests += 1

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, read: ScheduledRead, now: float) -> None:
        if read.retried or read.hedged or not read.at_store:
            return
        self._durations_of(read).append(now - read.began)
        if read.round != self._round:
            return
        self._count += 1
        self._read_s += now - read.began
        if 2 * self._count >= self._state.level:
            seen = Round(self._read_s / self._count, self._peak, now - self._since, self._waited_s)
            self._state = read_concurrency.step(self._state, seen)
            self._begin_round(now)

    def _begin_round(self, now: float) -> None:
        self._round, self._since = self._round + 1, now
        self._count, self._peak = 0, self._under_way
        self._read_s = self._waited_s = 0.0

    def _durations_of(self, read: ScheduledRead) -> deque[float]:
        """Latest durations of reads that have between a half and twice its bytes, about."""
        return self._durations.setdefault(read.entry.bytes.bit_length() // 2, deque(maxlen=read_hedging.KEPT))

    # -- asking --------------------------------------------------------------------------------------------------------

    def claim(self, account: ReadAccount, entry: Entry, queue: Queue | None = None) -> ScheduledRead:
        """Take the read of ``entry``, which is begun by now if it was not before; then wait for it, or drop it.

        Args:
            account: of the source.
            entry: what is asked for.
            queue: of the stream or running task that asks; None: nobody announced that it would.
        """
        with self._lock:
            if (read := self._take(entry, queue)) is None:
                read = ScheduledRead(account, entry, self._round)
                self._due.append(read)
                self._begin_more()
            return read

    def pass_over(self, entry: Entry, queue: Queue) -> None:
        """Have ``entry`` not read, or dropped, as the stream of ``queue`` needs nothing of it."""
        with self._lock:
            if (read := self._take(entry, queue)) is not None:
                self.drop(read)

    def _take(self, entry: Entry, queue: Queue | None) -> ScheduledRead | None:
        """Take what was read ahead for ``queue`` out of it, and have the queues of its line not read it again."""
        if queue is None:
            return None
        read = self._begun(queue.line(), entry)
        _pass_over(queue.line(), entry, read)
        if read is not None:
            self._detach(read)
        return read

    def _detach(self, read: ScheduledRead) -> None:
        """Take a read out of its queue, so that nobody else asks for it."""
        queue, read.queue = read.queue, None
        if queue is None:
            return
        queue.begun.pop(read, None)
        queue.held -= read.entry.bytes
        self._ahead[read.entry].remove(read)
        if not self._ahead[read.entry]:
            del self._ahead[read.entry]

    def drop(self, read: ScheduledRead) -> None:
        """Let go of a read, which nobody will wait for."""
        with self._lock:
            self._detach(read)
            if read.result.done():
                read.account.held -= read.entry.bytes
            elif read in self._due:
                self._due.remove(read)
            else:
                read.dropped = True

    def wait(self, read: ScheduledRead) -> bytes:
        """Wait for the bytes of a claimed read, and let go of it; make a slow request a second time."""
        began = clock()
        try:
            while not read.result.done():
                after_s = self._hedge_after_s(read)
                try:
                    read.result.exception(_LOOK_S if after_s is None else max(0.0, min(after_s, _LOOK_S)))
                except TimeoutError:
                    self._look_after(read, hedge=after_s is not None and after_s <= _LOOK_S)
            return read.result.result()
        finally:
            with self._lock:
                waited_s = clock() - began
                self._waited_s += waited_s
                read.account.waited_s += waited_s
                self.drop(read)
                self._begin_more()

    def _hedge_after_s(self, read: ScheduledRead) -> float | None:
        """Choose the seconds to wait before the request is made a second time; None: it is not, for now."""
        if not read.at_store or read.hedged or read.retried:
            return None
        durations = list(self._durations_of(read))  # a copy, as the lock is for short work
        after_s = read_hedging.hedge_after_s(durations, self._requests, self._hedged)
        return None if after_s is None else read.began + after_s - clock()

    def _look_after(self, read: ScheduledRead, *, hedge: bool) -> None:
        """Have a read go on that takes long: by a second request, or on this thread if no other could be begun."""
        with self._lock:
            if hedge and not read.result.done():
                read.hedged = True
                if self._launch(read, second=True):
                    read.account.hedged += 1
                    self._hedged += 1
                return
            if read not in self._due or self._under_way:
                return
            self._due.remove(read)
            read.began, read.at_store = clock(), not self.cached
            if read.at_store:
                self._count_request(read.account, 1)
            self._count_under_way(read.account, 1)
            read.account.held += read.entry.bytes
        self._run(read)

    def close(self) -> None:
        """Begin no more reads, and forget what was announced."""
        with self._lock:
            for queue in (*self._expected.values(), *self._running):
                queue.end()
            self._expected.clear()


class _Watch:
    """Watch of a read's request (:class:`~millrace.sources.store_requests.RequestWatch`)."""

    def __init__(self, scheduler: ReadScheduler, read: ScheduledRead, *, second: bool) -> None:
        self._scheduler, self._read, self.second = scheduler, read, second

    def abandoned(self) -> bool:
        return self._read.result.done()

    def began(self) -> None:
        if not self.second:  # what a cache took to say that it lacks it says nothing about the store
            self._scheduler.at_store(self._read)

    def again(self, *, slow_down: bool) -> None:
        self._scheduler.again(self._read, slow_down=slow_down)


def _pass_over(line: Iterable[Queue], entry: Entry, read: ScheduledRead | None) -> None:
    """Have the queues of ``line`` leave out ``entry``, up to that for which its ``read`` was begun."""
    for queue in line:
        if read is not None and queue is read.queue:
            return
        queue.pass_over(entry)
