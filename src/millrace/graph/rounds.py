"""Rounds: what one step of all ranks takes, made by the collecting operator nearest to the root.

The graph itself says so, and plans, states and cache keys follow from it. See docs/design/0017-coordinated-reads.md.
"""

from __future__ import annotations

from dataclasses import replace

from millrace.errors import PipelineError
from millrace.graph.nodes import Batch, BucketBySequenceLength, Enumerate, Map, Node, PaddedBatch
from millrace.graph.operator_graph import Graph
from millrace.graph.serialize import PASSING

BATCHING = (Batch, PaddedBatch, BucketBySequenceLength)
"""Operators that can make rounds."""
_ONE_TO_ONE = (Map, Enumerate, *PASSING)


def in_rounds(graph: Graph, ranks: int, incomplete: str) -> Graph:
    """Have a graph put out rounds: each a batch for every one of ``ranks`` ranks, one after the other.

    Args:
        graph: as the user wrote it.
        ranks: how many there are.
        incomplete: "drop" or "mix", as in :class:`millrace.graph.nodes.Batch`.

    Raises:
        PipelineError: if the pipeline cannot, see :func:`refusal`.
    """
    if why := refusal(graph, incomplete):
        raise PipelineError(why)
    batching, _ = _nearest(graph)

    def change(_number: int, node: Node) -> Node:
        # Its inputs stay as they are, so it is the same object as in the graph that is changed.
        if node is batching and isinstance(node, BATCHING):
            return replace(node, together=ranks, incomplete=incomplete)
        return node

    return Graph(graph.rewritten(change).root)


def refusal(graph: Graph, incomplete: str) -> str:
    """Say in sentences why a graph cannot put out rounds; empty if it can.

    Behind the operator that makes them there may only be what gives one output for each input.
    """
    nearest, behind = _nearest(graph)
    wants = "coordinated=True gives the ranks batches of one bucket in each step"
    if not any(isinstance(node, BATCHING) for node in graph.nodes):
        return (
            f"{wants}, and this pipeline makes no batches: put bucket_by_sequence_length(...), padded_batch(...) or "
            "batch(...) before distribute()"
        )
    if not isinstance(nearest, BATCHING):
        return (
            f"{wants}, and behind the batches stands {nearest}, which does not give one output for each: only map, "
            f"prefetch, enumerate, cache, autocache and with_options may stand there. Put {nearest.op} before the "
            "batches are made, or behind distribute()"
        )
    mapped = next((node for node in behind if isinstance(node, Map)), None)
    if mapped is not None and graph.options().on_error == "skip":
        return (
            f"{wants}, and with on_error='skip' {mapped}, which stands behind {nearest}, could leave one of them out. "
            f"Put it before {nearest.op}, or give on_error a function that returns the batch to use instead"
        )
    if incomplete == "mix" and isinstance(nearest, BucketBySequenceLength) and nearest.no_padding:
        return (
            f"incomplete='mix' puts elements of several buckets into the last batches, and {nearest} with "
            "no_padding=True cannot stack these: say incomplete='drop', or have it pad"
        )
    return ""


def _nearest(graph: Graph) -> tuple[Node, list[Node]]:
    """Find the node nearest to the root that is not one to one, and those behind it."""
    node, behind = graph.root, list[Node]()
    while isinstance(node, _ONE_TO_ONE):
        behind.append(node)
        node = node.inputs[0]
    return node, behind
