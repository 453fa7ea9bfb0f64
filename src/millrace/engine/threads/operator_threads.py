"""Operator threads: a pool for the process, and for each operator as many of its threads as pay."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from queue import Empty, SimpleQueue
from typing import Any, Generic, TypeVar, cast

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import clock
from millrace.engine.threads import thread_autotuner
from millrace.engine.threads.shutdown_timeout import shutdown_timeout
from millrace.engine.threads.thread_autotuner import MeasuredWindow, Tuning
from millrace.graph.nodes import AUTOTUNE

T = TypeVar("T")

_WORTH_A_THREAD_S = 50e-6
"""Seconds of one element below which handing it to a thread and taking turns at the GIL cost more than they gain."""
_WINDOW_S = 0.1
_MANY = 64
"""Most threads for functions that wait; far more than cores, and few enough to cost nothing while they do."""


class ThreadPool:
    """Threads that run user functions, shared by the operators of a program.

    They are daemons, unlike those of :mod:`concurrent.futures`: a function that never returns, as one that waits for a
    dead file server, must not keep Ctrl-C from ending the process.

    Args:
        cores: number that user functions should keep busy.
        most: threads at most; None: as many as may pay.
        name: of the threads.
    """

    def __init__(self, cores: int, most: int | None = None, name: str = "map") -> None:
        self.cores = cores
        self.most = most or max(_MANY, 4 * cores)
        self._name = name
        # Reentrant: the garbage collector may close an abandoned iterator in the middle of anything.
        self._lock = threading.RLock()
        self._inside = threading.local()
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._idle = threading.Semaphore(0)

    def start(self, work: Callable[[], None]) -> None:
        """Run ``work()``, which raises nothing, on a thread.

        Raises:
            RuntimeError: no thread can be started, and there is none; nothing will run.
        """
        with self._lock:
            self._queue.put(work)
            if len(self._threads) < self.most and not self._idle.acquire(blocking=False):
                name = f"millrace-{self._name}_{len(self._threads)}"
                thread = threading.Thread(
                    target=_work_off, args=(self._queue, self._idle, self._inside), name=name, daemon=True
                )
                self._threads.append(thread)
                try:
                    thread.start()
                except (RuntimeError, MemoryError):  # the system has no more of them: those that are there do it
                    self._threads.remove(thread)
                    if not self._threads:
                        self._queue.get_nowait()
                        raise

    def close(self) -> None:
        """End the threads; wait for running calls, within :func:`shutdown_timeout`. The pool can be used again."""
        with self._lock:
            threads, queue = self._threads, self._queue
            self._threads, self._queue, self._idle = [], SimpleQueue(), threading.Semaphore(0)
        for _ in threads:
            queue.put(None)
        if not getattr(self._inside, "here", False):
            until = clock() + shutdown_timeout()
            for thread in threads:
                with contextlib.suppress(RuntimeError):  # Ctrl-C came before it had begun
                    thread.join(max(0.0, until - clock()))


def _work_off(
    queue: SimpleQueue[Callable[[], None] | None], idle: threading.Semaphore, inside: threading.local
) -> None:
    """Run one thread of a pool; it holds no more of it than this, nor the last work while it has none."""
    inside.here = True
    while True:
        try:
            work = queue.get_nowait()
        except Empty:
            idle.release()
            work = queue.get()
        if work is None:
            return
        work()
        del work


class ChunkCall(Generic[T]):
    """Function called with a chunk on a thread.

    Args:
        function: what is called.
        chunk: what it is called with.
        ended: called with this call once it has ended, on the thread that made it.

    Attributes:
        elements: of the chunk.
        done: there is a result, or an ``error``, until it is taken.
        counted: whoever waits for several calls has seen that this one has ended.
        size: bytes of the result, once done.
    """

    def __init__(
        self, function: Callable[[Chunk], T], chunk: Chunk, ended: Callable[[ChunkCall[T]], object] = lambda _: None
    ) -> None:
        self._tell_end: Callable[[ChunkCall[T]], object] | None = ended
        self._function: Callable[[Chunk], T] | None = function
        self._chunk: Chunk | None = chunk
        self._result: T | None = None
        self.error: BaseException | None = None
        self._ended = threading.Lock()  # held until the call has ended: the cheapest thing that a thread can wait for
        self._ended.acquire()
        self._thread = 0
        self.elements = len(chunk)
        self.begun = self.done = self.counted = False
        self.seconds = self.cpu_s = 0.0
        self.size = 0

    def begin(self) -> None:
        """Reserve the call for this thread."""
        self._thread = threading.get_ident()
        self.begun = True

    def run(self) -> None:
        """Make the call, on the thread that began it."""
        assert self._function is not None
        assert self._chunk is not None
        began, cpu = clock(), time.thread_time()
        try:
            result = self._function(self._chunk)
            self.seconds, self.cpu_s = clock() - began, time.thread_time() - cpu
            self.size = result.nbytes if isinstance(result, Chunk) else 0
            self._result = result
        except BaseException as error:  # noqa: BLE001 - handed to the thread that takes the result
            self.error = error
        finally:
            self._function = self._chunk = None
            self.done = True
            self._ended.release()
            tell_end, self._tell_end = self._tell_end, None  # which may hold this call
            if tell_end is not None:
                tell_end(self)

    def wait(self, timeout_s: float = -1) -> None:
        """Wait until the call has ended, or for ``timeout_s`` seconds; negative: without end."""
        # The garbage collector may end an abandoned iterator on any thread, so also on the one that makes this call.
        if self._thread != threading.get_ident() and self._ended.acquire(timeout=timeout_s):
            self._ended.release()

    def result(self) -> T:
        """Wait for what the function returned; raise what the function raised."""
        self.wait()
        if self.error is not None:
            try:
                raise self.error
            finally:
                self.error = None  # which holds this frame
        result, self._result = self._result, None
        return cast("T", result)


class OperatorThreads:
    """Threads that run one operator's function, and the cost of that function, in all tasks of a program.

    Args:
        pool: None to call on the thread that pulls, always.
        inline: AUTOTUNE begins with that thread.

    Attributes:
        cost_s: seconds of one element, smoothed; negative until known.
        slowest_s: seconds of the slowest call lately.
        bytes: of one element's result, the largest seen lately.
    """

    def __init__(self, pool: ThreadPool | None, *, inline: bool = False) -> None:
        self._pool = pool
        self._tuning = (
            thread_autotuner.begin(1, 1)
            if pool is None
            else thread_autotuner.begin(pool.cores, pool.most, inline=inline)
        )
        self._lock = threading.RLock()  # for the garbage collector again
        self._queue: deque[ChunkCall[Any]] = deque()
        self._active = self._threads = self._level = 0
        self._helped = False
        self._users = 0
        self._resumed = 0.0
        self._window = MeasuredWindow(0, 0.0, 0.0, 0.0, 0.0)
        self._calls = 0
        self._tuned = False
        self.cost_s = -1.0
        self.slowest_s = 0.0
        self.bytes = 0.0

    @property
    def tuning(self) -> Tuning:
        """State of AUTOTUNE: the number of threads, and the reason."""
        return self._tuning

    def threads(self, parallel: int) -> int:
        """Choose the number of threads for ``num_parallel_calls=parallel``; 0 for the thread that pulls.

        It is always that thread for the first call, which tells what an element costs, and while elements are cheap.
        """
        if self._pool is None or self.cost_s < _WORTH_A_THREAD_S:
            return 0
        self._tuned = parallel == AUTOTUNE
        if self._tuned:
            return self._tuning.level
        return min(parallel, self._pool.most) if min(parallel, self._pool.most) > 1 else 0

    @property
    def level(self) -> int:
        """Number of threads that were used last, a helping one included; 0: only the one that pulls."""
        return self._level

    def join(self) -> None:
        """Begin a task's use of the threads."""
        with self._lock:
            if not self._users:
                self._resumed = clock()
            self._users += 1

    def leave(self) -> None:
        """End a task's use. Time without any is not counted."""
        with self._lock:
            self._users -= 1
            if not self._users:
                self._window = replace(self._window, seconds=self._window.seconds + clock() - self._resumed)

    def submit(self, call: ChunkCall[Any], threads: int, *, helped: bool = False) -> None:
        """Have ``call`` made once fewer than ``threads`` others run; ``helped``: beside those of :meth:`help`."""
        assert self._pool is not None
        with self._lock:
            self._queue.append(call)
            self._threads, self._level = threads, threads + helped
            if self._active < threads:
                self._active += 1
                self._pool.start(self._work)

    def help(self, awaited: ChunkCall[Any]) -> bool:
        """Make a call on this thread instead of waiting, unless ``awaited`` has ended; False: there is none to make.

        One thread at a time does so, beside those that :meth:`submit` was allowed.

        Raises:
            KeyboardInterrupt: at once, if one of these calls does; whoever takes its result gets it as well.
        """
        with self._lock:
            if self._helped or awaited.done:
                return False
            self._helped = True
        try:
            call = self._take()
            if call is None:
                return False
            call.run()
            if isinstance(call.error, KeyboardInterrupt):
                raise call.error
            return True
        finally:
            self._helped = False

    def cancel(self, calls: deque[ChunkCall[Any]]) -> None:
        """Cancel those of ``calls`` that have not begun; wait for the others, within :func:`shutdown_timeout`."""
        with self._lock:
            begun = [call for call in calls if call.begun]
            for call in calls:
                if not call.begun:
                    with contextlib.suppress(ValueError):  # Ctrl-C came before it was queued
                        self._queue.remove(call)
        until = clock() + shutdown_timeout()
        for call in begun:
            call.wait(max(0.0, until - clock()))

    def learn(self, elements: int, seconds: float, cpu_s: float, waited_s: float, size: float | None) -> None:
        """Learn from a call whose result has been taken.

        Args:
            elements: at least 1.
            seconds: time that it took.
            cpu_s: of these, of processor time.
            waited_s: seconds for which its result was waited.
            size: bytes of the result; None if not known here.
        """
        with self._lock:
            each = seconds / elements
            self.cost_s = each if self.cost_s < 0 else 0.8 * self.cost_s + 0.2 * each
            self.slowest_s = max(0.99 * self.slowest_s, seconds)
            if size is not None:
                self.weigh(size / elements)
            if self._tuned:
                self._tune(MeasuredWindow(elements, 0.0, waited_s, seconds, cpu_s))

    def _tune(self, call: MeasuredWindow) -> None:
        so_far, now = self._window, clock()
        window = MeasuredWindow(
            so_far.elements + call.elements,
            so_far.seconds + now - self._resumed,
            so_far.waited_s + call.waited_s,
            so_far.calls_s + call.calls_s,
            so_far.cpu_s + call.cpu_s,
        )
        self._calls += 1
        self._resumed = now
        if window.seconds >= _WINDOW_S and self._calls >= 2 * max(1, self._tuning.level):
            self._tuning = thread_autotuner.step(self._tuning, window)
            window, self._calls = MeasuredWindow(0, 0.0, 0.0, 0.0, 0.0), 0
        self._window = window

    def weigh(self, size: float) -> None:
        """Learn from the bytes of one result."""
        self.bytes = max(0.9 * self.bytes, size)

    def _take(self) -> ChunkCall[Any] | None:
        """Take the earliest call that nobody has begun, for this thread."""
        with self._lock:
            if not self._queue:
                return None
            call = self._queue.popleft()
            call.begin()
            return call

    def _work(self) -> None:
        while True:
            with self._lock:
                call = None if self._active > self._threads else self._take()
                if call is None:
                    self._active -= 1
                    return
            call.run()
            del call  # a thread without work must not keep the last result
