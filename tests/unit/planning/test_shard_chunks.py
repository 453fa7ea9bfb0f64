"""Chunks of shards: whole splits, the same for all jobs, about equal in bytes, with the tasks that lie within them."""

import itertools

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.errors import StateError
from millrace.graph.notation import graph_of
from millrace.planning.chunks import chunk_bounds, most_chunks, shuffle_in_chunks
from millrace.planning.orders import EpochOrders
from millrace.planning.plan import make_plan
from millrace.planning.shard_chunks import ShardChunks, most_shard_chunks
from millrace.planning.split_groups import MOST_GROUPS, group_of_splits, groups_of
from millrace.planning.split_table import Split, TableSummary, splits_table
from millrace.planning.units import UnitMap

SHARDS = mr.Dataset.from_tfrecords("s3://bucket/*.tfrecord")
TARS = mr.Dataset.from_webdataset("s3://bucket/*.tar")
SIZES = st.lists(st.integers(1, 50), min_size=2, max_size=200)


def same(element):
    return element


def table_of(counts, sizes=None, to_a_file=7):
    """Split table of files with ``to_a_file`` pieces each; a count of -1 is one that nobody knows."""
    splits, sizes = [], [100 + count for count in counts] if sizes is None else sizes
    for number, (count, size) in enumerate(zip(counts, sizes, strict=True)):
        file, piece = divmod(number, to_a_file)
        splits.append(Split(f"s3://bucket/{file}", 1000 * piece, 1000 * piece + 900, 0, count, size, "v"))
    return splits_table(splits)


def units_of(dataset, table):
    graph = graph_of(dataset)
    assert graph is not None
    return UnitMap(graph, {number: table for number, _ in graph.sources()})


def groups(counts, sizes):
    return groups_of(np.array(counts), np.array(sizes))


