"""Into how many chunks data are cut, which chunk comes next, and which ones are kept."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.caching.kept_chunks import CHUNK_BYTES, KEPT, choose_chunks, choose_kept, next_chunk

GB = 10**9


@pytest.mark.parametrize(
    ("data", "room", "most", "chunks", "reason"),
    [
        (100 * GB, 200 * GB, 1000, 10, "two of 10 chunks at a time are kept"),
        (100 * GB, 30 * GB, 1000, 10, "two of 10 chunks at a time are kept"),
        (100 * GB, 10 * GB, 1000, 23, "two of 23 chunks"),
        (1000 * GB, 500 * GB, 1000, 67, "two of 67 chunks"),
        (100 * GB, 10 * GB, 20, 0, "more than the 20 that can be made"),
        (100 * GB, 0, 1000, 0, "more than the 1000"),
        (0, 10 * GB, 1000, 0, "chunks of 0 B"),
    ],
)
def test_how_many(data, room, most, chunks, reason):
    decision = choose_chunks(data, room, most)
    assert decision.value == chunks
    assert reason in decision.reason


@pytest.mark.parametrize(
    ("before", "room", "chunks"),
    [(12, 30 * GB, 12), (12, 10 * GB, 23), (5, 30 * GB, 10), (2000, 30 * GB, 10), (12, 200 * GB, 12)],
)
def test_as_others_read_it_if_two_of_these_fit(before, room, chunks):
    """A cache server that comes or goes while jobs read changes nothing for those that come."""
    assert choose_chunks(100 * GB, room, 1000, before).value == chunks


@given(st.integers(1, 10**15), st.integers(0, 10**15), st.integers(0, 10**6))
def test_two_chunks_fit_and_none_is_larger_than_what_was_measured_to_be_small_enough(data, room, most):
    count = choose_chunks(data, room, most).value
    assert 0 <= count <= most
    if count:
        assert KEPT * data / count <= room
        assert data / count <= min(CHUNK_BYTES, data / 10) * (1 + 1e-9)


@pytest.mark.parametrize(
    ("begun", "kept", "others", "chosen"),
    [
        ([], [], [], 0),
        ([], [3, 5], [7], 5),
        ([5], [3, 5], [7], 3),
        ([5, 3], [3, 5], [7], 7),
        ([5, 3, 7], [3, 5], [7], 8),
        ([5, 3, 9], [3, 5], [], 0),
        ([9, 0, 1], [], [], 2),
    ],
)
def test_which_comes_next(begun, kept, others, chosen):
    assert next_chunk(10, begun[-1:], {*range(10)} - {*begun}, kept, others) == chosen


@given(st.data())
def test_each_chunk_comes_once(data):
    chunks, begun = data.draw(st.integers(1, 12)), list[int]()
    numbers = st.lists(st.integers(0, chunks - 1), unique=True)
    while len(begun) < chunks:
        fresh = {*range(chunks)} - {*begun}
        chosen = next_chunk(chunks, begun[-1:], fresh, data.draw(numbers)[:2], data.draw(numbers))
        assert chosen not in begun
        assert 0 <= chosen < chunks
        begun.append(chosen)


@pytest.mark.parametrize(
    ("kept", "left", "read", "then"),
    [
        ([], {0: [1.0]}, {0}, [0]),  # there is room
        ([0], {0: [0.5], 1: [1.0]}, {0, 1}, [0, 1]),
        ([0, 1], {0: [0.0], 1: [0.5], 2: [1.0]}, {1, 2}, [0, 1]),  # a job alone has nothing saved by another chunk
        ([0, 1], {0: [0.0, 0.0], 1: [0.5, 0.5], 2: [1.0, 1.0]}, {1, 2}, [1, 2]),
        ([0, 1], {0: [0.0, 0.9], 1: [0.0, 1.0], 2: [0.5, 1.0]}, {0, 2}, [0, 1]),  # the other one needs the oldest
        ([0, 1], {0: [0.0, 0.0, 0.9], 1: [0.0, 0.0, 1.0], 2: [0.7, 0.8, 1.0]}, {0, 2}, [1, 2]),  # two are ahead of it
        ([0, 1], {0: [0.1], 1: [0.5]}, {0, 1}, [0, 1]),
    ],
)
def test_which_are_kept(kept, left, read, then):
    decision = choose_kept(kept, left, read, {})
    assert decision.value == then
    assert decision.reason


@pytest.mark.parametrize(
    ("midst", "begun", "then"),
    [([0.6, 0.3], 1.0, [0, 1]), ([0.2, 0.1], 0.8, [0, 1]), ([0.1, 0.1], 0.7, [1, 2]), ([0.0, 0.0], 1.0, [1, 2])],
)
def test_who_is_in_the_midst_of_a_chunk_is_waited_for_as_long_as_that_costs_no_more_than_it_saves(midst, begun, then):
    left = {0: [0.0, 0.0, *midst], 1: [1.0, 1.0, 1.0, 1.0], 2: [begun, 1.0, 1.0, 1.0]}
    decision = choose_kept([0, 1], left, {0, 2}, {0: midst})
    assert decision.value == then


@given(st.data())
def test_never_more_than_two_are_kept_and_nothing_flaps(data):
    chunks, jobs = data.draw(st.integers(1, 8)), data.draw(st.integers(1, 5))
    shares = st.floats(0, 1)
    left = {chunk: [data.draw(shares) for _ in range(jobs)] for chunk in range(chunks)}
    read = {chunk for chunk in left if data.draw(st.booleans())}
    kept = data.draw(st.lists(st.integers(0, chunks - 1), unique=True, max_size=KEPT))
    seen = [kept]
    for _ in range(2 * chunks + 2):
        kept = choose_kept(kept, left, read, {}).value
        assert len(kept) == len(set(kept)) <= KEPT
        if kept == seen[-1]:
            break
        assert kept not in seen
        seen.append(kept)
    else:
        raise AssertionError(seen)
