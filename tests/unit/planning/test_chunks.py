"""Chunks: which items they have, the order in which they are read, and the tasks that lie within them."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import millrace as mr
from millrace.errors import StateError
from millrace.graph.notation import graph_of
from millrace.planning.chunks import ChunkMembers, most_chunks, shuffle_in_chunks
from millrace.planning.orders import ChunkedPermutation, EpochOrders
from millrace.planning.plan import ChunkedPlan, Plan, make_plan
from millrace.planning.split_table import SplitTable
from millrace.planning.units import UnitMap
from millrace.samplers import Shuffled

COUNTS = st.integers(1, 3000).flatmap(lambda count: st.tuples(st.just(count), st.integers(1, min(count, 60))))


@given(COUNTS)
def test_each_item_is_in_one_chunk_and_all_have_about_as_many(counts):
    count, chunks = counts
    members = ChunkMembers(count, chunks)
    sizes = np.diff(members.bounds)
    assert sizes.sum() == count
    assert sizes.max() - sizes.min() <= 1
    found = [members.units(chunk, np.arange(size)) for chunk, size in enumerate(sizes.tolist())]
    assert sorted(np.concatenate(found).tolist()) == list(range(count))
    for chunk, units in enumerate(found):
        assert (members.chunk_of(units) == chunk).all()


@given(COUNTS, st.integers(0, 2**63), st.randoms(use_true_random=False))
def test_an_order_takes_each_item_once_chunk_after_chunk_at_any_positions(counts, key, random):
    count, chunks = counts
    order, members = ChunkedPermutation(count, key, chunks), ChunkMembers(count, chunks)
    whole = order.at(np.arange(count))
    assert sorted(whole.tolist()) == list(range(count))
    assert (np.diff(members.chunk_of(whole)) >= 0).all()
    some = np.array(random.choices(range(count), k=7))
    assert (order.at(some) == whole[some]).all()
    assert [part.tolist() for part in order.stretches(some)] == [whole[some].tolist()]


def test_chunks_are_the_same_for_all_and_orders_within_are_not():
    one, two = (ChunkedPermutation(10_000, key, 10).at(np.arange(10_000)) for key in (1, 2))
    assert (one != two).mean() > 0.9
    for chunk in range(10):
        assert set(one[chunk * 1000 : chunk * 1000 + 1000]) == set(two[chunk * 1000 : chunk * 1000 + 1000])


def test_any_position_within_its_chunk_is_as_likely_for_an_item():
    """Chi-square over 2,000 orders, 25 positions each: the chance of more than 60 with 24 degrees is below 1e-4."""
    count, chunks, draws = 100, 4, 2000
    members, seen = ChunkMembers(count, chunks), np.zeros((count, count), int)
    for key in range(draws):
        seen[ChunkedPermutation(count, key, chunks).at(np.arange(count)), np.arange(count)] += 1
    for item in (0, 17, 55, 99):
        chunk = int(members.chunk_of(np.array([item]))[0])
        here = seen[item, members.bounds[chunk] : members.bounds[chunk + 1]]
        assert here.sum() == draws
        expected = draws / len(here)
        assert ((here - expected) ** 2 / expected).sum() < 60


@pytest.mark.parametrize("period", [2, 7, 10, 11, 100, 5000])
def test_every_chunk_has_all_classes_however_they_are_sorted(period):
    """Classes that come in turns of any length, or one after the other, are in each chunk as often as in the whole."""
    count, chunks = 50_000, 10
    classes = np.arange(count) % period if period < 1000 else np.arange(count) // period
    members = ChunkMembers(count, chunks)
    kinds = len(np.unique(classes))
    each = count / chunks / kinds
    for chunk, size in enumerate(np.diff(members.bounds).tolist()):
        found = np.bincount(classes[members.units(chunk, np.arange(size))], minlength=kinds)
        assert np.abs(found - each).max() < 5.5 * np.sqrt(each), "of 500 draws none is so far from what is expected"


def units(dataset, count=1000, *, cheap=True):
    graph = graph_of(dataset)
    assert graph is not None
    return UnitMap(graph, {number: SplitTable(cheap, count) for number, _ in graph.sources()})


FILES = mr.Dataset.from_files("s3://bucket/*.jpg")


def same(element):
    return element


@pytest.mark.parametrize(
    "dataset",
    [
        FILES.shuffle(100),
        FILES.map(same).shuffle(100).map(same).batch(10),
        FILES.shuffle(100).filter(same).batch(10).prefetch(2),
        FILES.filter(same).shuffle(100).padded_batch(10),
    ],
)
def test_pipelines_that_take_chunks(dataset):
    found = units(dataset)
    assert shuffle_in_chunks(found) is not None
    root = found.of(found.graph.id_of(found.graph.root))
    assert most_chunks(found) == root.count // 2


@pytest.mark.parametrize(
    "dataset",
    [
        FILES,
        FILES.batch(10),
        FILES.shuffle(100).take(50),
        FILES.shuffle(100).skip(50),
        FILES.shuffle(100).shard(2, 0),
        FILES.shuffle(100).repeat(2),
        FILES.shuffle(100).cache(),
        FILES.shuffle(100).autocache(),
        FILES.cache().shuffle(100),
        FILES.take(100).shuffle(100),
        FILES.batch(2).shuffle(100),
        FILES.shuffle(100).shuffle(100),
        FILES.shuffle(100).enumerate(),
        FILES.sample(Shuffled()),
        FILES.shuffle(100).concatenate(FILES),
        mr.Dataset.zip(FILES, FILES).shuffle(100),
    ],
)
def test_pipelines_that_are_read_as_a_whole(dataset):
    assert shuffle_in_chunks(units(dataset)) is None
    assert most_chunks(units(dataset)) == 0


def test_sources_whose_items_lie_in_shards_are_read_as_a_whole():
    assert shuffle_in_chunks(units(FILES.shuffle(100), cheap=False)) is None


@given(
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
    st.integers(1, 100),
    st.booleans(),
)
def test_tasks_lie_within_chunks_and_are_all_of_them(sizes, size, tails):
    bounds = [0, *itertools.accumulate(sizes)]
    plan = ChunkedPlan(bounds, size, tails=tails, exact=not tails)
    assert plan.length is not None
    seen = []
    for chunk, (start, stop) in enumerate(itertools.pairwise(bounds)):
        first, last = plan.chunk(chunk)
        tasks = [plan.task(index) for index in range(first, last)]
        mains = [task for task in tasks if not task.is_tail]
        assert mains[0].start == start
        assert mains[-1].stop == stop
        assert all(one.stop == two.start for one, two in itertools.pairwise(mains))
        assert all(not task.is_sequence and task.start < task.stop for task in mains)
        seen += [task.index for task in tasks]
        if not tails:
            assert [plan.before(index) for index in range(first, last)] == [task.start for task in mains]
    assert seen == list(range(plan.length))
    if not tails:
        assert plan.before(plan.length) == bounds[-1]


@given(st.lists(st.integers(16, 400), min_size=2, max_size=12), st.integers(1, 30))
def test_tails_take_from_tasks_as_in_any_plan(sizes, size):
    plan = ChunkedPlan([0, *itertools.accumulate(sizes)], size, tails=True)
    assert plan.mains is not None
    assert plan.length is not None
    plain = Plan(plan.mains, 1, tails=True)
    assert plan.length == plain.length
    for index in range(plan.length):
        assert plan.task(index).inputs == plain.task(index).inputs
        assert plan.task(index).parent == plain.task(index).parent


def test_a_plan_in_chunks_of_batches():
    found = units(FILES.shuffle(1000).batch(7), 10_000)
    plan = make_plan(found.graph, found.tables, chunks=10)
    assert plan.chunks == 10
    members = ChunkMembers(10_000, 10)
    orders = EpochOrders(found, 0, 0, 10)
    shuffle = shuffle_in_chunks(found)
    assert shuffle is not None
    for chunk in range(10):
        first, last = plan.chunk(chunk)
        start, stop = plan.task(first).start, plan.task(last - 1).stop
        positions = np.arange(start * 7, min(stop * 7, 10_000))
        read = members.chunk_of(orders.of(shuffle, 0).at(positions))
        assert (read != chunk).sum() <= 7, "a batch at the edge has elements of two"
    assert plan.task(plan.chunk(9)[1] - 1).stop == -(-10_000 // 7)


@pytest.mark.parametrize("chunks", [-1, 501])
def test_a_state_that_says_what_cannot_be(chunks):
    found = units(FILES.shuffle(1000), 1000)
    with pytest.raises(StateError, match="damaged"):
        make_plan(found.graph, found.tables, chunks=chunks)


def test_without_chunks_all_items_are_permuted_together():
    found = units(FILES.shuffle(1000), 1000)
    shuffle = shuffle_in_chunks(found)
    assert shuffle is not None
    plain, chunked = EpochOrders(found, 1, 2), EpochOrders(found, 1, 2, 5)
    assert (plain.of(shuffle, 0).at(np.arange(9)) != chunked.of(shuffle, 0).at(np.arange(9))).any()
    assert isinstance(chunked.of(shuffle, 0), ChunkedPermutation)
    assert not isinstance(plain.of(shuffle, 0), ChunkedPermutation)
