"""Epoch tasks: the tasks of one epoch as they run in this process, one after the other."""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import islice
from typing import Any

import msgspec

from millrace.elements.chunk import Chunk
from millrace.engine.cache.local_cache import LocalCache
from millrace.engine.run.local_weights import LocalWeights
from millrace.engine.run.outlook import ComingTask
from millrace.engine.run.program import Program
from millrace.engine.run.progress_tracker import ProgressTracker
from millrace.engine.run.task_overlap import TaskOverlap
from millrace.engine.run.task_run import Run
from millrace.planning.checkpoint import Merged
from millrace.planning.epoch_shape import RunShape, WeightChange
from millrace.planning.plan import Task

_COMING = 8
"""Tasks whose reads of remote stores may be under way before they run."""
Leftovers = Mapping[int, list[Any]]


def join(parts: Iterable[Leftovers]) -> dict[int, list[Any]]:
    """Join what several tasks left over in their order, by node id."""
    joined: dict[int, list[Any]] = {}
    for part in parts:
        for node, elements in part.items():
            joined.setdefault(node, []).extend(elements)
    return joined


class LocalEpoch:
    """Tasks of one epoch as they run, one after the other.

    Args:
        program: runs them.
        begin: the epoch, and what was read of it.
        reuse: what caches hold.

    Attributes:
        weights: that are set while it is read.
    """

    def __init__(self, program: Program, begin: Merged, reuse: LocalCache | None = None) -> None:
        self.plan = program.plan
        self._reuse = reuse
        self._program, self._number, self._begin = program, begin.epoch, begin
        self.weights = LocalWeights(begin)
        self._runs: list[Run] = []
        self._skipped = 0  # by those that have ended
        self.over = False
        """Whether an endless repeat has turned out to have nothing to repeat."""

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out so far."""
        return sum(run.skipped for run in list(self._runs)) + self._skipped

    @property
    def _shape(self) -> RunShape:
        return msgspec.structs.replace(self._begin, reweighted=self.weights.changes)

    def begin(self, number: int) -> None:
        """Note that a task begins, by its number in the epoch."""
        self.weights.begins(number)

    def set_weights(self, weights: Sequence[float]) -> WeightChange:
        """Have weights of the mixture hold from the first task on that has not begun."""
        return self.weights.set(weights, self._program.set_weights)

    def expect(self, tasks: Iterable[Task]) -> None:
        """Announce the tasks that run now and next, see :meth:`millrace.engine.run.program.Program.expect`."""
        point = None if self._reuse is None else self._reuse.point()
        shape = self._shape
        self._program.expect(None, [ComingTask(task, self._number, shape, point) for task in tasks])

    def run(
        self,
        task: Task,
        leftovers: Leftovers,
        left: dict[int, Leftovers],
        skip: int = 0,
        meanwhile: Callable[[], bool] | None = None,
    ) -> Iterator[Chunk]:
        """Yield chunks of ``task`` without its first ``skip`` outputs; its leftovers go to ``left``.

        See :meth:`millrace.engine.run.program.Program.run` for ``meanwhile``.
        """
        nothing: AbstractContextManager[dict[str, Any]] = nullcontext({})
        shape = self._shape
        with (
            nothing if self._reuse is None else self._reuse.using() as cache,
            self._program.run(
                task, self._number, leftovers, skip=skip, shape=shape, meanwhile=meanwhile, **cache
            ) as run,
        ):
            self._runs.append(run)
            try:
                yield from run
            finally:
                self._runs.remove(run)
                self._skipped += run.skipped
            if task.parent >= 0:
                left[task.index] = run.leftovers
        self.over = self._program.ended(task, self._number, run)

    def overlap(self) -> TaskOverlap | None:
        """Make what begins tasks before their time; None where that doesn't go: they share a cache, or work ahead."""
        alone = self._reuse is not None or self.plan.length is None or self._program.works_ahead
        return None if alone else TaskOverlap(self._program.budget.each)

    def take(self, task: Task, left: dict[int, Leftovers], passed: dict[int, Task]) -> Leftovers:
        """Take the leftovers of a tail's inputs; inputs that were passed over run again for it, and nothing else."""
        missing, wanted = set[int](), [child for child in task.inputs if child not in left]
        while wanted:
            child = wanted.pop()
            if child in passed and child not in missing:
                missing.add(child)
                wanted += [below for below in passed[child].inputs if below not in left]
        for index in [index for index in passed if index in missing]:  # in the order in which they came
            again = passed.pop(index)
            for _ in self.run(again, join(left.pop(child, {}) for child in again.inputs), left):
                pass
        return join(left.pop(child, {}) for child in task.inputs)


def chunks_of(
    epoch: LocalEpoch, tasks: Iterator[Task], begin: Merged, progress: ProgressTracker
) -> Generator[Chunk, None, None]:
    """Yield what is still to come of an epoch: the chunks of these tasks, one after the other."""
    done, begun, alone = begin.tasks_done(), dict(begin.begun), begin.tasks_alone()
    left: dict[int, Leftovers] = {}
    passed: dict[int, Task] = {}
    overlap = epoch.overlap()

    def itself(number: int, given: Task) -> Task:
        return msgspec.structs.replace(given, parent=-1) if number in alone else given

    def run(number: int, task: Task, leftovers: Leftovers) -> Iterator[Chunk]:
        epoch.begin(number)
        meanwhile = None if overlap is None else functools.partial(overlap.meanwhile, number)
        return epoch.run(task, leftovers, left, begun.get(number, 0), meanwhile)

    try:
        for number, given, coming in _with_coming(tasks):
            task = itself(number, given)
            if number not in done:
                early = None if overlap is None else overlap.take()
                leftovers = {} if early is not None else epoch.take(task, left, passed)
                epoch.expect([task, *coming])
                if overlap is not None:
                    known = coming and not coming[0].is_tail and number + 1 not in done
                    after = functools.partial(run, number + 1, itself(number + 1, coming[0]), {}) if known else None
                    overlap.follows(number, after)
                yield from progress.counted(number, begun.get(number, 0), early or run(number, task, leftovers))
                if epoch.over:
                    rest = Task(task.index + 1, 0, 0, tuple(sorted(left)))
                    if left:
                        leftovers = epoch.take(rest, left, passed)
                        yield from progress.counted(number + 1, 0, epoch.run(rest, leftovers, left))
                    return
            elif task.parent >= 0:
                passed[task.index] = task
            elif number not in alone:
                passed.clear()  # whatever they left over has become outputs
    finally:
        if overlap is not None:
            overlap.close()


def _with_coming(tasks: Iterator[Task]) -> Iterator[tuple[int, Task, list[Task]]]:
    """Pair each task with its number and the few that come behind it."""
    window = deque(islice(tasks, 1 + _COMING))
    number = 0
    while window:
        task = window.popleft()
        yield number, task, list(window)
        window.extend(islice(tasks, 1))
        number += 1
