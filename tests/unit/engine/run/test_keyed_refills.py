"""Reservoirs over streams of which nobody knows the length: any size and any levels give one order."""

from __future__ import annotations

import itertools
import math
import os
import tempfile
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.elements.chunk import Chunk, Origin
from millrace.engine.run.keyed_refills import Passes, levels_above, refills
from millrace.errors import CodecError, PipelineError, StoreFullError, UnknownLengthError

ORIGIN = Origin(0, 0)
UNTYPED: Any = Dataset


class Stream:
    """Stream of numbers as arrays of 80 bytes, in chunks of some sizes; counts its passes."""

    def __init__(self, *counts: int, cuts: Any = (7,)) -> None:
        self.counts, self.cuts, self.passes = list(counts), cuts, 0

    def read(self) -> Any:
        count, self.passes = self.counts[min(self.passes, len(self.counts) - 1)], self.passes + 1
        start = 0
        for cut in itertools.cycle(self.cuts):
            stop = min(count, start + cut)
            if start < stop:
                yield Chunk([np.full(10, number) for number in range(start, stop)], ORIGIN, range(start, stop))
            if stop == count:
                return
            start = stop


def order(
    stream: Stream, size: int, *, levels: Any = (), folders: Any = (), budget: int = 1 << 30, key: int = 5
) -> list[list[int]]:
    with levels_above(Passes(stream.read, key, "reservoir()"), levels, folders, "reservoir()") as level:
        return [[int(array[0]) for array in held] for held in refills(level, size, budget)]


def flat(lists: list[list[int]]) -> list[int]:
    return list(itertools.chain.from_iterable(lists))


@settings(max_examples=30)
@given(
    count=st.integers(0, 90),
    size=st.integers(1, 40),
    levels=st.lists(st.integers(1, 200), max_size=2),
    budget=st.sampled_from([1, 3000, 1 << 20]),
    cuts=st.lists(st.integers(1, 90), min_size=1, max_size=3),
    key=st.integers(0, 99),
)
def test_what_is_held_where_changes_no_order(count, size, levels, budget, cuts, key):
    between = sorted(levels, reverse=True)
    found = order(Stream(count, cuts=cuts), size, levels=between, budget=budget, key=key)
    assert flat(found) == flat(order(Stream(count), count + 1, key=key))
    assert sorted(flat(found)) == list(range(count))
    assert all(len(refill) <= size for refill in found)
    if budget == 1:
        assert all(len(refill) == 1 for refill in found)


def test_each_order_is_as_likely():
    draws = 4800
    found = Counter(tuple(flat(order(Stream(4), 3, key=key))) for key in range(draws))
    expected = draws / 24
    chi_square = sum((found[each] - expected) ** 2 / expected for each in itertools.permutations(range(4)))
    assert chi_square < 49.7, "23 degrees of freedom: once in a thousand"


def test_a_refill_has_each_element_and_each_pair_as_likely():
    draws, count, size = 2000, 12, 4
    singles, pairs = Counter[int](), Counter[tuple[int, ...]]()
    for key in range(draws):
        second = sorted(order(Stream(count), size, key=key)[1])
        singles.update(second)
        pairs.update(itertools.combinations(second, 2))
    for found, share, of in ((singles, size / count, count), (pairs, size * (size - 1) / (count * (count - 1)), 66)):
        expected = draws * share
        assert len(found) == of
        assert all(abs(each - expected) < 5 * math.sqrt(expected) for each in found.values())


def test_each_refill_takes_a_pass_and_each_of_a_level_one_over_the_level():
    alone = Stream(20_000, cuts=(500,))
    assert len(order(alone, 2000)) == 10
    assert alone.passes == 10
    leveled = Stream(20_000, cuts=(500,))
    refilled = order(leveled, 2000, levels=[10_000])
    assert leveled.passes <= 3, "a level may have a few elements less than half of them"
    assert len(refilled) <= 12
    whole = Stream(20_000, cuts=(500,))
    order(whole, 2000, levels=[30_000])
    assert whole.passes == 1


