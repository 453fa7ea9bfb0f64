"""Threads of the engine: work on several chunks at once, and work ahead of whoever pulls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Generic, TypeVar

from millrace.elements.chunk import Chunk
from millrace.engine.measure import Measure, clock, close
from millrace.graph.nodes import AUTOTUNE

T = TypeVar("T")

_WORTH_A_THREAD_S = 50e-6
"""Below this cost of one element, handing it to a thread and taking turns at the GIL costs more than it gains."""
_SLICE_S = 0.002


class Pool:
    """Threads that run user functions, shared by the tasks of a program."""

    def __init__(self, threads: int) -> None:
        self.threads = threads
        self._executor: ThreadPoolExecutor | None = None
        # Reentrant: the garbage collector may close an abandoned iterator in the middle of anything.
        self._lock = threading.RLock()
        self._inside = threading.local()

    def submit(self, function: Callable[[Chunk], T], chunk: Chunk) -> Future[tuple[T, float, int]]:
        """Runs ``function(chunk)`` on a thread: (result, seconds, bytes of the result)."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(
                    self.threads, "millrace-map", initializer=setattr, initargs=(self._inside, "here", True)
                )
            return self._executor.submit(_measured, function, chunk)

    def close(self) -> None:
        """Waits for running calls and ends the threads. The pool can be used again."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=not getattr(self._inside, "here", False), cancel_futures=True)


def _measured(function: Callable[[Chunk], T], chunk: Chunk) -> tuple[T, float, int]:
    began = clock()
    result = function(chunk)
    seconds = clock() - began
    return result, seconds, result.nbytes if isinstance(result, Chunk) else 0


def in_order(
    function: Callable[[Chunk], T],
    chunks: Iterator[Chunk],
    parallel: int,
    *,
    pool: Pool | None,
    budget: Callable[[], int],
    measure: Measure,
) -> Iterator[T]:
    """``function`` of each chunk, results in order; on threads if an element costs enough to be worth it.

    Results that wait, and those that calls under way are expected to give, judged by the largest seen lately, stay
    within ``budget``; a single call goes on whatever its result.

    Args:
        function: called with slices of the chunks.
        chunks: the input.
        parallel: calls at a time; AUTOTUNE for as many as the pool has threads.
        pool: None to call on this thread.
        budget: bytes of results that may wait, as of now.
        measure: where the time goes.
    """
    calls = _Calls(function, parallel, pool, budget, measure)
    try:
        for chunk in chunks:
            start = 0
            while start < len(chunk):
                stop = min(len(chunk), start + calls.slice())
                part = chunk if stop - start == len(chunk) else chunk.slice(start, stop)
                start = stop
                if calls.inline:
                    while calls.waiting:
                        yield calls.finish()
                    yield calls.run(part)
                else:
                    while calls.full(len(part)):
                        yield calls.finish()
                    calls.submit(part)
        while calls.waiting:
            yield calls.finish()
    finally:
        calls.abandon()
        close(chunks)


class _Calls(Generic[T]):
    """The calls of one :func:`in_order`: those under way, and what is known of their cost."""

    def __init__(
        self,
        function: Callable[[Chunk], T],
        parallel: int,
        pool: Pool | None,
        budget: Callable[[], int],
        measure: Measure,
    ) -> None:
        self._function, self._pool = function, pool
        self._budget, self._measure = budget, measure
        threads = 1 if pool is None else pool.threads
        self._threads = threads if parallel == AUTOTUNE else min(parallel, threads)
        self.waiting: deque[tuple[Future[tuple[T, float, int]], int]] = deque()
        self._cost = -1.0  # seconds per element, smoothed
        self._bytes = 0.0  # of one element's result, the largest seen lately
        self._seen = (measure.elements, measure.bytes)

    @property
    def inline(self) -> bool:
        """Whether the next call is made on this thread: always for the first, which tells what an element costs."""
        return self._threads <= 1 or self._cost < _WORTH_A_THREAD_S

    def slice(self) -> int:
        """How many elements the next call should take."""
        self._look()
        if self._cost < 0:
            return 1
        by_bytes = self._budget() / (2 * self._threads) / max(self._bytes, 1.0)
        by_time = float("inf") if self.inline else _SLICE_S / self._cost
        return max(1, int(min(by_bytes, by_time, 1 << 40)))

    def full(self, count: int) -> bool:
        """Whether something must be finished before ``count`` elements more are begun."""
        if not self.waiting:
            return False
        if len(self.waiting) >= 2 * self._threads:
            return True
        held = 0.0
        for future, elements in self.waiting:
            done = future.done() and not future.cancelled() and future.exception() is None
            held += future.result()[2] if done else elements * self._bytes
        return held + count * self._bytes > self._budget()

    def run(self, part: Chunk) -> T:
        """Calls on this thread."""
        began = clock()
        result = self._function(part)
        self._learn(len(part), clock() - began)
        return result

    def submit(self, part: Chunk) -> None:
        """Begins a call on a thread of the pool."""
        assert self._pool is not None
        self.waiting.append((self._pool.submit(self._function, part), len(part)))

    def finish(self) -> T:
        """The result of the earliest call under way."""
        future, elements = self.waiting.popleft()
        began = clock()
        result, seconds, size = future.result()
        self._measure.idle_s += clock() - began
        self._measure.threads_s += seconds
        self._learn(elements, seconds)
        self._bytes = max(0.9 * self._bytes, size / elements)
        return result

    def abandon(self) -> None:
        """Cancels what has not begun and waits for what has."""
        for future, _ in self.waiting:
            future.cancel()
        for future, _ in self.waiting:
            if not future.cancelled():
                future.exception()  # waits; what it says no longer matters, the consumer has gone
        self.waiting.clear()

    def _learn(self, elements: int, seconds: float) -> None:
        each = seconds / elements
        self._cost = each if self._cost < 0 else 0.8 * self._cost + 0.2 * each

    def _look(self) -> None:
        """Results of calls on this thread have been counted and weighed by whoever took them."""
        elements, size = self._measure.elements - self._seen[0], self._measure.bytes - self._seen[1]
        if elements > 0:
            self._seen = (self._measure.elements, self._measure.bytes)
            self._bytes = max(0.9 * self._bytes, size / elements)


class Ahead:
    """A thread that computes chunks ahead of whoever pulls them.

    It waits while ``elements`` (AUTOTUNE: any number) or ``budget()`` bytes lie ready.
    """

    def __init__(self, chunks: Iterator[Chunk], elements: int, budget: Callable[[], int]) -> None:
        self._chunks = chunks
        self._most_elements, self._most_bytes = elements, budget
        self._changed = threading.Condition()
        self._ready: deque[tuple[Chunk, int]] = deque()
        self._elements = self._bytes = 0
        self._stopped = self._ended = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def pull(self, measure: Measure) -> Generator[Chunk, None, None]:
        """The chunks."""
        thread = threading.Thread(target=self._run, name="millrace-prefetch", daemon=True)
        thread.start()
        self._thread = thread
        try:
            while (chunk := self._next(measure)) is not None:
                yield chunk
            if self._error is not None:
                raise self._error
        finally:
            self.stop()

    def stop(self) -> None:
        """Ends the thread and closes the chunks it pulls. Idempotent."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join()
            close(self._chunks)

    def _next(self, measure: Measure) -> Chunk | None:
        began = clock()
        with self._changed:
            while not self._ready and not self._ended:
                self._changed.wait()
            measure.idle_s += clock() - began
            if not self._ready:
                return None
            chunk, size = self._ready.popleft()
            self._elements -= len(chunk)
            self._bytes -= size
            self._changed.notify_all()
            return chunk

    def _run(self) -> None:
        try:
            for chunk in self._chunks:
                size = chunk.nbytes
                with self._changed:
                    while not self._stopped and self._ready and self._full(len(chunk), size):
                        self._changed.wait()
                    if self._stopped:
                        return
                    self._ready.append((chunk, size))
                    self._elements += len(chunk)
                    self._bytes += size
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that pulls
            self._error = error
        finally:
            with self._changed:
                self._ended = True
                self._changed.notify_all()

    def _full(self, count: int, size: int) -> bool:
        too_many = self._most_elements != AUTOTUNE and self._elements + count > self._most_elements
        return too_many or self._bytes + size > self._most_bytes()
