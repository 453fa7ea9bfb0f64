"""Operators that need all before an element, windows, and what is told of a dataset as a whole."""

from __future__ import annotations

import re
from collections import Counter
from typing import Any, NamedTuple

import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.errors import ElementError, PipelineError
from millrace.frameworks.element_spec import ArraySpec, ListSpec

UNTYPED_TEN: Any = Dataset.range(10)


def even(number: int) -> bool:
    return number % 2 == 0


def below_four(number: int) -> bool:
    if number > 4:
        raise AssertionError("asked about what comes after the end")
    return number < 4


def appended(state: list[int], number: int) -> tuple[list[int], int]:
    state.append(number)
    return state, len(state)


def fails_at_three(state: int, number: int) -> tuple[int, int]:
    if number == 3:
        raise ValueError("three")
    return state + number, state


def noisy(state: int, number: int, rng: np.random.Generator) -> tuple[int, tuple[int, int]]:
    return state + 1, (state, int(rng.integers(1 << 40)))


def grouped(reduce_func: Any = lambda key, window: window, **window: Any) -> Any:
    return UNTYPED_TEN.group_by_window(int, reduce_func, **(window or {"window_size": 2}))


def noise(number: int, rng: np.random.Generator) -> tuple[int, int]:
    return number, int(rng.integers(1 << 40))


class Pair(NamedTuple):
    x: Any
    y: Any


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: UNTYPED_TEN.take_while(3), "take_while() takes a function of (element), not 3"),
        (lambda: UNTYPED_TEN.scan(0, even), "scan(even): even (tests/unit/test_sequences.py"),
        (lambda: UNTYPED_TEN.window(0), "window: size must be a whole number of at least 1, not 0"),
        (lambda: UNTYPED_TEN.window(3, shift=0), "window: shift must be a whole number of at least 1"),
        (lambda: UNTYPED_TEN.window(3, stride=-1), "window: stride must be a whole number of at least 1"),
        (lambda: UNTYPED_TEN.assert_cardinality(-1), "assert_cardinality: expected_cardinality must be a whole number"),
        (lambda: UNTYPED_TEN.reduce(0, even), "reduce(even): even"),
        (lambda: UNTYPED_TEN.reduce(0, noisy), "takes `rng`, but is called with (state, element) alone."),
        (lambda: UNTYPED_TEN.with_options(on_error=lambda error, rng: 0), "but is called with (error) alone."),
        (lambda: grouped(window_size_func=lambda key, rng: 2), "but is called with (key) alone."),
        (lambda: grouped(reduce_func=lambda key, window, *, rng: window), "called with (key, window) alone."),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(build, said):
    with pytest.raises(PipelineError, match=re.escape(said)):
        build()


