"""Prefetch: a thread that works ahead of whoever pulls."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Measure, clock, close
from millrace.engine.threads.shutdown_timeout import shutdown_timeout
from millrace.graph.nodes import AUTOTUNE


class PrefetchThread:
    """Thread that computes chunks ahead of whoever pulls them.

    It waits while ``elements`` (AUTOTUNE: any number) or ``budget()`` bytes lie ready.
    """

    def __init__(self, chunks: Iterator[Chunk], elements: int, budget: Callable[[], int]) -> None:
        self._chunks = chunks
        self._most_elements, self._most_bytes = elements, budget
        # Entered by the lock itself: Ctrl-C within Condition.__enter__, which is Python, would leave it held for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._ready: deque[tuple[Chunk, int]] = deque()
        self._elements = self._bytes = 0
        self._stopped = self._ended = False
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None

    def pull(self, measure: Measure) -> Generator[Chunk, None, None]:
        """Yield the chunks."""
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
        """End the thread, within :func:`shutdown_timeout`, and close the chunks it pulls. Idempotent."""
        with self._lock:
            self._stopped = True
            self._changed.notify_all()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(shutdown_timeout())
            if not thread.is_alive():
                close(self._chunks)

    def _next(self, measure: Measure) -> Chunk | None:
        began = clock()
        with self._lock:
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
                with self._lock:
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
            with self._lock:
                self._ended = True
                self._changed.notify_all()

    def _full(self, count: int, size: int) -> bool:
        too_many = self._most_elements != AUTOTUNE and self._elements + count > self._most_elements
        return too_many or self._bytes + size > self._most_bytes()
