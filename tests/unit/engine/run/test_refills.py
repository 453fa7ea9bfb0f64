"""Reservoirs: any data in uniform random order, read forward."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk, Origin
from millrace.engine.run.refills import Refills
from millrace.planning.drawn_order import DrawnOrder
from millrace.planning.orders import FullPermutation

ORIGIN = Origin(0, 0)


class Data:
    """Input of arrays that weigh 80 bytes and more, and what was asked of it."""

    def __init__(self, fails: int = -1) -> None:
        self.fails = fails
        self.asked: list[list[int]] = []

    def read(self, feed: Any) -> Any:
        for units in feed:
            self.asked.append(units.tolist())
            for start in range(0, len(units), 3):
                part = units[start : start + 3]
                if self.fails in part:
                    part = part[: part.tolist().index(self.fails)]
                if len(part):
                    yield Chunk([np.array([unit] * 10) for unit in part.tolist()], ORIGIN, range(len(part)))
                if len(part) < len(units[start : start + 3]):
                    raise ValueError("damaged")


def read_all(refills: Refills, feed: Any) -> Any:
    for chunk in refills.chunks(feed, ORIGIN, lambda: 4):
        yield from zip(np.asarray(chunk.positions).tolist(), [int(array[0]) for array in chunk.elements], strict=True)


@settings(max_examples=60)
@given(
    st.integers(1, 60),
    st.booleans(),
    st.integers(1, 30),
    st.sampled_from([1, 3000, 1 << 20]),
    st.lists(st.integers(1, 9), min_size=1, max_size=3),
    st.integers(0, 99),
)
def test_whatever_is_held_at_a_time_the_order_says_what_comes_and_reads_go_forward(
    count, replaced, size, budget, cuts, seed
):
    order = DrawnOrder(count, seed) if replaced else FullPermutation(count, seed)
    wanted = np.random.default_rng(seed).permutation(count)[: count // 2 + 1]
    feed, start = [], 0
    for cut in itertools.cycle(cuts):
        if start >= len(wanted):
            break
        feed.append(wanted[start : start + cut])
        start += cut
    data = Data()
    found = list(read_all(Refills(order.at, data.read, size, budget, 0.0), iter(feed)))
    assert found == list(zip(wanted.tolist(), order.at(wanted).tolist(), strict=True))
    assert all(asked == sorted(set(asked)) for asked in data.asked)
    assert max(map(len, data.asked)) <= size
    if budget == 1 << 20:
        assert len(data.asked) == -(-len(wanted) // size)


@given(st.integers(0, 29), st.integers(1, 30), st.integers(0, 20))
@settings(max_examples=30)
def test_what_comes_before_an_element_that_fails_comes_and_nothing_else(fails, size, seed):
    order = FullPermutation(30, seed)
    found: list[tuple[int, int]] = []
    with pytest.raises(ValueError, match="damaged"):
        found.extend(read_all(Refills(order.at, Data(fails).read, size, 1 << 20, 0.0), iter([np.arange(30)])))
    expected = order.at(np.arange(30)).tolist()
    first = next(at for at in range(30) if fails in expected[: (at // size + 1) * size] and expected[at] >= fails)
    assert [unit for _, unit in found] == expected[:first]


def test_as_many_as_are_thought_to_fit_are_read_at_first():
    data = Data()
    list(read_all(Refills(FullPermutation(100, 1).at, data.read, 50, 2000, 100.0), iter([np.arange(100)])))
    assert {len(asked) for asked in data.asked[:-1]} <= set(range(1, 21))
    assert len(data.asked[0]) == 20


# -- uniformity --------------------------------------------------------------------------------------------------------


def surplus(observed: Any, expected: float, share: float = 0.0) -> float:
    """Chi-square of counts, as standard deviations beyond what it is by chance."""
    counts = np.asarray(observed, float)
    degrees = counts.size - 1
    return float((((counts - expected) ** 2).sum() / (expected * (1 - share)) - degrees) / np.sqrt(2 * degrees))


def test_every_order_of_few_elements_is_as_likely():
    seen = Counter(tuple(FullPermutation(4, key).at(np.arange(4)).tolist()) for key in range(12_000))
    assert len(seen) == 24
    assert abs(surplus(list(seen.values()), 500)) < 4


@pytest.mark.parametrize("count", [20, 1100])  # the second is of those that are encrypted, not sorted
def test_a_refill_has_each_element_and_each_pair_as_likely(count):
    size = count // 4
    epochs = 100_000 // size
    drawn = np.zeros((epochs, count), np.int32)
    for epoch in range(epochs):
        drawn[epoch, FullPermutation(count, 7919 * epoch).at(np.arange(size))] = 1
    assert drawn.sum() == size * epochs
    assert abs(surplus(drawn.sum(0), epochs / 4, 1 / 4)) < 4
    pairs = (drawn.astype(np.float32).T @ drawn.astype(np.float32))[np.triu_indices(count, 1)]
    share = size * (size - 1) / (count * (count - 1))
    assert pairs.mean() == pytest.approx(epochs * share)
    # How often pairs come varies as much as chance has it, give or take four times what chance does to that.
    by_chance = max(0.1, 4 * np.sqrt(2 / len(pairs)))
    assert ((pairs - epochs * share) ** 2).mean() == pytest.approx(epochs * share * (1 - share), rel=by_chance)


def test_draws_with_replacement_are_uniform_and_independent():
    drawn = DrawnOrder(50, 3).at(np.arange(100_000))
    assert abs(surplus(np.bincount(drawn, minlength=50), 2000)) < 4
    pairs = np.bincount(drawn[:-1:2] * 50 + drawn[1::2], minlength=2500)
    assert abs(surplus(pairs, 20)) < 4


# -- datasets ----------------------------------------------------------------------------------------------------------


def value(number: Any, rng: np.random.Generator) -> tuple[int, int]:
    return int(number), int(rng.integers(1 << 40))


@pytest.mark.parametrize("replaced", [False, True])
def test_the_cut_and_the_size_change_nothing(runs, replaced):
    source = runs.sequential(30, 0, 50, 20)
    first = runs.epoch(source.reservoir(100, with_replacement=replaced, seed=1).map(value))
    for size, tasks, chunk in ((100, 1, 7), (30, 4, 999), (7, 9, 1)):
        dataset = source.reservoir(size, with_replacement=replaced, seed=1).map(value)
        assert runs.epoch(dataset, tasks=tasks, chunk=chunk) == first
    numbers = [number for number, _ in first]
    assert (sorted(numbers) == list(range(100))) is not replaced
    assert set(numbers) <= set(range(100))
    assert len({noise for _, noise in first}) == 100
    assert [number for number, _ in runs.epoch(source.reservoir(9, seed=1).map(value), 1)] != numbers
    batched = runs.epoch(source.reservoir(40, with_replacement=replaced, seed=1).shuffle(3, seed=2).batch(9))
    assert sorted(int(number) for batch in batched for number in batch) == sorted(numbers)


def test_a_task_has_as_many_elements_as_are_held_where_reading_is_in_sequence(runs):
    made = runs.program(runs.sequential(*[1000] * 10).reservoir(3000).batch(10))
    assert [made.plan.task(index).stop * 10 for index in range(made.plan.length)] == [2500, 5000, 7500, 10_000]
    made.close()
    made = runs.program(Dataset.range(10_000).reservoir(3000).batch(10))
    assert made.plan.length > 10
    made.close()


def test_of_nothing_comes_nothing(runs):
    for replaced in (False, True):
        assert runs.epoch(Dataset.range(0).reservoir(5, with_replacement=replaced)) == []
