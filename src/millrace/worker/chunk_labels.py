"""Chunk labels: what a worker writes on items that it inserts into cache servers: their data, and their chunk. Pure."""

from __future__ import annotations

from collections.abc import Callable
from itertools import chain
from typing import Protocol

import numpy as np

from millrace.planning.chunks import ChunkMembers
from millrace.planning.shard_chunks import shard_chunks
from millrace.planning.split_table import Pieces, SplitTable
from millrace.protocol.source_cache_messages import chunk_label, name_of_data


class ReadEntry(Protocol):
    """Part of stored data that was read: :class:`millrace.sources.store_requests.Entry`."""

    @property
    def location(self) -> str:
        """URL of its file."""

    @property
    def start(self) -> int:
        """Byte at which it begins there."""

    @property
    def item(self) -> int:
        """Position of the item that it is; -1: it is none."""


Label = Callable[[ReadEntry], bytes]
"""Function from what was read to its label."""


def chunk_labels(source: str, table: SplitTable, chunks: int) -> Label:
    """Make a function that finds the label of what is read of a source.

    Args:
        source: what identifies the listing of the data (:func:`millrace.planning.checkpoint.prints`).
        table: that listing.
        chunks: into which the data are cut; 0: they are read as a whole, and the label is their name. So it is of what
            belongs to no item, and to no split, such as an index.
    """
    data = name_of_data(source)
    if not chunks:
        return lambda _: data
    if table.cheap or table.pieces is None:
        members = ChunkMembers(table.count, chunks)
        return lambda entry: (
            data if entry.item < 0 else chunk_label(data, chunks, int(members.chunk_of(np.array([entry.item]))[0]))
        )
    groups, split_of = table.summary().groups, _finder(table, table.pieces)
    assert groups is not None, "nothing is read in chunks of which there is nothing"
    of_splits = shard_chunks(groups, chunks).of_splits(len(table.splits))

    def label(entry: ReadEntry) -> bytes:
        split = split_of(entry)
        return data if split < 0 else chunk_label(data, chunks, int(of_splits[split]))

    return label


def _finder(table: SplitTable, pieces: Pieces) -> Callable[[ReadEntry], int]:
    """Make a function that finds the split which an entry is a part of, by where it begins; -1: it is of none."""
    starts, of_file = pieces.starts.array(), dict[str, tuple[int, int]]()
    first, before = 0, None
    for number, name in enumerate(chain(table.names, [None])):
        if name != before:
            if before is not None:
                of_file.setdefault(before, (first, number))  # of a file that is listed twice the first time counts
            first, before = number, name

    def find(entry: ReadEntry) -> int:
        first, stop = of_file.get(entry.location, (0, 0))
        return first + int(np.searchsorted(starts[first:stop], entry.start, side="right")) - 1 if stop else -1

    return find
