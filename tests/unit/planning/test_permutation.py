import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.planning.permutation import permute


@given(st.integers(1, 5000), st.integers(0, 2**64 - 1))
def test_a_permutation_of_everything(count, key):
    found = permute(np.arange(count, dtype=np.int64), count, key)
    assert found.dtype == np.int64
    assert np.array_equal(np.sort(found), np.arange(count))


@given(st.integers(1, 2**62 - 1), st.integers(0, 2**64 - 1), st.lists(st.integers(0, 2**62), max_size=20))
def test_of_any_size_and_piece_by_piece(count, key, positions):
    chosen = np.array(sorted({position % count for position in positions}), np.int64)
    found = permute(chosen, count, key)
    assert len(set(found.tolist())) == len(chosen)
    assert all(0 <= position < count for position in found.tolist())
    for position, place in zip(chosen.tolist(), found.tolist(), strict=True):
        assert permute(np.array([position]), count, key).tolist() == [place]


def test_nothing():
    assert permute(np.empty(0, np.int64), 0, 1).tolist() == []
    assert permute(np.empty(0, np.int64), 5000, 1).tolist() == []


def test_the_orders_are_fixed_for_all_time():
    assert permute(np.arange(8), 8, 1).tolist() == [6, 7, 0, 5, 1, 3, 2, 4]
    assert permute(np.arange(4), 1_000_000, 1).tolist() == [66363, 852203, 824874, 76268]


def chi_square(counts: np.ndarray) -> float:
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize("count", [2, 3, 4, 5])
def test_all_orders_of_few_are_equally_likely(count):
    orders: dict[tuple[int, ...], int] = {}
    for key in range(8000):
        order = tuple(permute(np.arange(count), count, key).tolist())
        orders[order] = orders.get(order, 0) + 1
    kinds = int(np.prod(range(1, count + 1)))
    assert len(orders) == kinds
    degrees = kinds - 1
    assert chi_square(np.array(list(orders.values()))) < degrees + 5 * np.sqrt(2 * degrees)


@pytest.mark.parametrize("count", [16, 1000, 1025, 5000])
def test_every_position_goes_everywhere(count):
    bins, keys = 16, 1500
    picked = np.unique(np.linspace(0, count - 1, 8).astype(np.int64))
    places = np.stack([permute(picked, count, key) for key in range(keys)])
    for column in range(len(picked)):
        counts = np.histogram(places[:, column], bins=bins, range=(0, count))[0]
        sizes = np.histogram(np.arange(count), bins=bins, range=(0, count))[0]
        expected = keys * sizes / count
        assert ((counts - expected) ** 2 / expected).sum() < (bins - 1) + 5 * np.sqrt(2 * (bins - 1))


@pytest.mark.parametrize("count", [300, 1024, 1025, 4096, 10_000])
def test_neighbours_do_not_stay_neighbours(count):
    steps = []
    for key in range(50):
        order = permute(np.arange(count), count, key)
        steps.append(np.abs(np.diff(order)).mean() / count)
        assert abs(np.corrcoef(np.arange(count), order)[0, 1]) < 5 / np.sqrt(count)
    assert np.mean(steps) == pytest.approx(1 / 3, abs=0.02)
