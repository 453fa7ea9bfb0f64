"""Operators ``take``, ``skip``, ``shard`` and ``enumerate``: elements by their number, counted as they come.

Where positions are known the planner does these, and they don't run at all.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Enumerate, Shard, Skip, Take
from millrace.ops.operator import Context


def run_take(node: Take, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield the first ``node.count`` elements (-1: all); ask for no more input after them."""
    if node.count < 0:
        yield from inputs[0]
        return
    left = node.count
    while left:
        chunk = next(inputs[0], None)
        if chunk is None:
            return
        if len(chunk) > left:
            chunk = chunk.slice(0, left)
        left -= len(chunk)
        yield chunk


def run_skip(node: Skip, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield all but the first ``node.count`` elements (-1: none)."""
    if node.count < 0:
        return
    left = node.count
    for chunk in inputs[0]:
        if left >= len(chunk):
            left -= len(chunk)
        elif left:
            yield chunk.slice(left, len(chunk))
            left = 0
        else:
            yield chunk


def run_shard(node: Shard, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield every ``node.num_shards``-th element, from number ``node.index`` on."""
    step, start = node.num_shards, node.index
    for chunk in inputs[0]:
        if start < len(chunk):
            yield Chunk(chunk.elements[start::step], chunk.origin, chunk.positions[start::step])
        start = (start - len(chunk)) % step if start < len(chunk) else start - len(chunk)


def run_enumerate(node: Enumerate, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield ``(number, element)``; numbers are Python ints from ``node.start`` on."""
    number = node.start
    for chunk in inputs[0]:
        yield Chunk(list(enumerate(chunk.elements, number)), chunk.origin, chunk.positions)
        number += len(chunk)