@pytest.mark.filterwarnings("ignore:the pipeline runs as one task")
class TestSequences:
    def test_nothing_is_asked_about_elements_after_the_end(self):
        assert list(Dataset.range(10).repeat().take_while(below_four)) == [0, 1, 2, 3]
        assert list(Dataset.range(10).take_while(below_four).map(str).batch(3).unbatch()) == ["0", "1", "2", "3"]

    def test_a_predicate_says_true_or_false(self):
        with pytest.raises(
            PipelineError, match=r"take_while\(str\): the predicate returned '0' \(str\), not True or F"
        ):
            list(Dataset.range(3).take_while(str))

    def test_each_epoch_begins_with_the_first_state(self):
        dataset = Dataset.range(4).scan([], appended)
        assert list(dataset) == list(dataset) == [1, 2, 3, 4]

    def test_a_scan_returns_a_pair(self):
        with pytest.raises(
            PipelineError, match="scan_func must return a pair, the new state and what to put out, not i"
        ):
            list(Dataset.range(3).scan(0, lambda state, number: state + number))

    def test_an_element_that_fails_and_is_left_out_leaves_the_state(self):
        dataset = Dataset.range(6).scan(0, fails_at_three)
        with pytest.raises(ElementError, match=r"scan\(fails_at_three\) failed on .*: ValueError: three"):
            list(dataset)
        assert list(dataset.with_options(on_error="skip")) == [0, 0, 1, 3, 7]

    def test_a_scan_gets_the_generator_of_each_element(self):
        dataset = Dataset.range(5).scan(0, noisy).with_options(seed=4)
        assert list(dataset) == list(Dataset(dataset.__pipeline__().node))
        assert len({value for _, value in dataset}) == 5

    def test_equal_is_what_has_the_same_structure_type_shape_and_values(self):
        elements = [
            *(1, 1.0, True, np.int32(1), np.float32(1), "1", b"1", [1], (1,), {"a": 1}, {"b": 1}),
            *(np.ones(2), np.ones((2, 1)), np.ones((1, 2)), "x" * 100, b"x" * 100, ("a", "bc"), ("ab", "c"), ()),
        ]
        found = list(Dataset.from_list([*elements, *elements]).unique())
        assert len(found) == len(elements)
        assert list(map(type, Dataset.from_list([1, np.int64(1), np.float64(2), 2.0]).unique())) == [int, np.float64]
        assert len(list(Dataset.from_list([np.int64(3), 3, np.arange(2), np.arange(2)]).unique())) == 2

    def test_neither_the_order_of_keys_nor_the_sign_of_zero_makes_a_difference(self):
        pair = np.array([1, -0.0], np.float32)
        same = [{"a": 0.0, "b": pair}, {"b": abs(pair), "a": -0.0}, {"a": 0.0, "b": pair}]
        found = list(Dataset.from_list([*same, {"a": pair, "b": 0.0}]).unique())
        assert [type(element["a"]) for element in found] == [float, np.ndarray]

    def test_what_is_remembered_is_bounded(self):
        dataset = Dataset.range(5000).unique().with_options(buffer_bytes=500_000)
        with pytest.raises(
            PipelineError, match=r"has seen .* different elements, .*: raise with_options\(buffer_bytes="
        ):
            list(dataset)
        assert len(list(Dataset.range(5000).map(even).unique().with_options(buffer_bytes=500_000))) == 2

    def test_what_cannot_be_compared_is_named(self):
        with pytest.raises(PipelineError, match=r"unique\(\) compares arrays, .* and cannot compare a set"):
            list(Dataset.from_list([{1}, {2}]).unique())

    def test_a_cardinality_is_counted_where_it_is_not_known(self):
        dataset = Dataset.range(10).filter(even)
        assert len(dataset.assert_cardinality(5).batch(2)) == 3
        assert list(dataset.assert_cardinality(5).batch(2).unbatch()) == [0, 2, 4, 6, 8]
        for other, said in ((4, "4 elements, and its input has more"), (6, "6 elements, and its input had 5")):
            seen: list[int] = []
            with pytest.raises(PipelineError, match=rf"assert_cardinality\(\) expects {said}"):
                seen.extend(dataset.assert_cardinality(other))
            assert len(seen) == min(other, 5)


def test_it_is_said_that_a_sequence_runs_on_one_worker():
    (warning,) = Dataset.range(3).unique().__pipeline__().plan().warnings
    assert warning.startswith("the pipeline runs as one task on one worker, in order: unique() compares each element")
    assert warning.endswith("Do without it, or save() what it gives once and load() that, and the work can be shared.")


@pytest.mark.parametrize("shift", [1, 3, 5, 9])
def test_windows_that_overlap_ask_for_each_element_once(shift, monkeypatch):
    asked: Counter[int] = Counter()

    def counted(number: int) -> int:
        asked[number] += 1
        return number

    windows = list(Dataset.range(40).map(counted, num_parallel_calls=1).window(5, shift=shift))
    wanted = [list(range(start, min(start + 5, 40))) for start in range(0, 40, shift)]
    assert windows == wanted
    assert asked == Counter({number for window in wanted for number in window})


def test_an_element_is_the_same_in_each_window_and_windows_can_be_shuffled():
    elements = Dataset.range(100).map(noise).with_options(seed=1)
    once = list(elements)
    windows = list(elements.window(7, shift=2, stride=3, drop_remainder=True).shuffle(10, seed=2))
    assert sorted(windows) == [once[at : at + 19 : 3] for at in range(0, 82, 2)]
    assert windows != sorted(windows)


def test_windows_become_batches():
    windows = Dataset.range(6).window(3, shift=2, drop_remainder=True)
    assert [batch.tolist() for batch in windows.map(np.stack)] == [[0, 1, 2], [2, 3, 4]]
    nested = windows.flat_map(lambda window: Dataset.from_list(window).batch(2))
    assert [batch.tolist() for batch in nested] == [[0, 1], [2], [2, 3], [4]]


