"""map: a function of each element."""

from __future__ import annotations

from collections.abc import Iterator

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Map
from millrace.ops.contract import Context


def run(node: Map, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """``node.fn`` of each element, on several threads, in order (``deterministic=False`` only permits others)."""

    def apply(chunk: Chunk) -> Chunk:
        indices, results = context.call(node.fn, chunk)
        if indices is None:
            return Chunk(results, chunk.origin, chunk.positions)
        return chunk.keep(indices, results)

    for chunk in context.in_order(apply, inputs[0], node.num_parallel_calls):
        if chunk.elements:
            yield chunk
