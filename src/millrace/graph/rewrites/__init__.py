"""Rewrites: graph -> graph, so that less runs than was written and no output changes.

One file a rewrite. They are for running alone: the plan, and so the tasks and the identity of every element, are made
from the graph as written, whose numbers :meth:`millrace.graph.operator_graph.Graph.rewritten` keeps. Each returns with
its graph what it did, in plain words for whoever asks what really runs. The prefetch at the end is for some runners
only: :mod:`millrace.graph.rewrites.trailing_prefetch`.
"""

from __future__ import annotations

from millrace.graph.operator_graph import Graph
from millrace.graph.rewrites import fusion, identity_elimination

REWRITES = (identity_elimination.apply, fusion.apply)
"""Rewrites in their order: an operator that is left out no longer stands between those that can be fused."""


def rewritten(graph: Graph) -> tuple[Graph, list[str]]:
    """Rewrite a graph: ``(graph to run, notes)``; unchanged if the pipeline's options say ``rewrites=False``."""
    notes: list[str] = []
    if graph.options().rewrites is not False:
        for apply in REWRITES:
            graph, more = apply(graph)
            notes += more
    return graph, notes
