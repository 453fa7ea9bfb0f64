"""Packed rows of any number of tasks: every sequence once, and gone on with from every row."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest
from tests.unit.engine.any_pipeline import numbers
from tests.unit.engine.conftest import go_on, reached

from millrace.dataset import Dataset
from millrace.planning.checkpoint import Merged
from millrace.planning.units import UnitMap

COUNT, LENGTH, WINDOW = 150, 32, 3
SEQUENCES = Counter((number,) * (number % 9) for number in range(COUNT) if number % 9)


def some_tokens(number: int) -> Any:
    return np.full(number % 9, number)


def rows_of(dataset: Dataset) -> Dataset:
    return dataset.shuffle(COUNT).map(some_tokens).pack(LENGTH, window=WINDOW)


def packed(rows: list[Any]) -> Counter[tuple[int, ...]]:
    found: Counter[tuple[int, ...]] = Counter()
    for row in rows:
        assert {leaf.shape for leaf in row.values()} == {(LENGTH,)}
        ids = row["segment_ids"]
        found.update(tuple(row["tokens"][ids == number].tolist()) for number in range(1, ids.max() + 1))
    return found


@pytest.mark.parametrize("tasks", [1, 2, 7, 40])
def test_every_sequence_comes_once_and_few_rows_are_padded(runs, tasks):
    dataset = rows_of(Dataset.range(COUNT))
    rows = runs.epoch(dataset, tasks=tasks)
    assert packed(rows) == SEQUENCES
    # Rows are no emptier than those of one task; what the tails leave in the end is flushed once.
    half_empty = [row for row in rows if np.count_nonzero(row["segment_ids"]) <= LENGTH // 2]
    assert len(half_empty) <= 1
    again = runs.epoch(dataset, tasks=tasks)
    assert [numbers(row) for row in again] == [numbers(row) for row in rows]
    assert sum(map(packed, runs.shares(dataset, 3, tasks=tasks)), Counter()) == SEQUENCES


@pytest.mark.parametrize("made_of", [Dataset.range(COUNT), "sequential"])
def test_rows_go_on_from_every_row(runs, made_of):
    dataset = rows_of(runs.sequential(70, 5, 75) if made_of == "sequential" else made_of)
    made = runs.program(dataset, tasks=7)
    try:
        tally, rows = go_on(made, Merged(epoch=1))
        states, whole = [reached(1, tally)], []
        for row in rows:
            whole.append(repr(row))
            states.append(reached(1, tally))
        assert len(whole) > COUNT * 4 // LENGTH
        for step, state in enumerate(states):
            assert [repr(row) for row in go_on(made, state)[1]] == whole[step:]
    finally:
        made.close()


def test_rows_are_of_one_shape_however_their_batches_are_cut():
    pipeline = rows_of(Dataset.range(COUNT)).batch(4).__pipeline__()
    shape = pipeline.varying()
    assert (shape.rows, shape.padded, shape.fixed) == (frozenset([4]), False, frozenset())
    padded = Dataset.range(COUNT).map(some_tokens).padded_batch(3).unbatch().pack(LENGTH).__pipeline__()
    assert padded.varying() == (frozenset(), False, frozenset())
    units = UnitMap(padded.graph, padded.tables())
    assert units.of(len(padded.graph.nodes) - 1).collecting
