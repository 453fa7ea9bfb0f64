"""Tasks of several pieces, as what is left of an epoch is divided anew."""

from __future__ import annotations

from typing import Any

from millrace.dataset import Dataset
from millrace.planning.plan import Piece, Task

DATASET = Dataset.range(100).map(lambda n: n + 1)
TASK = Task(3, 0, 0, parts=(Piece.of(10, 14), Piece.of(50, 53)))


def test_what_its_operators_gave_is_summed_over_the_pieces(runs: Any) -> None:
    made = runs.program(DATASET, chunk=1)
    try:
        with made.run(TASK, 0) as running:
            assert running.passed == []
            elements = [element for chunk in running for element in chunk.elements]
            assert elements == [11, 12, 13, 14, 51, 52, 53]
            assert running.passed == [7] * len(DATASET.__pipeline__().graph.nodes)
            assert [running.made(number) for number in range(len(DATASET.__pipeline__().graph.nodes))] == running.passed
    finally:
        made.close()


def test_one_that_is_read_in_part_has_given_as_much(runs: Any) -> None:
    made = runs.program(DATASET, chunk=1)
    try:
        with made.run(TASK, 0, skip=2) as running:
            chunks = [next(running) for _ in range(3)]
            assert [element for chunk in chunks for element in chunk.elements] == [13, 14, 51]
            assert running.passed[-1] == 3
    finally:
        made.close()
