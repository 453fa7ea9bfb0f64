"""Threads of the engine: work on several chunks at once, and work ahead of whoever pulls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from millrace.elements.chunk import Chunk
from millrace.elements.tree import nbytes_of
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
        self._lock = threading.Lock()

    def submit(self, function: Callable[[Chunk], T], chunk: Chunk) -> Future[tuple[T, float]]:
        """Runs ``function(chunk)`` on a thread: (result, seconds)."""
        with self._lock:
            if self._executor is None:
                self._executor = ThreadPoolExecutor(self.threads, thread_name_prefix="millrace-map")
        return self._executor.submit(_timed, function, chunk)

    def close(self) -> None:
        """Waits for running calls and ends the threads."""
        with self._lock:
            executor, self._executor = self._executor, None
        if executor is not None:
            executor.shutdown(wait=True, cancel_futures=True)


def _timed(function: Callable[[Chunk], T], chunk: Chunk) -> tuple[T, float]:
    began = clock()
    result = function(chunk)
    return result, clock() - began


def in_order(
    function: Callable[[Chunk], T],
    chunks: Iterator[Chunk],
    parallel: int,
    *,
    pool: Pool | None,
    budget: int,
    measure: Measure,
) -> Iterator[T]:
    """``function`` of each chunk, results in order; on threads if an element costs enough to be worth it.

    Args:
        function: called with slices of the chunks.
        chunks: the input.
        parallel: calls at a time; AUTOTUNE for as many as the pool has threads.
        pool: None to call on this thread.
        budget: bytes of results that may wait.
        measure: where the time goes.
    """
    threads = 1 if pool is None else pool.threads if parallel == AUTOTUNE else min(parallel, pool.threads)
    pending: deque[Future[tuple[T, float]]] = deque()
    cost = -1.0  # seconds per element, smoothed
    result_bytes = 0.0  # largest result seen lately
    sizes: deque[int] = deque()

    def learn(elements: int, seconds: float) -> None:
        nonlocal cost
        each = seconds / max(elements, 1)
        cost = each if cost < 0 else 0.8 * cost + 0.2 * each

    def finish() -> T:
        nonlocal result_bytes
        began = clock()
        result, seconds = pending.popleft().result()
        measure.idle_s += clock() - began
        measure.threads_s += seconds
        learn(sizes.popleft(), seconds)
        if isinstance(result, Chunk):
            result_bytes = max(0.9 * result_bytes, float(nbytes_of(result.elements)))
        return result

    try:
        for chunk in chunks:
            position, total = 0, len(chunk)
            while position < total:
                inline = threads <= 1 or (0 <= cost < _WORTH_A_THREAD_S)
                if inline or cost < 0:
                    while pending:
                        yield finish()
                    part = (
                        chunk if inline and position == 0 else chunk.slice(position, total if inline else position + 1)
                    )
                    result, seconds = _timed(function, part)
                    learn(len(part), seconds)
                    position += len(part)
                    yield result
                    continue
                count = max(1, min(int(_SLICE_S / cost), total - position))
                while len(pending) >= 2 * threads or (pending and (len(pending) + 1) * result_bytes > budget):
                    yield finish()
                assert pool is not None
                sizes.append(count)
                pending.append(pool.submit(function, chunk.slice(position, position + count)))
                position += count
        while pending:
            yield finish()
    finally:
        for future in pending:
            future.cancel()
        for future in pending:
            if not future.cancelled():
                future.exception()  # waits; what it says no longer matters, the consumer has gone
        close(chunks)


def ahead(chunks: Iterator[Chunk], elements: int, *, budget: int, measure: Measure) -> Iterator[Chunk]:
    """The same chunks, computed by another thread, which waits while ``elements`` (AUTOTUNE: any number) or ``budget``
    bytes lie ready.
    """
    changed = threading.Condition()
    ready: deque[tuple[Chunk, int]] = deque()
    state = _Ahead()

    def run() -> None:
        try:
            for chunk in chunks:
                size = nbytes_of(chunk.elements)
                with changed:
                    while not state.stopped and ready and state.full(len(chunk), size, elements, budget):
                        changed.wait()
                    if state.stopped:
                        return
                    ready.append((chunk, size))
                    state.elements += len(chunk)
                    state.bytes += size
                    changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - handed to the thread that pulls
            state.error = error
        finally:
            with changed:
                state.ended = True
                changed.notify_all()

    thread = threading.Thread(target=run, name="millrace-prefetch", daemon=True)
    thread.start()
    try:
        while True:
            with changed:
                began = clock()
                while not ready and not state.ended:
                    changed.wait()
                measure.idle_s += clock() - began
                if not ready:
                    break
                chunk, size = ready.popleft()
                state.elements -= len(chunk)
                state.bytes -= size
                changed.notify_all()
            yield chunk
        if state.error is not None:
            raise state.error
    finally:
        with changed:
            state.stopped = True
            changed.notify_all()
        thread.join()
        close(chunks)


class _Ahead:
    """What the two threads of :func:`ahead` share."""

    def __init__(self) -> None:
        self.stopped = False
        self.ended = False
        self.elements = 0
        self.bytes = 0
        self.error: BaseException | None = None

    def full(self, count: int, size: int, elements: int, budget: int) -> bool:
        return (elements != AUTOTUNE and self.elements + count > elements) or self.bytes + size > budget
