"""Element origins: where an engine reads the elements of units, for units that give at most one each.

The engine names an element by the node that defines positions and the position there; a unit of a node higher up is the
same element under another number. This is the arithmetic from the one to the other, node by node as units are pushed
down (:mod:`millrace.engine.run.lowering`).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from millrace.graph import nodes as g
from millrace.planning.permutation import permute
from millrace.planning.random_keys import repetition_of
from millrace.planning.unit_ids import ShuffleKey
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


def element_origins(
    units: UnitMap, number: int, at: Positions, order: ShuffleKey, repetition: int = 0
) -> ElementOrigins:
    """Find the origins of the elements of some units.

    Args:
        units: of the graph.
        number: of a node whose units give one element each, or at most one.
        at: its units, int64 of shape (n,).
        order: of the shuffles below it, in the epoch.
        repetition: of a ``repeat`` above.
    """
    found = ElementOrigins(*np.zeros((4, len(at)), np.int64))
    _fill(units, number, at, order, repetition, found, np.arange(len(at)))
    return found


def _fill(
    units: UnitMap,
    number: int,
    at: Positions,
    order: ShuffleKey,
    repetition: int,
    found: ElementOrigins,
    where: Positions,
) -> None:
    node = units.graph.nodes[number]
    below = [units.graph.id_of(child) for child in node.inputs]
    one = units.of(number).yields is Cardinality.ONE
    split = np.zeros(len(at), np.int64)
    if isinstance(node, g.Source) and number in units.starts:
        starts = units.starts[number]
        split = np.searchsorted(starts, at, side="right") - 1
        at = at - starts[split]
    if isinstance(node, _ALWAYS) or (one and isinstance(node, _IF_ONE) and not _passes(units, node)):
        found.node[where], found.split[where] = number, split
        found.repetition[where], found.position[where] = repetition, at
        return
    match node:
        case g.Skip():
            at = at + node.count
        case g.Shard():
            at = at * node.num_shards + node.index
        case g.Shuffle():
            at = permute(at, units.of(below[0]).count, order(number, node, repetition))
        case g.Repeat():
            turns, at = (at * 0, at) if _passes(units, node) else np.divmod(at, units.of(below[0]).count)
            for turn in np.unique(turns).tolist():
                chosen = turns == turn
                inner = repetition_of(repetition, turn)
                _fill(units, below[0], at[chosen], order, inner, found, where[chosen])
            return
        case g.Concatenate():
            starts = units.firsts(below)
            which = np.searchsorted(starts, at, side="right") - 1
            for index in np.unique(which).tolist():
                chosen = which == index
                _fill(units, below[index], at[chosen] - starts[index], order, repetition, found, where[chosen])
            return
    _fill(units, below[0], at, order, repetition, found, where)


_ALWAYS = (g.Source, g.Zip, g.SampleFromDatasets, g.Batch, g.PaddedBatch, g.Cache, g.Autocache)
_IF_ONE = (g.Concatenate, g.Repeat)
"""Nodes that define positions; some only where each of their units is one element."""


def _passes(units: UnitMap, node: g.Node) -> bool:
    """Whether a ``repeat`` repeats nothing."""
    if not isinstance(node, g.Repeat):
        return False
    return node.count == 1 or units.of(units.graph.id_of(node.inputs[0])).count >= INFINITE
