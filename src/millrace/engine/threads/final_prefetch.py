"""Final prefetch: the pipeline's end works while its consumer does, where that gains something."""

from __future__ import annotations

from collections.abc import Generator

from millrace.elements.chunk import Chunk
from millrace.engine.metrics import Measure, clock
from millrace.engine.threads.prefetch import PrefetchThread
from millrace.graph.rewrites.trailing_prefetch import Ending

_WORTH_S = 0.001
"""Seconds gained per chunk below which a hand-over between threads that share the GIL could cost more."""
_SURE_S = 0.01
"""Seconds of gain foregone so far that show that one slow chunk was not all."""


def overlapped(chunks: Generator[Chunk, None, None], ending: Ending, budget: int) -> Generator[Chunk, None, None]:
    """Compute chunks ahead on a thread: from the start if ``ending`` says so, else once that would pay.

    Time is gained where both sides take some: of a chunk, at most the time of the faster one. So a pipeline that is
    cheap, or a consumer that only collects, never gets a thread.

    Args:
        chunks: the pipeline.
        ending: how far ahead, and from when on.
        budget: bytes that may lie ready.
    """
    ahead = False
    try:
        gain, count = 0.0, 0
        while not ending.at_once and (gain < _SURE_S or gain < count * _WORTH_S):
            began = clock()
            chunk = next(chunks, None)
            if chunk is None:
                return
            made = clock()
            yield chunk
            gain, count = gain + min(made - began, clock() - made), count + 1
        ahead = True
        yield from PrefetchThread(chunks, ending.buffer_size, lambda: budget).pull(Measure())
    finally:
        if not ahead:  # which closes them itself
            chunks.close()
