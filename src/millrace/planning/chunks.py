"""Chunks: parts of a data set that are read one after the other, so that a small cache serves many jobs.

A shuffle spreads each task over all data, so a cache of a tenth of them has what a tenth of the reads ask for, whoever
reads. Where jobs take the data in chunks, all of them find what the first one of them has fetched (Quiver, section
5.1). Which items a chunk has follows from how many items and chunks there are alone, and so is the same in each job
and epoch; in which order a job reads those of a chunk is its own.

Of each ``chunks`` items that follow one another, each chunk has one, which a hash chooses. So a chunk has as much of
each class, length or file as the whole, however the data are sorted, and no period in them falls together with the
chunks. Where items lie one behind the other in shards, a chunk has whole splits of these
(:mod:`millrace.planning.shard_chunks`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from millrace.graph import nodes as g
from millrace.planning.random_keys import mix, mix_array
from millrace.planning.shard_chunks import most_shard_chunks, shard_chunks
from millrace.planning.split_groups import SplitGroups

if TYPE_CHECKING:
    from millrace.planning.units import UnitMap

MOST_CHUNKS = 1 << 12
"""Most chunks of a data set."""
_KEY = np.uint64(mix(0x6368756E6B73))
_TURNS_AT_ONCE = 1 << 20


class ChunkMembers:
    """Members of each chunk of ``range(count)``.

    Args:
        count: number of items.
        chunks: number of chunks, from 1 to ``count``.

    Attributes:
        bounds: number of members of all chunks before each one, and of all: int64 of shape (chunks + 1,).
    """

    def __init__(self, count: int, chunks: int) -> None:
        self._count, self._chunks = count, chunks
        turns, rest = divmod(count, chunks)
        sizes = np.full(chunks, turns, np.int64)
        sizes[self._turn(np.array([turns]))[0, :rest]] += 1
        self.bounds: npt.NDArray[np.int64] = np.concatenate([[0], np.cumsum(sizes)])

    def units(self, chunk: int, numbers: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Find members of a chunk by their numbers within it: int64 of the same shape, each in [0, count)."""
        found = np.empty_like(numbers)
        step = max(1, _TURNS_AT_ONCE // self._chunks)
        for start in range(0, len(numbers), step):
            some = numbers[start : start + step]
            found[start : start + step] = some * self._chunks + np.argmax(self._turn(some) == chunk, axis=1)
        return found

    def chunk_of(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Find the chunks that items belong to: int64 of the same shape."""
        turns, within = np.divmod(units, self._chunks)
        return np.take_along_axis(self._turn(turns), within[:, None], axis=1)[:, 0]

    def _turn(self, turns: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Chunk of each item of some runs of so many items as there are chunks: int64 of shape (n, chunks)."""
        items = (turns[:, None] * self._chunks + np.arange(self._chunks, dtype=np.int64)).astype(np.uint64)
        return np.argsort(mix_array(items + _KEY), axis=1, kind="stable")


def most_chunks(units: UnitMap) -> int:
    """Count the chunks that an epoch of a graph can be read in, at most; 0: it has no shuffle that takes chunks."""
    shuffle = shuffle_in_chunks(units)
    if shuffle is None:
        return 0
    found = units.of(units.graph.id_of(units.graph.root)).count
    groups = _groups(units)
    if groups is None or not found:
        return min(found // 2, MOST_CHUNKS)
    return min(most_shard_chunks(groups, -(-units.of(shuffle).count // found)), MOST_CHUNKS)


def chunk_bounds(units: UnitMap, chunks: int) -> npt.NDArray[np.int64]:
    """Count the units of a graph's shuffle in all chunks before each one, and in all: int64 of shape (chunks + 1,)."""
    shuffle, groups = shuffle_in_chunks(units), _groups(units)
    assert shuffle is not None
    if groups is not None:
        return shard_chunks(groups, chunks).bounds
    return ChunkMembers(units.of(shuffle).count, chunks).bounds


def units_of_a_split(units: UnitMap) -> float:
    """Count the units of a graph's root in a split of its only source, about; 0: no task can have a part of one."""
    (table,) = units.summaries.values()
    if table.groups is None or table.count < 0:
        return 0.0
    return units.of(units.graph.id_of(units.graph.root)).count / max(1, table.pieces)


def _groups(units: UnitMap) -> SplitGroups | None:
    """Find the groups of the only source's splits; None: it is none that is read in sequence."""
    (table,) = units.summaries.values()
    return table.groups


def shuffle_in_chunks(units: UnitMap) -> int | None:
    """Find the shuffle of a graph that can take its data in chunks; None: there is none.

    It is one of the items of the only source, or of blocks that are whole splits of shards, with nothing above it that
    takes some positions and leaves others out, or takes them more than once.
    """
    graph, found = units.graph, None
    node = graph.root
    while node.inputs:
        number = graph.id_of(node)
        if len(node.inputs) > 1 or not units.plannable(number):
            return None
        if isinstance(node, g.Shuffle):
            if found is not None:
                return None
            found = number
        elif not isinstance(node, _ABOVE if found is None else _BELOW):
            return None
        node = node.inputs[0]
    if found is None or units.permutes(found):
        return found
    in_shards = isinstance(node, _SHARDS) and units.summaries[graph.id_of(node)].groups is not None
    return found if in_shards else None


_SHARDS = (g.FromTFRecords, g.FromWebDataset)
"""Sequential sources whose splits are ranges of bytes, so that it is known of each range which split it is of."""
_ABOVE = (
    *(g.Map, g.Filter, g.FlatMap, g.Interleave, g.Unbatch, g.RejectionResample, g.Prefetch, g.WithOptions),
    *(g.Batch, g.PaddedBatch, g.BucketBySequenceLength, g.GroupByWindow, g.Pack, g.Rebatch),
)
"""Operators that may stand above such a shuffle: all that comes out of it is read, and in no epoch as in an earlier."""
_BELOW = (g.Map, g.Filter, g.Prefetch, g.WithOptions)
"""Operators that may stand below it: units are the source's items."""
