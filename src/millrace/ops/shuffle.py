"""Operator ``shuffle``: random order within a window."""

from __future__ import annotations

import warnings
from array import array
from collections.abc import Iterator
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk
from millrace.elements.tree import sizes_of
from millrace.graph.nodes import Shuffle
from millrace.ops.operator import Context

_DRAWS = 4096
_SLOT_BYTES = 16
"""Bytes of an element's slots in the two lists of the window."""


def run(node: Shuffle, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Replace a random element of a window of ``node.buffer_size`` by each element; yield the replaced one.

    The window stays smaller if its elements exceed ``context.budget`` bytes, with a warning. As that is judged by the
    elements alone, the order is the same wherever the task runs.
    """
    origin, generator, budget = context.mixed(), context.generator(), context.budget
    draws = _uniforms(generator)
    window: list[Any] = []
    sizes = array("q")
    held, position, warned = 0, 0, False
    for chunk in inputs[0]:
        out: list[Any] = []
        for element, content in zip(chunk.elements, sizes_of(chunk.elements), strict=True):
            size = content + _SLOT_BYTES
            if len(window) < node.buffer_size and (held + size <= budget or not window):
                window.append(element)
                sizes.append(size)
                held += size
                continue
            if len(window) < node.buffer_size and not warned:
                warned = True
                _warn(context, budget)
            slot = int(next(draws) * len(window))
            out.append(window[slot])
            held += size - sizes[slot]
            window[slot], sizes[slot] = element, size
            while held > budget and len(window) > 1:
                slot = int(next(draws) * len(window))
                window[slot], window[-1] = window[-1], window[slot]
                sizes[slot], sizes[-1] = sizes[-1], sizes[slot]
                out.append(window.pop())
                held -= sizes.pop()
        if out:
            yield Chunk(out, origin, range(position, position + len(out)))
            position += len(out)
    rest = [window[index] for index in generator.permutation(len(window)).tolist()]
    window.clear()
    while rest:
        size = max(1, context.chunk_size())
        out = rest[: -size - 1 : -1]
        del rest[-size:]
        yield Chunk(out, origin, range(position, position + len(out)))
        position += len(out)


def _uniforms(generator: np.random.Generator) -> Iterator[float]:
    """Draw numbers in [0, 1), many at a time; the sequence doesn't depend on how the input comes in chunks."""
    while True:
        yield from generator.random(_DRAWS).tolist()


def _warn(context: Context, budget: int) -> None:
    warnings.warn(
        f"{context.label}: the window is smaller than asked for, as that many elements exceed {budget >> 20} MiB; "
        "shuffle before elements become large (file names rather than pictures), or raise with_options(buffer_bytes=).",
        RuntimeWarning,
        stacklevel=2,
    )
