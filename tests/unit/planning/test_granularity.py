"""How finely an epoch is shared out: by file, by sets of files, by element (tf.data service 3.3)."""

from pathlib import Path

import pytest

from millrace.dataset import Dataset


def cuts(dataset: Dataset, tasks: int) -> list[list[int]]:
    """The elements of each task of the first epoch, by their numbers."""
    plan = dataset.__pipeline__().plan(tasks)
    assert plan.length is not None
    return [list(range(plan.task(index).start, plan.task(index).stop)) for index in range(plan.length)]


@pytest.mark.parametrize(("tasks", "each"), [(12, 1), (4, 3), (1, 12)])
def test_a_task_is_a_file_or_a_set_of_files(tmp_path: Path, tasks: int, each: int):
    for number in range(12):
        (tmp_path / f"{number:02}.jpg").write_bytes(bytes(1000 * (number + 1)))
    files = Dataset.from_files(str(tmp_path / "*.jpg"))
    assert cuts(files, tasks) == [list(range(start, start + each)) for start in range(0, 12, each)]


@pytest.mark.parametrize("dataset", [Dataset.range(10), Dataset.from_list(list("abcdefghij"))])
def test_a_task_is_an_element(dataset: Dataset):
    assert cuts(dataset, 10) == [[number] for number in range(10)]


def test_a_task_is_a_batch():
    assert cuts(Dataset.range(10).batch(3), 4) == [[0], [1], [2], [3]]


def test_a_task_is_a_refill_also_without_an_end(tmp_path: Path):
    (tmp_path / "numbers").write_bytes(bytes(8 * 200_000))
    drawn = Dataset.from_fixed_length_records(str(tmp_path / "numbers"), 8).reservoir(100_000)
    plan = drawn.repeat().__pipeline__().plan(None)
    assert plan.length is None
    assert {plan.task(index).stop - plan.task(index).start for index in range(4)} == {100_000}
