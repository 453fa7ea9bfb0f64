"""How ranges are cut and joined."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from millrace.planning.byte_ranges import BLOCK_BYTES, FIRST_BLOCK_BYTES, blocks, joined

RANGES = st.lists(
    st.tuples(st.integers(0, 500), st.integers(1, 60)).map(lambda each: (each[0], sum(each))), max_size=12
)


@given(st.integers(0, 1 << 40), st.integers(0, 200 << 20), st.integers(16 << 10, BLOCK_BYTES))
def test_blocks_follow_one_another_and_grow_to_a_bound(start: int, size: int, most: int) -> None:
    found = list(blocks(start, start + size, most))
    assert [start, *[stop for _, stop in found]] == [*[begin for begin, _ in found], start + size]
    sizes = [stop - begin for begin, stop in found]
    assert all(0 < each <= most for each in sizes)
    assert not sizes or sizes[0] <= FIRST_BLOCK_BYTES
    assert all(following <= 2 * each for each, following in pairwise(sizes))


@given(RANGES, st.integers(0, 50), st.integers(1, 300))
def test_joined_ranges_hold_all_that_was_asked_for_and_little_else(
    ranges: list[tuple[int, int]], gap: int, most: int
) -> None:
    found = joined(ranges, gap, most)
    assert all(any(a <= start and stop <= b for a, b in found) for start, stop in ranges)
    wanted = {byte for start, stop in ranges for byte in range(start, stop)}
    for start, stop in found:
        assert {start, stop - 1} <= wanted
        run = 0
        for byte in range(start, stop):
            run = 0 if byte in wanted else run + 1
            assert run <= gap
        assert stop - start <= most or (start, stop) in ranges or any(a <= start < b for a, b in ranges)
    assert found == sorted(found)


def test_neighbours_are_joined_and_those_far_apart_are_not() -> None:
    assert joined([(0, 10), (10, 20), (25, 30), (100, 110)], gap=5, most=1000) == [(0, 30), (100, 110)]
    assert joined([(0, 10), (10, 20)], gap=5, most=15) == [(0, 10), (10, 20)]
    assert joined([(0, 100), (20, 30)], gap=0, most=10) == [(0, 100)]
