"""Operators that pass elements unchanged: ``prefetch``, ``cache``, ``autocache``, ``with_options``."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Autocache, Cache, Prefetch, WithOptions
from millrace.ops.operator import Context


def run_prefetch(node: Prefetch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Pass on the input, computed ahead by another thread."""
    return context.ahead(inputs[0], node.buffer_size)


def run_unchanged(
    node: Cache | Autocache | WithOptions, inputs: list[Iterator[Chunk]], context: Context
) -> Iterator[Chunk]:
    """Pass on the input: these nodes tell the planner and the engine something, and change no element."""
    return inputs[0]
