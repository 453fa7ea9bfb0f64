"""Runs: tasks that are being run, whose chunks come one after the other."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from typing import Any, Self

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Totals
from millrace.engine.run.lowering import Lowering
from millrace.engine.run.task import RunningTask
from millrace.engine.user_code.user_calls import Calls
from millrace.graph.operator_graph import Graph
from millrace.planning.plan import Piece


class Run:
    """Task being run: iterate over its chunks; a context manager that stops it.

    Attributes:
        leftovers: after the end, what is left for the task's parent: raw elements by the node that collects them.
    """

    def __init__(self, task: RunningTask, graph: Graph, totals: Totals, skip: int = 0) -> None:
        self._task, self._graph, self._totals, self._skip = task, graph, totals, skip
        self._chunks = Lowering(task, graph).root()
        self._closed = False

    def made(self, number: int) -> int:
        """Count the elements that node ``number`` has yielded in this task so far."""
        return self._task.measures[number].elements

    @property
    def calls(self) -> Calls:
        """Calls of users' functions in it."""
        return self._task.calls

    @property
    def leftovers(self) -> dict[int, list[Any]]:
        """Leftovers of the task so far, by the node that collects them."""
        return self._task.left

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out so far."""
        return self._task.calls.skipped

    @property
    def left_out(self) -> int:
        """Number of elements that were left out as they filled no round, so far."""
        return self._task.left_out.total()

    @property
    def drawn(self) -> dict[str, str]:
        """Hashes of what users' own samplers have drawn for this task, see :class:`EpochOrders`."""
        return self._task.orders.drawn

    @property
    def passed(self) -> list[int]:
        """Number of elements that each operator gave, by node; of one left out, what it would have passed on."""
        return [self._task.measures[self._graph.id_of(node)].elements for node in self._task.units.graph.nodes]

    def __iter__(self) -> Iterator[Chunk]:
        return self

    def __next__(self) -> Chunk:
        try:
            chunk = next(self._chunks, None)
            while self._skip and chunk is not None:
                left_out = min(self._skip, len(chunk))
                self._skip -= left_out
                chunk = chunk.slice(left_out, len(chunk)) if left_out < len(chunk) else next(self._chunks, None)
        except BaseException:
            self.close()
            raise
        if chunk is None:
            self.close()
            raise StopIteration
        return chunk

    def close(self) -> None:
        """Stop the task and wait for what runs. Idempotent."""
        if self._closed:
            return
        self._closed = True
        try:
            self._task.stop(self._chunks)
        finally:
            self._totals.end(self._task.measures)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class PartsRun(Run):
    """Task of several pieces being run, one after the other. It leaves nothing over, and nothing out.

    Args:
        begin: starts a piece, less some of its first outputs.
        parts: the pieces.
        skip: outputs of the task to leave out at its beginning.
    """

    def __init__(self, begin: Callable[[Piece, int], Run], parts: Sequence[Piece], skip: int) -> None:
        self._runs: list[Run] = []
        self._parts = _part_by_part(begin, parts, skip, self._runs)

    def made(self, number: int) -> int:
        """Count the elements that node ``number`` has yielded in all pieces so far."""
        return sum(run.made(number) for run in self._runs)

    @property
    def passed(self) -> list[int]:
        """Number of elements that each operator gave in all pieces so far, by node; see :attr:`Run.passed`."""
        return [sum(each) for each in zip(*(run.passed for run in self._runs), strict=True)]

    @property
    def leftovers(self) -> dict[int, list[Any]]:
        """Leftovers: there are none."""
        return {}

    @property
    def skipped(self) -> int:
        """Number of elements left out: none, as each unit gives an output."""
        return 0

    @property
    def left_out(self) -> int:
        """Number of elements that filled no round: none, as nothing is left."""
        return 0

    @property
    def drawn(self) -> dict[str, str]:
        """Hashes of what users' own samplers have drawn for all pieces so far, see :attr:`Run.drawn`."""
        return {key: drawn for run in self._runs for key, drawn in run.drawn.items()}

    def __next__(self) -> Chunk:
        return next(self._parts)

    def close(self) -> None:
        """Stop the task and wait for what runs. Idempotent."""
        self._parts.close()


def _part_by_part(
    begin: Callable[[Piece, int], Run], parts: Sequence[Piece], skip: int, runs: list[Run]
) -> Generator[Chunk, None, None]:
    """Yield the chunks of all pieces but the first ``skip`` elements; append each run that is begun to ``runs``."""
    for piece in parts:
        before = min(skip, len(piece))
        skip, left = skip - before, len(piece) - before
        if not left:
            continue
        with begin(piece, before) as running:
            runs.append(running)
            for chunk in running:
                yield chunk if len(chunk) <= left else chunk.slice(0, left)
                left -= len(chunk)
                if left <= 0:
                    break
