"""Stopped anywhere and gone on elsewhere, in process: as if nothing had happened."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.unit.engine.any_pipeline import pipeline
from tests.unit.engine.conftest import begin_early, go_on, reached

from millrace.dataset import Dataset
from millrace.engine.run import epoch_tasks
from millrace.engine.run.progress_tracker import ProgressTracker
from millrace.engine.threads import operator_threads
from millrace.errors import StateError
from millrace.planning import task_order
from millrace.planning.checkpoint import Merged
from millrace.planning.progress import TaskSet


def passed_on(state: dict[str, Any]) -> dict[str, Any]:
    """As a checkpoint on a disk."""
    text = json.dumps(state)
    assert len(text) < 4096
    found: dict[str, Any] = json.loads(text)
    return found


def copy_of(dataset: Dataset) -> Dataset:
    """The same pipeline in another process."""
    return Dataset(dataset.__pipeline__().node)


def texts(elements: Any) -> list[str]:
    return [repr(element) for element in elements]


@settings(max_examples=40)
@given(st.data())
def test_any_pipeline_goes_on_from_every_step(runs, data):
    _goes_on_from_every_step(runs, data)


@settings(max_examples=40)
@given(st.data())
def test_so_it_does_where_tasks_begin_before_those_before_them_have_ended(runs, data):
    with pytest.MonkeyPatch.context() as patch:
        begin_early(patch, data.draw(st.sampled_from([1, 1000]), label="early"))
        _goes_on_from_every_step(runs, data)


def _goes_on_from_every_step(runs, data):
    case = pipeline(data.draw, runs, most=5)
    chunk = data.draw(st.sampled_from([1, 3, 1000]), label="chunk")
    tasks = data.draw(st.integers(1, 20), label="tasks")
    share = data.draw(st.sampled_from([None, None, (0, 2), (1, 2)]), label="share")
    made = runs.program(case.dataset, tasks=tasks, chunk=chunk)
    try:

        def read(begin: Merged) -> tuple[ProgressTracker, Iterator[Any]]:
            return go_on(made, begin, None if share is None else task_order.shared(made.plan, *share))

        tally, elements = read(Merged(epoch=1))
        states, whole = [reached(1, tally)], []
        for element in elements:
            whole.append(repr(element))
            states.append(reached(1, tally))
        states.append(reached(1, tally))
        steps = data.draw(st.lists(st.integers(0, len(whole) + 1), min_size=1, max_size=4), label="steps")
        for step in steps:
            tally, elements = read(states[step])
            assert texts(elements) == whole[step:]
            rest = whole[step:]
            again = data.draw(st.integers(0, len(rest)), label="again")
            tally, elements = read(states[step])
            assert texts(itertools.islice(elements, again)) == rest[:again]
            _, elements = read(reached(1, tally))
            assert texts(elements) == rest[again:]
    finally:
        made.close()


@settings(max_examples=30)
@given(st.data())
def test_what_a_service_has_done_in_any_order_is_left_out(runs, data):
    """Any tasks are done, any others begun, and any have left nothing over: what is left is the rest of each."""
    case = pipeline(data.draw, runs, most=4)
    tasks = data.draw(st.integers(1, 20), label="tasks")
    made = runs.program(case.dataset, tasks=tasks)
    try:
        begin = Merged(epoch=1)
        tally, by_task = ProgressTracker(begin), list[list[str]]()
        left: dict[int, Any] = {}
        epoch = epoch_tasks.LocalEpoch(made, begin)
        alone = TaskSet.of(
            task.index for task in task_order.planned(made.plan) if data.draw(st.sampled_from([0, 0, 1]))
        )
        for planned in task_order.planned(made.plan):
            task = msgspec.structs.replace(planned, parent=-1) if planned.index in alone else planned
            chunks = epoch.run(task, epoch.take(task, left, {}), left)
            by_task.append([repr(element) for chunk in chunks for element in chunk.elements])
        # No tail can have been read before its inputs were computed, but they need not have been read.
        done = [number for number in range(len(by_task)) if data.draw(st.booleans())]
        begun = {
            number: data.draw(st.integers(1, len(outputs)))
            for number, outputs in enumerate(by_task)
            if number not in done and outputs and data.draw(st.booleans())
        }
        over = TaskSet.of(done)
        gives = alone.low, alone.text()
        begin = Merged(epoch=1, done=over.low, later=over.text(), begun=sorted(begun.items()), alone=gives)
        tally, elements = go_on(made, begin)
        found = texts(elements)
        rest = [outputs[begun.get(number, 0) :] for number, outputs in enumerate(by_task) if number not in over]
        assert found == [text for outputs in rest for text in outputs]
        assert tally.now() == (TaskSet.of(range(len(by_task))), [])
    finally:
        made.close()


def augment(number: int, rng: Any) -> float:
    return number + float(rng.random())


def mixed() -> Dataset:
    return Dataset.range(3000).shuffle(100).map(augment).filter(lambda x: int(x) % 3 > 0).batch(32).prefetch(2)


@pytest.fixture(params=[0.0, 1.0], ids=["threads", "inline"])
def _threads(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    monkeypatch.setattr(operator_threads, "_WORTH_A_THREAD_S", request.param)


@pytest.mark.usefixtures("_threads")
def test_three_epochs_stopped_at_random_again_and_again():
    whole = mixed().with_options(seed=4)
    expected = [texts(whole) for _ in range(3)]
    rng = random.Random(3)
    found: list[list[str]] = [[], [], []]
    dataset, state = copy_of(whole), None
    while True:
        if state is not None:
            dataset = copy_of(whole)
            dataset.load_state_dict(state)
        steps = rng.randrange(1, 40)
        for batch in dataset:
            state = passed_on(dataset.state_dict())
            found[state["epoch"]].append(repr(batch))
            steps -= 1
            if not steps:
                break
        else:
            state = passed_on(dataset.state_dict())
            if state["epoch"] == 2:
                break
    assert found == expected


def test_states_before_between_and_after():
    dataset = Dataset.range(6).with_options(seed=1)
    before = dataset.state_dict()
    elements = iter(dataset)
    assert elements.state_dict() == dataset.state_dict()
    begun = dataset.state_dict()
    assert [next(elements) for _ in range(6)] == [*range(6)]
    read = dataset.state_dict()
    assert next(elements, None) is None
    ended = dataset.state_dict()
    assert (read["ended"], ended["ended"], ended["epoch"]) == (False, True, 0)
    for state, first, epochs in [(before, 6, (0, 1)), (begun, 6, (0, 1)), (read, 0, (0, 1)), (ended, 6, (1, 2))]:
        other = copy_of(dataset)
        other.load_state_dict(passed_on(state))
        assert msgspec.json.encode(other.state_dict()) == msgspec.json.encode(state)
        assert len(list(other)) == first
        assert (other.state_dict()["epoch"], len(list(other)), other.state_dict()["epoch"]) == (epochs[0], 6, epochs[1])


def test_after_break_the_rest_comes_then_the_next_epoch():
    dataset = mixed().with_options(seed=2)
    other = copy_of(dataset)
    expected = [texts(other) for _ in range(3)]
    for _ in range(2):
        for number, _ in enumerate(dataset):
            if number == 10:
                break
    state = dataset.state_dict()
    resumed = copy_of(dataset)
    resumed.set_state(state)
    assert texts(resumed) == expected[1][11:]
    assert texts(resumed) == expected[2]
    assert texts(dataset) == expected[2]  # who goes on without loading begins an epoch, as ever


def test_on_an_iterator():
    dataset = mixed().with_options(seed=2)
    expected = texts(copy_of(dataset))
    elements = iter(dataset)
    for _ in range(5):
        next(elements)
    state = elements.get_state()
    other = iter(copy_of(dataset))
    next(other)
    other.set_state(state)
    assert texts(other) == expected[5:]
    ended = other.state_dict()
    third = copy_of(dataset)
    elements = iter(third)
    elements.load_state_dict(ended)
    assert elements.state_dict() == ended
    assert list(elements) == []  # it is the end of that epoch
    assert third.state_dict()["ended"]
    assert (list(itertools.islice(third, 1)), third.state_dict()["epoch"]) != ([], 0)
    assert third.state_dict()["epoch"] == 1
    elements.close()


def test_iterators_that_are_asked_for_nothing_lose_nothing():
    """A StatefulDataLoader makes one to see whether it has a state, loads that into it, and makes another one."""
    dataset = Dataset.range(10).with_options(seed=1)
    assert len(list(dataset)) == 10
    ended = dataset.state_dict()
    other = copy_of(dataset)
    other.load_state_dict(ended)
    first = iter(other)
    first.load_state_dict(ended)
    second = iter(other)
    assert (second.state_dict()["epoch"], len(list(second))) == (1, 10)
    assert first.state_dict()["epoch"] == 1


def test_a_drawn_seed_is_that_of_the_state_and_a_chosen_one_is_refused():
    dataset = Dataset.range(100).shuffle(100)
    elements = iter(dataset)
    head = [next(elements) for _ in range(40)]
    state = dataset.state_dict()
    other = copy_of(dataset)
    assert other.__pipeline__().seed != dataset.__pipeline__().seed
    other.load_state_dict(state)
    assert sorted([*head, *other]) == list(range(100))
    assert list(other) == list(dataset)
    elements.close()
    third = Dataset.range(100).shuffle(100).with_options(seed=8)
    third.load_state_dict(state)
    with pytest.raises(StateError, match=r"of seed \d+, and this pipeline has seed 8"):
        list(third)


def test_another_pipeline_is_refused_at_once_and_other_data_at_the_next_epoch(tmp_path):
    dataset = Dataset.range(100).batch(3)
    state = dataset.state_dict()
    with pytest.raises(StateError, match="other operators or parameters"):
        Dataset.range(100).batch(4).load_state_dict(state)
    for name in "abc":
        (tmp_path / name).write_text(name)
    files = Dataset.from_files(str(tmp_path / "*"))
    next(iter(files))
    state = files.state_dict()
    (tmp_path / "b").write_text("other")
    other = copy_of(files)
    other.load_state_dict(state)
    with pytest.raises(StateError, match=r"from_files\(\): split 1 is another"):
        iter(other)


def test_a_task_that_was_begun_is_not_computed_from_its_start_where_units_are_outputs():
    seen: list[int] = []

    def look(number: int) -> int:
        seen.append(number)
        return number

    dataset = Dataset.range(10_000).map(look).shuffle(10_000, seed=3).batch(10)
    elements = iter(dataset)
    for _ in range(500):
        next(elements)
    state = elements.state_dict()
    elements.close()
    assert dict(state["begun"])[state["done"]] > 0
    seen.clear()
    other = copy_of(dataset)
    other.load_state_dict(state)
    list(other)
    assert len(seen) <= 5010


def test_without_end():
    dataset = Dataset.range(1000).shuffle(1000, seed=1).repeat().batch(7)
    elements = iter(dataset)
    head = texts(itertools.islice(elements, 3000))
    state = passed_on(elements.state_dict())
    rest = texts(itertools.islice(elements, 100))
    elements.close()
    assert (state["tasks"], len(head)) == (None, 3000)
    other = copy_of(dataset)
    other.load_state_dict(state)
    resumed = iter(other)
    assert texts(itertools.islice(resumed, 100)) == rest
    resumed.close()
