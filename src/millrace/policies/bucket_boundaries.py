"""Bucket boundaries: those that leave least padding in ``bucket_by_sequence_length``, from a sample. Pure."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import numpy.typing as npt

from millrace.policies.figures import number

MOST_ENDS = 512
"""Lengths at which a bucket may end: quantiles of the sample, where it has more lengths than that."""

Numbers = npt.NDArray[np.int64]


class SuggestedBuckets(msgspec.Struct, frozen=True):
    """Buckets for ``bucket_by_sequence_length``, and what they leave of the padding.

    Attributes:
        boundaries: ascending; bucket i holds lengths in ``[boundaries[i - 1], boundaries[i])``, the last one
            all others.
        batch_sizes: elements of a batch by bucket, as many as ``batch_tokens`` allow; empty where these were not given.
        padding_share: share of padding in all batches, if each element is padded to the longest of its bucket.
        without_buckets: the same, if each is padded to the longest of all.
        reason: that in a sentence.
    """

    boundaries: list[int]
    batch_sizes: list[int]
    padding_share: float
    without_buckets: float
    reason: str


def suggest_buckets(lengths: Sequence[int], buckets: int, batch_tokens: int | None = None) -> SuggestedBuckets:
    """Divide lengths into buckets so that least is padded, where each element is padded to the longest of its bucket.

    That is an upper bound for batches that are padded to their own longest element. Found exactly, by a dynamic
    programme over the lengths at which buckets may end.

    Args:
        lengths: of a sample of elements, at least one, none negative.
        buckets: how many there may be; there are fewer where there are fewer lengths.
        batch_tokens: most that a batch of such elements may have, padding included; None: batch sizes are the user's.
    """
    sample = np.asarray(lengths, np.int64)
    ends = _ends(sample)
    below = np.searchsorted(np.sort(sample), ends, side="right").astype(np.int64)  # elements up to each end
    chosen = _divided(ends, below, min(buckets, len(ends)))
    counts = np.diff(below[chosen], prepend=0)
    tokens, longest = int(sample.sum()), int(ends[-1])
    padded, alike = int((counts * ends[chosen]).sum()), len(sample) * longest
    share = 1 - tokens / padded if padded else 0.0
    before = 1 - tokens / alike if alike else 0.0
    sizes = [] if batch_tokens is None else [max(1, batch_tokens // max(1, int(end))) for end in ends[chosen]]
    reason = (
        f"{len(chosen)} {'buckets leave' if len(chosen) > 1 else 'bucket leaves'} at most {number(100 * share, 2)} % "
        f"padding and one for all lengths {number(100 * before, 2)} %, of {len(sample):,} elements with lengths from "
        f"{int(sample.min()):,} to {longest:,}"
    )
    return SuggestedBuckets([int(end) + 1 for end in ends[chosen[:-1]]], sizes, share, before, reason)


def _ends(sample: Numbers) -> Numbers:
    """Lengths at which a bucket may end, ascending, the longest of the sample included."""
    ends = np.unique(sample)
    if len(ends) <= MOST_ENDS:
        return ends
    return np.unique(np.quantile(sample, np.linspace(0, 1, MOST_ENDS), method="higher").astype(np.int64))


def _divided(ends: Numbers, below: Numbers, buckets: int) -> list[int]:
    """Choose so many of the ends, the last among them, for the least sum over all elements of the next chosen end."""
    least = np.array(below * ends, np.float64)  # by the end of the last bucket, with one bucket
    follows = np.tri(len(ends), k=-1, dtype=bool)
    befores: list[npt.NDArray[np.intp]] = []  # for one bucket more each time, the end before by the end of the last
    for _ in range(1, buckets):
        padded = (below[:, None] - below[None, :]) * ends[:, None]
        costs = np.where(follows, least[None, :] + padded, np.inf)
        befores.append(costs.argmin(axis=1))
        least = costs.min(axis=1)
    chosen = [len(ends) - 1]
    for before in reversed(befores):
        chosen.append(int(before[chosen[-1]]))
    return chosen[::-1]
