"""Concurrent calls that wait for a network, such as questions about files: as many at once as pay, by measuring."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable
from concurrent.futures import Future
from itertools import chain, islice
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from millrace.policies import read_concurrency
from millrace.policies.read_concurrency import Round

FIRST = 64
"""Calls at once to begin with: their answers are small, so that no link is full of them before that."""
_AHEAD = 1024
"""Results that are kept while one before them is waited for."""
clock = time.perf_counter
T = TypeVar("T")
R = TypeVar("R")


def concurrently(function: Callable[[T], R], items: list[T], most: int = read_concurrency.MOST) -> list[R]:
    """Call ``function`` on each item as :func:`in_order` does; return all that it returns."""
    return list(in_order(function, items, most))


def in_order(
    function: Callable[[T], R], items: Iterable[T], most: int = read_concurrency.MOST
) -> Generator[R, None, None]:
    """Call ``function`` on items as they come, several at once; yield what it returns in the order of the items.

    How many go on at once is found as for reads (:mod:`millrace.policies.read_concurrency`), from :data:`FIRST` on: a
    server that is far away is asked by more, one that takes longer the more it is asked is not.

    Args:
        function: waits for a network; called on threads.
        items: any number.
        most: calls at once.

    Raises:
        Whatever ``function`` raised first in the order of the items; what has not begun by then is not begun.
    """
    coming = iter(items)
    some = list(islice(coming, 2))
    if len(some) <= 1:
        yield from map(function, some)
        return
    coming = chain(some, coming)
    calls = _Calls(function, most)
    try:
        while True:
            for item in islice(coming, calls.room()):
                calls.begin(item)
            if not calls.begun:
                return
            if calls.begun[0].done():
                yield calls.begun.popleft().result()
            else:
                calls.wait()
    finally:
        calls.end()


class _Calls(Generic[T, R]):
    """Calls under way, and the search for their number; used by one thread, which waits for them.

    Attributes:
        begun: calls whose results were not taken yet, in the order of their items.
    """

    def __init__(self, function: Callable[[T], R], most: int) -> None:
        self._function = function
        self._state = read_concurrency.begin(most=most, first=FIRST)
        self.begun: deque[Future[R]] = deque()
        self._work: SimpleQueue[tuple[Future[R], T] | None] = SimpleQueue()
        self._ended: SimpleQueue[tuple[int, float]] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._under_way = self._round = self._count = self._peak = 0
        self._seconds, self._since = 0.0, clock()

    def room(self) -> int:
        """Say how many calls may be begun now."""
        while not self._ended.empty():
            self._learn(*self._ended.get())
        return max(0, min(self._state.level - self._under_way, _AHEAD - len(self.begun)))

    def begin(self, item: T) -> None:
        """Begin a call."""
        self._under_way += 1
        self._peak = max(self._peak, self._under_way)
        if self._under_way > len(self._threads):
            thread = threading.Thread(target=self._run, name="millrace-requests", daemon=True)
            try:
                thread.start()
            except (RuntimeError, MemoryError):  # the system has no more threads: those that are there do it
                if not self._threads:
                    raise
            else:
                self._threads.append(thread)
        future: Future[R] = Future()
        number, began = self._round, clock()
        future.add_done_callback(lambda _: self._ended.put((number, clock() - began)))
        self.begun.append(future)
        self._work.put((future, item))

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            future, item = work
            try:
                future.set_result(self._function(item))
            except BaseException as error:  # noqa: BLE001 - handed to whoever takes the result
                future.set_exception(error)

    def wait(self) -> None:
        """Wait until a call ends."""
        self._learn(*self._ended.get())

    def _learn(self, number: int, seconds: float) -> None:
        """Note a call that has ended, and when it was begun."""
        self._under_way -= 1
        if number != self._round:
            return
        self._count += 1
        self._seconds += seconds
        if 2 * self._count < self._state.level:
            return
        now = clock()
        seen = Round(self._seconds / self._count, self._peak, now - self._since, now - self._since)
        self._state = read_concurrency.step(self._state, seen)
        self._round, self._since = self._round + 1, now
        self._count, self._peak, self._seconds = 0, self._under_way, 0.0

    def end(self) -> None:
        """Begin no more calls, and wait for those under way."""
        with contextlib.suppress(Empty):
            while True:
                self._work.get_nowait()
        for _ in self._threads:
            self._work.put(None)
        for thread in self._threads:
            thread.join()
