"""Boundaries of units: where a node's units are best cut, as its files are cut there, and where they must be."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from millrace.graph import nodes as g
from millrace.planning.units import INFINITE, Positions, UnitMap

_SOME_BLOCKS = 64
"""Blocks of units that a shuffle permutes where the data have no boundaries of their own."""
_MOST_BLOCKS = 1 << 16


def boundaries(units: UnitMap, number: int) -> Positions:
    """Find the units, from 0 to the count, at which a finite node is best cut: where its files are."""
    node, count = units.graph.nodes[number], units.of(number).count
    below = [units.graph.id_of(child) for child in node.inputs]
    if isinstance(node, g.Source):
        inner = _source_boundaries(units, number)
    elif any(units.of(child).count >= INFINITE for child in below):
        inner = np.linspace(0, count, _SOME_BLOCKS + 1)
    elif isinstance(node, g.Concatenate):
        inner = _side_by_side(units, below)
    elif isinstance(node, g.Repeat):
        inner = _repeated(boundaries(units, below[0]), count)
    else:
        inner = _through(units, node, boundaries(units, below[0]), count)
    ends = np.array([0, count], np.int64)
    inner = inner.astype(np.int64)
    return np.unique(np.concatenate([ends, inner[(inner > 0) & (inner < count)]]))


def fences(units: UnitMap, number: int) -> Positions:
    """First units, within a period, of the parts of a concatenation that collect elements each for itself."""
    node = units.graph.nodes[number]
    if not units.of(number).collecting:
        return np.zeros(1, np.int64)
    below = [units.graph.id_of(child) for child in node.inputs]
    if not isinstance(node, g.Concatenate):
        return fences(units, below[0])
    counts = [units.of(child).count for child in below]
    return np.concatenate([fences(units, child) + sum(counts[:index]) for index, child in enumerate(below)])


def _source_boundaries(units: UnitMap, number: int) -> npt.NDArray[Any]:
    table, count = units.tables[number], units.of(number).count
    if table.cheap:
        return np.linspace(0, count, _SOME_BLOCKS + 1)
    if table.count < 0:
        return np.arange(count)
    return units.starts.get(number, np.empty(0, np.int64))


def _side_by_side(units: UnitMap, numbers: list[int]) -> Positions:
    parts, offset = [], 0
    for number in numbers:
        parts.append(boundaries(units, number) + offset)
        offset += units.of(number).count
    return np.concatenate([*parts, np.empty(0, np.int64)])


def _repeated(inner: Positions, count: int) -> npt.NDArray[Any]:
    period = int(inner[-1])
    if not period or len(inner) * (count // period) > _MOST_BLOCKS:
        return np.linspace(0, count // max(period, 1), _MOST_BLOCKS + 1).astype(np.int64) * period
    return (np.arange(0, count, period)[:, None] + inner).ravel()


def _through(units: UnitMap, node: g.Node, inner: Positions, count: int) -> npt.NDArray[Any]:
    """Convert boundaries of a node's first input to units of the node."""
    if isinstance(node, g.Skip):
        return inner - (node.count if node.count >= 0 else inner[-1])
    if isinstance(node, g.Shard):
        return (inner - node.index + node.num_shards - 1) // node.num_shards
    if isinstance(node, (g.Batch, g.PaddedBatch)) and not units.of(units.graph.id_of(node)).collecting:
        return inner // node.batch_size
    if isinstance(node, g.SlidingWindow):
        return inner // node.shift
    if (
        isinstance(node, (g.Shuffle, g.Sample, g.Reservoir, *g.MIXING))
        and not units.of(units.graph.id_of(node)).collecting
    ):
        return np.linspace(0, count, len(inner))
    return inner  # where elements are collected, repetitions and parts begin at some of these
