"""Metrics of operators: elements, bytes, active time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field

from millrace.elements.chunk import Chunk
from millrace.elements.tree import nbytes, nbytes_of
from millrace.host_limits import run_delay_s

clock = time.perf_counter


@dataclass(slots=True)
class Measure:
    """Measure of one operator in one running task; written by the thread that pulls, read by any.

    Attributes:
        elements: elements yielded.
        bytes: bytes of these elements.
        pulled_s: seconds in which the operator's output was being pulled, its inputs' included.
        idle_s: of these, seconds spent waiting for other threads.
        threads_s: seconds of work that other threads did for it.
        pulled_cpu_s: processor seconds of the thread that pulled, its inputs' included.
        threads_cpu_s: processor seconds of other threads, less those that the thread that pulled spent as it waited.
        padding: numbers that padding put into arrays of batches, and ``padded``: all numbers in these arrays.
    """

    elements: int = 0
    bytes: int = 0
    pulled_s: float = 0.0
    idle_s: float = 0.0
    threads_s: float = 0.0
    pulled_cpu_s: float = 0.0
    threads_cpu_s: float = 0.0
    padding: int = 0
    padded: int = 0

    def add(self, other: Measure) -> None:
        """Add another task's measure."""
        self.elements += other.elements
        self.bytes += other.bytes
        self.pulled_s += other.pulled_s
        self.idle_s += other.idle_s
        self.threads_s += other.threads_s
        self.pulled_cpu_s += other.pulled_cpu_s
        self.threads_cpu_s += other.threads_cpu_s
        self.padding += other.padding
        self.padded += other.padded


def measured(
    chunks: Iterator[Chunk], measure: Measure, limit: int, too_large: Callable[[Chunk, int, int], Exception]
) -> Iterator[Chunk]:
    """Count and time the chunks that the engine's last operator gives, for the metrics of a run.

    One element of more than ``limit`` bytes is the failure ``too_large(chunk, index, bytes)`` after those before it.
    """
    try:
        while True:
            began, cpu = clock(), time.thread_time()
            chunk = next(chunks, None)
            measure.pulled_s += clock() - began
            measure.pulled_cpu_s += time.thread_time() - cpu
            if chunk is None:
                return
            size = nbytes_of(chunk.elements)
            if size > limit:
                for index, element in enumerate(chunk.elements):
                    if (alone := nbytes(element)) > limit:
                        failure = too_large(chunk, index, alone)
                        chunk = chunk.slice(0, index)
                        chunk.failure = failure
                        break
            measure.elements += len(chunk.elements)
            measure.bytes += size
            yield chunk
    finally:
        close(chunks)


@dataclass(slots=True)
class Loop:
    """Timing of whoever reads an epoch in this process.

    Attributes:
        began: second at which it first asked for something; 0: it has not.
        ended: second at which it was told that there is no more, or stopped; 0: it has not.
        waited_s: seconds in which it waited for chunks.
    """

    began: float = 0.0
    ended: float = 0.0
    waited_s: float = 0.0
    _at_begin: tuple[float, float] = (0.0, 0.0)
    _at_end: tuple[float, float] | None = None

    @property
    def read_s(self) -> float:
        """Seconds since it began."""
        return (self.ended or clock()) - self.began if self.began else 0.0

    def cores_s(self) -> tuple[float, float]:
        """Measure seconds of processor time that this process had meanwhile, and those in which it lacked a core."""
        (cpu_s, delayed_s), (cpu_before_s, delayed_before_s) = self._at_end or _cores_s(), self._at_begin
        return cpu_s - cpu_before_s, max(0.0, delayed_s - delayed_before_s)  # threads that have ended do not count

    def timed(self, chunks: Iterator[Chunk]) -> Generator[Chunk, None, None]:
        """Time chunks."""
        self._at_begin = _cores_s()
        self.began = asked = clock()
        try:
            for chunk in chunks:
                self.waited_s += clock() - asked
                yield chunk
                asked = clock()
            self.waited_s += clock() - asked
        finally:
            self.ended = clock()
            self._at_end = _cores_s()


