"""Element names: positions in random keys; the file, record or item that an element came from in messages."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from millrace.elements.chunk import Origin
from millrace.engine.user_code.tracing import Traced
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.planning.random_keys import derive, mix
from millrace.planning.units import Cardinality
from millrace.sources import describe

if TYPE_CHECKING:
    from millrace.engine.run.task import RunningTask

_MADE = 1 << 61
"""First of the positions that belong to elements that were made of others."""


def first_made(key: int, position: int) -> int:
    """Position of the first of the elements that a node makes of the one at ``position``."""
    return _MADE | mix(derive(key, position)) >> 3


def name_of(task: RunningTask, origin: Origin, position: int) -> str:
    """Name the element at a position of an origin: ``train/0007.jpg``, ``shard-3.tar, record 17``, ``item 5``."""
    graph = task.units.graph
    if isinstance(origin, Traced):
        return _name_of_arrived(graph, origin, position)
    if origin.node < 0:
        place = f"element {position}" if position < _MADE else "an element"
        return f"{place} of {graph.nodes[-1 - origin.node]} in task {origin.split}"
    node = graph.nodes[origin.node]
    if position >= _MADE:
        splits = task.units.tables[origin.node].splits if isinstance(node, g.Source) else []
        return f"an element made from {splits[origin.split].location if splits else node}"
    if isinstance(node, g.Source):
        return describe(node, task.units.tables[origin.node], origin.split, position)
    return _trace(task, origin.node, position, origin.repetition) or f"element {position} of {node}"


def _name_of_arrived(graph: Graph, origin: Traced, position: int) -> str:
    """Name an element behind ``distribute()`` as :func:`name_of` does."""
    if origin.node < 0:
        return f"element {position} of {graph.nodes[-1 - origin.node]}"
    if not origin.above:
        return f"element {position} of task {origin.split} of {graph.nodes[origin.node]}"
    parts = " of ".join(f"part {part}" for part in reversed((*origin.above[1:], position + origin.shift)))
    return f"{parts} of element {origin.place[1]} of task {origin.place[0]} of {graph.nodes[origin.node]}"


def _trace(task: RunningTask, number: int, unit: int, repetition: int) -> str | None:
    """Find the source element that a unit of a node is, if it is one and arithmetic can tell."""
    units, node = task.units, task.units.graph.nodes[number]
    if units.of(number).yields is Cardinality.MANY or isinstance(node, (g.Batch, g.PaddedBatch, g.SlidingWindow)):
        return None
    if isinstance(node, g.Source):
        split = 0
        if number in units.starts:
            split = int(np.searchsorted(units.starts[number], unit, side="right")) - 1
            unit -= int(units.starts[number][split])
        return describe(node, units.tables[number], split, unit)
    if isinstance(node, g.Zip):
        names = [_trace(task, units.graph.id_of(child), unit, repetition) for child in node.inputs]
        return " with ".join(name or "?" for name in names) if any(names) else None
    if isinstance(node, g.Shuffle) and not units.permutes(number):
        return None
    (below,) = task.orders.inputs(number, np.array([unit]), repetition)
    return _trace(task.below(number), below.node, int(below.at[0]), 0 if task.reuses(number) else below.repetition)
