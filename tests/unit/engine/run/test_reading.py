"""Sequential sources: opened once where that will do, read no farther than asked, closed in any case."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.chunk import Origin
from millrace.engine.run.reading import read_splits, read_whole_splits
from millrace.errors import SourceCorruptError, SourceError
from millrace.planning.split_table import Split, splits_table

SIZES = [5, 0, 12, 30]
STARTS = np.array([0, 5, 5, 17])
TABLE = splits_table([Split(f"part-{number}", count=size) for number, size in enumerate(SIZES)])


class Context:
    watched, reads = False, None

    def __init__(self, size: int) -> None:
        self.size = size

    def chunk_size(self) -> int:
        return self.size

    def next_list(self, lists: Iterator[list[Any]], origin: Origin, position: int) -> list[Any] | None:
        return next(lists, None)


class Source:
    """Elements are (split, offset)."""

    def __init__(self, short: int = 0, error: Exception | None = None) -> None:
        self.error = error
        self.opened: list[tuple[str, int]] = []
        self.closed = self.read_elements = 0
        self.short = short

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[Any]]:
        self.opened.append((split.location, start))
        try:
            at = start
            while at < (split.count if stop < 0 else stop) - self.short:
                count = min(chunk_size(), split.count - self.short - at)
                assert count >= 1
                if self.error is not None and at <= 6 < at + count:
                    raise self.error
                yield [(split.location, offset) for offset in range(at, at + count)]
                self.read_elements += count
                at += count
        finally:
            self.closed += 1


def read(source: Source, *arrays: list[int], size: int = 4) -> list[Any]:
    feed = iter([np.array(array, np.int64) for array in arrays])
    found = []
    for chunk in read_splits(source, TABLE, feed, Origin(7, 0, 3), STARTS, Context(size)):  # type: ignore[arg-type]
        assert 0 < len(chunk) == len(chunk.positions) <= size
        assert chunk.origin == Origin(7, chunk.origin.split, 3)
        for element, position in zip(chunk.elements, chunk.positions, strict=True):
            assert element == (f"part-{chunk.origin.split}", position)
            found.append(int(STARTS[chunk.origin.split] + position))
    return found


@settings(max_examples=300)
@given(st.lists(st.lists(st.integers(0, 46), min_size=1, max_size=20), max_size=6), st.integers(1, 20))
def test_any_positions_in_any_order(arrays, size):
    source = Source()
    assert read(source, *arrays, size=size) == [position for array in arrays for position in array]
    assert source.closed == len(source.opened)


@pytest.mark.parametrize("cuts", [[47], [1] * 47, [3, 20, 24], [10, 10, 10, 10, 7]])
def test_in_order_each_split_is_opened_once_however_the_feed_is_cut(cuts):
    source = Source()
    edges = np.cumsum([0, *cuts]).tolist()
    arrays = [list(range(start, stop)) for start, stop in itertools.pairwise(edges)]
    assert read(source, *arrays) == list(range(47))
    assert source.opened == [("part-0", 0), ("part-2", 0), ("part-3", 0)]


def test_nothing_beyond_what_is_asked_for_is_read():
    source = Source()
    assert read(source, [20, 21, 22], size=100) == [20, 21, 22]
    assert source.opened == [("part-3", 3)]
    assert source.read_elements <= 3


def test_what_lies_between_is_passed_over_and_what_lies_before_is_opened_anew():
    source = Source()
    assert read(source, [18], [24, 25], [26, 30], [19]) == [18, 24, 25, 26, 30, 19]
    assert source.opened == [("part-3", 1), ("part-3", 2)]


def test_a_split_that_became_shorter_is_not_passed_over():
    with pytest.raises(SourceCorruptError, match="part-2 ended after 10 of the 12 elements that it had when listed"):
        read(Source(short=2), [5, 6], [15, 16])


@pytest.mark.parametrize(
    ("error", "opened", "before"),
    [(SourceCorruptError("element 6"), [0, 4], 6), (SourceError("nobody answers"), [0], 4)],
)
def test_what_fails_is_read_again_element_by_element_only_where_one_of_them_is_at_fault(error, opened, before):
    source, found = Source(error=error), list[Any]()
    chunks = read_whole_splits(source, TABLE, iter([np.array([2])]), Origin(7, 0), Context(4))  # type: ignore[arg-type]
    with pytest.raises(SourceError) as caught:
        found.extend(element for chunk in chunks for element in chunk.elements)
    assert caught.value is error
    assert source.opened == [("part-2", start) for start in opened]
    assert len(found) == before


def test_closing_in_the_middle_closes_the_source():
    source = Source()
    feed = iter([np.arange(47)])
    chunks = read_splits(source, TABLE, feed, Origin(7, 0), STARTS, Context(4))  # type: ignore[arg-type]
    next(chunks)
    chunks.close()  # type: ignore[attr-defined]
    assert source.closed == 1


def test_whole_splits():
    source = Source()
    feed = iter([np.array([2, 0]), np.array([1])])
    chunks = list(read_whole_splits(source, TABLE, feed, Origin(7, 0), Context(5)))  # type: ignore[arg-type]
    assert [(chunk.origin.split, list(chunk.positions)) for chunk in chunks] == [
        (2, [0, 1, 2, 3, 4]),
        (2, [5, 6, 7, 8, 9]),
        (2, [10, 11]),
        (0, [0, 1, 2, 3, 4]),
    ]
    assert source.closed == 3


def test_files_of_rows_by_position(runs, tmp_path):
    for number in range(3):
        rows = pa.table({"n": range(number * 100, number * 100 + 100)})
        pq.write_table(rows, tmp_path / f"{number}.parquet", row_group_size=30)
    numbers = Dataset.from_parquet(str(tmp_path / "*.parquet")).map(operator.itemgetter("n"))
    assert len(numbers) == 300
    assert runs.epoch(numbers, tasks=7) == list(range(300))
    assert runs.epoch(numbers.shard(3, 1), tasks=7) == list(range(1, 300, 3))
    assert runs.epoch(numbers.skip(95).take(10)) == list(range(95, 105))
    shuffled = numbers.shuffle(50, seed=1)
    for tasks in (1, 4, 30):
        found = runs.epoch(shuffled, tasks=tasks)
        assert found != sorted(found) == list(range(300))
    both = Dataset.sample_from_datasets([numbers.take(150), numbers.skip(150)], seed=3).shuffle(9).batch(7)
    assert sorted(n for batch in runs.epoch(both, tasks=5) for n in batch.tolist()) == list(range(300))
