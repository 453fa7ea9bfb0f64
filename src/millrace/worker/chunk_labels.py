"""Chunk labels: what a worker writes on items that it inserts into cache servers, by their chunk. Pure."""

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
        chunks: into which the data are cut.
    """
    data, members = name_of_data(source), ChunkMembers(count, chunks)
    return lambda item: chunk_label(data, chunks, int(members.chunk_of(np.array([item]))[0]))
