"""Pipelines that once gave too much, too little or the wrong thing; found by chance, kept on purpose."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from millrace.dataset import Dataset


def odd(number: int) -> bool:
    return number % 2 == 1


def flat(elements: list[Any]) -> list[int]:
    return sorted(int(number) for batch in elements for number in batch)


def short(elements: list[Any], size: int) -> int:
    return sum(len(batch) < size for batch in elements)


@pytest.mark.parametrize("tasks", [1, 4, 40])
@pytest.mark.parametrize("take_all", [True, False])
def test_leftovers_pass_through_what_stands_above_the_operator_that_collects(runs, tasks, take_all):
    batches = Dataset.range(200).filter(odd).batch(7)
    batches = batches.take(-1) if take_all else batches
    assert flat(runs.epoch(batches, tasks=tasks)) == list(range(1, 200, 2))
    for times, dataset in (
        (2, batches.repeat(2)),
        (1, batches.shuffle(4)),
        (2, batches.shuffle(4).repeat(2).prefetch()),
        (2, batches.repeat(2).shuffle(4)),
        (6, batches.repeat(2).repeat(3).shuffle(4)),
    ):
        found = runs.epoch(dataset, tasks=tasks)
        assert Counter(flat(found)) == dict.fromkeys(range(1, 200, 2), times)
        assert short(found, 7) == times


@pytest.mark.parametrize("tasks", [1, 4, 40])
def test_concatenated_collections_stay_apart_under_a_shuffle(runs, tasks):
    one = runs.sequential(*[11] * 9, counted=False).filter(odd).batch(7)
    other = runs.sequential(*[11] * 9, first=100, counted=False).filter(odd).batch(7)
    both = one.concatenate(other)
    for times, dataset in ((1, both.shuffle(5)), (2, both.repeat(2).shuffle(5)), (1, both.shuffle(5).shuffle(5))):
        for seed in range(5):
            found = runs.epoch(dataset, tasks=tasks, seed=seed)
            assert flat(found) == sorted([*range(1, 99, 2), *range(101, 199, 2)] * times)
            # Each part has one that is short, in each repetition.
            assert short(found, 7) <= 2 * times


@pytest.mark.parametrize("tasks", [1, 4, 40])
@pytest.mark.parametrize("shuffles", [2, 3])
def test_collections_of_unlike_sizes_stay_apart_under_several_shuffles(runs, shuffles, tasks):
    one = runs.sequential(9, 20, counted=True).filter(odd).batch(3)
    both = one.concatenate(Dataset.range(100, 200).batch(1))
    for times in (1, 3):
        dataset = both.repeat(times)
        for _ in range(shuffles):
            dataset = dataset.shuffle(12)
        for seed in range(5):
            found = runs.epoch(dataset, tasks=tasks, seed=seed)
            assert flat(found) == sorted([*range(1, 29, 2), *range(100, 200)] * times)
            assert len(found) == 105 * times  # 14 numbers in threes, and 100 alone


def test_a_repeat_of_one_may_lose_elements_and_be_shuffled(runs):
    dataset = Dataset.range(40).shuffle(5).filter(odd).repeat(1).shuffle(5)
    for seed in range(5):
        assert sorted(runs.epoch(dataset, seed=seed)) == list(range(1, 40, 2))


@pytest.mark.parametrize("tasks", [1, 3, 30])
def test_a_shuffle_of_a_shuffle_of_files(runs, tasks):
    dataset = runs.sequential(3, 20, 1, 30, 46).shuffle(4).shuffle(9).shuffle(3)
    for seed in range(5):
        assert sorted(runs.epoch(dataset, tasks=tasks, seed=seed)) == list(range(100))


def test_a_shard_of_a_shuffle_of_files_does_not_open_a_file_for_each_element(runs):
    source = runs.sequential(*[100] * 10)
    shards = [runs.epoch(source.shuffle(30, seed=1).shard(3, index)) for index in range(3)]
    assert sorted(number for shard in shards for number in shard) == list(range(1000))


def test_one_dataset_twice_in_a_concatenation(runs):
    batches = Dataset.range(30).filter(odd).batch(4)
    twice = batches.map(lambda batch: batch + 100).concatenate(batches.map(lambda batch: batch + 200))
    found = flat(runs.epoch(twice, tasks=5))
    assert found == [*range(101, 130, 2), *range(201, 230, 2)]


def test_long_parts_are_not_begun_again_where_a_feed_is_cut(runs):
    size = 70_000
    dataset = Dataset.range(size).filter(lambda n: n >= 0).batch(size - 5).repeat(2).filter(lambda batch: True).take(9)
    assert [len(batch) for batch in runs.epoch(dataset)] == [size - 5, 5, size - 5, 5]


def test_a_random_filter_that_keeps_nothing_of_one_repetition_does_not_end_the_others(runs):
    dataset = Dataset.range(1).filter(lambda n, rng: bool(rng.integers(2))).take(1).repeat(40)
    assert runs.program(dataset).plan.task(0).is_sequence
    assert 5 < len(runs.epoch(dataset)) < 35
