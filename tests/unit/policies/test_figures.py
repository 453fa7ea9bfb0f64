import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.figures import data_size, duration, number, percent


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0"),
        (0.03125, "0.0312"),
        (3.14159, "3.14"),
        (2.0, "2"),
        (99.95, "100"),
        (0.9996, "1"),
        (1480.4, "1,480"),
        (1234567, "1,234,567"),
        (-12.34, "-12.3"),
        (float("inf"), "?"),
    ],
)
def test_numbers(value, text):
    assert number(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (0.000085, "85 µs"),
        (0.0123, "12.3 ms"),
        (0.99949, "999 ms"),
        (0.9996, "1 s"),
        (1.48, "1.48 s"),
        (59.96, "1 min"),
        (125.2, "2 min 5 s"),
        (3600, "1 h"),
        (11_520, "3 h 12 min"),
        (187_200, "2 d 4 h"),
    ],
)
def test_durations(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("share", "text"), [(0, "0 %"), (0.0004, "0.04 %"), (0.032, "3.2 %"), (0.62, "62 %"), (12, "1,200 %")]
)
def test_shares(share, text):
    assert percent(share) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (512, "512 B"), (1536, "1.5 KiB"), (20 << 20, "20 MiB"), (1 << 50, "1 PiB")]
)
def test_sizes(count, text):
    assert data_size(count) == text


@given(st.floats(1e-12, 1e15) | st.floats(-1e15, -1e-12))
def test_three_digits_are_kept_and_no_powers_of_ten_are_written(value):
    text = number(value)
    assert "e" not in text
    assert float(text.replace(",", "")) == pytest.approx(value, rel=0.006)
