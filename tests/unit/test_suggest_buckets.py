"""Suggested buckets of a dataset: from the lengths of its first elements, whatever these are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import millrace as mr

LENGTHS = [1, 1, 2, 7, 8, 8]


def dataset(make: Any) -> mr.Dataset:
    return mr.Dataset.from_list(LENGTHS).map(make)


@pytest.mark.parametrize(
    "make",
    [
        lambda length: "x" * length,
        lambda length: [0] * length,
        lambda length: np.zeros((length, 3)),
        lambda length: {"tokens": np.zeros(length), "label": 3, "path": "a long path of a file"},
        lambda length: (np.zeros(length), [0]),
    ],
    ids=["text", "list", "array", "dict", "tuple"],
)
def test_the_length_is_that_of_the_longest_array(make):
    found = dataset(make).suggest_buckets(buckets=2, batch_tokens=16)
    assert (found.boundaries, found.batch_sizes) == ([3], [8, 2])
    assert found.padding_share == pytest.approx(1 - 27 / 30)
    assert found.without_buckets == pytest.approx(1 - 27 / 48)


def test_what_it_finds_is_what_buckets_take():
    texts = dataset(lambda length: "x" * length)
    found = texts.suggest_buckets(len, buckets=3, batch_tokens=16)
    batches = list(texts.bucket_by_sequence_length(len, found.boundaries, found.batch_sizes))
    assert sorted(batch.shape for batch in map(np.array, batches)) == [(1,), (1,), (2,), (2,)]


def test_only_the_sample_is_computed_and_no_epoch_begins():
    seen: list[int] = []

    def note(number: int) -> int:
        seen.append(number)
        return number

    numbers = mr.Dataset.range(100).map(note)
    before = numbers.state_dict()
    numbers.suggest_buckets(lambda number: number + 1, sample=5)
    assert len(seen) < 50
    assert numbers.state_dict() == before


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"element_length_func": 7}, "takes a function of an element or None, not 7"),
        ({"element_length_func": lambda text: None}, "a length must be a whole number of at least 0, not None"),
        ({"element_length_func": lambda text: -1}, "a length must be a whole number of at least 0, not -1"),
        ({"buckets": 0}, "buckets must be a whole number of at least 1, not 0"),
        ({"sample": 0}, "sample must be a whole number of at least 1, not 0"),
        ({"batch_tokens": 7}, "batch_tokens=7 are fewer than the 8 of the longest element"),
    ],
)
def test_mistakes_are_named(arguments, words):
    with pytest.raises(mr.PipelineError, match=words):
        dataset(lambda length: "x" * length).suggest_buckets(**arguments)


def test_elements_without_a_length_are_named():
    with pytest.raises(mr.PipelineError, match="an element has no array"):
        mr.Dataset.range(3).suggest_buckets()
    with pytest.raises(mr.PipelineError, match="finds no elements"):
        mr.Dataset.from_list([]).suggest_buckets()
