import numpy as np
import pytest

import millrace as mr

TEN = mr.Dataset.range(10)


def double(number):
    return 2 * number


@pytest.mark.parametrize(
    ("dataset", "shown"),
    [
        (TEN, "Dataset.range(10)"),
        (mr.Dataset.range(1, 10), "Dataset.range(1, 10)"),
        (mr.Dataset.range(0, 10, 3), "Dataset.range(0, 10, 3)"),
        (mr.Dataset.from_files("/data/*.jpg"), "Dataset.from_files('/data/*.jpg')"),
        (mr.Dataset.from_files(["/a", "/b"]), "Dataset.from_files(['/a', '/b'])"),
        (mr.Dataset.from_files(["/" + "a" * 50]), f"Dataset.from_files('/{'a' * 35}...)"),
        (mr.Dataset.from_list([1, 2]), "Dataset.from_list(items)"),
        (TEN.map(double, num_parallel_calls=3), "Dataset.range(10).map(double, num_parallel_calls=3)"),
        (TEN.shuffle(100, seed=7).batch(3), "Dataset.range(10).shuffle(100, seed=7).batch(3)"),
        (TEN.padded_batch(2, padded_shapes=(None, 3)), "Dataset.range(10).padded_batch(2, padded_shapes=(None, 3))"),
        (
            TEN.bucket_by_sequence_length(len, [3], [1, 2], drop_remainder=True),
            "Dataset.range(10).bucket_by_sequence_length(len, [3], [1, 2], drop_remainder=True)",
        ),
        (
            TEN.pack(8, keys=["a", "b"], padding_values={"a": -100}),
            "Dataset.range(10).pack(8, keys=['a', 'b'], padding_values={'a': -100})",
        ),
        (TEN.pack(8, window=2, keys="a"), "Dataset.range(10).pack(8, window=2, keys='a')"),
        (mr.Dataset.zip(TEN, TEN.take(3)), "Dataset.zip(Dataset.range(10), Dataset.range(10).take(3))"),
        (mr.Dataset.zip({"a": TEN}), "Dataset.zip({'a': Dataset.range(10)})"),
        (TEN.concatenate(TEN).repeat(), "Dataset.range(10).concatenate(Dataset.range(10)).repeat()"),
        (
            mr.Dataset.sample_from_datasets([TEN, TEN], [1, 2], seed=3),
            "Dataset.sample_from_datasets([Dataset.range(10), Dataset.range(10)], [1.0, 2.0], seed=3)",
        ),
        (
            mr.Dataset.sample_from_datasets([TEN, TEN.repeat()], cycle=True),
            "Dataset.sample_from_datasets([Dataset.range(10), Dataset.range(10).repeat()], [1.0, 1.0], cycle=True)",
        ),
        (
            mr.Dataset.sample_from_datasets([TEN], {1: [1], 0: [2]}, weights_by="element"),
            "Dataset.sample_from_datasets([Dataset.range(10)], {0: [2.0], 1: [1.0]}, weights_by='element')",
        ),
        (
            mr.Dataset.choose_from_datasets([TEN, TEN], [0, 1], cycle=True),
            "Dataset.choose_from_datasets([Dataset.range(10), Dataset.range(10)], [0, 1], cycle=True)",
        ),
        (
            mr.Dataset.choose_from_datasets([TEN, TEN], mr.Dataset.range(2).repeat(3)),
            "Dataset.choose_from_datasets([Dataset.range(10), Dataset.range(10)], Dataset.from_list([0, 1]).repeat(3))",
        ),
        (
            mr.Dataset.choose_from_datasets([TEN], mr.Dataset.range(1).map(double)),
            "Dataset.choose_from_datasets([Dataset.range(10)], Dataset.range(1).map(double))",
        ),
    ],
)
def test_a_dataset_is_shown_as_it_was_written(dataset: mr.Dataset, shown: str):
    assert str(dataset) == repr(dataset) == shown


def test_one_that_is_used_again_and_again_is_not_shown_as_often():
    dataset = TEN
    for _ in range(200):
        dataset = mr.Dataset.zip(dataset, dataset)
    assert len(str(dataset)) < 300


def test_arrays_are_compared_with_no_default():
    summed = mr.Dataset.range(3).scan(np.zeros(2), lambda state, number: (state + number, state))
    assert str(summed).startswith("Dataset.range(3).scan(array([0., 0.]), ")
    assert len(list(summed)) == 3
