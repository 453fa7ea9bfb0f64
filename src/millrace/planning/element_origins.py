"""Element origins: where an engine reads the elements of units, for units that give at most one each.

The engine names an element by the node that defines positions and the position there; a unit of a node higher up is the
same element under another number. This is the arithmetic from the one to the other, node by node as units are pushed
down (:mod:`millrace.engine.run.lowering`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from millrace.graph import nodes as g
from millrace.planning.orders import EpochOrders
from millrace.planning.units import INFINITE, Cardinality, Positions, UnitMap


class ElementOrigins(NamedTuple):
    """Origins of n units, each int64 of shape (n,).

    Attributes:
        node: number of the node that defines the position.
        split: of a source; else 0.
        repetition: of a ``repeat``.
        position: there.
    """

    node: Positions
    split: Positions
    repetition: Positions
    position: Positions


def element_origins(orders: EpochOrders, number: int, at: Positions, repetition: int = 0) -> ElementOrigins:
    """Find the origins of the elements of some units.

    Args:
        orders: of the graph's shuffles, in the epoch.
        number: of a node whose units give one element each, or at most one.
        at: its units, int64 of shape (n,).
        repetition: of a ``repeat`` above.
    """
    found = ElementOrigins(*np.zeros((4, len(at)), np.int64))
    _fill(orders, number, at, repetition, found, np.arange(len(at)))
    return found


def _fill(
    orders: EpochOrders, number: int, at: Positions, repetition: int, found: ElementOrigins, where: Positions
) -> None:
    units = orders.units
    node = units.graph.nodes[number]
    one = units.of(number).yields is Cardinality.ONE
    if isinstance(node, _ALWAYS) or (one and isinstance(node, _IF_ONE) and not _passes(units, node)):
        split = np.zeros(len(at), np.int64)
        if number in units.starts:
            starts = units.starts[number]
            split = np.searchsorted(starts, at, side="right") - 1
            at = at - starts[split]
        found.node[where], found.split[where] = number, split
        found.repetition[where], found.position[where] = repetition, at
        return
    for below in orders.inputs(number, at, repetition):
        _fill(orders, below.node, below.at, below.repetition, found, where[below.chosen])


_ALWAYS = (
    g.Source,
    g.Zip,
    *g.MIXING,
    g.Sample,
    g.Reservoir,
    g.Batch,
    g.PaddedBatch,
    g.SlidingWindow,
    g.Cache,
    g.Autocache,
)
_IF_ONE = (g.Concatenate, g.Repeat)
"""Nodes that define positions; some only where each of their units is one element."""


def _passes(units: UnitMap, node: g.Node) -> bool:
    """Whether a ``repeat`` repeats nothing."""
    if not isinstance(node, g.Repeat):
        return False
    return node.count == 1 or units.of(units.graph.id_of(node.inputs[0])).count >= INFINITE