@given(SIZES, st.data())
def test_each_group_is_in_one_chunk_and_chunks_differ_by_one_group_in_number(sizes, data):
    chunks = data.draw(st.integers(1, len(sizes)))
    counts = [size % 5 + 1 for size in sizes]
    found = ShardChunks(groups(counts, sizes), chunks)
    of_splits = found.of_splits(len(sizes))
    assert found.bounds[0] == 0
    for chunk in range(chunks):
        members = np.flatnonzero(of_splits == chunk)
        assert len(members) in {len(sizes) // chunks, -(-len(sizes) // chunks)}
        assert found.bounds[chunk + 1] - found.bounds[chunk] == sum(counts[member] for member in members)
        assert found.bytes[chunk] == sum(sizes[member] for member in members)


@pytest.mark.parametrize(
    ("splits", "chunks", "least", "within"), [(1024, 10, 1, 1.05), (1024, 100, 1, 1.5), (128, 20, 900, 1.2)]
)
def test_chunks_are_about_equal_in_bytes(splits, chunks, least, within):
    """Sizes are anything from ``least`` to 1,000."""
    for seed in range(20):
        sizes = np.random.default_rng(seed).integers(least, 1000, splits)
        found = ShardChunks(groups_of(np.ones(splits, np.int64), sizes), chunks)
        assert found.bytes.max() < within * sizes.sum() / chunks


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 30)), min_size=1, max_size=200), st.integers(1, 300))
def test_of_as_many_chunks_as_can_be_made_or_fewer_none_is_empty(splits, batch):
    counts, sizes = zip(*splits, strict=True)
    found = units_of(SHARDS.shuffle(100).batch(batch), table_of(counts, sizes))
    for chunks in range(1, most_chunks(found) + 1):
        plan = make_plan(found.graph, found.tables, chunks=chunks)
        assert plan.length is not None
        tasks = [plan.task(index) for index in range(plan.length)]
        assert tasks[0].start == 0
        assert tasks[-1].stop == -(-sum(counts) // batch)
        assert all(one.stop == two.start for one, two in itertools.pairwise(tasks))
        assert all(task.start < task.stop for task in tasks)


@pytest.mark.parametrize("splits", [1, 5, MOST_GROUPS, MOST_GROUPS + 1, 5000])
def test_of_many_splits_each_group_has_something_of_every_part_of_the_listing(splits):
    group = group_of_splits(splits)
    assert len(group) == splits
    for start in range(0, splits, MOST_GROUPS):
        assert len(set(group[start : start + MOST_GROUPS].tolist())) == min(MOST_GROUPS, splits - start)
    assert set(group.tolist()) == set(range(min(splits, MOST_GROUPS)))
    counts = np.arange(splits) % 7 + 1
    found = groups_of(counts, counts * 10)
    assert sum(found.units) == counts.sum()
    assert found.units[0] == counts[group == 0].sum()
    assert sum(found.bytes) == 10 * counts.sum()


@pytest.mark.parametrize("splits", [240, 1024, 6000])
@pytest.mark.parametrize("period", [2, 5, 10, 20, 24, 0])
@pytest.mark.parametrize("varied", [False, True])
def test_every_chunk_has_all_classes_however_they_are_sorted(splits, period, varied):
    """Classes that come in turns of any length, or one after the other (0), are in each chunk as often as in the whole.

    A split has one class, which its size may tell. No chunk is further from a class's share than 4.5 standard
    deviations of what dealing by chance would give.
    """
    kinds = period or 12
    classes = np.arange(splits) % period if period else np.arange(splits) * kinds // splits
    sizes = 1000 + classes * 10 if varied else np.full(splits, 1000)
    of_splits = ShardChunks(groups_of(np.ones(splits, np.int64), sizes), 10).of_splits(splits)
    each = splits / 10 / kinds
    for chunk in range(10):
        found = np.bincount(classes[of_splits == chunk], minlength=kinds)
        assert np.abs(found - each).max() < 4.5 * np.sqrt(each)


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("dataset", [SHARDS, TARS, SHARDS.map(same).filter(same), TARS.prefetch(2)])
def test_an_epoch_takes_each_unit_once_chunk_after_chunk_in_whole_splits(dataset, known):
    counts = [3 + number % 4 for number in range(150)] if known else [-1] * 150
    table = table_of(counts, [100] * 150)
    found = units_of(dataset.shuffle(50), table)
    shuffle = shuffle_in_chunks(found)
    assert shuffle is not None
    its = ShardChunks(table.summary().groups, 10)
    owner = np.repeat(its.of_splits(150), counts) if known else its.of_splits(150)
    seen = []
    for seed in (1, 2):
        order = EpochOrders(found, seed, 0, 10).of(shuffle, 0)
        assert order.windowed
        whole = order.at(np.arange(len(owner)))
        assert sorted(whole.tolist()) == list(range(len(owner)))
        assert (np.diff(owner[whole]) >= 0).all()
        assert np.flatnonzero(np.diff(owner[whole])).tolist() == (its.bounds[1:-1] - 1).tolist()
        blocks = [part.tolist() for part in order.stretches(np.arange(len(owner)))]
        assert len(blocks) == 150
        assert all(block == list(range(block[0], block[0] + len(block))) for block in blocks)
        seen.append(whole)
    assert (seen[0] != seen[1]).mean() > 0.8
    assert its.bounds.tolist() == chunk_bounds(found, 10).tolist()


def test_any_place_among_the_blocks_of_its_chunk_is_as_likely_for_a_block():
    """Chi-square over 2,000 orders, 15 places each: the chance of more than 45 with 14 degrees is below 1e-4."""
    splits, draws = 60, 2000
    table = table_of([-1] * splits, [100] * splits)
    found = units_of(SHARDS.shuffle(10), table)
    shuffle = shuffle_in_chunks(found)
    assert shuffle is not None
    its, seen = ShardChunks(table.summary().groups, 4), np.zeros((splits, splits), int)
    for seed in range(draws):
        seen[EpochOrders(found, seed, 0, 4).of(shuffle, 0).at(np.arange(splits)), np.arange(splits)] += 1
    of_splits = its.of_splits(splits)
    for split in (0, 17, 33, 59):
        here = seen[split, its.bounds[of_splits[split]] : its.bounds[of_splits[split] + 1]]
        assert here.sum() == draws
        expected = draws / len(here)
        assert ((here - expected) ** 2 / expected).sum() < 45


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("above", [lambda each: each, lambda each: each.filter(same), lambda each: each.batch(4)])
def test_the_plan_is_the_same_for_who_has_the_table_and_who_has_its_summary(known, above):
    table = table_of([number % 9 for number in range(3000)] if known else [-1] * 3000)
    found = units_of(above(SHARDS.shuffle(50)), table)
    plans = [
        make_plan(found.graph, tables, chunks=12)
        for tables in (found.tables, {number: each.summary() for number, each in found.tables.items()})
    ]
    assert plans[0].length == plans[1].length
    assert plans[0].chunks == 12
    assert [plans[0].chunk(number) for number in range(12)] == [plans[1].chunk(number) for number in range(12)]
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(table.summary()), type=TableSummary)
    assert sent == table.summary()
    assert len(msgspec.msgpack.encode(sent)) < 10 * MOST_GROUPS


