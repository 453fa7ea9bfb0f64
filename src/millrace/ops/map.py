"""Operator ``map``: a function of each element."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Map
from millrace.ops.operator import Context


def run(node: Map, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Apply ``node.fn`` to each element, on several threads, in order (``deterministic=False`` only permits others)."""
    for chunk in context.in_order(step(node, context), inputs[0], node.num_parallel_calls):
        if chunk.elements or chunk.failure is not None:
            yield chunk


def step(node: Map, context: Context) -> Callable[[Chunk], Chunk]:
    """Return the function that maps one chunk; its result may be empty."""
    call, function = context.call, node.fn

    def apply(chunk: Chunk) -> Chunk:
        indices, results, failure = call(function, chunk)
        if indices is None:
            return Chunk(results, chunk.origin, chunk.positions)
        return chunk.keep(indices, results, failure)

    return apply
