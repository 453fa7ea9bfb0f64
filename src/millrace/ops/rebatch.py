"""Operators ``rebatch`` and ``unbatch``: batches cut anew, and into their rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import Rebatch, Unbatch
from millrace.ops.collecting import Outbox, with_leftovers, with_outbox
from millrace.ops.operator import Context
from millrace.ops.stacking import concatenate, count_rows, slice_rows, split_rows


@with_outbox
def run_rebatch(outbox: Outbox, node: Rebatch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield batches of ``node.batch_size`` rows: views of an input batch where they lie within one, else copied once.

    Raises:
        PipelineError: if an input is no batch, or inputs differ in structure, dtype or the shape of rows.
    """
    label, size, origin = context.label, node.batch_size, context.mixed()
    position, waiting = 0, 0
    pieces: deque[tuple[Any, int, int]] = deque()
    for chunk in with_leftovers(inputs[0], context):
        for batch in chunk.elements:
            rows = count_rows(batch, label)
            if rows:
                pieces.append((batch, 0, rows))
                waiting += rows
            while waiting >= size:
                yield from outbox.add(_join(_cut(pieces, size), context), origin, position)
                position += 1
                waiting -= size
        yield from outbox.flush()
    rest = _cut(pieces, waiting)
    if rest and not context.leave(rest) and not node.drop_remainder:
        yield from outbox.add(_join(rest, context), origin, position)
        yield from outbox.flush()


def run_unbatch(node: Unbatch, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield the rows of each batch; those of arrays of several dimensions are views of it.

    Raises:
        PipelineError: if an element is no batch, or its leaves have different numbers of rows.
    """
    for chunk in inputs[0]:
        for index, batch in enumerate(chunk.elements):
            rows = count_rows(batch, context.label)
            if rows:
                first = context.children(chunk, index)
                yield Chunk(split_rows(batch, rows), chunk.origin, range(first, first + rows))


def _cut(pieces: deque[tuple[Any, int, int]], rows: int) -> list[Any]:
    """Take the next ``rows`` rows off ``pieces``, as batches."""
    parts = []
    while rows:
        batch, start, stop = pieces.popleft()
        if stop - start > rows:
            pieces.appendleft((batch, start + rows, stop))
            stop = start + rows
        parts.append(slice_rows(batch, start, stop))
        rows -= stop - start
    return parts


def _join(parts: list[Any], context: Context) -> Any:
    return parts[0] if len(parts) == 1 else concatenate(parts, context.label, context.allocate)