def test_splits_without_records_are_in_chunks_as_others():
    counts = [0, 0, 5, 0, 7, 3] * 400
    table = table_of(counts)
    found = units_of(SHARDS.shuffle(50), table)
    shuffle = shuffle_in_chunks(found)
    assert shuffle is not None
    order = EpochOrders(found, 3, 0, 10).of(shuffle, 0)
    owner = np.repeat(ShardChunks(table.summary().groups, 10).of_splits(len(counts)), counts)
    whole = order.at(np.arange(sum(counts)))
    assert sorted(whole.tolist()) == list(range(sum(counts)))
    assert (np.diff(owner[whole]) >= 0).all()


@pytest.mark.parametrize(
    ("counts", "sizes", "least", "most"),
    [
        ([1] * 40, [100] * 40, 1, 20),
        ([1] * 40, [100] * 39 + [1000], 1, 2),
        ([5] * 40, [100] * 40, 25, 8),
        ([5] * 40, [100] * 40, 1000, 0),
        ([0] + [5] * 39, [100] * 40, 1, 0),
        ([1], [100], 1, 0),
        ([1] * 4, [0] * 4, 1, 4),
    ],
)
def test_how_many_chunks_can_be_made(counts, sizes, least, most):
    assert most_shard_chunks(groups(counts, sizes), least) == most


@pytest.mark.parametrize(
    "dataset",
    [
        SHARDS,
        SHARDS.batch(10),
        SHARDS.shuffle(100).take(50),
        SHARDS.shuffle(100).shard(2, 0),
        SHARDS.shuffle(100).repeat(2),
        SHARDS.shuffle(100).cache(),
        SHARDS.shuffle(100).shuffle(100),
        SHARDS.batch(2).shuffle(100),
        SHARDS.shuffle(100).concatenate(SHARDS),
        mr.Dataset.from_parquet("s3://bucket/*.parquet").shuffle(100),
    ],
)
def test_pipelines_that_are_read_as_a_whole(dataset):
    found = units_of(dataset, table_of([5] * 100))
    assert shuffle_in_chunks(found) is None
    assert most_chunks(found) == 0


def test_a_summary_from_before_there_were_groups_makes_no_chunks():
    summary = msgspec.structs.replace(table_of([5] * 100).summary(), group_units=[], group_bytes=[])
    found = units_of(SHARDS.shuffle(100), summary)
    assert most_chunks(found) == 0
    with pytest.raises(StateError, match="damaged"):
        make_plan(found.graph, found.tables, chunks=2)


@pytest.mark.parametrize("number", [-1, 51])
def test_a_state_that_says_what_cannot_be(number):
    found = units_of(SHARDS.shuffle(100), table_of([5] * 100))
    with pytest.raises(StateError, match="damaged"):
        make_plan(found.graph, found.tables, chunks=number)


@pytest.mark.parametrize(
    ("units", "sizes"),
    [
        ([5, 5], [1, 1]),
        ([5, 5, 6], [1, 1, 1]),
        ([5, 5, 5], [1, 1]),
        ([5, 5, 5], []),
        ([], [1, 1, 1]),
        ([5, 20, -10], [1, 1, 1]),
        ([5, 5, 5], [1, 1, -1]),
        ([5, 5, 5], [1 << 61] * 3),
    ],
)
def test_groups_that_are_not_those_of_the_table_are_none(units, sizes):
    right = table_of([5, 5, 5]).summary()
    assert right.groups is not None
    sent = msgspec.msgpack.decode(msgspec.msgpack.encode(right)) | {"group_units": units, "group_bytes": sizes}
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(sent), type=TableSummary).groups is None
