"""Ordered map: one operator's calls on the thread that pulls or on several, results in order, bounded in bytes.

While the earliest call takes long, the others go on past it as far as the bytes allow: an element that takes fifty
times as long as its like keeps back the batch that it is in, and no thread.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable, Iterator
from queue import Empty, SimpleQueue
from typing import Generic, TypeVar

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Measure, clock, close
from millrace.engine.threads.operator_threads import ChunkCall, OperatorThreads

T = TypeVar("T")

_SLICE_S = 0.008
"""Seconds of work of one call: so much that handing it over costs under a hundredth, so little that threads end
together, and that a result doesn't lie there for long: a first chunk has elements whose cost nobody knew."""
_HELP_S = 0.05
"""Seconds of one call above which the thread that pulls waits for a result rather than make another call meanwhile:
the awaited result would lie ready for too long."""
_WAITING = 4
"""Most calls for each thread that are to be made or under way, or wait behind one whose result is there."""
_PAST = 64
"""Most calls for each thread that may go past one that is under way, if their results hardly have bytes."""


def in_order(
    function: Callable[[Chunk], T],
    chunks: Iterator[Chunk],
    parallel: int,
    *,
    operator: OperatorThreads,
    budget: Callable[[], int],
    measure: Measure,
    meanwhile: Callable[[], bool] | None = None,
) -> Iterator[T]:
    """Apply ``function`` to each chunk, results in order; on threads if an element costs enough to be worth it.

    Results that wait, and those that calls under way are expected to give, judged by the largest seen lately, stay
    within ``budget``; a single call goes on whatever its result.

    Args:
        function: called with slices of the chunks.
        chunks: the input.
        parallel: calls at a time; AUTOTUNE for as many as pay.
        operator: threads of the operator.
        budget: bytes of results that may wait, as of now.
        measure: where the time goes.
        meanwhile: called when there is no more input, as long as the earliest call is one that takes long: does some of
            what comes after all this on this thread; False: there is nothing to do now.
    """
    calls = _Calls(function, operator, budget, measure)
    operator.join()
    failure: Exception | None = None
    try:
        while True:
            try:
                chunk = next(chunks, None)
            except Exception as error:  # noqa: BLE001 - raised once what is before it has been yielded
                failure = error
                break
            if chunk is None:
                break
            start = 0
            while start < len(chunk):
                threads = operator.threads(parallel)
                stop = min(len(chunk), start + calls.slice(threads))
                part = chunk if stop - start == len(chunk) else chunk.slice(start, stop)
                start = stop
                if not threads:
                    while calls.waiting:
                        yield calls.finish()
                    yield calls.run(part)
                else:
                    while calls.full(len(part), threads):
                        if calls.wait():
                            yield calls.finish()
                    calls.submit(part, threads)
        while calls.waiting:
            if meanwhile is not None:
                calls.use_wait(meanwhile)
            yield calls.finish()
        if failure is not None:
            raise failure
    finally:
        operator.cancel(calls.waiting)
        operator.leave()
        close(chunks)


class _Calls(Generic[T]):
    """Calls of one :func:`in_order`, and those of them that are under way."""

    def __init__(
        self, function: Callable[[Chunk], T], operator: OperatorThreads, budget: Callable[[], int], measure: Measure
    ) -> None:
        self._function, self._operator = function, operator
        self._budget, self._measure = budget, measure
        self.waiting: deque[ChunkCall[T]] = deque()
        self._seen = (measure.elements, measure.bytes)
        self._helps = False
        self._ends: SimpleQueue[ChunkCall[T]] = SimpleQueue()  # calls that have ended, until they are counted
        self._running = self._running_elements = self._done_bytes = 0  # of those that wait, as far as counted
        self._waited_s = 0.0

    def slice(self, threads: int) -> int:
        """Choose how many elements the next call takes."""
        self._look()
        cost = self._operator.cost_s
        if cost < 0:
            return 1
        by_bytes = self._budget() / (2 * max(1, threads)) / max(self._operator.bytes, 1.0)
        by_time = _SLICE_S / max(cost, 1e-9) + 0.5
        return max(1, int(min(by_bytes, by_time)))

    def full(self, count: int, threads: int) -> bool:
        """Whether something must end, or be finished, before ``count`` elements more are begun."""
        with contextlib.suppress(Empty):
            while True:
                self._count(self._ends.get_nowait())
        calls = self.waiting
        if not calls:
            return False
        if len(calls) >= _WAITING * threads:
            still = 0 if calls[0].done else self._running
            if not 0 < still < _WAITING * threads or len(calls) >= _PAST * threads:
                return True
        each = self._operator.bytes
        return self._done_bytes + (self._running_elements + count) * each > self._budget()

    def _count(self, call: ChunkCall[T]) -> None:
        """Count a call as one that has ended, once."""
        if not call.counted:
            call.counted = True
            self._running -= 1
            self._running_elements -= call.elements
            self._done_bytes += call.size

    def wait(self) -> bool:
        """Wait until a call has ended since :meth:`full` looked, or make one; True: the earliest has ended."""
        first = self.waiting[0]
        if not first.done:
            began, cpu = clock(), time.thread_time()
            if not (self._helps and self._operator.help(first)):
                self._count(self._ends.get())
            self._waited_s += clock() - began
            self._measure.threads_cpu_s -= time.thread_time() - cpu
        return first.done

    def use_wait(self, meanwhile: Callable[[], bool]) -> None:
        """Do something else as long as the earliest call takes long, and there is something to do."""
        first, began, cpu = self.waiting[0], clock(), time.thread_time()
        while not first.done and self._operator.slowest_s > _HELP_S and meanwhile():
            pass
        self._measure.idle_s += clock() - began  # not of this operator, nor waited for its result
        self._measure.threads_cpu_s -= time.thread_time() - cpu

    def run(self, part: Chunk) -> T:
        """Call on this thread."""
        began, cpu = clock(), time.thread_time()
        result = self._function(part)
        seconds = clock() - began
        self._operator.learn(len(part), seconds, time.thread_time() - cpu, seconds, None)
        return result

    def submit(self, part: Chunk, threads: int) -> None:
        """Have the call made on a thread; while this one waits, it is one of ``threads``."""
        call = ChunkCall(self._function, part, self._ends.put)
        self.waiting.append(call)
        self._running += 1
        self._running_elements += len(part)
        self._helps = threads > 1 and max(self._operator.cost_s, self._operator.slowest_s) < _HELP_S
        self._operator.submit(call, threads - self._helps, helped=self._helps)

    def finish(self) -> T:
        """Take the result of the earliest call under way."""
        call = self.waiting[0]
        began, cpu = clock(), time.thread_time()
        while self._helps and self._operator.help(call):
            pass
        result = call.result()
        waited_s, self._waited_s = self._waited_s + clock() - began, 0.0
        self._measure.threads_cpu_s += call.cpu_s - (time.thread_time() - cpu)
        self.waiting.popleft()
        self._count(call)  # whoever made it may not have said so yet
        self._done_bytes -= call.size
        self._measure.idle_s += waited_s
        self._measure.threads_s += call.seconds
        self._operator.learn(call.elements, call.seconds, call.cpu_s, waited_s, call.size)
        return result

    def _look(self) -> None:
        """Learn the bytes of results of calls on this thread, which whoever took them has counted and weighed."""
        elements, size = self._measure.elements - self._seen[0], self._measure.bytes - self._seen[1]
        if elements > 0:
            self._seen = (self._measure.elements, self._measure.bytes)
            self._operator.weigh(size / elements)
