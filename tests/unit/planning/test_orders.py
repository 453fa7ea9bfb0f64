"""Orders of a shuffle's input: what they are permutations of, and that they stay what they are."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.dataset import Dataset
from millrace.planning.orders import BlockOrder, EpochOrders, FullPermutation
from millrace.planning.split_table import Split, splits_table
from millrace.planning.units import INFINITE, UnitMap


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_a_permutation_of_everything(count, key):
    found = FullPermutation(count, key).at(np.arange(count, dtype=np.int64))
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(count))


@given(st.integers(1, 2**62 - 1), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62), max_size=20))
def test_of_any_size_and_piece_by_piece(count, key, positions):
    chosen = np.array(sorted({position % count for position in positions}), np.int64)
    found = FullPermutation(count, key).at(chosen)
    assert len(set(found.tolist())) == len(chosen)
    assert all(0 <= position < count for position in found.tolist())
    for position, place in zip(chosen.tolist(), found.tolist(), strict=True):
        assert FullPermutation(count, key).at(np.array([position])).tolist() == [place]


def test_nothing():
    assert FullPermutation(0, 1).at(np.empty(0, np.int64)).tolist() == []
    assert FullPermutation(5000, 1).at(np.empty(0, np.int64)).tolist() == []


def test_the_orders_are_fixed_for_all_time():
    assert FullPermutation(8, 1).at(np.arange(8)).tolist() == [6, 7, 0, 5, 1, 3, 2, 4]
    assert FullPermutation(1_000_000, 1).at(np.arange(4)).tolist() == [66363, 852203, 824874, 76268]


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_orders_of_few_are_equally_likely(count):
    orders: dict[tuple[int, ...], int] = {}
    for key in range(8000):
        order = tuple(FullPermutation(count, key).at(np.arange(count)).tolist())
        orders[order] = orders.get(order, 0) + 1
    kinds = int(np.prod(range(1, count + 1)))
    assert len(orders) == kinds
    degrees = kinds - 1
    assert chi_square(np.array(list(orders.values()))) < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("count", [16, 1000, 1025, 5000])
def test_every_position_goes_everywhere(count):
    bins, keys = 16, 1500
    picked = np.unique(np.linspace(0, count - 1, 8).astype(np.int64))
    places = np.stack([FullPermutation(count, key).at(picked) for key in range(keys)])
    for column in range(len(picked)):
        counts = np.histogram(places[:, column], bins=bins, range=(0, count))[0]
        sizes = np.histogram(np.arange(count), bins=bins, range=(0, count))[0]
        expected = keys * sizes / count
        assert ((counts - expected) ** 2 / expected).sum() < (bins - 1) + 5 * np.sqrt(2 * (bins - 1))


@pytest.mark.parametrize("count", [300, 1024, 1025, 4096, 10_000])
def test_neighbours_do_not_stay_neighbours(count):
    steps = []
    for key in range(50):
        order = FullPermutation(count, key).at(np.arange(count))
        steps.append(np.abs(np.diff(order)).mean() / count)
        assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 5 / np.sqrt(count)
    assert np.mean(steps) == pytest.approx(1 / 3, abs=0.02)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=40), st.integers(0, 2**64 - 1), st.data())
def test_blocks_are_permuted_and_stay_whole(sizes, key, data):
    bounds = np.cumsum([0, *sizes])
    groups = np.sort(data.draw(st.lists(st.integers(0, 2), min_size=len(sizes), max_size=len(sizes))))
    order = BlockOrder(bounds, key, (groups,))
    everything = np.arange(bounds[-1])
    taken = [stretch.tolist() for stretch in order.stretches(everything)]
    assert sorted(taken) == [list(range(*pair)) for pair in zip(bounds.tolist(), bounds[1:].tolist(), strict=False)]
    found = [groups[np.searchsorted(bounds, stretch[0], side="right") - 1] for stretch in taken]
    assert found == sorted(found), "a block left its group"
    units = [unit for stretch in taken for unit in stretch]
    assert order.at(everything).tolist() == units
    start, stop = sorted(data.draw(st.tuples(*[st.integers(0, len(everything))] * 2)))
    assert [unit for part in order.stretches(everything[start:stop]) for unit in part] == units[start:stop]


def files(*counts):
    return splits_table([Split(f"{number}", count=count, bytes=100) for number, count in enumerate(counts)])


def orders_of(dataset, *counts, epoch=1):
    graph = dataset.__pipeline__().graph
    tables = {number: files(*counts) for number, _ in graph.sources()} if counts else dataset.__pipeline__().tables()
    orders = EpochOrders(UnitMap(graph, tables), 0, epoch)
    number = next(number for number, node in enumerate(graph.nodes) if node.op == "shuffle")
    return orders, orders.of(number, 0)


def test_cheap_positions_are_permuted_and_others_in_blocks():
    _, full = orders_of(Dataset.range(100).map(abs).shuffle(5, seed=3))
    assert (type(full), full.windowed) == (FullPermutation, False)
    _, blocks = orders_of(Dataset.from_tfrecords("x").shuffle(5, seed=3), *range(3, 9))
    assert (type(blocks), blocks.windowed) == (BlockOrder, True)
    assert [stretch.tolist() for stretch in blocks.stretches(np.arange(6))] == [[3, 4, 5, 6], [0, 1]]


def test_what_has_no_end_stays_in_sequence_behind_a_window():
    _, order = orders_of(Dataset.range(10).repeat().shuffle(5, seed=3))
    assert order.windowed
    assert [stretch.tolist() for stretch in order.stretches(np.arange(7, 25))] == [list(range(7, 25))]
    assert order.at(np.array([INFINITE - 1])).tolist() == [INFINITE - 1]


def test_blocks_of_collected_elements_stay_in_their_repetition_and_part():
    part = Dataset.from_tfrecords("x").filter(bool).batch(4)
    other = Dataset.from_tfrecords("y").filter(bool).batch(4)
    _, order = orders_of(part.concatenate(other).repeat(2).shuffle(5, seed=3), 2, 3, 4)
    taken = order.at(np.arange(36))
    assert taken.tolist() != list(range(36))
    assert [sorted(taken[start : start + 9].tolist()) for start in range(0, 36, 9)] == [
        list(range(start, start + 9)) for start in range(0, 36, 9)
    ]


def test_each_epoch_has_an_order_of_its_own_unless_it_is_to_stay():
    for anew in (True, False):
        dataset = Dataset.range(100).shuffle(5, seed=3, reshuffle_each_iteration=anew)
        first, second = (orders_of(dataset, epoch=epoch)[1].at(np.arange(100)).tolist() for epoch in (0, 1))
        assert (first != second) is anew
