"""Batches as users ask for them: of a function of their own, filled up, and ragged."""

from __future__ import annotations

import re
from typing import Any, NamedTuple

import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.elements import codec
from millrace.elements.ragged import is_ragged
from millrace.errors import ElementError, PipelineError
from millrace.frameworks.element_spec import ArraySpec
from millrace.graph import nodes as g
from millrace.graph.rounds import in_rounds

UNTYPED_TEN: Any = Dataset.range(10)


class Labelled(NamedTuple):
    text: Any
    label: Any


def total(numbers: list[int]) -> tuple[int, int]:
    return sum(numbers), len(numbers)


def fails_with_four(numbers: list[int]) -> int:
    if 4 in numbers:
        raise ValueError("four")
    return len(numbers)


def noisy(numbers: list[int], rng: np.random.Generator) -> tuple[int, int]:
    return len(numbers), int(rng.integers(1 << 40))


def odd(number: int) -> bool:
    return number % 2 == 1


def document(number: int) -> dict[str, Any]:
    return {"tokens": np.full((number % 4, 2), number, np.int32), "id": number, "name": str(number)}


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: UNTYPED_TEN.batch(2, collate=3), "batch() takes a function of (elements), not 3"),
        (lambda: UNTYPED_TEN.batch(2, collate=lambda a, b: a), "but is called with (elements)"),
        (
            lambda: UNTYPED_TEN.batch(2, fill_remainder="zero"),
            "batch: fill_remainder must be one of None, 'repeat', 'm",
        ),
        (
            lambda: UNTYPED_TEN.padded_batch(2, drop_remainder=True, fill_remainder="mask"),
            "padded_batch: a last, short batch is either left out (drop_remainder=True) or filled up (fill_re",
        ),
        (lambda: UNTYPED_TEN.ragged_batch(0), "ragged_batch: batch_size must be a whole number of at least 1"),
    ],
)
def test_what_does_not_fit_is_refused_where_it_is_written(build, said):
    with pytest.raises(PipelineError, match=re.escape(said)):
        build()


def test_a_function_of_ones_own_makes_the_batch_of_a_list():
    numbers = Dataset.range(10)
    assert list(numbers.batch(4, collate=total)) == [(6, 4), (22, 4), (17, 2)]
    assert list(numbers.batch(4, drop_remainder=True, collate=total)) == [(6, 4), (22, 4)]
    assert list(numbers.filter(odd).batch(4, collate=list)) == [[1, 3, 5, 7], [9]]
    assert repr(numbers.batch(4, collate=total)) == "Dataset.range(10).batch(4, collate=list).map(total)"


def test_a_collation_that_fails_is_an_element_that_fails():
    batches = Dataset.range(10).batch(4, collate=fails_with_four)
    with pytest.raises(
        ElementError, match=r"map\(fails_with_four\) failed on element 1 of batch\(\): ValueError: four"
    ):
        list(batches)
    assert list(batches.with_options(on_error="skip")) == [4, 2]
    assert list(batches.with_options(on_error=lambda error: 0)) == [4, 0, 2]


def test_a_collation_draws_by_its_batch():
    batches = Dataset.range(10).batch(3, collate=noisy).with_options(seed=2)
    assert list(batches) == list(Dataset(batches.__pipeline__().node))
    assert len({value for _, value in batches}) == 4


def test_a_collation_makes_rounds():
    graph = Dataset.range(100).filter(odd).batch(4, collate=total).__pipeline__().graph
    (batch,) = [node for node in in_rounds(graph, 3, "drop").nodes if isinstance(node, g.Batch)]
    assert (batch.together, batch.listed) == (3, True)


@pytest.mark.parametrize("known", [True, False])
def test_a_short_batch_is_filled_up_with_its_own_elements(known):
    numbers = Dataset.range(7) if known else Dataset.range(14).filter(odd).map(lambda number: number // 2)
    rows = [[0, 1, 2, 3, 4], [5, 6, 5, 6, 5]]
    mask = [[True] * 5, [True, True, False, False, False]]
    assert [batch.tolist() for batch in numbers.batch(5, fill_remainder="repeat")] == rows
    found = list(numbers.batch(5, fill_remainder="mask"))
    assert [(batch.tolist(), which.tolist()) for batch, which in found] == list(zip(rows, mask, strict=True))
    assert found[0][1].dtype == np.bool_
    pairs = list(numbers.batch(5, fill_remainder="mask", collate=list))
    assert pairs == [list(zip(*each, strict=True)) for each in zip(rows, mask, strict=True)]
    assert all(
        each.element_spec == ArraySpec((5,), np.dtype(np.int64))
        for each in (numbers.batch(5, fill_remainder="repeat"),)
    )


def test_a_padded_batch_is_filled_up_too():
    rows = Dataset.from_list([np.arange(size) for size in (1, 3, 2)])
    (first, _), (last, mask) = rows.padded_batch(2, fill_remainder="mask")
    assert first.tolist() == [[0, 0, 0], [0, 1, 2]]
    assert (last.tolist(), mask.tolist()) == ([[0, 1], [0, 1]], [True, False])


def test_ragged_batches_keep_lengths_through_the_codec():
    batches = list(Dataset.range(6).map(document).ragged_batch(4))
    for batch in (batches[0], codec.decode(b"".join(codec.encode(batches[:1])))[0]):
        tokens = batch["tokens"]
        assert is_ragged(tokens)
        assert tokens.row_splits.tolist() == [0, 0, 1, 3, 6]
        assert tokens.values.tolist() == [[1, 1], [2, 2], [2, 2], [3, 3], [3, 3], [3, 3]]
        assert tokens.values.dtype == np.int32
        assert (batch["id"].tolist(), batch["name"].tolist()) == ([0, 1, 2, 3], ["0", "1", "2", "3"])
    assert batches[1]["tokens"].row_splits.tolist() == [0, 0, 1]
    spec = Dataset.range(6).map(document).ragged_batch(4).element_spec
    assert spec["tokens"].values == ArraySpec((None, 2), np.dtype(np.int32))
    assert spec["tokens"].row_splits == ArraySpec((None,), np.dtype(np.int64))


def test_other_dimensions_do_not_vary():
    rows = Dataset.from_list([np.zeros((2, 3)), np.zeros((2, 4))])
    with pytest.raises(PipelineError, match=r"rows of different shapes: \(3,\) in .* Only the first .* Here .* item 1"):
        list(rows.ragged_batch(2))
