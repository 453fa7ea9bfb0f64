"""Segments of objects are fetched once while they are kept, and give exactly the bytes that are asked for."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.blocks.stores.recent_segments import SEGMENT_BYTES, RecentSegments

DATA = np.random.default_rng(0).bytes(5 * SEGMENT_BYTES + 1234)
LARGE = np.random.default_rng(1).bytes(40 * SEGMENT_BYTES)


class Object:
    """An object that counts what is fetched of it."""

    def __init__(self, data: bytes = DATA) -> None:
        self.data, self.fetched = data, list[tuple[int, int]]()

    def __call__(self, ranges):
        self.fetched += ranges
        return [memoryview(self.data)[start:stop] for start, stop in ranges]


def read(recent: RecentSegments, source: Object, ranges, name="a", size=None):
    return [bytes(each) for each in recent.read(name, len(source.data) if size is None else size, ranges, source)]


@given(
    st.lists(
        st.lists(st.tuples(st.integers(0, len(DATA)), st.integers(0, 3 * SEGMENT_BYTES)), min_size=1, max_size=4),
        max_size=6,
    ),
    st.sampled_from([1, 3, 100]),
)
def test_any_ranges_are_the_objects_bytes(calls, most):
    recent, source = RecentSegments(most * SEGMENT_BYTES), Object()
    for call in calls:
        ranges = [(start, min(len(DATA), start + length)) for start, length in call]
        assert read(recent, source, ranges) == [DATA[start:stop] for start, stop in ranges]


def test_pieces_of_a_segment_are_one_fetch():
    recent, source = RecentSegments(), Object()
    for at in range(0, SEGMENT_BYTES, 1000):
        read(recent, source, [(at, min(at + 1000, SEGMENT_BYTES))])
    assert source.fetched == [(0, SEGMENT_BYTES)]
    read(recent, source, [(0, 10)], name="another")
    assert len(source.fetched) == 2


def test_no_more_is_kept_than_the_bound_and_the_last_used_stays():
    recent, source = RecentSegments(2 * SEGMENT_BYTES), Object()
    for segment in (0, 1, 0, 2, 0, 1):
        read(recent, source, [(segment * SEGMENT_BYTES, segment * SEGMENT_BYTES + 1)])
    assert [start // SEGMENT_BYTES for start, _ in source.fetched] == [0, 1, 2, 1]


def test_a_large_range_is_fetched_as_it_is_and_not_kept():
    recent, source = RecentSegments(), Object(LARGE)
    assert read(recent, source, [(5, len(LARGE)), (0, 3)]) == [LARGE[5:], LARGE[:3]]
    assert source.fetched == [(5, len(LARGE)), (0, SEGMENT_BYTES)]


def test_many_threads_fetch_a_segment_once():
    recent, source, here = RecentSegments(), Object(), threading.Barrier(8)

    def ask(number):
        here.wait()
        return read(recent, source, [(number, number + 5)])[0]

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, range(8))) == [DATA[number : number + 5] for number in range(8)]
    assert source.fetched == [(0, SEGMENT_BYTES)]


def test_who_waits_for_a_fetch_that_fails_hears_why_and_the_next_one_tries_anew():
    recent, begun, go_on = RecentSegments(), threading.Event(), threading.Event()

    def fails(ranges):
        begun.set()
        assert go_on.wait(60)
        raise OSError("no network")

    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(recent.read, "a", len(DATA), [(0, 5)], fails)
        assert begun.wait(60)
        second = pool.submit(recent.read, "a", len(DATA), [(7, 9)], fails)
        go_on.set()
        for each in (first, second):
            with pytest.raises(OSError, match="no network"):
                each.result(60)
    assert read(recent, Object(), [(0, 5)]) == [DATA[:5]]


def test_an_object_that_is_shorter_than_it_was_gives_fewer_bytes():
    recent, source = RecentSegments(), Object(DATA[:100])
    assert read(recent, source, [(50, 200)], size=1000) == [DATA[50:100]]
    assert read(recent, source, [(300, 400)], size=1000) == [b""]


def test_where_segments_go_before_they_are_read_again_exactly_what_is_asked_for_is_fetched():
    recent, source = RecentSegments(2 * SEGMENT_BYTES), Object(LARGE)
    for number in range(5000):
        at = (number * 7 % 40) * SEGMENT_BYTES + number
        assert read(recent, source, [(at, at + 10)]) == [LARGE[at : at + 10]]
    sizes = [stop - start for start, stop in source.fetched[1000:]]
    assert sizes.count(10) > 3500
    assert sizes.count(SEGMENT_BYTES) >= 50


@pytest.mark.parametrize("together", [1, 8])
def test_what_is_read_again_later_is_found_worth_keeping_again(together):
    """Be it that all of it can be kept, or that elements of a segment are read soon after one another."""
    recent, large = RecentSegments(10 * SEGMENT_BYTES), Object(LARGE)
    for number in range(3000):
        read(
            recent,
            large,
            [((number * 7 % 40) * SEGMENT_BYTES + number, (number * 7 % 40) * SEGMENT_BYTES + number + 1)],
        )
    assert len(large.fetched) > 2000
    later, segments = Object(DATA if together == 1 else LARGE), 5 if together == 1 else 40
    for number in range(12_000):
        at = (number // together * 7 % segments) * SEGMENT_BYTES + number % 1000
        assert read(recent, later, [(at, at + 1)], name="b") == [later.data[at : at + 1]]
    assert len(later.fetched) < 0.6 * 12_000
    before = len(later.fetched)
    for number in range(2000):
        at = (number // together * 7 % segments) * SEGMENT_BYTES + number % 1000
        read(recent, later, [(at, at + 1)], name="b")
    assert len(later.fetched) - before <= 2000 // together * (together > 1) + 5
