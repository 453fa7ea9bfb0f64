from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.elements.chunk import Chunk, Origin
from millrace.errors import PipelineError
from millrace.graph import nodes
from millrace.planning.choice_pattern import ChoicePattern
from millrace.planning.mixture import ENDLESS, Mixture, seed_from

ONE = nodes.Range(start=0, stop=1)
cuts = st.lists(st.integers(1, 5), min_size=1, max_size=5)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=3), cuts, cuts)
def test_zip_is_as_long_as_the_shortest(driver, lengths, sizes, others):
    inputs = [
        driver.chunks([(number, i) for i in range(length)], sizes if number else others)
        for number, length in enumerate(lengths)
    ]
    node = nodes.Zip()
    chunks = list(driver.start(node, inputs, driver.context(node)))
    expected = [tuple((number, i) for number in range(len(lengths))) for i in range(min(lengths))]
    assert [element for chunk in chunks for element in chunk.elements] == expected
    assert [position for chunk in chunks for position in chunk.positions] == list(range(min(lengths)))
    assert {chunk.origin for chunk in chunks} <= {driver.mixed}


def test_zip_by_name(driver):
    node = nodes.Zip(keys=("x", "y"))
    assert driver.elements(node, [1, 2], [3, 4, 5]) == [{"x": 1, "y": 3}, {"x": 2, "y": 4}]


def test_concatenate_keeps_origins(driver):
    node = nodes.Concatenate()
    other = Origin(1, 0)
    chunks = list(driver.start(node, [driver.chunks([1, 2]), driver.chunks([3], origin=other)], driver.context(node)))
    assert [(chunk.origin, chunk.elements) for chunk in chunks] == [(driver.source, [1, 2]), (other, [3])]


lengths_and_weights = st.lists(
    st.tuples(st.integers(0, 30), st.sampled_from([0.0, 0.1, 0.5, 1.0, 7.0])), min_size=1, max_size=4
)


@given(
    lengths_and_weights.filter(lambda pairs: any(weight for _, weight in pairs)), st.booleans(), cuts, st.integers(0, 9)
)
def test_a_streamed_mixture_is_the_planned_one(driver, pairs, stop, sizes, seed):
    counts, weights = zip(*pairs, strict=True)
    node = nodes.SampleFromDatasets(weights=weights, stop_on_empty_dataset=stop)
    inputs = [[(number, i) for i in range(count)] for number, count in enumerate(counts)]
    result = driver.positioned(node, *inputs, cuts=sizes, seed=seed)
    mixture = Mixture(seed_from(np.random.default_rng(seed)), weights, counts, stop)
    which, index = mixture.resolve(np.arange(mixture.total))
    assert [element for _, _, element in result] == list(zip(which.tolist(), index.tolist(), strict=True))
    assert [(origin, position) for origin, position, _ in result] == [(driver.mixed, i) for i in range(mixture.total)]


def test_a_long_streamed_mixture_is_the_planned_one(driver):
    counts = [50_000, 5, 100_000]
    node = nodes.SampleFromDatasets(weights=(1.0, 1.0, 1.0))
    inputs = [[(number, i) for i in range(count)] for number, count in enumerate(counts)]
    result = driver.elements(node, *inputs, cuts=[1000], chunk_size=1000)
    which, index = Mixture(seed_from(np.random.default_rng(0)), node.weights, counts).resolve(np.arange(sum(counts)))
    assert result == list(zip(which.tolist(), index.tolist(), strict=True))


def passes(driver, count, turns, cuts):
    """An input that begins again, as the engine gives it: behind each pass an empty chunk."""
    for turn in range(turns):
        yield from driver.chunks([(turn * count + i) for i in range(count)], cuts)
        yield Chunk([], driver.source, range(0))


@settings(max_examples=25)
@given(
    lengths_and_weights.filter(lambda pairs: any(weight and count for count, weight in pairs)), cuts, st.integers(0, 9)
)
def test_streamed_inputs_that_begin_again_are_mixed_as_planned_ones(driver, pairs, sizes, seed):
    counts, weights = zip(*pairs, strict=True)
    mixture = Mixture(
        seed_from(np.random.default_rng(seed)), weights, [ENDLESS if count else 0 for count in counts], passes=counts
    )
    sampled = nodes.SampleFromDatasets(
        inputs=(nodes.Range(start=0, stop=1),) * len(counts), weights=weights, cycle=True
    )
    choices = [number for number, weight in enumerate(weights) for _ in range(round(2 * weight))] or [0]
    pattern = ChoicePattern(choices, None, [ENDLESS if count else 0 for count in counts], False, counts)
    chosen = nodes.ChooseFromDatasets(inputs=sampled.inputs, choices=tuple(choices), cycle=True)
    for node, sequence in ((sampled, mixture), (chosen, pattern)):
        context = driver.context(node, seed=seed)
        inputs = [passes(driver, count, 100_000, sizes) for count in counts]
        found = [element for chunk in driver.start(node, inputs, context) for element in chunk.elements]
        assert found == sequence.resolve(np.arange(sequence.total))[1].tolist()


@pytest.mark.parametrize("stop", [False, True])
def test_a_streamed_mixture_changes_its_weights_as_the_planned_one(driver, stop):
    phases = [(0, (1.0, 0.0, 1.0)), (40, (0.0, 1.0, 0.0)), (70, (1.0, 0.0, 5.0))]
    flat = tuple(weight for _, weights in phases for weight in weights)
    node = nodes.SampleFromDatasets(
        inputs=(ONE,) * 3, weights=flat, stop_on_empty_dataset=stop, weights_from=(0, 40, 70), weights_by="element"
    )
    counts = [60, 50, 25]
    result = driver.elements(node, *([(number, i) for i in range(count)] for number, count in enumerate(counts)))
    seed = seed_from(np.random.default_rng(0))
    mixture = Mixture(seed, phases[0][1], counts, stop, changes=phases[1:])
    which, index = mixture.resolve(np.arange(mixture.total))
    assert result == list(zip(which.tolist(), index.tolist(), strict=True))
    assert 70 < len(result) < sum(counts)


def test_choices_that_are_read_are_checked_once_what_is_before_them_has_come(driver):
    node = nodes.ChooseFromDatasets(inputs=(ONE,) * 3)
    found = []
    with pytest.raises(PipelineError, match="a choice is the number of a dataset, from 0 to 1, not 2"):
        for chunk in driver.start(node, list(map(driver.chunks, ["ab", "c", [0, 1, 0, 2]])), driver.context(node)):
            found += chunk.elements
    assert found == ["a", "c", "b"]


def test_a_mixture_of_endless_inputs(driver):
    node = nodes.SampleFromDatasets(weights=(3.0, 1.0))

    def endless(letter):
        while True:
            yield from driver.chunks([letter] * 10)

    chunks = driver.start(node, [endless("a"), endless("b")], driver.context(node, chunk_size=100))
    letters = [letter for chunk in islice(chunks, 100) for letter in chunk.elements]
    assert letters.count("a") / len(letters) == pytest.approx(0.75, abs=0.02)
