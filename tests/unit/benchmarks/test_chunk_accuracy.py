"""Orders of the experiment about accuracy with data chunks, and what it makes of accuracies."""

import argparse
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
from benchmarks.papers import chunk_accuracy, drawings
from benchmarks.papers.chunk_accuracy import CHUNKS, SHUFFLED, SORTED, Orders, aims, chunk_orders, read_pictures

from millrace.planning.chunks import ChunkMembers
from millrace.planning.plan import ChunkedPlan

COUNT, BATCH = 5000, 16


@pytest.fixture(scope="module")
def orders() -> Orders:
    return Orders(COUNT, BATCH)


def test_each_way_has_each_image_once_an_epoch_and_an_order_of_its_own_in_each(orders: Orders):
    for way in chunk_accuracy.WAYS:
        epochs = [np.concatenate(batches) for batches in orders.epochs(way, 3, 2)]
        assert [sorted(epoch.tolist()) for epoch in epochs] == [list(range(COUNT))] * 2
        assert (epochs[0] != epochs[1]).mean() > 0.9
        assert (np.concatenate(orders.epochs(way, 4, 1)[0]) != epochs[0]).mean() > 0.9


def test_batches_of_chunks_are_of_one_and_sorted_classes_are_mixed_in_them_alone(orders: Orders):
    members, classes = ChunkMembers(COUNT, 10), np.arange(COUNT) * 10 // COUNT
    (chunked,), (in_turn,), (shuffled,) = (orders.epochs(way, 0, 1) for way in (CHUNKS, SORTED, SHUFFLED))
    mixed = [batch for batch in chunked if len(np.unique(members.chunk_of(batch))) > 1]
    assert len(mixed) <= 10, "only those at edges have images of two chunks"
    assert np.mean([len(np.unique(classes[batch])) for batch in chunked]) > 7
    assert np.mean([len(np.unique(classes[batch])) for batch in shuffled]) > 7
    assert np.mean([len(np.unique(classes[batch])) for batch in in_turn]) < 1.1
    assert [classes[batch[0]] for batch in in_turn] == sorted(classes[batch[0]] for batch in in_turn)


def test_a_job_begins_where_another_one_reads_and_takes_each_chunk_once():
    plan = ChunkedPlan(range(0, 1100, 100), 2)
    found = {seed: chunk_orders(plan, 4, seed) for seed in range(8)}
    for order in itertools.chain(*found.values()):
        assert sorted(order) == list(range(10))
    assert len({epochs[0][0] for epochs in found.values()}) > 3
    assert all(len(epochs) == 4 for epochs in found.values())


def test_a_difference_is_a_miss_if_it_is_clear_and_so_is_one_that_could_not_be_seen():
    def missed(chunks: list[float], stretches: list[float], shuffled: list[float] | None = None) -> list[bool]:
        known = [92.0, 92.1, 91.9, 92.2, 91.8] if shuffled is None else shuffled
        return [not row["met"] for row in aims({SHUFFLED: known, CHUNKS: chunks, SORTED: stretches})]

    same, bad = [92.1, 92.0, 92.0, 92.1, 91.9], [10.0, 12.0, 11.0, 10.0, 13.0]
    assert missed(same, bad) == [False] * 4
    assert missed([91.0, 91.2, 90.9, 91.2, 90.8], bad) == [False, True, False, False]
    assert missed([90.0, 93.0, 92.0, 94.0, 91.0], bad) == [False, False, True, False]
    assert missed(same, same) == [False, False, False, True]
    assert missed(same, bad, [value - 10 for value in same]) == [True, True, False, False]


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    """Two folders of small pictures of ten classes, each of a colour, written out of order."""
    image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(0)
    for name, count in (("train", 100), ("test", 20)):
        for number in rng.permutation(count).tolist():
            path = tmp_path / name / f"class-{number % 10}" / f"{number // 10:04}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.fromarray(np.full((32, 32, 3), 25 * (number % 10), np.uint8)).save(path)
    return tmp_path


def test_pictures_come_sorted_and_fewer_of_them_have_all_classes(pictures: Path):
    images, labels = read_pictures(str(pictures / "train"))
    assert images.shape == (100, 32, 32, 3)
    assert images.dtype == np.uint8
    assert labels.tolist() == [number // 10 for number in range(100)]
    assert np.abs(images.mean((1, 2, 3)) - 25 * labels).max() < 3
    assert read_pictures(str(pictures / "train"), 20)[1].tolist() == [number // 2 for number in range(20)]


def test_it_trains(pictures: Path, tmp_path: Path):
    torch = pytest.importorskip("torch")
    benchmark, threads = torch.backends.cudnn.benchmark, torch.get_num_threads()
    torch.set_num_threads(1)
    size = {"seeds": 1, "epochs": 2, "batch": 4, "width": 2, "limit": 0}
    try:
        found = chunk_accuracy.measure(argparse.Namespace(cifar=str(pictures), **size))
    finally:
        torch.backends.cudnn.benchmark = benchmark
        torch.set_num_threads(threads)
    assert {way: [len(each["curve"]) for each in runs] for way, runs in found["results"].items()} == {
        way: [2] for way in chunk_accuracy.WAYS
    }
    assert (found["images"], found["aims"]) == (100, [])
    assert json.loads(json.dumps(found)) == found
    pytest.importorskip("matplotlib")
    report = {**found, "question": "What?"}
    assert drawings.chunk_accuracy(report, str(tmp_path)) == ["![What?](performance/papers.chunk_accuracy-epochs.svg)"]
