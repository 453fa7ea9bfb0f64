"""Identity elimination: operators that pass on every element are left out ("The tf.data service", section 3.2).

Only operators that are certain from the node itself are: ``take(-1)``, ``skip(0)``, ``shard(1, 0)``, options (which are
read from the graph as written) and a prefetch of a prefetch without limit. ``repeat(1)`` is as well, unless it is
repeated itself: repetitions within repetitions are numbered anew, and the number enters random keys. A shuffle of a
shuffle stays, as its order shows.
"""

from __future__ import annotations

from millrace.graph.nodes import AUTOTUNE, Node, Prefetch, Repeat, Shard, Skip, Take, WithOptions
from millrace.graph.operator_graph import Graph


def apply(graph: Graph) -> tuple[Graph, list[str]]:
    """Leave identity operators out; return the graph and a line that names them."""
    repeated = {below for node in graph.reachable() if _repeats(node) for child in node.inputs for below in _all(child)}
    dead: list[str] = []

    def change(number: int, node: Node) -> Node:
        once = isinstance(node, Repeat) and node.count == 1 and graph.nodes[number] not in repeated
        if not once and not _is_dead(node):
            return node
        dead.append(str(node))
        return node.inputs[0]

    new = graph.rewritten(change)
    return new, [f"left out, as they pass on every element as it is: {', '.join(dead)}"] if dead else []


def _is_dead(node: Node) -> bool:
    match node:
        case WithOptions() | Take(count=-1) | Skip(count=0) | Shard(num_shards=1):
            return True
        case Prefetch(inputs=(Prefetch(buffer_size=ahead),)):
            return ahead == AUTOTUNE
    return False


def _repeats(node: Node) -> bool:
    return isinstance(node, Repeat) and node.count != 1


def _all(node: Node) -> set[Node]:
    return set(Graph(node).nodes)
