"""prefetch, cache, autocache, with_options: elements pass as they are."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Autocache, Cache, Prefetch, WithOptions
from millrace.ops.operator import Context


def run_prefetch(node: Prefetch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """The input, computed ahead by another thread."""
    return context.ahead(inputs[0], node.buffer_size)


def run_unchanged(
    node: Cache | Autocache | WithOptions, inputs: list[Iterator[Chunk]], context: Context
) -> Iterator[Chunk]:
    """The input. These nodes tell the planner and the engine something, and do nothing to elements."""
    return inputs[0]
