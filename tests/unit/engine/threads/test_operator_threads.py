"""Threads: order, bounds, and an end to all of them."""

from __future__ import annotations

import gc
import threading
import weakref
from collections import deque
from collections.abc import Generator, Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.thread_cases import Sized, chunks, millrace_threads

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Measure, measured
from millrace.engine.run.program import Program, list_sources
from millrace.engine.threads import operator_threads as pools
from millrace.engine.threads import ordered_map as spreads
from millrace.engine.threads import shutdown_timeout as patiences
from millrace.engine.threads.operator_threads import ChunkCall, OperatorThreads, ThreadPool
from millrace.engine.threads.ordered_map import in_order
from millrace.graph.nodes import AUTOTUNE


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPool]:
    """Threads for everything, however cheap."""
    monkeypatch.setattr(pools, "_WORTH_A_THREAD_S", 0.0)
    made = ThreadPool(2)
    yield made
    made.close()
    assert not millrace_threads()


def spread(function: Any, elements: list[Any], pool: ThreadPool | None, budget: int = 1 << 30, **options: Any) -> Any:
    measure = Measure()

    def apply(chunk: Chunk) -> Chunk:
        return Chunk([function(element) for element in chunk.elements], chunk.origin, chunk.positions)

    size, parallel = options.get("size", 4), options.get("parallel", AUTOTUNE)
    found = in_order(
        apply, chunks(elements, size), parallel, operator=OperatorThreads(pool), budget=lambda: budget, measure=measure
    )
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
    together = threading.Barrier(2)

    def meet(number: int) -> int:
        if number:  # the first is called on this thread
            together.wait(timeout=20)
        return number

    assert sum(len(chunk) for chunk in spread(meet, list(range(11)), pool, size=1)) == 11


@pytest.mark.parametrize("parallel", [AUTOTUNE, 2, 3])
def test_the_thread_that_waits_is_one_of_those_that_work(pool, parallel):
    count = 2 if parallel == AUTOTUNE else parallel
    together = threading.Barrier(count)
    threads = set()

    def meet(number: int) -> int:
        if number:  # the first is called on this thread, whatever comes
            threads.add(threading.current_thread())
            together.wait(timeout=20)
        return number

    found = spread(meet, list(range(1 + 12 * count)), pool, size=1, parallel=parallel)
    assert sum(len(chunk) for chunk in found) == 1 + 12 * count
    assert threading.current_thread() in threads
    assert len(threads) == count


def test_where_an_element_takes_long_results_are_waited_for(monkeypatch, pool):
    monkeypatch.setattr(spreads, "_HELP_S", 0.0)
    together = threading.Barrier(2)
    threads = set()

    def meet(number: int) -> None:
        if number:
            threads.add(threading.current_thread())
            together.wait(timeout=20)

    list(spread(meet, list(range(11)), pool, size=1))
    assert threading.current_thread() not in threads


def test_others_go_past_an_element_that_takes_long_and_order_is_kept(monkeypatch, pool):
    monkeypatch.setattr(spreads, "_HELP_S", 0.0)  # else this thread may be the one that makes the call
    done, passed = 0, threading.Event()
    lock = threading.Lock()

    def work(number: int) -> int:
        nonlocal done
        if number == 1:  # the first is called on this thread, whatever comes
            assert passed.wait(timeout=20)
        with lock:
            done += 1
            if done > 2 * 4 * 2 + 1:  # more than may wait behind one whose result is there
                passed.set()
        return number

    found = spread(work, list(range(100)), pool, size=1, parallel=2)
    assert [element for chunk in found for element in chunk.elements] == list(range(100))


def test_results_that_nobody_took_go_with_the_iterator_and_need_no_garbage_collector(pool):
    made: list[weakref.ref[Sized]] = []

    def work(number: int) -> Sized:
        found = Sized(number, 100)
        made.append(weakref.ref(found))
        return found

    found = spread(work, list(range(40)), pool, size=1, parallel=2)
    taken = [next(found) for _ in range(5)]
    while len(made) < 8:  # results lie ready
        threading.Event().wait(0.001)
    gc.disable()
    try:
        found.close()
        del found, taken
        assert [each() for each in made if each() is not None] == []
    finally:
        gc.enable()


def test_as_many_go_past_it_as_there_is_room_for_their_results(monkeypatch, pool):
    monkeypatch.setattr(spreads, "_HELP_S", 0.0)
    most, enough, done = 0, threading.Event(), 0
    lock = threading.Lock()

    def work(number: int) -> Sized:
        nonlocal done, most
        if number == 1:
            enough.wait(timeout=20)
            most = done
        with lock:
            done += 1
            if done == 20:
                enough.set()
        return Sized(number, 100)

    timer = threading.Timer(0.5, enough.set)  # nobody else would say that no more come
    timer.start()
    found = spread(work, list(range(60)), pool, budget=1000, size=1, parallel=2)
    assert [element.number for chunk in found for element in chunk.elements] == list(range(60))
    timer.cancel()
    timer.join()
    assert most <= 1 + 10


