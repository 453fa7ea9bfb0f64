"""Working ahead: order, bounds, and an end to the thread."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from tests.unit.engine.thread_cases import ORIGIN, Sized, chunks, millrace_threads

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Measure, close
from millrace.engine.run.program import Program, list_sources
from millrace.engine.run.task import NodeContext
from millrace.engine.threads.prefetch import PrefetchThread
from millrace.graph.nodes import AUTOTUNE, Prefetch


def test_chunks_come_in_order_from_another_thread():
    threads = set()

    def source() -> Iterator[Chunk]:
        for chunk in chunks(list(range(20))):
            threads.add(threading.current_thread().name)
            yield chunk

    found = [
        element
        for chunk in PrefetchThread(source(), AUTOTUNE, lambda: 1 << 20).pull(Measure())
        for element in chunk.elements
    ]
    assert found == list(range(20))
    assert threads == {"millrace-prefetch"}
    assert not millrace_threads()


class Counting:
    """A source that says how far it was read, and blocks nobody."""

    def __init__(self, size: int, nbytes: int = 1) -> None:
        self.size, self.nbytes = size, nbytes
        self.read = 0
        self.changed = threading.Condition()
        self.closed = False

    def chunks(self) -> Iterator[Chunk]:
        try:
            for number in range(self.size):
                with self.changed:
                    self.read += 1
                    self.changed.notify_all()
                yield Chunk([Sized(number, self.nbytes)], ORIGIN, range(number, number + 1))
        finally:
            self.closed = True

    def wait(self, read: int) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.read >= read, timeout=20)


@pytest.mark.parametrize(("elements", "budget", "nbytes", "ahead"), [(3, 1 << 30, 1, 3), (AUTOTUNE, 2640, 168, 5)])
def test_it_reads_so_far_ahead_and_no_farther(elements, budget, nbytes, ahead):
    source = Counting(100, nbytes)
    helper = PrefetchThread(source.chunks(), elements, lambda: budget)
    found = helper.pull(Measure())
    next(found)
    source.wait(1 + ahead + 1)  # what was taken, what lies ready, what is on its way
    for taken in range(2, 50):
        next(found)
        source.wait(taken + ahead + 1)
        assert source.read <= taken + ahead + 1
        assert helper._elements <= ahead
    found.close()
    assert source.closed
    assert not millrace_threads()


def test_streams_of_one_operator_share_its_bytes():
    graph = Dataset.range(1).prefetch().with_options(buffer_bytes=30_000).__pipeline__().graph
    program = Program(graph, list_sources(graph), seed=0)
    number = next(number for number, node in enumerate(program.graph.nodes) if isinstance(node, Prefetch))
    with program.run(program.plan.task(0), 0) as run:
        sources = [Counting(200, 168), Counting(200, 168)]
        streams = [NodeContext(run._task, number, 0).ahead(source.chunks(), AUTOTUNE) for source in sources]
        share = run._task.budget // 2 // 528  # bytes of such a chunk
        taken = 100
        for _ in range(taken):
            for stream in streams:
                next(stream)
        for source in sources:
            source.wait(taken + share + 1)
            assert source.read <= taken + share + 1
        for stream in streams:
            close(stream)
    program.close()


@pytest.mark.parametrize("windows", [0, 1, 2])
def test_what_operators_may_hold_is_together_the_bound(windows):
    dataset = Dataset.range(10).map(lambda n: n).prefetch()
    for _ in range(windows):
        dataset = dataset.shuffle(5).map(lambda n: n)
    graph = dataset.with_options(buffer_bytes=10**6).__pipeline__().graph
    program = Program(graph, list_sources(graph), seed=0)
    with program.run(program.plan.task(0), 0) as run:
        budgets = [NodeContext(run._task, number, 0).budget for number in range(len(program.graph.nodes))]
    program.close()
    assert 0.99 * 10**6 <= sum(budgets) <= 10**6


def test_one_chunk_larger_than_everything_still_passes():
    found = PrefetchThread(Counting(5, 10**9).chunks(), 1, lambda: 10).pull(Measure())
    assert [element.number for chunk in found for element in chunk.elements] == list(range(5))


def test_an_error_comes_after_what_came_before_it():
    def source() -> Iterator[Chunk]:
        yield from chunks([1, 2])
        raise KeyError("three")

    found = PrefetchThread(source(), AUTOTUNE, lambda: 1 << 20).pull(Measure())
    assert next(found).elements == [1, 2]
    with pytest.raises(KeyError, match="three"):
        next(found)
    assert not millrace_threads()


def test_it_stops_when_it_is_dropped_also_by_the_garbage_collector_of_another_thread():
    source = Counting(100)
    found = PrefetchThread(source.chunks(), 2, lambda: 1 << 30).pull(Measure())
    next(found)
    cycle: list[Any] = [found]
    cycle.append(cycle)
    del found, cycle
    collector = threading.Thread(target=gc.collect)
    collector.start()
    collector.join(timeout=20)
    assert source.closed
    assert not millrace_threads()


def test_it_may_be_stopped_from_outside_while_it_is_suspended():
    source = Counting(100)
    helper = PrefetchThread(source.chunks(), 2, lambda: 1 << 30)
    found = helper.pull(Measure())
    next(found)
    helper.stop()
    helper.stop()
    assert source.closed
    assert not millrace_threads()
    found.close()


def test_it_never_begins_unless_pulled():
    source = Counting(100)
    found = PrefetchThread(source.chunks(), 2, lambda: 1 << 30).pull(Measure())
    found.close()
    assert source.read == 0