def test_a_dataset_is_folded_in_this_process():
    dataset = Dataset.range(5).shuffle(5)
    assert dataset.reduce(0, lambda state, number: state + number) == 10
    orders = [dataset.reduce((), lambda state, number: (*state, number)) for _ in range(3)]
    assert len(set(orders)) > 1  # each is an epoch of its own
    assert Dataset.range(0).reduce("nothing", lambda state, number: number) == "nothing"


def test_a_specification_is_of_what_elements_have_in_common():
    elements = [{"x": np.zeros((2, size), np.float32), "y": [size, "text"], "z": b"raw"} for size in (3, 4)]
    assert Dataset.from_list(elements).element_spec == {
        "x": ArraySpec((2, None), np.dtype(np.float32)),
        "y": [ArraySpec((), np.dtype(np.int64)), ArraySpec((), np.dtype("U"))],
        "z": ArraySpec((), np.dtype("S")),
    }
    found = Dataset.from_list([Pair(1, np.arange(2))] * 5).batch(2).element_spec
    assert found == Pair(ArraySpec((None,), np.dtype(np.int64)), ArraySpec((None, 2), np.dtype(np.int64)))
    assert found.x is found[0]
    assert Dataset.from_list(["a"] * 5).batch(2, drop_remainder=True).element_spec == ArraySpec((2,), np.dtype("U"))
    assert Dataset.from_list([b"a"] * 4).batch(2).element_spec == ArraySpec((2,), np.dtype("S"))


INTEGER = ArraySpec((), np.dtype(np.int64))


@pytest.mark.parametrize(
    ("windows", "spec"),
    [
        (Dataset.range(100).window(3), ListSpec(INTEGER)),
        (Dataset.range(4).window(3), ListSpec(INTEGER)),
        (Dataset.range(9).window(3), [INTEGER] * 3),
        (Dataset.range(9).window(3, shift=2), ListSpec(INTEGER)),
        (Dataset.range(9).filter(even).window(3), ListSpec(INTEGER)),
        (Dataset.range(9).repeat().window(3), [INTEGER] * 3),
        (Dataset.range(10).window(3, drop_remainder=True), [INTEGER] * 3),
        (Dataset.range(10).window(3).map(np.stack), ArraySpec((None,), np.dtype(np.int64))),
        (Dataset.range(100).batch(3, collate=list), ListSpec(INTEGER)),
        (Dataset.range(99).batch(3, collate=list), [INTEGER] * 3),
        (Dataset.range(100).window(3).flat_map(Dataset.from_list), INTEGER),
        (Dataset.from_list(["a"] * 100).window(3), ArraySpec((None,), np.dtype("U"))),
    ],
    ids=str,
)
@pytest.mark.filterwarnings("ignore:the pipeline runs as one task")
def test_lists_of_any_length_have_a_specification_of_their_own(windows, spec):
    assert windows.element_spec == spec


ENDLESS = Dataset.range(3).repeat()


@pytest.mark.parametrize(
    "dataset",
    [
        ENDLESS,
        ENDLESS.take(-1).filter(even).batch(2),
        ENDLESS.distribute(),
        ENDLESS.distribute().batch(2),
    ],
    ids=str,
)
def test_what_has_no_end_is_neither_folded_nor_saved(dataset, tmp_path):
    for read in (lambda: dataset.reduce(0, max), lambda: dataset.save(tmp_path / "saved")):
        with pytest.raises(PipelineError, match=r"(reduce|save)\(\) of .* would never end; put take\(n\)"):
            read()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("ended", [ENDLESS.take(7), ENDLESS.take_while(even), ENDLESS.batch(2).take(3)], ids=str)
@pytest.mark.filterwarnings("ignore:the pipeline runs as one task")
def test_what_has_no_end_is_folded_as_far_as_it_is_taken(ended):
    assert ended.reduce(0, lambda state, _: state + 1) in {7, 1, 3}


@pytest.mark.parametrize(
    ("elements", "said"),
    [
        ([], "this dataset has no element to find its element_spec by; it is empty"),
        ([1, "a"], "elements differ at (root): int64 of rank 0 and object of rank 0"),
        ([{"a": 1}, {"b": 1}], "elements differ in structure at (root)"),
        ([{"a": None}], 'None at ["a"] is no tensor'),
    ],
)
def test_without_anything_in_common_there_is_no_specification(elements, said):
    with pytest.raises(PipelineError, match=re.escape(said)):
        _ = Dataset.from_list(elements).element_spec
