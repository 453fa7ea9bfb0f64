"""Fused operators: a chain of maps and filters runs function after function on the same chunk, in one hand-over."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Measure, close
from millrace.engine.run.task import NodeContext, RunningTask
from millrace.graph.nodes import Filter, Map
from millrace.graph.rewrites.fusion import parallel_calls
from millrace.ops import filter as filtering
from millrace.ops import map as mapping

Step = Callable[[Chunk], Chunk]


def run_fused(
    task: RunningTask, parts: Sequence[tuple[int, Map | Filter]], chunks: Iterator[Chunk], repetition: int
) -> Iterator[Chunk]:
    """Yield what the last of ``parts`` yields if each takes what the one before it yields.

    Args:
        task: the running task.
        parts: (number, node), at least two. All but the last are measured here, the last as every operator is.
        chunks: the input of the first.
        repetition: of the task's units.
    """
    contexts = [NodeContext(task, number, repetition) for number, _ in parts]
    steps = [_step(node, context) for (_, node), context in zip(parts, contexts, strict=True)]
    parallel = parallel_calls(parts[0][1])
    between = _Between(task, parts[0][0], lambda: task.operator_threads[parts[-1][0]].threads(parallel))
    steps[:-1] = [between.counted(number, step) for (number, _), step in zip(parts, steps[:-1], strict=False)]

    def apply(chunk: Chunk) -> Chunk:
        failure: Exception | None = None  # of the earliest element: later functions get those before it alone
        for step in steps:
            chunk = step(chunk)
            failure = chunk.failure or failure
            if not chunk.elements:
                break
        return chunk if failure is chunk.failure else Chunk(chunk.elements, chunk.origin, chunk.positions, failure)

    for chunk in contexts[-1].in_order(apply, between.cut(chunks), parallel):
        if chunk.elements or chunk.failure is not None:
            yield chunk


def _step(node: Map | Filter, context: NodeContext) -> Step:
    return mapping.step(node, context) if isinstance(node, Map) else filtering.step(node, context)


class _Between:
    """Chunks on their way from one function of a chain to the next: counted, and bounded in bytes."""

    def __init__(self, task: RunningTask, first: int, threads: Callable[[], int]) -> None:
        self._task, self._first, self._threads = task, first, threads
        self._lock = threading.Lock()
        self._bytes = -1.0  # of one element between two functions, the largest seen lately; -1: none seen

    def counted(self, number: int, step: Step) -> Step:
        """Wrap ``step``, called by any thread: its output and time go to the measure of node ``number``."""
        task, total = self._task, self._task.measures[number]

        def apply(chunk: Chunk) -> Chunk:
            measure = Measure()
            result = next(task.measured(number, map(step, (chunk,)), measure))
            with self._lock:
                total.add(measure)
                self._bytes = max(measure.bytes / len(chunk), 0.9 * self._bytes)
            return result

        return apply

    def cut(self, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Cut chunks so small that what all threads have between two functions stays in the budget."""
        try:
            with self._task.sharing(self._first) as budget:
                for chunk in chunks:
                    start = 0
                    while start < len(chunk):
                        each = budget() / (2 * max(1, self._threads()))  # bytes for a call
                        most = 1 if self._bytes < 0 else max(1, int(each / max(self._bytes, 1.0)))
                        yield chunk if not start and most >= len(chunk) else chunk.slice(start, start + most)
                        start += most
        finally:
            close(chunks)