def test_a_level_writes_little_more_than_it_keeps(tmp_path, monkeypatch):
    sizes = []
    make = tempfile.TemporaryFile

    def noted(**options: Any) -> Any:
        file = make(**options)
        sizes.append(file)
        return file

    monkeypatch.setattr(tempfile, "TemporaryFile", noted)
    with levels_above(Passes(Stream(40_000, cuts=(500,)).read, 5, "r"), [10_000], [str(tmp_path)], "r") as level:
        written = []
        for _ in refills(level, 9000, 1 << 30):
            written.append(sizes[-1].tell())
            assert os.listdir(tmp_path) == []
        first, *later = sorted(set(written), reverse=True)
        assert first < 3.2 * 10_000 * 100
        assert max(later) < 1.2 * 10_000 * 100
    assert all(file.closed for file in sizes)


def test_an_input_that_changes_is_noticed():
    with pytest.raises(PipelineError, match=r"r: .*once it had 20 elements, then 19: make what is before it"):
        order_of = Passes(Stream(20, 19).read, 5, "r:")
        list(refills(order_of, 5, 1 << 30))
    passes = Passes(Stream(20, 12).read, 5, "r:")
    assert passes.measure() == 20
    with pytest.raises(PipelineError, match="then 12"):
        list(passes.pick(iter([np.array([3, 15])])))


def test_a_level_that_cannot_be_is_named(tmp_path, monkeypatch):
    with pytest.raises(PipelineError, match=r"reservoir\(\): a level can't be kept in .*nowhere: No such file"):
        order(Stream(9), 2, levels=[5], folders=[str(tmp_path / "nowhere")])

    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: open("/dev/full", "w+b"))  # noqa: SIM115
    with pytest.raises(StoreFullError, match=r"a level of 5 elements in .* cannot grow: No space left"):
        order(Stream(9), 2, levels=[5], folders=[str(tmp_path)])


def test_elements_without_bytes_are_refused_by_levels_alone():
    with pytest.raises(CodecError):
        list(Dataset.range(9).filter(lambda _: True).map(lambda _: object()).reservoir(2, levels=[5]))
    assert len(list(Dataset.range(9).filter(lambda _: True).map(lambda _: object()).reservoir(2))) == 9


# -- in pipelines ------------------------------------------------------------------------------------------------------


def odd(number: Any) -> bool:
    return bool(number % 2)


@pytest.mark.parametrize(
    "build",
    [
        lambda runs: runs.sequential(9, 9, counted=False),
        lambda _: Dataset.range(40).filter(odd),
        lambda _: Dataset.range(40).filter(odd).take(7),
        lambda _: Dataset.range(9).flat_map(Dataset.range),
        lambda _: Dataset.range(40).unique(),
        lambda _: Dataset.range(40).filter(odd).reservoir(7, seed=3),
        lambda _: Dataset.from_generator(lambda: iter(range(20))),
        lambda _: Dataset.range(0).filter(odd),
    ],
)
def test_any_input_that_ends_comes_in_an_order_of_its_own_in_each_epoch(runs, build):
    plain = runs.epoch(build(runs))
    shuffled = build(runs).reservoir(5, seed=1)
    first, second = runs.epoch(shuffled), runs.epoch(shuffled, 1)
    assert sorted(map(str, first)) == sorted(map(str, second)) == sorted(map(str, plain))
    assert first == runs.epoch(build(runs).reservoir(3, levels=[11, 6], seed=1))
    if len(plain) > 6:
        assert first != second
        assert plain not in (first, second)


def test_a_levelled_reservoir_is_one_order_also_where_the_length_is_known(runs):
    assert runs.epoch(Dataset.range(50).reservoir(5, levels=[20], seed=1)) == runs.epoch(
        Dataset.range(50).filter(lambda _: True).reservoir(7, seed=1)
    )


