"""Threads: order, bounds, and an end to all of them."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk, Origin
from millrace.engine import pool as pools
from millrace.engine.measure import Measure, close, measured
from millrace.engine.pool import Ahead, Pool, in_order
from millrace.engine.program import Program, list_sources
from millrace.engine.task import NodeContext
from millrace.graph.nodes import AUTOTUNE, Prefetch

ORIGIN = Origin(0, 0)


class Sized:
    """An element that says how many bytes it has, and doesn't have them."""

    def __init__(self, number: int, nbytes: int) -> None:
        self.number, self.nbytes = number, nbytes


def chunks(elements: list[Any], size: int = 4) -> Iterator[Chunk]:
    for start in range(0, len(elements), size):
        part = elements[start : start + size]
        yield Chunk(part, ORIGIN, range(start, start + len(part)))


def millrace_threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("millrace")]


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[Pool]:
    """Threads for everything, however cheap."""
    monkeypatch.setattr(pools, "_WORTH_A_THREAD_S", 0.0)
    made = Pool(3)
    yield made
    made.close()
    assert not millrace_threads()


def spread(function: Any, elements: list[Any], pool: Pool | None, budget: int = 1 << 30, **options: Any) -> Any:
    measure = Measure()

    def apply(chunk: Chunk) -> Chunk:
        return Chunk([function(element) for element in chunk.elements], chunk.origin, chunk.positions)

    size, parallel = options.get("size", 4), options.get("parallel", AUTOTUNE)
    found = in_order(apply, chunks(elements, size), parallel, pool=pool, budget=lambda: budget, measure=measure)
    return measured(found, measure, 1 << 60, lambda *_: AssertionError())


@pytest.mark.parametrize("parallel", [AUTOTUNE, 1, 2, 50])
def test_order_is_kept_whichever_is_done_first(pool, parallel):
    gates = [threading.Event() for _ in range(40)]

    def wait(number: int) -> int:
        # Of threads that run at a time the later one is done first.
        if number % 2 == 0 and number and parallel != 1:
            gates[number + 1].wait(timeout=0.02)
        gates[number].set()
        return number * number

    found = [element for chunk in spread(wait, list(range(40)), pool, parallel=parallel) for element in chunk.elements]
    assert found == [number * number for number in range(40)]


def test_several_threads_work_at_a_time(pool):
    together = threading.Barrier(3)

    def meet(number: int) -> int:
        if number:  # the first is called on this thread
            together.wait(timeout=20)
        return number

    assert sum(len(chunk) for chunk in spread(meet, list(range(10)), pool, size=1)) == 10


def test_cheap_functions_stay_on_this_thread():
    made = Pool(3)
    threads = set()

    def note(number: int) -> None:
        threads.add(threading.current_thread())

    list(spread(note, list(range(1000)), made, size=100))
    assert threads == {threading.current_thread()}
    assert not millrace_threads()


