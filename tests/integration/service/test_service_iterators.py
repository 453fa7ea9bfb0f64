"""Several iterators of one dataset, several threads of one iterator, and what an error leaves."""

import contextlib
import gc
import threading
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from tests.integration.service.service_driving import PAUSE_S, WAIT_S

import millrace as mr

COUNT = 60


def shuffled():
    return mr.Dataset.range(COUNT).shuffle(COUNT).batch(2).with_options(seed=5)


def values(batches):
    return [batch.tolist() for batch in batches]


@pytest.fixture
def numbers(service):
    """A dataset on the service, in a job without a name, with the batches that it has in process, in their order."""
    with shuffled().distribute(service.address, deterministic=True, tasks=6) as dataset:
        yield dataset


@pytest.mark.parametrize("service", [1], indirect=True)
class TestTwoIterators:
    def test_are_two_passes_as_in_process(self, numbers):
        here = shuffled()
        for _ in range(2):
            pairs = [(one.tolist(), two.tolist()) for one, two in zip(numbers, numbers, strict=True)]
            assert pairs == [(one.tolist(), two.tolist()) for one, two in zip(here, here, strict=True)]
        assert numbers.state_dict()["epoch"] == here.state_dict()["epoch"] == 3
        assert values(numbers) == values(here)

    def test_a_look_while_an_epoch_is_read_takes_nothing_from_it(self, numbers):
        here, read = shuffled(), []
        first, following, *_ = [values(here) for _ in range(2)]
        for step, batch in enumerate(numbers):
            read.append(batch.tolist())
            if step == 3:
                assert next(iter(numbers)).tolist() == following[0]
        assert read == first

    def test_each_has_a_state_to_go_on_from(self, service, numbers):
        first, second = iter(numbers), iter(numbers)
        assert second.state_dict()["epoch"] == 1
        for _ in range(4):
            next(first)
        next(second)
        states = [first.state_dict(), second.state_dict()]
        rest = [values(first), values(second)]
        for state, expected in zip(states, rest, strict=True):
            with shuffled().distribute(service.address, deterministic=True, tasks=6) as again:
                again.load_state_dict(state)
                assert values(again) == expected

    def test_one_that_nobody_reads_any_more_is_in_nobodys_way(self, service, numbers):
        iterator = iter(numbers)
        next(iterator)
        iterator = iter(numbers)  # the first one still lives as this one is made
        assert len(list(iterator)) == COUNT // 2
        assert len(service.status()["jobs"]) == 1

    def test_one_that_was_never_asked_may_be_closed_and_loaded(self, numbers):
        first = iter(numbers)
        state = first.state_dict()
        next(first)
        with iter(numbers) as second, iter(numbers) as third:
            assert [each.state_dict()["epoch"] for each in (second, third)] == [1, 2]
            assert second.skipped == 0
            second.close()
            assert list(second) == []
            third.load_state_dict(state)
            assert values(third) == values(shuffled())

    @pytest.mark.parametrize("behind", [False, True], ids=["", "behind"])
    @pytest.mark.parametrize("asked", [0, 1], ids=["the first", "the second"])
    def test_of_two_that_begin_with_a_loaded_state_the_one_that_is_asked_first_has_it(self, numbers, asked, behind):
        dataset = numbers.map(lambda number: number).enumerate().map(lambda pair: pair[1]) if behind else numbers
        iterator = iter(dataset)
        next(iterator)
        dataset.load_state_dict(iterator.state_dict())
        both = [iter(dataset), iter(dataset)]
        assert values(both[asked]) == values(shuffled())[1:]
        if asked:  # the first has handed over what it was to read
            state = both[0].state_dict()
            assert (state["epoch"], state["done"], state.get("counts", [])) == (1, 0, [])
        assert len(list(both[1 - asked])) == COUNT // 2, "another pass"

    @pytest.mark.parametrize("behind", [False, True], ids=["", "behind"])
    @pytest.mark.parametrize("late", [False, True], ids=["made before", "made after"])
    def test_one_that_is_closed_before_it_was_asked_leaves_the_loaded_state_to_the_next(self, numbers, late, behind):
        dataset = numbers.enumerate().map(lambda pair: pair[1]) if behind else numbers
        iterator = iter(dataset)
        next(iterator)
        dataset.load_state_dict(iterator.state_dict())
        with iter(dataset) as probe, iter(dataset) as second:
            assert probe.state_dict()["epoch"] == second.state_dict()["epoch"] == 0
            probe.close()
            next_one = iter(dataset) if late else second  # while the first lives
            assert values(next_one) == values(shuffled())[1:]

    def test_of_a_job_with_a_name_the_second_is_refused_and_the_first_goes_on(self, service):
        with mr.Dataset.range(COUNT).distribute(service.address, job_name="named", tasks=6) as dataset:
            first = iter(dataset)
            read = [next(first)]
            with pytest.raises(mr.JobConflictError, match=r"close\(\) it first.*distribute\(\) the dataset once more"):
                next(iter(dataset))
            read += first
            assert sorted(read) == list(range(COUNT))
            iterator = iter(dataset)
            next(iterator)
            iterator = iter(dataset)  # the one before still lives as this one is made
            assert sorted(iterator) == list(range(COUNT))

    def test_two_threads_each_with_its_own(self, numbers):
        here = shuffled()
        with ThreadPoolExecutor(2) as pool:
            read = list(pool.map(lambda _: values(numbers), range(2)))
        assert sorted(read) == sorted(values(here) for _ in range(2))


