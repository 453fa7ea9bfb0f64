"""An endless repeat of what gives nothing ends, as in tf.data."""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import pytest

from millrace.dataset import Dataset


def nothing() -> Dataset:
    return Dataset.range(3).filter(lambda n: False)


@pytest.mark.parametrize(
    "make",
    [
        lambda: nothing().repeat(),
        lambda: nothing().repeat().map(lambda n: n).prefetch(2),
        lambda: nothing().repeat().batch(4),
        lambda: nothing().repeat().shuffle(10),
        lambda: nothing().repeat().take(5),
        lambda: nothing().repeat().shuffle(10).take(5),
        lambda: Dataset.range(2).flat_map(lambda n: nothing().repeat().shuffle(4)),
        lambda: Dataset.range(3).map(lambda n: [n] * 0).flat_map(iter).repeat().enumerate(),
        lambda: Dataset.range(3000).filter(lambda n: n < 0).repeat(),
        lambda: nothing().repeat().map(lambda n: n).skip(1).take(5),
        lambda: Dataset.sample_from_datasets([nothing().repeat(), nothing().repeat()], seed=1),
        lambda: Dataset.zip(nothing().repeat(), Dataset.range(3)),
        lambda: Dataset.range(3).flat_map(lambda n: nothing().repeat()),
        lambda: Dataset.range(3).interleave(lambda n: nothing().repeat(), cycle_length=2),
        lambda: nothing().repeat(4),
    ],
)
def test_ends(make: Callable[[], Dataset]) -> None:
    dataset = make()
    for _ in range(2):
        elements = iter(dataset)
        assert list(elements) == []
        assert elements.state_dict()["ended"]


def test_goes_on_where_something_comes_now_and_then() -> None:
    rare = Dataset.range(5000).filter(lambda n: n == 4321).repeat()
    assert list(islice(rare, 5)) == [4321] * 5


def test_goes_on_where_what_follows_it_leaves_much_out() -> None:
    late = Dataset.range(3).filter(lambda n: True).repeat().enumerate().filter(lambda pair: pair[0] >= 20_000)
    assert next(iter(late))[0] == 20_000


def test_what_was_collected_before_it_ended_comes() -> None:
    left = [7]

    def while_there_is(number: int) -> bool:
        left[0] -= 1
        return left[0] >= 0

    batches: list[Any] = list(Dataset.range(3).filter(while_there_is).repeat().batch(5))
    assert [len(batch) for batch in batches] == [5, 2]
