"""Chunk labels: what a worker writes on items that it inserts into cache servers: their data, and their chunk. Pure."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from millrace.planning.chunks import ChunkMembers
from millrace.protocol.source_cache_messages import chunk_label, name_of_data


def chunk_labels(source: str, count: int, chunks: int) -> Callable[[int], bytes]:
    """Make a function that finds the label of an item by its number.

    Args:
        source: what identifies the listing of the data (:func:`millrace.planning.checkpoint.prints`).
        count: number of items.
        chunks: into which the data are cut; 0: they are read as a whole, and the label is their name. So it is of items
            without a number, which is negative.
    """
    data = name_of_data(source)
    if not chunks:
        return lambda _: data
    members = ChunkMembers(count, chunks)
    return lambda item: data if item < 0 else chunk_label(data, chunks, int(members.chunk_of(np.array([item]))[0]))
