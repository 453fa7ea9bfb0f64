"""The next task begins while the last calls of one take long, in this process."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

import pytest

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk, Origin
from millrace.engine.run.task_overlap import TaskOverlap
from millrace.engine.threads import operator_threads, ordered_map
from millrace.errors import ElementError
from millrace.planning.plan import make_plan

COUNT = 1000


def chunk(number: int) -> Chunk:
    return Chunk([number], Origin(0, 0), range(number, number + 1))


class Source:
    """Chunks that are made when they are pulled; fails before the one that is to fail."""

    def __init__(self, count: int, *, fails_at: int = -1) -> None:
        self.made: list[int] = []
        self.closed = False
        self._count, self._fails_at = count, fails_at

    def run(self) -> Iterator[Chunk]:
        try:
            for number in range(self._count):
                if number == self._fails_at:
                    raise ValueError("as told")
                self.made.append(number)
                yield chunk(number)
        finally:
            self.closed = True


def numbers(chunks: Iterator[Chunk] | None) -> list[int]:
    assert chunks is not None
    return [element for each in chunks for element in each.elements]


def test_what_was_made_early_comes_first_and_the_rest_when_it_is_pulled():
    source, overlap = Source(4), TaskOverlap(1 << 20)
    overlap.follows(0, source.run)
    assert overlap.meanwhile(0)
    assert overlap.meanwhile(0)
    assert source.made == [0, 1]
    taken = overlap.take()
    overlap.follows(1, None)
    assert numbers(taken) == [0, 1, 2, 3]
    assert source.closed
    assert overlap.take() is None


def test_only_the_task_that_runs_has_the_next_one_begun():
    source, overlap = Source(4), TaskOverlap(1 << 20)
    overlap.follows(3, source.run)
    assert not overlap.meanwhile(2)
    assert not overlap.meanwhile(4)
    overlap.follows(3, None)
    assert not overlap.meanwhile(3)
    assert source.made == []


def test_no_more_is_made_than_there_is_room_for():
    source, overlap = Source(100), TaskOverlap(2 * chunk(0).nbytes)
    overlap.follows(0, source.run)
    while overlap.meanwhile(0):
        pass
    assert source.made == [0, 1]


def test_a_failure_comes_in_its_turn():
    source, overlap = Source(4, fails_at=2), TaskOverlap(1 << 20)
    overlap.follows(0, source.run)
    while overlap.meanwhile(0):
        pass
    taken, found = overlap.take(), list[int]()
    assert taken is not None
    with pytest.raises(ValueError, match="as told"):
        for each in taken:
            found += each.elements
    assert found == [0, 1]


def test_who_leaves_closes_what_was_begun():
    source, overlap = Source(4), TaskOverlap(1 << 20)
    overlap.follows(0, source.run)
    overlap.meanwhile(0)
    overlap.close()
    overlap.close()
    assert source.closed
    assert overlap.take() is None


@pytest.fixture
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_threads, "_WORTH_A_THREAD_S", 0.0)
    monkeypatch.setattr(ordered_map, "_HELP_S", 0.0)
    monkeypatch.setattr(ordered_map, "_SLICE_S", 0.0)


def first_task(count: int) -> int:
    """Elements of the first of several tasks."""
    pipeline = Dataset.range(count).__pipeline__()
    plan = make_plan(pipeline.graph, pipeline.tables())
    assert plan.length is not None
    assert plan.length > 2
    return plan.task(0).stop


@pytest.mark.usefixtures("_threads")
def test_the_last_call_of_a_task_may_last_until_the_next_task_has_begun():
    """It would last for ever if the next task waited for it."""
    stop, begun = first_task(COUNT), threading.Event()

    def work(number: int) -> int:
        if number == stop - 1:
            assert begun.wait(60)
        if number >= stop:
            begun.set()
        return number

    assert list(Dataset.range(COUNT).map(work, num_parallel_calls=4)) == list(range(COUNT))


@pytest.mark.usefixtures("_threads")
def test_left_early_nothing_runs_any_more():
    threads = set(threading.enumerate())
    with contextlib.closing(iter(Dataset.range(COUNT).map(lambda number: number, num_parallel_calls=4))) as elements:
        for _ in range(first_task(COUNT) + 1):
            next(elements)
    assert not [thread for thread in set(threading.enumerate()) - threads if thread.is_alive()]


@pytest.mark.usefixtures("_threads")
def test_an_element_that_fails_in_a_task_that_has_begun_early_fails_in_its_turn():
    wrong, found = first_task(COUNT) + 1, list[int]()

    def work(number: int) -> int:
        if number == wrong:
            raise ValueError("too early")
        return number

    with pytest.raises(ElementError, match="too early"):
        for number in Dataset.range(COUNT).map(work, num_parallel_calls=4):
            found += [number]
    assert found == list(range(wrong))
