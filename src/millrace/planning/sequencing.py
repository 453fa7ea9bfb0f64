"""Sequences of elements in order: operators that need all before an element, counts of windows, asserted lengths."""

from __future__ import annotations

from collections.abc import Mapping

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import PASSING
from millrace.graph.source_nodes import FromGenerator

_APART = "Do without it, or save() what it gives once and load() that, and the work can be shared."

IN_SEQUENCE: Mapping[type[g.Node], tuple[str, str]] = {
    g.TakeWhile: ("ends where its predicate is false for the first time, which only reading in order finds", _APART),
    g.Scan: ("makes of each element what those before it have left as its state", _APART),
    g.Unique: ("compares each element with all before it", _APART),
}
"""Reason why an operator always runs as one sequence, and what to do about it."""


def count_windows(node: g.SlidingWindow, count: int) -> int:
    """Count the windows over ``count`` elements."""
    if node.drop_remainder:
        return 0 if count < node.span else (count - node.span) // node.shift + 1
    return -(-count // node.shift)


def generator_notices(graph: Graph) -> tuple[str, ...]:
    """Say of each generator function that one worker runs it."""
    return tuple(
        f"{node} is run by one worker, from its beginning, as nobody else knows what comes next. "
        "Dataset.from_map_style(...) of an object with len() and [i] can be shared by many."
        for node in graph.nodes
        if isinstance(node, FromGenerator)
    )


def asserted_length(node: g.Node, skips: bool) -> int | None:
    """Find the length that ``assert_cardinality`` promises of a sequence; None if it says nothing.

    Args:
        node: the last of the graph, which cannot be planned.
        skips: whether elements that fail are left out.
    """
    if isinstance(node, g.AssertCardinality):
        return node.count
    one_to_one = (g.Shuffle, g.Reservoir, g.Enumerate, *PASSING, *(() if skips else (g.Map, g.Scan)))
    batches = (g.Batch, g.PaddedBatch)
    if not isinstance(node, (*one_to_one, *batches, g.Take)) or getattr(node, "together", 0) > 0:
        return None
    below = asserted_length(node.inputs[0], skips)
    if below is None:
        return None
    if isinstance(node, batches):
        return below // node.batch_size if node.drop_remainder else -(-below // node.batch_size)
    return min(below, node.count) if isinstance(node, g.Take) and node.count >= 0 else below
