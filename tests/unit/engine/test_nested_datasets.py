"""Datasets that users' functions return: what becomes of their elements that fail."""

from __future__ import annotations

from contextlib import closing
from typing import Any

import pytest

from millrace.dataset import Dataset
from millrace.engine.run.program import Program, list_sources
from millrace.errors import ElementError
from millrace.planning.plan import WHOLE


def check(number: int) -> int:
    if number % 10 == 3:
        raise ValueError(number)
    return number


def nested(ten: int, **options: Any) -> Dataset:
    return Dataset.range(10 * ten, 10 * ten + 5).map(check).with_options(**options)


def twice_nested(ten: int) -> Dataset:
    return Dataset.range(ten, ten + 1).flat_map(nested)


@pytest.mark.parametrize("function", [nested, twice_nested])
def test_an_element_that_fails_within_is_left_out_or_replaced_alone(function):
    dataset = Dataset.range(2).flat_map(function)
    assert list(dataset.with_options(on_error="skip")) == [0, 1, 2, 4, 10, 11, 12, 14]
    replaced = dataset.with_options(on_error=lambda error: error.operator)
    assert list(replaced) == [0, 1, 2, "map(check)", 4, 10, 11, 12, "map(check)", 14]
    with pytest.raises(ElementError, match=r"map\(check\) failed"):
        list(dataset)


def test_what_the_dataset_within_says_itself_counts():
    within = Dataset.range(2).flat_map(lambda ten: nested(ten, on_error=lambda error: -1))
    assert list(within.with_options(on_error="skip")) == [0, 1, 2, -1, 4, 10, 11, 12, -1, 14]
    raises = Dataset.range(2).flat_map(lambda ten: nested(ten, on_error="raise"))
    assert list(raises.with_options(on_error="skip")) == [0, 1, 2, 10, 11, 12]


@pytest.mark.parametrize("options", [{}, {"on_error": "skip"}], ids=["as around", "as it says"])
def test_what_is_left_out_within_is_counted(options):
    dataset = Dataset.range(2).flat_map(lambda ten: nested(ten, **options)).with_options(on_error="skip")
    graph = dataset.__pipeline__().graph
    with closing(Program(graph, list_sources(graph), seed=0)) as program, program.run(WHOLE, 0) as run:
        assert sum(map(len, run)) == 8
        assert run.skipped == 2
