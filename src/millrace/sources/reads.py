"""Read-ahead from a remote source: as many reads at once as pay, bounded in bytes.

Whoever runs a task opens a :class:`ReadStream` with the positions that it will ask for, in their order, and fetches
from it. Reads of these positions, and behind them of the tasks announced by :meth:`ReadScheduler.expect`, are under way
meanwhile: where one task has too few positions to keep a remote store busy, the next tasks have more. A fetch of a
position that was not announced reads at once, so announcements never change an output.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from concurrent.futures import Future
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from millrace.planning.columns import Integers
from millrace.policies import read_concurrency as policy
from millrace.policies.read_concurrency import InFlight, Round

Array = npt.NDArray[np.int64]
Key = tuple[Hashable, ...]

_LOOKED_AHEAD = 2 * policy.MOST_CHOSEN
"""Least number of positions that are kept at hand to be begun, while there are so many."""


class _Read:
    """One read that was begun."""

    __slots__ = ("began", "cpu_s", "position", "result", "round", "seconds", "size")

    def __init__(self, position: int, size: int, number: int) -> None:
        self.position, self.size, self.round = position, size, number
        self.began = time.perf_counter()
        self.seconds = self.cpu_s = 0.0
        self.result: Future[Any] = Future()


class _Queue:
    """Reads of one task: positions to come, and reads begun of those before, both in order."""

    def __init__(self, feed: Iterator[Array]) -> None:
        self._feed: Iterator[Array] | None = feed
        self.positions: deque[int] = deque()
        self.begun: deque[_Read] = deque()
        self.held = 0

    def top_up(self) -> None:
        """Take positions from the feed; only ever on the thread of whoever pulls the task."""
        while self._feed is not None and len(self.positions) < _LOOKED_AHEAD:
            units = next(self._feed, None)
            if units is None:
                self._feed = None
            else:
                self.positions.extend(units.tolist())


class ReadScheduler:
    """Scheduler of the reads of one source in one process, for all tasks that run there. Thread-safe.

    Args:
        read: returns the element at a position; called on several threads at once.
        sizes: bytes of the elements, by position.
        start: runs a function without arguments on a thread.
        budget: bytes that one running task may have under way and waiting, and all announced ones behind it together.
        chosen: reads at once; None: as many as pay.
    """

    def __init__(
        self,
        read: Callable[[int], Any],
        sizes: Sequence[int] | Integers,
        start: Callable[[Callable[[], None]], None],
        *,
        budget: int,
        chosen: int | None = None,
    ) -> None:
        self._read, self._sizes, self._start, self._budget = read, sizes, start, budget
        # Reentrant: the garbage collector may close an abandoned task in the middle of anything.
        self._lock = threading.RLock()
        self._state = policy.begin(chosen)
        self._running: list[_Queue] = []
        self._expected: dict[Key, _Queue] = {}
        self._under_way = self._peak = self._count = self._round = 0
        self._read_s = self._waited_s = 0.0
        self._since = time.perf_counter()

    @property
    def in_flight(self) -> InFlight:
        """Limit on reads under way at once, and the reason."""
        return self._state

    def expect(self, owner: Hashable, tasks: Iterable[tuple[Key, Iterator[Array]]]) -> None:
        """Announce the tasks that come next, in order, in place of those that ``owner`` announced before.

        Args:
            owner: who runs them one after the other.
            tasks: by a name of the task, the positions that it will ask for.
        """
        coming = {(owner, *key): feed for key, feed in tasks}
        fresh = {key: _Queue(feed) for key, feed in coming.items() if key not in self._expected}
        for queue in fresh.values():
            queue.top_up()
        with self._lock:
            others = {key: queue for key, queue in self._expected.items() if key[0] != owner}
            ours = {key: self._expected.get(key) or fresh[key] for key in coming}
            self._expected = {**others, **ours}
            self._begin_more()

    def stream(self, owner: Hashable, key: Key, feed: Iterator[Array]) -> ReadStream:
        """Begin a task that will ask for the positions of ``feed``, in this order; close what is returned."""
        queue = _Queue(feed)
        queue.top_up()
        with self._lock:
            announced = self._expected.pop((owner, *key), None)
            if announced is not None:
                same = len(announced.begun) <= len(queue.positions) and all(
                    read.position == position for read, position in zip(announced.begun, queue.positions, strict=False)
                )
                if same:
                    queue.begun, queue.held = announced.begun, announced.held
                    for _ in queue.begun:
                        queue.positions.popleft()
            self._running.append(queue)
            self._begin_more()
        return ReadStream(self, queue, self._read)

    # -- beginning -----------------------------------------------------------------------------------------------------

    def _begin_more(self) -> None:
        while self._under_way < self._state.level:
            queue = self._next()
            if queue is None or not self._begin(queue):
                return

    def _next(self) -> _Queue | None:
        """Choose the queue to begin a read of: the running one that holds least, then announced ones in order."""
        wanting = [queue for queue in self._running if queue.positions and self._has_room(queue, queue.held)]
        if wanting:
            return min(wanting, key=lambda queue: queue.held)
        for queue in self._expected.values():
            if queue.positions:
                held = sum(each.held for each in (*self._running, *self._expected.values()))
                return queue if self._has_room(queue, held) else None
        return None

    def _has_room(self, queue: _Queue, held: int) -> bool:
        return held + self._sizes[queue.positions[0]] <= self._budget

    def _begin(self, queue: _Queue) -> bool:
        """Begin a read; False if the system has no thread for it."""
        position = queue.positions.popleft()
        read = _Read(position, self._sizes[position], self._round)
        queue.begun.append(read)
        queue.held += read.size
        self._under_way += 1
        self._peak = max(self._peak, self._under_way)
        try:
            self._start(lambda: self._run(read))
        except (RuntimeError, MemoryError):
            self._under_way -= 1
            queue.held -= read.size
            queue.begun.remove(read)
            queue.positions.appendleft(position)
            return False
        return True

    def _run(self, read: _Read) -> None:
        """Read, on a thread; raise nothing."""
        began, cpu = time.perf_counter(), time.thread_time()
        result, failed = None, None
        try:
            result = self._read(read.position)
        except BaseException as error:  # noqa: BLE001 - handed to whoever fetches it
            failed = error
        ended = time.perf_counter()
        read.seconds, read.cpu_s = ended - began, time.thread_time() - cpu
        with self._lock:
            self._under_way -= 1
            if read.round == self._round and failed is None:
                self._learn(read, ended)
        if failed is None:
            read.result.set_result(result)
        else:
            read.result.set_exception(failed)
        with self._lock:
            self._begin_more()

    # -- learning ------------------------------------------------------------------------------------------------------

    def _learn(self, read: _Read, now: float) -> None:
        self._count += 1
        self._read_s += now - read.began
        if 2 * self._count >= self._state.level:
            seen = Round(self._read_s / self._count, self._peak, now - self._since, self._waited_s)
            self._state = policy.step(self._state, seen)
            self._round, self._since = self._round + 1, now
            self._count, self._peak = 0, self._under_way
            self._read_s = self._waited_s = 0.0

    # -- for streams ---------------------------------------------------------------------------------------------------

    def take(self, queue: _Queue, position: int) -> _Read | None:
        """Take the read of ``position``, begun by now; None if it was not announced to come next."""
        with self._lock:
            self._begin_more()
            due = not queue.begun and bool(queue.positions) and queue.positions[0] == position
            if due and not self._begin(queue):  # whatever else is under way
                queue.positions.popleft()  # it is read at once, as there is no thread for it
            return queue.begun.popleft() if queue.begun and queue.begun[0].position == position else None

    def taken(self, queue: _Queue, read: _Read, waited_s: float) -> None:
        """Account for the result of ``read``, which has left after it was waited for."""
        with self._lock:
            self._waited_s += waited_s
            queue.held -= read.size
            self._begin_more()

    def leave(self, queue: _Queue) -> None:
        """Abandon ``queue``: nobody fetches from it any more. Idempotent."""
        with self._lock:
            if queue in self._running:
                self._running.remove(queue)
            queue.positions.clear()
            queue.begun.clear()
            self._begin_more()

    def close(self) -> None:
        """Begin no more reads, and forget what was announced."""
        with self._lock:
            self._expected.clear()
            for queue in self._running:
                queue.positions.clear()


class ReadStream:
    """Reads of one task; a context manager that lets go of what was not fetched.

    Attributes:
        waited_s: seconds that fetches waited.
        reading_s: seconds that the fetched reads took, on whatever threads.
        cpu_s: of these, seconds of processor time.
    """

    def __init__(self, reads: ReadScheduler, queue: _Queue, direct: Callable[[int], Any]) -> None:
        self._reads, self._queue, self._direct = reads, queue, direct
        self.waited_s = self.reading_s = self.cpu_s = 0.0

    def fetch(self, positions: Array | range) -> tuple[list[Any], Exception | None]:
        """Fetch the elements at ``positions``, in their order; on the thread that runs the task.

        Returns:
            The elements up to the first that could not be read, and its error; None: all were.
        """
        elements: list[Any] = []
        try:
            for position in positions:
                elements.append(self._one(int(position)))  # noqa: PERF401 - those before a failure are kept
        except Exception as error:  # noqa: BLE001 - raised once what is before it has been taken
            return elements, error
        return elements, None

    def _one(self, position: int) -> Any:
        self._queue.top_up()
        read = self._reads.take(self._queue, position)
        if read is None:
            return self._direct(position)
        began = time.perf_counter()
        try:
            return read.result.result()
        finally:
            waited_s = time.perf_counter() - began
            self.waited_s += waited_s
            self.reading_s += read.seconds
            self.cpu_s += read.cpu_s
            self._reads.taken(self._queue, read, waited_s)

    def close(self) -> None:
        """End fetching. Idempotent."""
        self._reads.leave(self._queue)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
