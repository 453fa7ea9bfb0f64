"""Element shapes: which dimensions of a dataset's elements may vary, as far as its graph tells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, get_args

from millrace.graph import nodes as g
from millrace.planning.units import INFINITE, Cardinality, UnitMap


class Varying(NamedTuple):
    """Dimensions that may differ between elements although some elements agree in them.

    Attributes:
        rows: sizes of batches and windows that not all are full: a first dimension of this size, or a list of so many,
            may have another size elsewhere.
        padded: whether dimensions after the first are padded to what a batch needs.
        fixed: sizes that padding always gives.
    """

    rows: frozenset[int] = frozenset()
    padded: bool = False
    fixed: frozenset[int] = frozenset()


def varying(units: UnitMap) -> Varying:
    """Find which dimensions of the elements' shapes depend on the element.

    The operators that made the elements into batches tell; a ``map`` behind them is taken to keep the rows.
    """
    makers = list(_makers(units.graph.root))
    inside = [below for node in makers if isinstance(node, g.Rebatch) for below in _makers(node.inputs[0])]
    sizes = {size for node in makers for size in _sizes(node)}
    short = {size for node in makers if not _always_full(units, node) for size in _sizes(node)}
    padders = [node for node in (*makers, *inside) if isinstance(node, (g.PaddedBatch, g.BucketBySequenceLength))]
    fixed = {size for node in padders for size in _numbers(node.padded_shapes)}
    windows = {node.size for node in _windows(units.graph.root) if not _always_whole(units, node)}
    return Varying(frozenset(sizes if len(sizes) > 1 else short) | windows, bool(padders), frozenset(fixed))


_TAKEN_APART = (g.Unbatch, g.FlatMap, g.Interleave, g.Pack)
"""Operators behind which nothing is seen of what stacked their inputs; rows of ``pack`` are all of one shape."""
_Maker = g.Batch | g.PaddedBatch | g.BucketBySequenceLength | g.Rebatch | g.GroupByWindow


def _makers(node: g.Node) -> Iterator[_Maker]:
    """Operators that stacked what leaves ``node``."""
    if isinstance(node, _Maker):
        yield node
    elif not isinstance(node, _TAKEN_APART):
        for child in node.inputs:
            yield from _makers(child)


def _windows(node: g.Node) -> Iterator[g.SlidingWindow]:
    """Operators that listed what leaves ``node``."""
    if isinstance(node, g.SlidingWindow):
        yield node
    elif not isinstance(node, (*get_args(_Maker), *_TAKEN_APART)):
        for child in node.inputs:
            yield from _windows(child)


def _sizes(node: _Maker) -> tuple[int, ...]:
    if isinstance(node, g.BucketBySequenceLength):
        return node.bucket_batch_sizes
    size = node.window_size if isinstance(node, g.GroupByWindow) else node.batch_size
    return () if size is None else (size,)


def _always_full(units: UnitMap, node: _Maker) -> bool:
    if isinstance(node, g.GroupByWindow):
        return False
    if isinstance(node, (g.Batch, g.PaddedBatch)) and node.fill_remainder:
        return True
    if node.drop_remainder or (not isinstance(node, g.Rebatch) and node.incomplete == "drop"):
        return True
    if not isinstance(node, g.Rebatch) and node.together:
        return False
    below = units.graph.id_of(node.inputs[0])
    if not isinstance(node, (g.Batch, g.PaddedBatch)) or not units.plannable(below):
        return False
    found = units.of(below)
    return found.yields is Cardinality.ONE and (found.count >= INFINITE or found.count % node.batch_size == 0)


def _always_whole(units: UnitMap, node: g.SlidingWindow) -> bool:
    below = units.graph.id_of(node.inputs[0])
    if node.drop_remainder or not units.plannable(below):
        return node.drop_remainder
    found = units.of(below)
    left = found.count - (-(-found.count // node.shift) - 1) * node.shift  # from where the last window begins
    return found.yields is Cardinality.ONE and (found.count >= INFINITE or not found.count or left >= node.span)


def _numbers(shapes: Any) -> Iterator[int]:
    """Numbers in a pytree of shapes."""
    if isinstance(shapes, int):
        yield shapes
    elif isinstance(shapes, (tuple, list, dict)):
        for inner in shapes.values() if isinstance(shapes, dict) else shapes:
            yield from _numbers(inner)
