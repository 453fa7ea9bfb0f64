"""Shard chunks: which splits of a sequential source make up each data chunk, and how many chunks there can be.

Splits have sizes of their own, so how many units a chunk has does not follow from their number alone. Who cuts an epoch
into tasks has no more than a summary of the splits (:mod:`millrace.planning.split_groups`): so chunks are made of the
groups in that, which are whole splits. Of as many groups that follow one another as there are chunks each chunk gets
one, which a hash chooses: so each has something of every part of the listing. Of a few such draws that one is taken
after which chunks differ least in bytes. To give the largest group to the smallest chunk would make them more alike
still, but where sizes go with classes some chunks would never get some of these.
"""

from __future__ import annotations

import functools

import numpy as np
import numpy.typing as npt

from millrace.planning.random_keys import mix, mix_array
from millrace.planning.split_groups import SplitGroups, group_of_splits

_KEY = np.uint64(mix(0x736861726473))
_DRAWS = 8


class ShardChunks:
    """Splits of each chunk of a sequential source.

    Args:
        groups: of its splits.
        chunks: number of chunks, from 1 to the number of groups.

    Attributes:
        bounds: number of units in all chunks before each one, and in all: int64 of shape (chunks + 1,).
        bytes: stored bytes of each chunk: int64 of shape (chunks,).
    """

    def __init__(self, groups: SplitGroups, chunks: int) -> None:
        self._of_groups, self.bytes = _dealt(np.array(groups.bytes, np.int64), chunks)
        units = np.zeros(chunks, np.int64)
        np.add.at(units, self._of_groups, np.array(groups.units, np.int64))
        self.bounds: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(units)])

    def of_splits(self, splits: int) -> npt.NDArray[np.int64]:
        """Find the chunk of each of all ``splits`` splits: int64 of shape (splits,)."""
        return self._of_groups[group_of_splits(splits)]


shard_chunks = functools.lru_cache(64)(ShardChunks)
"""Makes :class:`ShardChunks`, which each task of an epoch needs, once."""


def _dealt(sizes: npt.NDArray[np.int64], chunks: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Deal groups of these sizes to chunks: the chunk of each, and how much each chunk has."""
    found, loads = np.empty(len(sizes), np.int64), np.zeros(chunks, np.int64)
    for start in range(0, len(sizes), chunks):
        some = sizes[start : start + chunks]
        numbers = np.arange(start * _DRAWS, start * _DRAWS + chunks * _DRAWS, dtype=np.uint64)
        draws = np.argsort(mix_array(numbers + _KEY).reshape(_DRAWS, chunks), axis=1, kind="stable")[:, : len(some)]
        after = np.tile(loads, (_DRAWS, 1))
        np.put_along_axis(after, draws, loads[draws] + some, axis=1)
        best = int(np.argmin(after.max(axis=1) - after.min(axis=1)))
        found[start : start + chunks], loads = draws[best], after[best]
    return found, loads


def most_shard_chunks(groups: SplitGroups, least_units: int) -> int:
    """Count the chunks that splits can make up, at most; 0: none.

    Chunks are about equal in bytes, so of a mean chunk the largest group has a half at most.

    Args:
        groups: of the splits.
        least_units: units that each chunk has to have; at least 1.
    """
    fewest = min(groups.units, default=0)
    if not fewest:
        return 0
    most = len(groups.units) // -(-least_units // fewest)
    largest = max(groups.bytes)
    return min(most, sum(groups.bytes) // (2 * largest)) if largest else most
