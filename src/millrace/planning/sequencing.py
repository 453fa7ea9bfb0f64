"""Sequences of elements in order: operators that need all before an element, counts of windows, asserted lengths."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import PASSING
from millrace.graph.source_nodes import FromGenerator
from millrace.planning.mixture import ENDLESS

_APART = "Do without it, or save() what it gives once and load() that, and the work can be shared."

IN_SEQUENCE: Mapping[type[g.Node], tuple[str, str]] = {
    g.TakeWhile: ("ends where its predicate is false for the first time, which only reading in order finds", _APART),
    g.Scan: ("makes of each element what those before it have left as its state", _APART),
    g.Unique: ("compares each element with all before it", _APART),
}
"""Reason why an operator always runs as one sequence, and what to do about it."""

NO_END = "{node} draws from all elements, and its input must have an end: put take(n) before it"
NO_SKIPS = (
    '{node} reads its input several times, as nobody knows how many elements it has; what on_error="skip" leaves out'
    " could be others each time: filter() them, or save() what is before it and load() that"
)
PASSES = (
    "draws from all elements, and doesn't know how many there are, so that it reads all of its input for each refill",
    (
        "Put it before what leaves elements out or makes more of one, behind a source that knows its length before it"
        " is read (of TFRecord and tar shards: local ones that are not compressed, and tar shards with an index), and"
        " the work can be shared."
    ),
)
"""Why a reservoir reads its input several times, and what to do about it."""


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


def has_no_end(node: g.Node) -> bool:
    """Whether operators say of a node that it has no end, as far as they lie one behind the other."""
    while len(node.inputs) == 1 and not isinstance(node, (g.TakeWhile, g.Sample)):
        if isinstance(node, g.Repeat) and node.count is None:
            return True
        if isinstance(node, g.Take) and node.count >= 0:
            return False
        (node,) = node.inputs
    return False


def asserted_length(node: g.Node, skips: bool, known: Callable[[g.Node], int | None]) -> int | None:
    """Find the length that ``assert_cardinality`` promises of a sequence; None if it says nothing.

    Args:
        node: the last of the graph, which cannot be planned.
        skips: whether elements that fail are left out.
        known: counts the elements of a node below that can be planned.
    """
    if (count := known(node)) is not None:
        return count if count < ENDLESS else None
    if isinstance(node, g.AssertCardinality):
        return node.count
    one_to_one = (g.Shuffle, g.Reservoir, g.Enumerate, *PASSING, *(() if skips else (g.Map, g.Scan)))
    batches = (g.Batch, g.PaddedBatch)
    if not isinstance(node, (*one_to_one, *batches, g.Take)) or getattr(node, "together", 0) > 0:
        return None
    below = asserted_length(node.inputs[0], skips, known)
    if below is None:
        return None
    if isinstance(node, batches):
        return below // node.batch_size if node.drop_remainder else -(-below // node.batch_size)
    return min(below, node.count) if isinstance(node, g.Take) and node.count >= 0 else below
