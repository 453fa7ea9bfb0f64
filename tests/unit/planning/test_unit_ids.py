"""What one plan or job names another names alike; what is not the same has another name."""

import numpy as np
import pytest

from millrace.dataset import Dataset
from millrace.graph import nodes as g
from millrace.planning.orders import EpochOrders
from millrace.planning.split_table import Split, files_table, splits_table
from millrace.planning.unit_ids import identities, itemised
from millrace.planning.units import UnitMap


def named(dataset, tables=None, at=None, epoch=0, **how):
    units = UnitMap(dataset.__pipeline__().graph, dataset.__pipeline__().tables() if tables is None else tables)
    root = units.graph.id_of(units.graph.root)
    assert itemised(units, root)
    at = np.arange(units.of(root).count) if at is None else np.array(at)
    found = identities(EpochOrders(units, 0, epoch), root, at, **how)
    assert found.shape == (len(at), 2)
    assert found.dtype == np.uint64
    return [tuple(lanes) for lanes in found.tolist()]


@pytest.mark.parametrize(
    "other",
    [
        Dataset.range(100).shuffle(100, seed=5),
        Dataset.range(30, 100).concatenate(Dataset.range(1)).take(70).skip(0),
        Dataset.range(0, 100, 3),
        Dataset.range(1000).shard(10, 3),
        Dataset.range(100).repeat(3),
        Dataset.range(100).shuffle(100).repeat(2),
        Dataset.range(10, 20).prefetch(2).enumerate().map(lambda pair: pair[1]),
    ],
)
def test_whoever_asks_for_the_same_numbers_names_them_alike(other):
    elements = list(other)
    if any(isinstance(node, (g.Concatenate, g.Enumerate)) for node in other.__pipeline__().graph.nodes):
        assert len(set(named(other))) == len(set(elements))
        return
    mine = dict(zip(range(1000), named(Dataset.range(1000)), strict=True))
    found = named(other)
    if not any(isinstance(node, g.Shuffle) for node in other.__pipeline__().graph.nodes):
        assert found == [mine[element] for element in elements]
    assert set(found) == {mine[element] for element in elements}


def test_what_a_file_is_called_and_what_is_known_of_it():
    dataset = Dataset.from_files("nowhere/*.jpg")

    def of(locations, sizes):
        return named(dataset, {0: files_table((name, size, "") for name, size in zip(locations, sizes, strict=True))})

    first = of(["a", "b", "c"], [1, 2, 3])
    assert of(["c", "a"], [3, 1]) == [first[2], first[0]]
    assert of(["a", "b"], [1, 3])[1] != first[1]
    assert len(set(first)) == 3
    versions = [named(dataset, {0: files_table([("a", 1, version)])})[0] for version in ("", "1", "2")]
    assert versions[0] == first[0]
    assert len(set(versions)) == 3


def test_records_and_whole_splits():
    dataset = Dataset.from_tfrecords("nowhere/*.tfrecord")
    pieces = [Split("a", 0, 100, 0, 3), Split("b", 0, -1, 0, 2)]
    records = named(dataset, {0: splits_table(pieces)})
    assert len(set(records)) == 5
    assert named(dataset, {0: splits_table(pieces[::-1])}) == [*records[3:], *records[:3]]
    unknown = [Split("a", 0, 100), Split("b", version="1"), Split("b", version="2")]
    whole = named(dataset, {0: splits_table(unknown)})
    assert len(set(whole)) == 3
    assert not set(whole) & set(records)


def test_where_an_element_is_matters_only_to_what_is_random():
    twice = Dataset.range(5).concatenate(Dataset.range(5)).repeat(2)
    assert len(set(named(twice))) == 10
    assert len(set(named(twice, random=True))) == 20
    shuffled_once = Dataset.range(50).shuffle(50)
    assert set(named(shuffled_once, random=True)) == set(named(shuffled_once, random=True, epoch=1))


def test_what_works_on_a_whole_task_has_no_items():
    for dataset in (
        Dataset.range(9).filter(bool).batch(2),
        Dataset.range(9).flat_map(lambda n: [n]).shuffle(3),
        Dataset.range(9).filter(bool).take(3),
    ):
        units = UnitMap(dataset.__pipeline__().graph, dataset.__pipeline__().tables())
        assert not itemised(units, len(dataset.__pipeline__().graph.nodes) - 1)