@pytest.mark.parametrize("service", [1], indirect=True)
class TestThreadsOfOneIterator:
    def test_each_element_goes_to_one_of_them(self, service):
        found: list[int] = []
        with mr.Dataset.range(3000).distribute(service.address, tasks=10) as dataset:
            elements = iter(dataset)
            with ThreadPoolExecutor(4) as pool:
                for each in [pool.submit(found.extend, elements) for _ in range(4)]:
                    each.result(WAIT_S)
            assert elements.state_dict()["ended"]
        assert sorted(found) == list(range(3000))

    def test_close_ends_one_that_waits(self, service, gate, keeper):
        def wait(number):
            gate.pass_through()
            return number

        with mr.Dataset.range(5).map(wait).distribute(service.address) as dataset, ThreadPoolExecutor(1) as pool:
            elements = iter(dataset)
            waiting = pool.submit(list, elements)
            keeper.wait()
            elements.close()
            assert waiting.result(WAIT_S) == []
            assert not elements.state_dict()["ended"]
            keeper.open()


class Named(NamedTuple):
    number: int
    square: Any


@pytest.mark.parametrize("service", [1], indirect=True)
def test_containers_are_of_the_same_kinds_as_in_process(service):
    pipeline = mr.Dataset.range(4).map(lambda n: OrderedDict(a=Named(n, [n * n]), b=n)).with_options(seed=1)
    with pipeline.distribute(service.address, tasks=1) as dataset:
        there = list(dataset)
    here = list(pipeline)
    assert there == here
    assert [(type(each), type(each["a"]).__name__, each["a"].square) for each in there] == [
        (type(each), "Named", each["a"].square) for each in here
    ]


def fails(number):
    return 1 // (number - 3)


def children():
    """Of all threads, of which some may end meanwhile."""
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with contextlib.suppress(OSError):
            found |= set((task / "children").read_text().split())
    return found


def wait_for(condition):
    """Asks now and then until it is so."""
    deadline = time.monotonic() + WAIT_S
    while not condition():
        assert time.monotonic() < deadline
        threading.Event().wait(PAUSE_S)


def threads():
    return {thread for thread in threading.enumerate() if thread.name.startswith("millrace")}


@pytest.mark.parametrize("service", [1], indirect=True)
def test_who_asks_on_after_an_error_gets_it_again_and_no_end(service):
    before = threads()
    dataset = mr.Dataset.range(8).map(fails).distribute(service.address)
    kept: list[BaseException] = []
    for _ in range(2):  # the second time the job begins anew
        elements = iter(dataset)
        assert not elements.state_dict()["ended"]
        for _ in range(3):
            with pytest.raises(mr.ElementError, match="item 3") as caught:
                list(elements)
            kept.append(caught.value)
        assert not elements.state_dict()["ended"]
        del elements
    del dataset
    wait_for(lambda: threads() <= before)  # those before may be ending
    assert all(error.__traceback__ is not None for error in kept)


