"""Sequential sources in memory, and the elements of a pipeline run in every way there is."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from millrace import sources
from millrace.dataset import Dataset
from millrace.engine.metrics import Sizer
from millrace.engine.run import epoch_tasks, program
from millrace.engine.run.program import Program
from millrace.engine.run.progress_tracker import ProgressTracker
from millrace.engine.threads import operator_threads, ordered_map
from millrace.graph import nodes as g
from millrace.planning import task_order
from millrace.planning.checkpoint import Merged
from millrace.planning.plan import WHOLE, Task
from millrace.planning.split_table import Split, SplitTable, splits_table

PREFIX = "/memory-of-a-test:"


class Sequential:
    """Numbers from a split's first on."""

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[int]]:
        size = int(split.version)
        stop = size if stop < 0 else min(stop, size)
        while start < stop:
            end = min(stop, start + max(1, chunk_size()))
            yield list(range(split.first_record + start, split.first_record + end))
            start = end


def _table(pattern: str) -> SplitTable:
    first, counted, *sizes = (int(word) for word in pattern.removeprefix(PREFIX).split(","))
    splits = []
    for number, size in enumerate(sizes):
        splits.append(
            Split(
                f"part-{number}", first_record=first, count=size if counted else -1, bytes=8 * size, version=str(size)
            )
        )
        first += size
    return splits_table(splits)


def _is_ours(node: g.Node) -> bool:
    return isinstance(node, g.FromTFRecords) and node.patterns[0].startswith(PREFIX)


@pytest.fixture(autouse=True, scope="session")
def _memory() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            program,
            "list_source",
            lambda node, reads, seen: (
                _table(node.patterns[0]) if _is_ours(node) else sources.list_source(node, reads, seen)
            ),
        )
        patch.setattr(
            program,
            "open_source",
            lambda node, table, reads: Sequential() if _is_ours(node) else sources.open_source(node, table, reads),
        )
        yield


class FixedSizer(Sizer):
    """Never learns."""

    def learn(self, elements: int, seconds: float, size: float) -> None:
        assert elements > 0
        assert seconds >= 0
        assert size >= 0


def begin_early(patch: pytest.MonkeyPatch, chunks: int) -> None:
    """Have calls made on threads, and so many chunks of the next task computed whenever one awaits its last calls."""

    def use_wait(_: Any, meanwhile: Callable[[], bool]) -> None:
        for _chunk in range(chunks):
            if not meanwhile():
                break

    patch.setattr(operator_threads, "_WORTH_A_THREAD_S", 0.0)
    patch.setattr(ordered_map._Calls, "use_wait", use_wait)


def go_on(made: Program, begin: Merged, tasks: Iterator[Task] | None = None) -> tuple[ProgressTracker, Iterator[Any]]:
    """Read what is left of these tasks, or of all: how far that is, and the elements one after the other."""
    tally = ProgressTracker(begin)
    order = task_order.planned(made.plan) if tasks is None else tasks
    return tally, tally.handed(epoch_tasks.chunks_of(epoch_tasks.LocalEpoch(made, begin), order, begin, tally))


def reached(epoch: int, tally: ProgressTracker) -> Merged:
    """Where somebody else can go on."""
    done, begun = tally.now()
    return Merged(epoch=epoch, done=done.low, later=done.text(), begun=begun)


def elements_of(made: Program, tasks: Iterator[Task], number: int) -> list[Any]:
    """What these tasks give, one after the other."""
    return list(go_on(made, Merged(epoch=number), tasks)[1])


class Runs:
    """Ways to run a dataset."""

    @staticmethod
    def sequential(*sizes: int, first: int = 0, counted: bool = True) -> Dataset:
        """Numbers from ``first`` on, in splits of ``sizes``."""
        return Dataset.from_tfrecords(f"{PREFIX}{first},{int(counted)},{','.join(map(str, sizes))}")

    @staticmethod
    def program(
        dataset: Dataset, *, tasks: int | None = None, seed: int | None = None, chunk: int | None = None
    ) -> Any:
        """A program, to be closed."""
        chosen = 7 if seed is None else seed
        made = Program(
            dataset.__pipeline__().graph, dataset.__pipeline__().tables(), seed=chosen, tasks=tasks, threads=2
        )
        if chunk is not None:
            made._sizers = [FixedSizer(size=chunk) for _ in made.graph.nodes]
        return made

    def epoch(self, dataset: Dataset, number: int = 0, **options: Any) -> list[Any]:
        """All tasks in plan order."""
        made = self.program(dataset, **options)
        try:
            return elements_of(made, task_order.planned(made.plan), number)
        finally:
            made.close()

    def shares(self, dataset: Dataset, parts: int, number: int = 0, **options: Any) -> list[list[Any]]:
        """What each of ``parts`` processes gets."""
        made = self.program(dataset, **options)
        try:
            return [elements_of(made, task_order.shared(made.plan, part, parts), number) for part in range(parts)]
        finally:
            made.close()

    def whole(self, dataset: Dataset, number: int = 0, **options: Any) -> list[Any]:
        """Without a plan: the graph as one sequence."""
        made = self.program(dataset, **options)
        try:
            with made.run(WHOLE, number) as run:
                return [element for chunk in run for element in chunk.elements]
        finally:
            made.close()

    def task(self, dataset: Dataset, index: int, number: int = 0, **options: Any) -> tuple[list[Any], dict[int, Any]]:
        """(elements, leftovers) of one task that takes no leftovers."""
        made = self.program(dataset, **options)
        try:
            with made.run(made.plan.task(index), number) as run:
                elements = [element for chunk in run for element in chunk.elements]
            return elements, run.leftovers
        finally:
            made.close()


@pytest.fixture(scope="session")
def runs() -> Runs:
    return Runs()


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    yield
    assert [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")] == []
