"""Operator ``window``: lists of consecutive elements, which may overlap."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.graph.nodes import SlidingWindow
from millrace.ops.collecting import Outbox, with_outbox
from millrace.ops.operator import Context


@with_outbox
def run(outbox: Outbox, node: SlidingWindow, inputs: list[Iterator[Chunk]], context: Context) -> Iterator[Chunk]:
    """Yield windows, each a list of at most ``node.size`` elements; it holds the elements of one window and a chunk.

    Where windows are planned the input has the elements from the beginning of one to the end of the last that
    overlaps it, and of windows that don't overlap their own elements alone.
    """
    planned = context.outputs()
    windows = planned or ((context.mixed(), unit, -1) for unit in count())
    held: list[Any] = []  # the first of them is the first of the window before
    before = (-1, 0)
    for origin, unit, size in windows:
        wanted = node.span if size < 0 else size
        following = size < 0 or (unit == before[0] + 1 and node.shift <= node.span)
        over = 0 if before[0] < 0 else node.shift if following else before[1]
        while over or len(held) < wanted:
            gone = min(over, len(held))
            del held[:gone]
            over -= gone
            if not over and len(held) >= wanted:
                break
            yield from outbox.flush()
            chunk = next(inputs[0], None)
            if chunk is None:
                break
            held += chunk.elements
        window = held[: wanted : node.stride]
        if over or not window or (size < 0 and node.drop_remainder and len(held) < wanted):
            break
        yield from outbox.add(window, origin, unit)
        before = unit, wanted
    yield from outbox.flush()
