"""Fusion: chains of functions of one element run as one operator ("The tf.data service", section 3.2).

A chunk is handed to a thread once and goes through function after function there. Each function keeps its own random
keys, label, errors and measures, as those of the operator it was written for.

Only operators whose functions are called alike are fused: maps of the same ``num_parallel_calls``, which may be called
by several threads; or, among each other, those that are called by one thread, in order, so that they can remember what
they saw: filters, and maps of ``num_parallel_calls=1``. Nothing is fused across a point where elements are kept
(prefetch, cache, autocache), nor across one from where two operators go on.
"""

from __future__ import annotations

from collections import Counter

from millrace.graph.nodes import Filter, Map, Node
from millrace.graph.operator_graph import Graph


class Fused(Node):
    """Several maps and filters in a row, the first of which takes ``inputs``; a node that no user writes."""

    parts: tuple[Map | Filter, ...]

    def __str__(self) -> str:
        return ", ".join(map(str, self.parts))


def apply(graph: Graph) -> tuple[Graph, list[str]]:
    """Fuse chains; return the graph and a line for each of them."""
    users = Counter(child for node in graph.reachable() for child in node.inputs)

    def change(number: int, node: Node) -> Node:
        if not isinstance(node, (Map, Filter)):
            return node
        below = node.inputs[0]
        if not isinstance(below, (Map, Filter, Fused)) or users[graph.nodes[number].inputs[0]] > 1:
            return node
        earlier = below.parts if isinstance(below, Fused) else (below,)
        if parallel_calls(node) != parallel_calls(earlier[0]):
            return node
        return Fused(inputs=below.inputs, parts=(*earlier, node))

    new = graph.rewritten(change)
    return new, [f"run as one: {node}" for node in new.reachable() if isinstance(node, Fused)]


def parallel_calls(node: Map | Filter) -> int:
    """Count the concurrent calls that the node's function takes; AUTOTUNE: the engine's choice."""
    return node.num_parallel_calls if isinstance(node, Map) else 1