def _cores_s() -> tuple[float, float]:
    return time.process_time(), run_delay_s()


def close(chunks: Iterator[object]) -> None:
    """End a generator early; other iterators have nothing to end."""
    end = getattr(chunks, "close", None)
    if end is not None:
        end()


class Totals:
    """Totals of all tasks of a program: those that run and the sum of those that ended."""

    def __init__(self, inputs: list[tuple[int, ...]]) -> None:
        self._inputs = inputs
        self._ended = [Measure() for _ in inputs]
        self._running: list[list[Measure]] = []
        # Reentrant: the garbage collector may end an abandoned task in the middle of anything.
        self._lock = threading.RLock()

    def begin(self) -> list[Measure]:
        """Begin the measures of one task, by node id."""
        measures = [Measure() for _ in self._inputs]
        with self._lock:
            self._running.append(measures)
        return measures

    def end(self, measures: list[Measure]) -> None:
        """End a task's measures."""
        with self._lock:
            self._running = [running for running in self._running if running is not measures]
            for total, measure in zip(self._ended, measures, strict=True):
                total.add(measure)

    def padding(self) -> list[dict[str, int]]:
        """List of each node's ``padding`` and ``padded``, as a :class:`Measure` has them."""
        with self._lock:
            every = [self._ended, *self._running]
        return [
            {"padding": sum(each.padding for each in node), "padded": sum(each.padded for each in node)}
            for node in zip(*every, strict=True)
        ]

    def by_node(self) -> list[tuple[int, int, float, float, float]]:
        """List (elements, bytes, active seconds, processor seconds, seconds held) of each node.

        Active seconds are those of its own work, wherever it was done. Held seconds are those that the thread which
        pulls its output spent in it alone, also waiting for the node's threads.
        """
        with self._lock:
            sums = [Measure() for _ in self._inputs]
            for measures in (self._ended, *self._running):
                for total, measure in zip(sums, measures, strict=True):
                    total.add(measure)
        rows = []
        for measure, inputs in zip(sums, self._inputs, strict=True):
            below = sum(sums[child].pulled_s for child in inputs)
            held = max(0.0, measure.pulled_s - below)
            own = max(0.0, measure.pulled_s - measure.idle_s - below + measure.threads_s)
            below_cpu = sum(sums[child].pulled_cpu_s for child in inputs)
            own_cpu = max(0.0, measure.pulled_cpu_s - below_cpu + measure.threads_cpu_s)
            rows.append((measure.elements, measure.bytes, own, own_cpu, held))
        return rows


@dataclass(slots=True)
class Sizer:
    """Choice of the number of elements in a node's chunks: some milliseconds of work, and not too many bytes.

    It is shared by the tasks of a program, so that a small task starts with what others have learnt. No output depends
    on it.
    """

    size: int = 16
    _cost_s: float = 0.0
    _bytes: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def learn(self, elements: int, seconds: float, size: float) -> None:
        """Learn from the cost of ``elements`` that the node yielded.

        Args:
            elements: more than 0.
            seconds: time that the whole pipeline took meanwhile.
            size: bytes of them in the output of the operator that made the largest.
        """
        with self._lock:
            cost = seconds / elements
            self._cost_s = cost if not self._cost_s else 0.7 * self._cost_s + 0.3 * cost
            self._bytes = max(size / elements, 0.7 * self._bytes)
            by_time = _CHUNK_S / max(self._cost_s, 1e-9)
            by_bytes = _CHUNK_BYTES / max(self._bytes, 1.0)
            wanted = min(by_time, by_bytes, _CHUNK_ELEMENTS)
            self.size = max(1, round(min(wanted, 4 * self.size)))


_CHUNK_S = 0.005
_CHUNK_BYTES = 4 << 20
_CHUNK_ELEMENTS = 8192
