"""What a chunk weighs."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest

from millrace.elements.chunk import Chunk, Origin


@pytest.mark.parametrize("size", [0, 1, 2, 30, 1000])
@pytest.mark.parametrize("positions", ["range", "array"])
def test_a_chunk_weighs_at_least_what_python_allocates(size, positions):
    def make(number: int) -> Chunk:
        start = (number + 1) * 10**6
        elements = [(start + index).to_bytes(5, "big") for index in range(size)]
        places = range(start, start + size)
        return Chunk(elements, Origin(0, number), places if positions == "range" else np.array(places))

    make(0)
    tracemalloc.start()
    try:
        made = [make(number) for number in range(100)]
        allocated = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert allocated <= 1.15 * sum(chunk.nbytes for chunk in made) <= 2.5 * allocated
