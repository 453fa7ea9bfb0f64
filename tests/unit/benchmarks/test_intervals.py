import math

import pytest
from benchmarks.intervals import chance, interval, quantile, within

# 97.5 % points from tables of Student's t.
TABLE = {1: 12.706, 2: 4.303, 3: 3.182, 4: 2.776, 5: 2.571, 9: 2.262, 10: 2.228, 30: 2.042, 120: 1.980}


@pytest.mark.parametrize(("degrees", "expected"), TABLE.items())
def test_quantiles_are_those_of_the_tables(degrees: int, expected: float):
    assert quantile(0.95, degrees) == pytest.approx(expected, abs=5e-4)
    assert within(quantile(0.95, degrees), degrees) == pytest.approx(0.95, abs=1e-12)


def test_all_of_it_lies_between_the_infinities():
    assert within(math.inf, 4) == pytest.approx(1.0)
    assert within(math.inf, 5) == pytest.approx(1.0)
    assert within(0.0, 4) == 0


def test_an_interval():
    # Mean 3, standard deviation sqrt(2.5), of five.
    mean, reach = interval([1, 2, 3, 4, 5])
    assert mean == 3
    assert reach == pytest.approx(2.7764 * math.sqrt(2.5 / 5), abs=1e-4)


def test_chance():
    # t = 3 / sqrt(0.5) = 4.243 with 4 degrees of freedom: p = 0.0132.
    assert chance([1, 2, 3, 4, 5]) == pytest.approx(0.0132, abs=5e-5)
    assert chance([-1, -2, -3, -4, -5]) == chance([1, 2, 3, 4, 5])
    assert chance([0.0, 0.0, 0.0]) == 1
    assert chance([0.5, 0.5, 0.5]) == pytest.approx(0)
    assert chance([-1.0, 1.0]) == 1
