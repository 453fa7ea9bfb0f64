"""Elements of which each takes long to make: they go on one by one, and wait for no whole chunk."""

from __future__ import annotations

import time
from collections.abc import Iterator

from millrace.elements.chunk import Chunk

LONG_S = 0.05
"""Seconds after which what is there goes on, as the next element may take as long, or not come at all."""
clock = time.perf_counter


def begin_slowly(chunks: Iterator[Chunk]) -> Iterator[Chunk]:
    """Give elements one by one until one has not taken long to whoever asks, and whole chunks from then on.

    How many elements go into a chunk depends on how long those before it took, which nobody knows of the first ones.
    """
    slow = True
    for chunk in chunks:
        done = 0
        while slow and done < len(chunk):
            asked = clock()
            yield chunk.slice(done, done + 1)
            done += 1
            slow = clock() - asked > LONG_S
        if done < len(chunk):
            yield chunk.slice(done, len(chunk)) if done else chunk