def test_who_waits_makes_no_more_calls_once_one_took_long(monkeypatch, pool):
    """It might be held by the next that takes long, while results lie ready that it is to hand on."""
    monkeypatch.setattr(spreads, "_HELP_S", 0.05)
    operator = OperatorThreads(pool)
    operator.learn(1, 0.001, 0.0, 0.0, None)
    assert operator.slowest_s < 0.05
    operator.learn(1, 0.2, 0.0, 0.0, None)
    calls = 0
    while operator.slowest_s >= 0.05:
        operator.learn(1, 0.001, 0.0, 0.0, None)
        calls += 1
    assert 100 < calls < 200
    slow, threads = threading.Event(), set()
    operator.learn(1, 0.2, 0.0, 0.0, None)

    def work(chunk: Chunk) -> Chunk:
        threads.add(threading.current_thread())
        if chunk.elements == [1]:
            slow.wait(timeout=0.01)
        return chunk

    options: dict[str, Any] = {"operator": operator, "budget": lambda: 1 << 30, "measure": Measure()}
    assert len(list(in_order(work, chunks(list(range(50)), 1), 2, **options))) == 50
    assert threading.current_thread() not in threads


def test_an_interrupt_while_helping_ends_it_at_once(pool):
    interrupted, calls = threading.Event(), 0

    def work(number: int) -> None:
        nonlocal calls
        if number and threading.current_thread() is threading.main_thread():
            calls += 1
            interrupted.set()
            raise KeyboardInterrupt
        if number:
            interrupted.wait(timeout=20)

    with pytest.raises(KeyboardInterrupt):
        list(spread(work, list(range(30)), pool, size=1))
    assert calls == 1


def test_cheap_functions_stay_on_this_thread(monkeypatch, pool):
    monkeypatch.setattr(pools, "_WORTH_A_THREAD_S", 1e9)  # however long this one waits for a core
    threads = set()

    def note(number: int) -> None:
        threads.add(threading.current_thread())

    list(spread(note, list(range(1000)), pool, size=100))
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
    made = ThreadPool(2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pools, "_WORTH_A_THREAD_S", 0.0)
        patch.setattr(spreads, "_SLICE_S", 0.0)
        numbers = []
        for chunk in spread(lambda n: held.make(n, sizes[n]), list(range(len(sizes))), made, budget, size=chunk_size):
            numbers += [element.number for element in chunk.elements]
            held.take(chunk)
    made.close()
    assert numbers == list(range(len(sizes)))
    assert held.most <= budget + 6 * max(sizes)
    assert held.now == 0


@pytest.mark.parametrize("end", ["close", "raise"])
def test_calls_under_way_are_awaited_and_the_others_never_made(monkeypatch, pool, end):
    monkeypatch.setattr(spreads, "_HELP_S", 0.0)  # the thread that stops it must not be in the middle of a call
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

    found = spread(work, list(range(10_000)), pool, size=1)
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
    assert len(done) < 1000  # some are made behind one that takes long


def test_a_pool_closes_twice_and_opens_again():
    made, done = ThreadPool(2), threading.Event()
    made.close()
    made.start(done.set)
    assert done.wait(timeout=20)
    made.close()
    made.close()
    assert not millrace_threads()
    again = threading.Event()
    made.start(again.set)
    assert again.wait(timeout=20)
    made.close()


def test_a_pool_may_be_closed_by_one_of_its_threads():
    made = ThreadPool(2)
    threads: deque[threading.Thread] = deque()
    closed = threading.Event()

    def close_it() -> None:
        threads.append(threading.current_thread())
        made.close()
        closed.set()

    made.start(close_it)
    assert closed.wait(timeout=20)
    threads[0].join(timeout=20)
    assert not millrace_threads()


def test_tasks_share_the_threads_of_an_operator():
    made = ThreadPool(2)
    operator = OperatorThreads(made)
    three, go, lock, now = threading.Event(), threading.Event(), threading.Lock(), [0, 0]

    def work(chunk: Chunk) -> Chunk:
        with lock:
            now[0] += 1
            now[1] = max(now)
            if now[1] == 3:
                three.set()
        go.wait(timeout=20)
        with lock:
            now[0] -= 1
        return chunk

    calls = [ChunkCall(work, chunk) for chunk in chunks(list(range(80)))]
    for call in calls:
        operator.submit(call, 3)
    assert three.wait(timeout=20)
    go.set()
    assert [call.result().elements[0] for call in calls] == list(range(0, 80, 4))
    made.close()
    assert now == [0, 3]


