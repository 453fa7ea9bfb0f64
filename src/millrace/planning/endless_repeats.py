"""Endless repeats of inputs that may be empty: as in tf.data, a pass that gives no element ends them."""

from __future__ import annotations

from collections.abc import Iterable

from millrace.graph.nodes import Node, Repeat
from millrace.planning.units import INFINITE, Cardinality, UnitMap


def endlessly_repeated(units: UnitMap) -> Node | None:
    """Find the node repeated without end on the way from root to the only source, if it can be planned and be empty."""
    node, graph = units.graph.root, units.graph
    while len(node.inputs) == 1:
        (child,) = node.inputs
        if isinstance(node, Repeat) and node.count is None:
            number = graph.id_of(child)
            if not units.plannable(number):
                return None
            below = units.of(number)
            return child if 0 < below.count < INFINITE and below.yields is not Cardinality.ONE else None
        node = child
    return None


def has_whole_pass(ranges: Iterable[tuple[int, int]], units: int) -> bool:
    """Whether these ranges of units, in ascending order, contain a whole pass.

    Args:
        ranges: first unit, and one past the last.
        units: in a pass.
    """
    begin = end = -1
    for start, stop in ranges:
        begin, end = (begin if start == end else start), stop
        if -(-begin // units) * units + units <= end:
            return True
    return False
