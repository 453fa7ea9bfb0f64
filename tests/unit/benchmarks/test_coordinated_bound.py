import numpy as np
import pytest
from benchmarks.papers.coordinated import BATCH, bound_of, log_normal


@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_lengths_that_are_equal_leave_nothing_to_gain(ranks):
    assert bound_of(np.full(5 * ranks * BATCH, 7), ranks) == 1


def test_a_single_long_sequence_costs_each_way_one_step():
    lengths = np.ones(4 * BATCH, np.int64)
    lengths[3] = 100
    assert bound_of(lengths, 2) == 1


def test_two_lengths_in_halves_are_bound_by_the_longer_one_everywhere():
    lengths = np.array([1, 9] * (20 * BATCH))
    assert bound_of(lengths, 2) == pytest.approx(9 / 5, rel=0.01)


def test_more_ranks_gain_more():
    lengths = log_normal(4000)
    assert 1 < bound_of(lengths, 2) < bound_of(lengths, 4) < bound_of(lengths, 8)
