"""Windows that overlap: each has the elements that it would have in one sequence, whatever is below and above."""

import warnings
from collections import Counter

import pytest

from millrace.dataset import Dataset

PAIRS = Dataset.choose_from_datasets([Dataset.range(10), Dataset.range(10, 20)], [0, 1])


@pytest.mark.parametrize(
    "below",
    [
        PAIRS,
        Dataset.range(10).concatenate(Dataset.range(10, 20)),
        Dataset.range(10).concatenate(Dataset.range(10, 20)).shuffle(100, seed=3),
        Dataset.range(10).repeat(2).shuffle(100, seed=3),
        Dataset.sample_from_datasets([Dataset.range(20), Dataset.range(20)], seed=1),
    ],
)
def test_windows_that_do_not_come_one_after_the_other_are_whole(below):
    whole = list(below.window(6, shift=1))
    assert len(whole) == len(list(below))
    # Reading begins a new epoch of a dataset each time, so each of these is one of its own.
    assert [len(window) for window in below.window(6, shift=1).shard(2, 0)] == [len(window) for window in whole[::2]]
    found = Counter(len(window) for window in below.window(4, shift=1).shuffle(1000, seed=1))
    assert found == Counter(len(window) for window in below.window(4, shift=1))


def test_windows_of_what_tasks_mix_have_each_element_as_often(tmp_path):
    for file in range(4):
        (tmp_path / f"{file}.bin").write_bytes(b"".join((1000 * file + n).to_bytes(8, "big") for n in range(1000)))
    numbers = Dataset.from_fixed_length_records(f"{tmp_path}/*.bin", 8).map(
        lambda record: int.from_bytes(record, "big")
    )
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*runs on one worker.*|.*one sequence.*|.*one task.*")
        seen = Counter(n for window in numbers.shuffle(200, seed=3).window(5, 1, drop_remainder=True) for n in window)
    assert Counter(seen.values()) == {1: 2, 2: 2, 3: 2, 4: 2, 5: 3992}