def test_another_task_goes_on_when_one_is_abandoned():
    made = ThreadPool(2)
    operator = OperatorThreads(made)
    begun, go, seen = threading.Event(), threading.Event(), []

    def work(chunk: Chunk) -> Chunk:
        begun.set()
        go.wait(timeout=20)
        seen.append(chunk.elements[0])
        return chunk

    calls = [ChunkCall(work, chunk) for chunk in chunks(list(range(5)), 1)]
    for call in calls:
        operator.submit(call, 1)
    assert begun.wait(timeout=20)
    go.set()
    operator.cancel(deque(calls[1:3]))
    calls[4].wait()
    made.close()
    assert {0, 3, 4} <= set(seen)
    assert seen == sorted(seen)


def test_what_was_learnt_in_one_task_is_known_in_the_next(monkeypatch, pool):
    monkeypatch.setattr(spreads, "_HELP_S", 0.0)
    operator, threads = OperatorThreads(pool), []

    def note(chunk: Chunk) -> Chunk:
        threads.append(threading.current_thread().name.split("_")[0])
        return chunk

    for _ in range(2):
        list(in_order(note, chunks([1, 2, 3], 1), 2, operator=operator, budget=lambda: 1 << 20, measure=Measure()))
    assert threads == [threading.current_thread().name, *["millrace-map"] * 5]


def test_an_operator_settles_on_its_threads_and_says_why(monkeypatch, pool):
    dataset = Dataset.range(4).map(abs)
    program = Program(dataset.__pipeline__().graph, list_sources(dataset.__pipeline__().graph), seed=0, threads=2)
    number = program.graph.id_of(program.graph.root)
    operator, now = program._operator_threads[number], 0.0
    monkeypatch.setattr(pools, "clock", lambda: now)
    operator.join()
    operator.learn(1, 0.004, 0.004, 0.004, 8)
    assert operator.threads(AUTOTUNE) == 2
    assert program.threads() == []
    for _ in range(1000):
        level = operator.threads(AUTOTUNE)
        now += 0.004  # for each element, whatever the number of threads: they take turns
        operator.learn(1, 0.004 * max(1, level), 0.004, 0.004, 8)
    operator.leave()
    ((found, label, threads, why),) = program.threads()
    assert (found, label, threads) == (number, "map(abs)", 0)
    assert "holds the GIL" in why


def test_time_without_a_task_is_not_counted(monkeypatch, pool):
    operator, now = OperatorThreads(pool), 0.0
    monkeypatch.setattr(pools, "clock", lambda: now)
    operator.cost_s = 0.0
    operator.threads(AUTOTUNE)
    for _ in range(3):
        operator.join()
        now += 0.01
        operator.learn(5, 0.01, 0.01, 0.01, 8)
        operator.leave()
        now += 1000.0
    assert operator._window.elements == 15
    assert operator._window.seconds == pytest.approx(0.03)


@pytest.mark.parametrize("ended", [KeyboardInterrupt, ValueError])
def test_ctrl_c_has_less_patience_with_calls_under_way(pool, monkeypatch, ended):
    monkeypatch.setattr(patiences, "_INTERRUPTED_S", 0.01)
    begun, go, done = threading.Event(), threading.Event(), threading.Event()

    def stuck(chunk: Chunk) -> Chunk:
        begun.set()
        go.wait(timeout=20)
        done.set()
        return chunk

    def under_way() -> Generator[None, None, None]:
        call = ChunkCall(stuck, next(chunks([2], 1)))
        operator.submit(call, 1)
        try:
            yield
        finally:
            if ended is not KeyboardInterrupt:
                go.set()
            operator.cancel(deque([call]))

    def outer() -> Generator[None, None, None]:
        inner = under_way()
        try:
            yield from inner
        finally:
            inner.close()

    operator, made = OperatorThreads(pool), outer()
    next(made)
    begun.wait(timeout=20)
    with pytest.raises(ended, match="stop"):
        try:
            raise ended("stop")
        finally:
            made.close()
    assert done.is_set() == (ended is ValueError)
    go.set()


def test_what_takes_long_is_handed_on_one_by_one_though_nobody_knew_that_when_the_chunk_was_made():
    operator, sizes = OperatorThreads(None), []

    def note(chunk: Chunk) -> Chunk:
        sizes.append(len(chunk))
        return chunk

    found = in_order(note, chunks(list(range(16)), 16), 1, operator=operator, budget=lambda: 1 << 20, measure=Measure())
    next(found)
    operator.cost_s = 0.5
    assert len(next(found)) == 1
    operator.cost_s = 1e-6
    assert len(next(found)) == 14
    assert sizes == [1, 1, 14]


def waited(event: threading.Event) -> None:
    assert event.wait(timeout=20)


def test_work_for_which_no_thread_can_be_started_is_done_by_those_that_are_there_or_refused(monkeypatch):
    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    pool, go, done = ThreadPool(4), threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        with pytest.raises(RuntimeError, match="can't start"):
            pool.start(lambda: pytest.fail("it was refused"))
    pool.start(lambda: waited(go))
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        pool.start(done.set)
    go.set()
    assert done.wait(timeout=20)
    pool.close()