def test_a_part_of_a_larger_array_is_held_alone(runs):
    def hold(rows: Any) -> int:
        return sum(row.nbytes if row.base is None else row.base.nbytes for row in rows)

    batches = Dataset.range(50).map(lambda number: np.full((64, 100), number)).unbatch()
    passes = Passes(lambda: iter([Chunk(list(np.zeros((64, 100))), ORIGIN, range(64)) for _ in range(50)]), 5, "r")
    assert hold(next(refills(passes, 100, 1 << 30))) == 100 * 800
    assert len(runs.epoch(batches.reservoir(100))) == 3200


def test_a_known_length_is_known_behind_levels_too():
    assert len(Dataset.range(50).reservoir(5, levels=[20]).batch(4)) == 13
    with pytest.raises(UnknownLengthError):
        len(Dataset.range(50).filter(odd).reservoir(5))


@pytest.mark.parametrize("behind", [lambda ds: ds, lambda ds: ds.batch(4)])
def test_a_sequence_over_what_has_no_end_has_no_length(behind):
    with pytest.raises(UnknownLengthError):
        len(behind(Dataset.range(9).repeat().scan(0, lambda state, number: (state, number))))
    assert len(behind(Dataset.range(8).scan(0, lambda state, number: (state, number)))) in {8, 2}


def test_draws_with_replacement_are_as_many_as_there_are_elements(runs):
    data = Dataset.range(2000).filter(odd)
    drawn = runs.epoch(data.reservoir(30, with_replacement=True, seed=1))
    assert len(drawn) == 1000
    assert set(drawn) <= set(range(1, 2000, 2))
    assert 580 < len(set(drawn)) < 680, "1 - 1/e of them"
    assert drawn == runs.epoch(data.reservoir(1000, with_replacement=True, seed=1))


def test_repetitions_have_orders_of_their_own(runs):
    twice = runs.epoch(Dataset.range(40).filter(odd).reservoir(5, seed=1).repeat(2))
    assert sorted(twice[:20]) == sorted(twice[20:]) == list(range(1, 40, 2))
    assert twice[:20] != twice[20:]


@pytest.mark.parametrize(
    ("build", "said"),
    [
        (lambda: Dataset.range(9).repeat().reservoir(5), r"must have an end: put take\(n\) before it"),
        (
            lambda: Dataset.range(9).map(abs).reservoir(5).with_options(on_error="skip"),
            r'reads its input several times.*on_error="skip" leaves out could be others',
        ),
        (lambda: Dataset.range(9).reservoir(5, levels=[5]), r"larger than size=5, and these are 5"),
        (lambda: Dataset.range(9).reservoir(5, levels=[7, 8]), r"smaller than the one before it"),
        (lambda: Dataset.range(9).reservoir(5, levels=[8], folders=["s3://b/x"]), r"local disks, which s3://b/x is"),
        (lambda: Dataset.range(9).reservoir(5, levels=[8], folders=["/a", "/b"]), r"there are 2 folders, and 1 levels"),
        (lambda: UNTYPED.range(9).reservoir(5, levels=8), r"a list of numbers of elements, not 8"),
        (
            lambda: Dataset.range(9).unique().repeat().batch(2).reservoir(5),
            r"must have an end: put take\(n\) before it",
        ),
        (lambda: Dataset.range(9).reservoir(5, levels=[8], with_replacement=True), r"with_replacement=True any"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(runs, build, said):
    with pytest.raises(PipelineError, match=said):
        runs.program(build())


def test_it_is_shown_as_it_can_be_written():
    shown = repr(Dataset.range(9).reservoir(5, levels=[80, 10], folders=["/data", "/nvme"]))
    assert shown == "Dataset.range(9).reservoir(5, levels=[80, 10], folders=['/data', '/nvme'])"
    assert repr(eval(shown)) == shown
