"""Suggested buckets: no others of so many leave less padding."""

from __future__ import annotations

import itertools
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.policies.bucket_boundaries import MOST_ENDS, suggest_buckets


def padded(lengths: list[int], boundaries: list[int]) -> int:
    """Sum of the lengths that elements are padded to: the longest in their bucket."""
    by_bucket: dict[int, list[int]] = {}
    for length in lengths:
        by_bucket.setdefault(sum(length >= each for each in boundaries), []).append(length)
    return sum(len(bucket) * max(bucket) for bucket in by_bucket.values())


@given(st.lists(st.integers(0, 12), min_size=1, max_size=30), st.integers(1, 4))
def test_no_other_boundaries_leave_less_padding(lengths, buckets):
    found = suggest_buckets(lengths, buckets)
    best = min(
        padded(lengths, list(chosen))
        for count in range(buckets)
        for chosen in itertools.combinations(range(1, 13), count)
    )
    assert len(found.boundaries) < buckets
    assert found.boundaries == sorted(set(found.boundaries))
    assert padded(lengths, found.boundaries) == best
    assert found.padding_share == pytest.approx(1 - sum(lengths) / best if best else 0.0)


@given(st.lists(st.integers(1, 100_000), min_size=1), st.integers(1, 9))
def test_batches_have_as_many_elements_as_tokens_allow(lengths, buckets):
    found = suggest_buckets(lengths, buckets, batch_tokens=200_000)
    assert len(found.batch_sizes) == len(found.boundaries) + 1
    tops = [*(each - 1 for each in found.boundaries), max(lengths)]
    assert [size * top <= 200_000 < (size + 1) * top for size, top in zip(found.batch_sizes, tops, strict=True)]
    assert found.batch_sizes == [200_000 // top for top in tops]


def test_of_many_lengths_some_are_where_buckets_may_end():
    rng = random.Random(1)
    lengths = [min(int(rng.lognormvariate(5, 1)), 20_000) for _ in range(10_000)]
    assert len(set(lengths)) > MOST_ENDS
    shares = [suggest_buckets(lengths, buckets).padding_share for buckets in (1, 2, 4, 8, 16)]
    assert shares == sorted(shares, reverse=True)
    assert shares[0] > 0.9
    assert shares[-1] < 0.15


def test_the_reason_is_a_sentence_with_the_figures():
    found = suggest_buckets([1] * 3 + [10], 2, batch_tokens=20)
    assert (found.boundaries, found.batch_sizes, found.padding_share) == ([2], [20, 2], 0.0)
    assert found.reason == (
        "2 buckets leave at most 0 % padding and one for all lengths 68 %, of 4 elements with lengths from 1 to 10"
    )
