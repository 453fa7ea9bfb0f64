"""What runs rewritten gives what was written: elements, order, random numbers, errors, skips, identities, measures."""

from __future__ import annotations

import itertools
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from tests.unit.engine.any_pipeline import pipeline
from tests.unit.engine.test_planned_is_plain import mains, run, same

from millrace.dataset import Dataset
from millrace.engine import metrics
from millrace.engine.threads import operator_threads, ordered_map
from millrace.errors import ElementError
from millrace.graph.nodes import AUTOTUNE
from millrace.graph.rewrites import rewritten


def alike(one: Any, other: Any) -> bool:
    """Equal in structure, types, dtypes, shapes and values."""
    if isinstance(one, np.ndarray):
        return (
            isinstance(other, np.ndarray)
            and (one.dtype, one.shape) == (other.dtype, other.shape)
            and one.tobytes() == other.tobytes()
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(alike(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(alike, one, other))
    return repr(one) == repr(other)


DTYPES = st.one_of(
    hnp.boolean_dtypes(),
    hnp.integer_dtypes(),
    hnp.floating_dtypes(),
    hnp.complex_number_dtypes(),
    hnp.unicode_string_dtypes(min_len=1, max_len=3),
)


@st.composite
def arrays(draw: Any, count: int) -> Any:
    """Arrays of one dtype and shape: 0-d ones, those without elements, those that are no contiguous memory."""
    dtype, shape = draw(DTYPES), draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    whole = draw(hnp.arrays(dtype, (count, *shape)))
    if shape and draw(st.booleans()):
        wide = np.repeat(whole, 2, axis=-1)
        return [row[..., ::2] for row in wide]
    return [np.asfortranarray(row) if draw(st.booleans()) else np.array(row) for row in whole]


@st.composite
def columns(draw: Any, count: int, depth: int = 2) -> Any:
    """``count`` elements of one structure."""
    kind = draw(
        st.sampled_from(["array", "array", "leaf", "leaf", "dict", "tuple", "list"] if depth else ["array", "leaf"])
    )
    if kind == "array":
        return draw(arrays(count))
    if kind == "leaf":
        leaf = draw(
            st.sampled_from(
                [
                    st.integers(-(2**63), 2**63 - 1),
                    st.floats(),
                    st.booleans(),
                    st.binary(max_size=5),
                    st.text("aß☃", max_size=4),
                    st.integers(0, 255).map(np.uint8),
                ]
            )
        )
        return draw(st.lists(leaf, min_size=count, max_size=count))
    inside = [draw(columns(count, depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    rows = zip(*inside, strict=True)
    if kind == "dict":
        return [dict(zip("abc", row, strict=False)) for row in rows]
    return list(rows) if kind == "tuple" else [list(row) for row in rows]


class FaultError(Exception):
    """Of a function."""


def number_of(element: Any) -> int:
    """Counts from 0 over the elements of :func:`source`, whatever has been put around them."""
    while isinstance(element, dict):
        element = element["was"]
    return int(element[0])


def wrapped(element: Any) -> Any:
    return {"was": element}


def drawn(element: Any, rng: np.random.Generator) -> Any:
    return {"was": element, "drawn": rng.random(), "more": rng.integers(9, size=2)}


def third(element: Any) -> bool:
    return number_of(element) % 3 > 0


def random_third(element: Any, rng: np.random.Generator) -> bool:
    return bool(rng.random() < 0.7)


def fails(which: set[int]) -> Any:
    def failing(element: Any) -> Any:
        if number_of(element) in which:
            raise FaultError(f"at {number_of(element)}")
        return element

    return failing


PARALLEL = st.sampled_from([AUTOTUNE, AUTOTUNE, 1, 2])
STEPS: dict[str, Any] = {
    "wrapped": lambda ds, draw: ds.map(wrapped, num_parallel_calls=draw(PARALLEL)),
    "drawn": lambda ds, draw: ds.map(drawn, num_parallel_calls=draw(PARALLEL)),
    "third": lambda ds, draw: ds.filter(third),
    "random_third": lambda ds, draw: ds.filter(random_third),
    "failing": lambda ds, draw: ds.map(fails(draw(st.sets(st.integers(0, 20)))), num_parallel_calls=draw(PARALLEL)),
    "dead": lambda ds, draw: draw(
        st.sampled_from(
            [ds.take(-1), ds.skip(0), ds.shard(1, 0), ds.repeat(1), ds.prefetch().prefetch(2), ds.with_options(seed=4)]
        )
    ),
    "repeat": lambda ds, draw: ds.repeat(2),
    "shuffle": lambda ds, draw: ds.shuffle(5),
    "alive": lambda ds, draw: draw(st.sampled_from([ds.prefetch(), ds.autocache(), ds.cache()])),
}
OFTEN = ["wrapped", "drawn", "drawn", "dead", "dead"]


@st.composite
def written(draw: Any, count: int, steps: list[str]) -> Dataset:
    """Maps and filters of any elements, and what may stand between them; nothing that stops before the end.

    How much of what it does not need an operator reads, such as ``take`` does, depends on how fast others are.
    """
    rows = draw(columns(count))
    dataset = Dataset.from_list([(number, row) for number, row in enumerate(rows)])
    for step in draw(st.lists(st.sampled_from(steps), min_size=2, max_size=7)):
        dataset = STEPS[step](dataset, draw)
    return dataset.batch(draw(st.integers(1, 5))) if draw(st.booleans()) else dataset


@pytest.fixture
def _threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operator_threads, "_WORTH_A_THREAD_S", 0.0)


def tasks_of(runs: Any, dataset: Dataset, **options: Any) -> Any:
    """What each task yields with its identity, what it leaves, and elements and bytes of every operator."""
    program = runs.program(dataset, **options)
    try:
        found = [run(program, task) for task in mains(program.plan)]
        return (
            program.plan.length,
            found,
            [(row.node, row.label, row.elements, row.bytes) for row in program.measures()],
        )
    finally:
        program.close()


@settings(max_examples=150)
@given(st.data())
def test_any_plan_runs_as_written(runs, data):
    dataset = pipeline(data.draw, runs).dataset
    chosen = {
        "tasks": data.draw(st.integers(1, 20), label="tasks"),
        "chunk": data.draw(st.sampled_from([1, 3, 1000]), label="chunk"),
        "seed": data.draw(st.integers(0, 9), label="seed"),
    }
    length, tasks, _ = tasks_of(runs, dataset, **chosen)
    plainly = tasks_of(runs, dataset.with_options(rewrites=False), **chosen)
    assert (length, same(tasks, plainly[1])) == (plainly[0], True)
    assert same(runs.epoch(dataset, 1, **chosen), runs.epoch(dataset.with_options(rewrites=False), 1, **chosen))


@settings(max_examples=150)
@given(st.data())
@pytest.mark.usefixtures("_threads")
def test_any_elements_random_numbers_and_skips_are_as_written(runs, data):
    on_error = data.draw(st.sampled_from(["skip", "skip", lambda error: (0, error.where)]))
    dataset = data.draw(written(data.draw(st.integers(1, 21)), [*OFTEN, *STEPS])).with_options(on_error=on_error)
    chosen = {"tasks": data.draw(st.integers(1, 4)), "chunk": data.draw(st.sampled_from([1, 4, 100])), "seed": 3}

    def outcome(dataset: Dataset) -> Any:
        try:
            return tasks_of(runs, dataset, **chosen), runs.epoch(dataset, **chosen)
        except Exception as error:
            return type(error).__name__, str(error)

    with_rewrites, without = outcome(dataset), outcome(dataset.with_options(rewrites=False))
    if isinstance(with_rewrites[0], str):
        assert with_rewrites == without
    else:
        (length, found, measures), epoch = with_rewrites
        assert length == without[0][0]
        assert alike(found, without[0][1])
        assert measures == without[0][2][:-1]
        assert alike(epoch, without[1])


@settings(max_examples=60)
@given(st.data())
@pytest.mark.usefixtures("_threads")
def test_an_element_that_fails_is_named_as_written(runs, data):
    count = data.draw(st.integers(1, 21))
    dataset = Dataset.from_list([(number, None) for number in range(count)])
    steps = data.draw(st.lists(st.sampled_from(OFTEN), min_size=1, max_size=5))
    failing = data.draw(st.integers(0, len(steps)))
    for place, step in enumerate([*steps, ""]):
        if place == failing:
            dataset = dataset.map(fails({data.draw(st.integers(0, count - 1))}))
        dataset = STEPS[step](dataset, data.draw) if step else dataset

    def failure(dataset: Dataset) -> Any:
        with pytest.raises(ElementError) as caught:
            runs.epoch(dataset, chunk=4)
        error = caught.value
        return str(error), error.operator, error.where, error.user_traceback, getattr(error, "__notes__", [])

    assert failure(dataset) == failure(dataset.with_options(rewrites=False))


def test_the_time_of_each_function_is_its_own(runs, monkeypatch):
    class Clock(threading.local):
        """Of each thread its own: tells the work that functions did there."""

        now = 0.0

    clock = Clock()
    for module in (metrics, operator_threads, ordered_map):
        monkeypatch.setattr(module, "clock", lambda: clock.now)

    def slow(element: int) -> int:
        clock.now += 100
        return element

    def quick(element: int) -> int:
        clock.now += 1
        return element

    for worth in (0.0, 1e9):
        monkeypatch.setattr(operator_threads, "_WORTH_A_THREAD_S", worth)
        for functions in itertools.product((slow, quick), repeat=3):
            dataset = runs.sequential(20)
            for function in functions:
                dataset = dataset.map(function)
            program = runs.program(dataset, chunk=5)
            with program.run(program.plan.task(0), 0) as running:
                assert [element for chunk in running for element in chunk.elements] == list(range(20))
            active = [row.active_s for row in program.measures()]
            assert active == [0.0, *(2000.0 if function is slow else 20.0 for function in functions)]
            program.close()


def test_what_lies_between_functions_is_bounded(runs):
    held: list[int] = []

    def large(element: int) -> Any:
        held.append(1)
        return np.zeros(1000, np.uint8)

    def small(array: Any) -> int:
        most.append(len(held))
        held.clear()
        return len(array)

    most: list[int] = []
    dataset = Dataset.range(2000).map(large).map(small).with_options(buffer_bytes=40_000)
    assert rewritten(dataset.__pipeline__().graph)[1]
    assert sum(runs.epoch(dataset, tasks=1, chunk=1000)) == 2_000_000
    assert max(most) <= 20
