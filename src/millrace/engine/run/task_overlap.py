"""Task overlap: the next task begins while the last calls of one take long, so that no thread stands still for them.

What it makes by then waits until the task before it has ended. All of it is computed on the thread that runs the tasks,
so that functions which may not run at the same time don't. Two tasks hold what a running task may hold, for as long.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import close

Begin = Callable[[], Iterator[Chunk]]
"""Begins to run a task."""


class TaskOverlap:
    """At most one task of an epoch that has begun before its time.

    Args:
        budget: bytes that may lie ready of it.
    """

    def __init__(self, budget: int) -> None:
        self._budget = budget
        self._current = self._thread = -1
        self._begin: Begin | None = None
        self._early: _EarlyTask | None = None

    def follows(self, current: int, begin: Begin | None) -> None:
        """Note which task this thread runs now, by its number, and how the next begins; None: not before its time."""
        self._current, self._begin, self._thread = current, begin, threading.get_ident()

    def meanwhile(self, number: int) -> bool:
        """Compute a chunk of the next task, as task ``number`` waits; False: there is nothing to compute now.

        On a thread of the task's own, such as a prefetch's, there is nothing.
        """
        if number != self._current or self._begin is None or threading.get_ident() != self._thread:
            return False
        if self._early is None:
            self._early = _EarlyTask(self._begin())
        return self._early.advance(self._budget)

    def take(self) -> Iterator[Chunk] | None:
        """Hand over the task that has begun before its time; None: there is none."""
        early, self._early = self._early, None
        return None if early is None else early.chunks()

    def close(self) -> None:
        """Stop it, if nobody has taken it. Idempotent."""
        early, self._early = self._early, None
        if early is not None:
            early.close()


class _EarlyTask:
    """Task that has begun before its time, and what it has made so far."""

    def __init__(self, run: Iterator[Chunk]) -> None:
        self._run = run
        self._ready: deque[Chunk] = deque()
        self._bytes = 0
        self._over = False
        self._failure: Exception | None = None

    def advance(self, budget: int) -> bool:
        """Compute one more chunk within the budget; False: there is none, or no room. A failure is kept for later."""
        if self._over or self._bytes >= budget:
            return False
        try:
            chunk = next(self._run, None)
        except Exception as error:  # noqa: BLE001 - raised in its turn
            self._failure, chunk = error, None
        if chunk is None:
            self._over = True
            return False
        self._ready.append(chunk)
        self._bytes += chunk.nbytes
        return True

    def chunks(self) -> Generator[Chunk, None, None]:
        """Yield all of its chunks, those that lie ready first."""
        try:
            while self._ready:
                yield self._ready.popleft()
            if self._failure is not None:
                raise self._failure
            if not self._over:
                yield from self._run
        finally:
            close(self._run)

    def close(self) -> None:
        """Stop the task."""
        self._ready.clear()
        close(self._run)
