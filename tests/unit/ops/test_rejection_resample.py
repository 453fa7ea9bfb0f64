from collections import Counter

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.errors import PipelineError
from millrace.graph import nodes
from millrace.ops.rejection_resample import copies


def kind(number):
    """One of ten is of class 0, three are of class 1, the others of class 2."""
    return 0 if number % 10 == 0 else 1 if number % 10 < 4 else 2


INITIAL = (0.1, 0.3, 0.6)
TARGETS = [(1 / 3, 1 / 3, 1 / 3), (0.2, 0.3, 0.5), (0.0, 0.4, 0.6), INITIAL]


def resampled(driver, fn, target, initial=INITIAL, count=20_000, **options):
    node = nodes.RejectionResample(class_fn=fn(kind), target_dist=target, initial_dist=initial)
    return driver.elements(node, range(count), chunk_size=64, **options)


def shares_of(found):
    return np.bincount([int(number) for number, _ in found], minlength=3) / len(found)


@pytest.mark.parametrize("target", TARGETS)
def test_classes_come_as_in_tf_data_and_so_does_the_number_of_elements(driver, fn, target):
    ours = resampled(driver, fn, target, cuts=[1000])
    assert all(number == kind(element) for number, element in ours)
    table = tf.constant([kind(number) for number in range(10)])
    theirs = list(
        tf.data.Dataset.range(2000)
        .rejection_resample(lambda number: table[number % 10], target, INITIAL, seed=1)
        .as_numpy_iterator()
    )
    expected = copies(np.array(target), np.array(INITIAL)) @ INITIAL
    for found, count in ((ours, 20_000), (theirs, 2000)):
        assert shares_of(found) == pytest.approx(target, abs=0.04)
        assert len(found) / count == pytest.approx(expected, abs=0.06)
    most = [max(Counter(element for _, element in found).values()) for found in (ours, theirs)]
    assert most[0] == most[1]  # where tf.data repeats none, none is repeated


@pytest.mark.parametrize("target", TARGETS)
def test_shares_that_are_estimated_are_met_as_well(driver, fn, target):
    found = resampled(driver, fn, target, None, cuts=[1000])
    assert shares_of(found) == pytest.approx(target, abs=0.02)


@given(
    st.lists(st.tuples(st.integers(1, 9), st.integers(0, 9)), min_size=2, max_size=5).filter(
        lambda p: any(t for _, t in p)
    )
)
def test_how_many_times_elements_come(pairs):
    initial, target = (np.array(each, float) / sum(each) for each in zip(*pairs, strict=True))
    rates = copies(target, initial)
    assert 0 <= rates.min() <= rates.max() <= 2.0001
    assert rates * initial / (rates @ initial) == pytest.approx(target)
    if np.allclose(target, initial):
        assert rates == pytest.approx(1)
    if not target.all():
        assert rates.max() == pytest.approx(1)  # elements are left out only


def test_a_class_that_never_comes_counts_for_nothing():
    assert copies(np.array([0.0, 0.5, 0.5]), np.array([0.0, 0.5, 0.5])).tolist() == [0, 1, 1]


@pytest.mark.parametrize("initial", [INITIAL, None])
@settings(max_examples=20)
@given(st.lists(st.integers(1, 50), min_size=1, max_size=4))
def test_the_cut_into_chunks_changes_nothing(driver, fn, initial, cuts):
    whole = driver.positioned(
        nodes.RejectionResample(class_fn=fn(kind), target_dist=TARGETS[0], initial_dist=initial), range(200), cuts=[200]
    )
    node = nodes.RejectionResample(class_fn=fn(kind), target_dist=TARGETS[0], initial_dist=initial)
    assert driver.positioned(node, range(200), cuts=cuts) == whole
    assert len({position for _, position, _ in whole}) == len(whole)


@pytest.mark.parametrize("wrong", [3, -1, 0.5, None, "a"])
def test_a_class_that_is_none_is_named_once_what_is_before_it_has_come(driver, fn, wrong):
    node = nodes.RejectionResample(
        class_fn=fn([0, 1, 2, wrong, 0].__getitem__), target_dist=INITIAL, initial_dist=INITIAL
    )
    found = []
    with pytest.raises(
        PipelineError, match=r"the class of an element is a whole number from 0 to 2, as target_dist has 3"
    ):
        for chunk in driver.start(node, [driver.chunks(range(5), [5])], driver.context(node)):
            found += chunk.elements
    assert found == [(0, 0), (1, 1), (2, 2)]


def test_elements_that_fail_are_skipped_with_their_classes(driver, fn):
    def fails(number):
        return {1: 0, 4: 1, 7: 1}[number]

    node = nodes.RejectionResample(class_fn=fn(fails), target_dist=(0.5, 0.5), initial_dist=(0.5, 0.5))
    assert driver.elements(node, range(9), on_error="skip") == [(0, 1), (1, 4), (1, 7)]


def test_epochs_seeds_and_tasks():
    def read(seed=None, of=1):
        dataset = Dataset.range(300).rejection_resample(kind, TARGETS[0], INITIAL, seed).with_options(seed=of)
        return list(dataset), list(dataset)

    first, second = read()
    assert first != second
    assert read() == (first, second)
    assert read(of=2)[0] != first
    assert read(7) == read(7, of=2) != (first, second)