class Held:
    """Bytes of results that were made and not yet taken."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.now = self.most = 0

    def make(self, number: int, size: int) -> Sized:
        with self.lock:
            self.now += size
            self.most = max(self.most, self.now)
        return Sized(number, size)

    def take(self, chunk: Chunk) -> None:
        with self.lock:
            self.now -= sum(element.nbytes for element in chunk.elements)


@pytest.mark.parametrize("size", [1, 1000, 10**6, 10**8])
@pytest.mark.parametrize("threads", [True, False])
def test_results_that_wait_are_bounded_in_bytes(pool, size, threads):
    budget, held = 4 * 10**6, Held()
    for chunk in spread(lambda n: held.make(n, size), list(range(300)), pool if threads else None, budget, size=50):
        held.take(chunk)
        assert held.now <= max(budget, size)
    assert held.most <= budget + max(size, 50)  # one result comes on top: that which is being taken
    assert held.now == 0


@settings(max_examples=40)
@given(st.lists(st.sampled_from([1, 10**3, 10**6, 10**8]), min_size=1, max_size=120), st.sampled_from([1, 7, 120]))
def test_of_results_of_all_sizes_only_what_is_under_way_comes_on_top(sizes, chunk_size):
    budget, held = 2 * 10**6, Held()
    made = Pool(3)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "_WORTH_A_THREAD_S", 0.0)
        patch.setattr(pools, "_SLICE_S", 0.0)
        numbers = []
        for chunk in spread(lambda n: held.make(n, sizes[n]), list(range(len(sizes))), made, budget, size=chunk_size):
            numbers += [element.number for element in chunk.elements]
            held.take(chunk)
    made.close()
    assert numbers == list(range(len(sizes)))
    assert held.most <= budget + 6 * max(sizes)
    assert held.now == 0


@pytest.mark.parametrize("end", ["close", "raise"])
def test_calls_under_way_are_awaited_and_the_others_never_made(pool, end):
    begun, go = threading.Event(), threading.Event()
    done: list[Any] = []

    def work(number: int) -> int:
        if number == 1 and end == "raise":
            begun.wait(timeout=20)
            raise ValueError("one")
        if number == 2:
            begun.set()
            go.wait(timeout=20)
        done.append(number)
        return number

    found = spread(work, list(range(30)), pool, size=1)
    assert next(found).elements == [0]
    assert next(found).elements == [1] if end == "close" else True
    assert end == "raise" or begun.wait(timeout=20)

    def stop() -> None:
        if end == "close":
            found.close()
        else:
            with pytest.raises(ValueError, match="one"):
                next(found)
        done.append("stopped")

    stopper = threading.Thread(target=stop)
    stopper.start()
    assert begun.wait(timeout=20)
    assert 2 not in done
    go.set()
    stopper.join(timeout=20)
    assert done.index(2) < done.index("stopped") == len(done) - 1
    assert len(done) < 15


def test_a_pool_closes_twice_and_opens_again():
    made = Pool(2)
    made.close()
    chunk = Chunk([1], ORIGIN, range(1))
    assert made.submit(len, chunk).result()[0] == 1
    made.close()
    made.close()
    assert not millrace_threads()
    assert made.submit(len, chunk).result()[0] == 1
    made.close()


def test_a_pool_may_be_closed_by_one_of_its_threads():
    made = Pool(2)
    threads = []

    def close_it(chunk: Chunk) -> None:
        threads.append(threading.current_thread())
        made.close()

    assert made.submit(close_it, Chunk([1], ORIGIN, range(1))).result()[0] is None
    threads[0].join(timeout=20)
    assert not millrace_threads()


# -- ahead -------------------------------------------------------------------------------------------------------------


def test_chunks_come_in_order_from_another_thread():
    threads = set()

    def source() -> Iterator[Chunk]:
        for chunk in chunks(list(range(20))):
            threads.add(threading.current_thread().name)
            yield chunk

    found = [
        element for chunk in Ahead(source(), AUTOTUNE, lambda: 1 << 20).pull(Measure()) for element in chunk.elements
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
    helper = Ahead(source.chunks(), elements, lambda: budget)
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
    graph = Dataset.range(1).prefetch().with_options(buffer_bytes=30_000).graph
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
    graph = dataset.with_options(buffer_bytes=10**6).graph
    program = Program(graph, list_sources(graph), seed=0)
    with program.run(program.plan.task(0), 0) as run:
        budgets = [NodeContext(run._task, number, 0).budget for number in range(len(program.graph.nodes))]
    program.close()
    assert 0.99 * 10**6 <= sum(budgets) <= 10**6


def test_one_chunk_larger_than_everything_still_passes():
    found = Ahead(Counting(5, 10**9).chunks(), 1, lambda: 10).pull(Measure())
    assert [element.number for chunk in found for element in chunk.elements] == list(range(5))


def test_an_error_comes_after_what_came_before_it():
    def source() -> Iterator[Chunk]:
        yield from chunks([1, 2])
        raise KeyError("three")

    found = Ahead(source(), AUTOTUNE, lambda: 1 << 20).pull(Measure())
    assert next(found).elements == [1, 2]
    with pytest.raises(KeyError, match="three"):
        next(found)
    assert not millrace_threads()


def test_it_stops_when_it_is_dropped_also_by_the_garbage_collector_of_another_thread():
    source = Counting(100)
    found = Ahead(source.chunks(), 2, lambda: 1 << 30).pull(Measure())
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
    helper = Ahead(source.chunks(), 2, lambda: 1 << 30)
    found = helper.pull(Measure())
    next(found)
    helper.stop()
    helper.stop()
    assert source.closed
    assert not millrace_threads()
    found.close()


def test_it_never_begins_unless_pulled():
    source = Counting(100)
    found = Ahead(source.chunks(), 2, lambda: 1 << 30).pull(Measure())
    found.close()
    assert source.read == 0
