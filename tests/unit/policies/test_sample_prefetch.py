"""How far samples are fetched ahead: DELI's rule of 50/50, and what users choose instead."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.sample_prefetch import (
    LEAST_FETCHED,
    MOST_FETCHED,
    UNKNOWN_FETCH,
    PrefetchSizes,
    is_due,
    prefetch_sizes,
    worth_asking,
)


@pytest.mark.parametrize(
    ("room", "fetch", "threshold", "expected"),
    [
        (2048, None, None, (1024, 1024)),  # the paper's recommendation for a cache of 2,048 samples
        (2048, 1024, None, (1024, 1024)),
        (2048, 2048, None, (2048, 0)),  # "full fetch": it asks once all that it asked for was read
        (2048, 1536, None, (1536, 512)),
        (1024, 2048, None, (2048, 0)),
        (2048, 512, 0, (512, 0)),
        (2048, None, 100, (1024, 100)),
        (1, None, None, (1, 1)),
        (0, None, None, (1, 1)),
        (None, None, None, (UNKNOWN_FETCH, UNKNOWN_FETCH)),
        (None, 100, None, (100, 100)),
        (10**9, None, None, (MOST_FETCHED, MOST_FETCHED)),
    ],
)
def test_sizes(room, fetch, threshold, expected):
    assert prefetch_sizes(room, fetch, threshold).value == PrefetchSizes(*expected)


@pytest.mark.parametrize(
    ("room", "batch", "expected"),
    [
        (None, 0, UNKNOWN_FETCH),
        (10_000, 0, 500),  # ten jobs that look ten times as far ahead fill the cache between them
        (10_000, 64, 500),
        (10_000, 800, 800),
        (600, 0, LEAST_FETCHED),  # but no fewer than can be under way at a time
        (400, 0, 25),  # unless eight jobs would overfill it
        (30, 0, 4),
        (75, 64, 37),
        (1, 0, 1),
        (10**9, 0, MOST_FETCHED),
    ],
)
def test_sizes_where_other_jobs_fill_the_cache_too(room, batch, expected):
    assert prefetch_sizes(room, look_ahead=10, batch=batch).value == PrefetchSizes(expected, expected)


def test_the_reason_says_what_was_given():
    assert prefetch_sizes(10_000, look_ahead=10).reason == (
        "the cache can hold 10,000 samples; 500 of them are fetched once as many are left to be read, "
        "as other jobs may fetch as many"
    )
    assert prefetch_sizes(2048).reason == (
        "the cache can hold 2,048 samples; half of them is fetched once half is left to be read"
    )
    assert prefetch_sizes(None, 5, 3).reason == (
        "the samples' size is not known yet; fetch_size and prefetch_threshold as given"
    )


def simulate(room, ahead, count=5000):
    """Largest number of samples asked for and not read, if a loop reads ``ahead`` samples behind the sampler."""
    fetch, threshold = prefetch_sizes(room).value
    asked: set[int] = set()
    drawn = handed = most = 0
    while handed < count:
        unread = min(handed, ahead)
        if is_due(drawn - handed, unread, threshold):
            asked.update(range(drawn, drawn + worth_asking(fetch, drawn - handed + unread, room)))
            drawn += fetch
        most = max(most, sum(number >= handed - unread for number in asked))
        asked = {number for number in asked if number >= handed - unread}
        handed += 1
    return most


@given(room=st.integers(1, 300), share=st.floats(0, 3))
def test_what_is_asked_for_and_not_read_fits_into_the_cache(room, share):
    assert simulate(room, int(room * share), 1000) <= room


def test_as_much_is_asked_for_as_the_cache_can_hold():
    assert worth_asking(10, 0, None) == 10
    assert worth_asking(10, 90, 100) == 10
    assert worth_asking(10, 95, 100) == 5
    assert worth_asking(10, 120, 100) == 0


def test_a_threshold_that_forgets_what_workers_have_in_hand_would_overfill_the_cache():
    fetch, threshold = prefetch_sizes(1000).value
    assert is_due(500, 0, threshold)
    assert not is_due(500, 400, threshold)
    assert is_due(0, 900, threshold)  # the sampler has nothing to hand out
    assert fetch + threshold == 1000
