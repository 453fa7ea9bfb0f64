"""Trailing prefetch: the pipeline works while the consumer does ("The tf.data service", section 3.2).

It is for whoever pulls an epoch's tasks one after the other in the consumer's own process. There a prefetch that is
part of the graph would run dry at the end of each task, so the one at the end is taken out, to be done once over all
tasks; where the user wrote none, it is to be done as soon as measurements say that it gains something.
"""

from __future__ import annotations

from dataclasses import dataclass

from millrace.graph.nodes import AUTOTUNE, Node, Prefetch
from millrace.graph.operator_graph import Graph


@dataclass(frozen=True, slots=True)
class Ending:
    """Prefetch to do over all tasks.

    Attributes:
        buffer_size: elements ahead at most; AUTOTUNE: by bytes.
        at_once: whether from the start, as the user asked for it, or only when it pays.
    """

    buffer_size: int = AUTOTUNE
    at_once: bool = False


def apply(graph: Graph) -> tuple[Graph, Ending, list[str]]:
    """Take out a prefetch at the graph's end; return the graph, the prefetch to do instead, and a note."""
    last = graph.root
    if not isinstance(last, Prefetch):
        return graph, Ending(), ["computed ahead at the end, while that gains time"]

    def change(number: int, node: Node) -> Node:
        return node.inputs[0] if number == graph.id_of(last) else node

    note = f"computed ahead over the whole epoch rather than in each task: {last}"
    return graph.rewritten(change), Ending(last.buffer_size, at_once=True), [note]
