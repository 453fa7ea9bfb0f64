"""Random functions and orders: keyed by what an element is, and by nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.tree import flatten


def noisy(element: Any, rng: np.random.Generator) -> tuple[Any, int]:
    return element, int(rng.integers(1 << 60))


def sources(runs: Any) -> dict[str, Dataset]:
    return {
        "range": Dataset.range(60),
        "counted": runs.sequential(9, 20, 0, 31),
        "sequential": runs.sequential(9, 20, 0, 31, counted=False),
        "concatenated": Dataset.range(20).concatenate(Dataset.range(20, 60)),
        "mixed": Dataset.sample_from_datasets([Dataset.range(20), Dataset.range(20, 60)], seed=1),
        "zipped": Dataset.zip(Dataset.range(60), Dataset.range(60, 120)).map(lambda pair: pair[0]),
    }


KINDS = ["range", "counted", "sequential", "concatenated", "mixed", "zipped"]
ONE_TO_ONE = [kind for kind in KINDS if kind != "sequential"]


def values(elements: list[Any]) -> dict[int, int]:
    found = {int(element): noise for element, noise in elements}
    assert len(found) == len(elements)
    return found


@pytest.mark.parametrize("kind", KINDS)
def test_every_element_has_a_value_of_its_own(runs, kind):
    found = values(runs.epoch(sources(runs)[kind].map(noisy)))
    assert sorted(found) == list(range(60))
    assert len(set(found.values())) == 60


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=20)
@given(tasks=st.integers(1, 60), chunk=st.sampled_from([1, 5, 999]))
def test_a_value_does_not_depend_on_the_cut(runs, kind, tasks, chunk):
    dataset = sources(runs)[kind].map(noisy)
    assert values(runs.epoch(dataset, tasks=tasks, chunk=chunk)) == values(runs.epoch(dataset))


@pytest.mark.parametrize("kind", KINDS)
def test_a_value_does_not_depend_on_what_passes_or_groups_elements(runs, kind):
    source = sources(runs)[kind]
    plain = values(runs.epoch(source.map(noisy)))
    assert values(runs.epoch(source.prefetch(2).map(noisy).cache().prefetch())) == plain
    assert values(runs.epoch(source.map(noisy).filter(lambda pair: pair[0] % 2 == 0))) == {
        element: value for element, value in plain.items() if element % 2 == 0
    }
    batched: dict[int, int] = {}
    for elements, noises in runs.epoch(source.map(noisy).batch(7)):
        batched.update(zip(elements.tolist(), noises.tolist(), strict=True))
    assert batched == plain
    assert values(runs.epoch(source.map(noisy).shuffle(10))) == plain


@pytest.mark.parametrize("kind", ["range", "concatenated", "mixed", "zipped"])
@settings(max_examples=15)
@given(tasks=st.integers(1, 60))
def test_a_value_does_not_depend_on_where_positions_are_shuffled(runs, kind, tasks):
    if kind in ("mixed", "zipped"):
        source = sources(runs)[kind]
        before, after = source.shuffle(5, seed=3).map(noisy), source.map(noisy).shuffle(5, seed=3)
    else:
        before, after = (sources(runs)[kind].shuffle(5).map(noisy), sources(runs)[kind].map(noisy))
    assert values(runs.epoch(before, tasks=tasks)) == values(runs.epoch(after))


@pytest.mark.parametrize("kind", ONE_TO_ONE)
def test_choosing_elements_leaves_the_values_of_the_others(runs, kind):
    source = sources(runs)[kind]
    plain = values(runs.epoch(source.map(noisy)))
    for chosen in (source.take(17), source.skip(13), source.shard(4, 1)):
        found = values(runs.epoch(chosen.map(noisy)))
        assert found.items() <= plain.items()
        assert 10 < len(found) < 60


def test_epochs_seeds_repetitions_and_functions_differ(runs):
    dataset = Dataset.range(50).map(noisy)
    first = values(runs.epoch(dataset, 0, seed=1))
    for other in (runs.epoch(dataset, 1, seed=1), runs.epoch(dataset, 0, seed=2)):
        assert not set(values(other).values()) & set(first.values())
    twice = runs.epoch(Dataset.range(50).repeat(2).map(noisy))
    assert len({noise for _, noise in twice}) == 100
    nested = runs.epoch(Dataset.range(5).repeat(2).repeat(3).repeat(2).map(noisy))
    assert len({noise for _, noise in nested}) == 60
    both = runs.epoch(Dataset.range(50).map(noisy).map(noisy))
    assert len({noise for noise in flatten(both)[0] if noise > 50}) == 100


def test_what_is_made_of_an_element_has_values_of_its_own(runs):
    dataset = Dataset.range(20).flat_map(lambda n: [n] * 3).map(noisy).batch(4).unbatch().map(noisy)
    assert len({noise for noise in flatten(runs.epoch(dataset, tasks=3))[0] if noise > 20}) == 120
    nested = Dataset.range(20).flat_map(lambda n: Dataset.range(3).map(noisy))
    assert len({noise for _, noise in runs.epoch(nested)}) == 60
    assert runs.epoch(nested, tasks=1) == runs.epoch(nested, tasks=20)


def test_leftovers_of_tasks_have_values_of_their_own_in_tails(runs):
    dataset = Dataset.range(300).filter(lambda n: n % 3 > 0).batch(7).map(noisy)
    noises = [noise for _, noise in runs.epoch(dataset, tasks=40)]
    assert len(set(noises)) == len(noises) == -(-200 // 7)
    shares = [noise for share in runs.shares(dataset, 2, tasks=40) for _, noise in share]
    assert len(set(shares)) == len(shares)


@pytest.mark.parametrize("kind", KINDS)
def test_orders_are_new_in_each_epoch_unless_they_are_to_stay(runs, kind):
    source = sources(runs)[kind]
    reshuffled = source.shuffle(30, seed=4)
    orders = [runs.epoch(reshuffled, number, tasks=2) for number in range(4)]
    assert len({tuple(order) for order in orders}) == 4
    assert {tuple(sorted(order)) for order in orders} == {tuple(range(60))}
    assert runs.epoch(reshuffled, 2, tasks=2) == orders[2]
    kept = source.shuffle(30, seed=4, reshuffle_each_iteration=False)
    if kind != "sequential":
        assert len({tuple(runs.epoch(kept, number, tasks=2)) for number in range(3)}) == 1
    turns = np.array(runs.epoch(Dataset.range(30).shuffle(30).repeat(3))).reshape(3, 30)
    assert len({tuple(turn) for turn in turns.tolist()}) == 3


def test_a_shuffle_of_its_own_seed_does_not_follow_the_pipelines(runs):
    own, drawn = Dataset.range(40).shuffle(9, seed=4), Dataset.range(40).shuffle(9)
    assert runs.epoch(own, seed=1) == runs.epoch(own, seed=2)
    assert runs.epoch(drawn, seed=1) != runs.epoch(drawn, seed=2)
    assert own.__pipeline__().seed == 4
    assert Dataset.range(3).with_options(seed=5).shuffle(2, seed=4).__pipeline__().seed == 5


def test_two_shuffles_in_a_row_are_two(runs):
    once = Dataset.range(100).shuffle(9, reshuffle_each_iteration=False)
    order = np.array(runs.epoch(once))
    twice = np.array(runs.epoch(once.shuffle(9, reshuffle_each_iteration=False)))
    assert twice.tolist() != order[order].tolist()
    assert sorted(twice.tolist()) == list(range(100))


@pytest.mark.parametrize("kind", ["range", "counted", "sequential"])
def test_a_shuffle_mixes_the_whole_task(runs, kind):
    size = 2000
    source = {
        "range": Dataset.range(size),
        "counted": runs.sequential(*[100] * 20),
        "sequential": runs.sequential(*[100] * 20, counted=False),
    }[kind]
    order = np.array(runs.epoch(source.shuffle(200), tasks=1))
    moved = np.abs(order - np.arange(size)).mean()
    assert moved > size / 5  # of a full shuffle a third
    assert np.abs(np.diff(order)).mean() > 50


def test_random_choices_of_a_mixture_that_cannot_be_planned_stay_too(runs):
    inputs = [Dataset.range(30).filter(lambda n: n >= 0), Dataset.range(100, 130)]
    mixed = Dataset.sample_from_datasets(inputs, seed=3)
    assert runs.program(mixed).plan.task(0).is_sequence
    assert runs.epoch(mixed, 0, seed=1) == runs.epoch(mixed, 1, seed=2)
    assert runs.epoch(Dataset.sample_from_datasets(inputs), seed=1) != runs.epoch(
        Dataset.sample_from_datasets(inputs), seed=2
    )
