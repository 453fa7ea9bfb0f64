"""A whole epoch in this process, with the plan that a service would use."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Self

from millrace.elements.chunk import Chunk
from millrace.engine.overlap import overlapped
from millrace.engine.program import Program, Run
from millrace.graph.nodes import Graph
from millrace.planning.plan import FAN_IN, Task, make_plan
from millrace.planning.tables import SplitTable

Leftovers = Mapping[int, list[Any]]

_TASKS_EACH = 4
"""Tasks of an epoch, at least, for each of the processes that share it."""


def join(parts: Iterable[Leftovers]) -> dict[int, list[Any]]:
    """What several tasks left over, joined in their order, by node id."""
    joined: dict[int, list[Any]] = {}
    for part in parts:
        for node, elements in part.items():
            joined.setdefault(node, []).extend(elements)
    return joined


def read(
    graph: Graph, tables: Mapping[int, SplitTable], seed: int, number: int, share: tuple[int, int] | None = None
) -> LocalIterator:
    """Epoch ``number`` of a pipeline; with a share (i, n) the i-th of n parts of it."""
    part, parts = share or (0, 1)
    planned = make_plan(graph, tables, seed=seed).length if parts > 1 else None
    few = planned is not None and planned < _TASKS_EACH * parts
    tasks = _TASKS_EACH * parts if few else None  # so that there is something for each
    return LocalIterator(Program(graph, tables, seed=seed, tasks=tasks, consecutive=True), number, part, parts)


class Epoch:
    """The tasks of one epoch as they run, one after the other."""

    def __init__(self, program: Program, number: int) -> None:
        self.plan = program.plan
        self._program, self._number = program, number
        self._run: Run | None = None
        self._skipped = 0

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return self._skipped + (self._run.skipped if self._run is not None else 0)

    def run(self, task: Task, leftovers: Leftovers, left: dict[int, Leftovers]) -> Iterator[Chunk]:
        """Chunks of ``task``; what it leaves over goes to ``left``."""
        self._skipped, self._run = self.skipped, None
        with self._program.run(task, self._number, leftovers) as run:
            self._run = run
            yield from run
            if task.parent >= 0:
                left[task.index] = run.leftovers


def whole(epoch: Epoch) -> Generator[Chunk, None, None]:
    """Chunks of all tasks of an epoch, in plan order."""
    left: dict[int, Leftovers] = {}
    index = 0
    while epoch.plan.length is None or index < epoch.plan.length:
        task = epoch.plan.task(index)
        yield from epoch.run(task, join(left.pop(child, {}) for child in task.inputs), left)
        index += 1


def share(epoch: Epoch, part: int, parts: int) -> Generator[Chunk, None, None]:
    """Chunks of every ``parts``-th task of an epoch, from ``part`` on; what they leave over stays among them.

    For processes that read one epoch together without talking to one another: the parts are disjoint and together
    they are the epoch.
    """
    left: dict[int, Leftovers] = {}
    index, mains = 0, 0
    while epoch.plan.length is None or index < epoch.plan.length:
        task = epoch.plan.task(index)
        index += 1
        if task.is_tail:
            continue
        mains += 1
        if (mains - 1) % parts != part:
            continue
        yield from epoch.run(task, {}, left)
        if len(left) == FAN_IN:
            yield from _own_tail(epoch, left, -1 - index * parts - part, parent=index)
    if left:
        yield from _own_tail(epoch, left, -1 - (index + 1) * parts - part)


def _own_tail(epoch: Epoch, left: dict[int, Leftovers], index: int, parent: int = -1) -> Iterator[Chunk]:
    """A tail of the tasks in ``left``, which it replaces there; its index is none of the plan nor of other parts."""
    task = Task(index, 0, 0, tuple(left), parent)
    leftovers = join(left.values())
    left.clear()
    yield from epoch.run(task, leftovers, left)


class LocalIterator(Iterator[Any]):
    """Elements of one epoch, or of a part of it, in this process.

    Closes itself at the end; ``close()``, or leaving a ``with`` block, ends it before. Owns the program.
    """

    def __init__(self, program: Program, number: int, part: int = 0, parts: int = 1) -> None:
        self._program = program
        self._epoch = Epoch(program, number)
        self._elements = _elements(program, self._epoch, part, parts)

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        return next(self._elements)

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return self._epoch.skipped

    def close(self) -> None:
        """Stops threads and lets go of everything. Idempotent."""
        self._elements.close()

    def measures(self) -> list[tuple[int, str, int, int, float]]:
        """What each operator did so far: (node id, label, elements, bytes, active seconds)."""
        return self._program.measures()

    def rewrites(self) -> list[str]:
        """How what runs differs from what was written, in plain words; see :mod:`millrace.graph.rewrites`."""
        return self._program.rewrites

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _elements(program: Program, epoch: Epoch, part: int, parts: int) -> Generator[Any, None, None]:
    chunks = whole(epoch) if parts == 1 else share(epoch, part, parts)
    if program.ending is not None:
        chunks = overlapped(chunks, program.ending, program.budget.each)
    try:
        for chunk in chunks:
            yield from chunk.elements
    finally:
        try:
            chunks.close()
        finally:
            program.close()