class TestWhatComesBeforeAnElementThatFails:
    @pytest.mark.parametrize("service", [1], indirect=True)
    @pytest.mark.parametrize(
        ("pipeline", "expected"),
        [
            (mr.Dataset.range(6).map(fails), [1 // (n - 3) for n in range(3)]),
            (mr.Dataset.range(6).filter(lambda n: fails(n) < 9), [0, 1, 2]),
            (mr.Dataset.range(6).flat_map(lambda n: [n, fails(n)]), [0, -1, 1, -1, 2, -1]),
            (mr.Dataset.range(40).map(lambda n: [0] * (1 + (n == 33))).batch(2), [[[0, 0]]] * 16),
            (mr.Dataset.range(9).map(lambda n: n if n < 6 else object()), list(range(6))),
        ],
        ids=["map", "filter", "flat_map", "a ragged batch", "what cannot be sent"],
    )
    def test_comes_before_the_error(self, service, pipeline, expected):
        read: list[object] = []
        with pipeline.distribute(service.address, tasks=1) as dataset, pytest.raises(mr.MillraceError):
            read.extend(
                [each.tolist() for each in element] if isinstance(element, list) else element for element in dataset
            )
        assert read == expected

    @pytest.mark.parametrize("service", [2], indirect=True)
    def test_is_all_that_its_task_gave(self, service):
        read: list[int] = []
        pipeline = mr.Dataset.range(400).map(lambda n: n if n != 170 else 1 // 0)
        with pipeline.distribute(service.address, tasks=4) as dataset, pytest.raises(mr.ElementError, match="item 170"):
            read.extend(dataset)
        assert [n for n in read if 100 <= n < 200] == list(range(100, 170))
        assert len(set(read)) == len(read)

    @pytest.mark.parametrize("service", [2], indirect=True)
    def test_is_in_order_all_that_earlier_tasks_give(self, service):
        def check(n):
            threading.Event().wait(PAUSE_S * (n < 100) / 5)  # the task before takes longer than those that fail
            return n if n not in (170, 201, 399) else 1 // 0

        read: list[int] = []
        pipeline = mr.Dataset.range(400).map(check)
        with (
            pipeline.distribute(service.address, tasks=4, deterministic=True) as dataset,
            pytest.raises(mr.ElementError, match="item 170"),
        ):
            read.extend(dataset)
        assert read == list(range(170))

    @pytest.mark.parametrize("service", [2], indirect=True)
    def test_is_what_a_pipeline_gave_that_may_hold_no_more(self, service):
        pipeline = mr.Dataset.range(20).map(lambda n: bytes(n // 19 << 21)).with_options(buffer_bytes=1 << 20)
        read: list[bytes] = []
        with pipeline.distribute(service.address, tasks=1) as dataset, pytest.raises(mr.ElementTooLargeError):
            read.extend(dataset)
        assert len(read) == 19


@pytest.mark.parametrize("service", [2], indirect=True)
@pytest.mark.parametrize("deterministic", [False, True])
def test_an_endless_repeat_of_nothing_ends_as_in_process(service, deterministic):
    nothing = mr.Dataset.range(3000).filter(lambda n: False).repeat().batch(2)
    with nothing.distribute(service.address, deterministic=deterministic) as dataset:
        assert [list(dataset) for _ in range(2)] == [[], []]
        assert dataset.state_dict()["ended"]


class TestAnEmbeddedService:
    """Ends with an error, although the error's traceback, the iterator and the dataset are still there."""

    @pytest.mark.parametrize(
        ("pipeline", "error"),
        [
            (mr.Dataset.range(8).map(fails), mr.ElementError),
            (mr.Dataset.from_files("/nowhere/*.jpg"), mr.SourceNotFoundError),
        ],
        ids=["an element", "the data"],
    )
    def test_of_an_epoch_that_fails(self, pipeline, error):
        before = children(), threads()

        def train():
            dataset = pipeline.distribute(workers=1)
            for _ in dataset:
                pass

        with pytest.raises(error) as kept:
            train()
        gc.collect()
        assert children() <= before[0]
        assert threads() <= before[1]
        assert kept.value.__traceback__ is not None

    def test_of_a_dataset_that_was_dropped_in_the_middle(self):
        before = children()
        elements = iter(mr.Dataset.range(1000).distribute(workers=1))
        next(elements)
        assert children() - before
        del elements
        assert children() <= before


@pytest.mark.parametrize("service", [1], indirect=True)
def test_what_ends_a_receiving_thread_ends_the_epoch(service, monkeypatch):
    """A process without memory, or threads, for what comes would wait for ever else."""
    for error in (MemoryError("no memory for a delivery"), RuntimeError("can't start new thread")):
        monkeypatch.setattr("millrace.client.receiver.open_data_connection", Mock(side_effect=error))
        told = pytest.raises(mr.ServiceError, match=rf"reading from worker .* failed: .*{error}")
        with shuffled().distribute(service.address) as dataset, told:
            next(iter(dataset))
    monkeypatch.undo()
    with shuffled().distribute(service.address) as dataset:
        assert sum(map(len, dataset)) == COUNT
