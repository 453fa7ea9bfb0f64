"""Unit ids: 128-bit numbers that name the data of a unit, the same in every plan, job and process.

A unit that two pipelines make by the same operators of the same piece of the same source has one identity, wherever
their plans have it. They are hashes of hashes, as in :mod:`.random_keys`, in two lanes of 64 bits: they have to tell
units apart, and withstand nobody; they do not decide who may read what.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt

from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.graph.source_nodes import FromCSV
from millrace.planning.orders import EpochOrders
from millrace.planning.random_keys import mix, mix_array
from millrace.planning.split_table import SplitTable
from millrace.planning.units import Positions, UnitMap

Identities = npt.NDArray[np.uint64]
"""Identities of n units: uint64 of shape (n, 2)."""

_LANES = np.array([mix(1), mix(2)], np.uint64)
_SURELY_ROWS_BYTES, _FIRST_SPLITS = 64 << 10, 64
"""Bytes of a piece of a CSV file that has rows, and not a line of names only; and pieces that are looked at at most."""


def itemised(units: UnitMap, number: int) -> bool:
    """Whether each unit of node ``number`` can be told from all others, and made without them."""
    return units.plannable(number) and not units.of(number).task_local


def identities(
    orders: EpochOrders, number: int, at: Positions, *, random: bool = False, repetition: int = 0
) -> Identities:
    """Compute the identities of units of a node.

    Args:
        orders: of the graph's shuffles, in the epoch.
        number: of the node, which is :func:`itemised`.
        at: its units, int64 of shape (n,).
        random: whether the output also depends on an element's place in the plan, because a random function's generator
            does: then so do identities.
        repetition: of a ``repeat`` above.
    """
    return _Walk(orders, random).of(number, at, repetition)


class _Walk:
    def __init__(self, orders: EpochOrders, random: bool) -> None:
        self.units, self.orders, self.random = orders.units, orders, random

    def of(self, number: int, at: Positions, repetition: int) -> Identities:
        node = self.units.graph.nodes[number]
        found = self._found(number, node, at, repetition)
        if self.random and isinstance(node, _PLACES):
            return _with(found, self.units.graph.keys[number], repetition, at)
        return found

    def _found(self, number: int, node: g.Node, at: Positions, repetition: int) -> Identities:
        if isinstance(node, g.Source):
            return _of_source(node, self.units.tables[number], self.units.starts.get(number), at)
        below = [self.units.graph.id_of(child) for child in node.inputs]
        match node:
            case g.Zip():
                return _together([self.of(child, at, repetition) for child in below])
            case g.Enumerate():
                return _with(self.of(below[0], at, repetition), at + node.start)
            case g.Batch() | g.PaddedBatch():
                rows = np.arange(min(node.batch_size, self.units.of(below[0]).count), dtype=np.int64)
                return self._of_groups(at[:, None] * node.batch_size + rows, below[0], repetition)
            case g.SlidingWindow():
                rows = np.arange(min(node.size, self.units.of(below[0]).count), dtype=np.int64) * node.stride
                return self._of_groups(at[:, None] * node.shift + rows, below[0], repetition)
            case g.Repeat() if not self.random and not self._shuffled(below[0]):
                return self.of(below[0], at % self.units.of(below[0]).count, repetition)
        found = np.empty((len(at), 2), np.uint64)
        for source in self.orders.inputs(number, at, repetition):
            part = self.of(source.node, source.at, source.repetition)
            # Inputs of several are made by operators of their own.
            found[source.chosen] = _with(part, source.which) if len(below) > 1 else part
        return found

    def _of_groups(self, rows: Positions, child: int, repetition: int) -> Identities:
        """Identify groups by the units of ``rows``, int64 of shape (groups, size), as far as there are these."""
        if not len(rows):  # of no elements below, of which ``rows`` would have no columns either
            return _nothing(0)
        count = self.units.of(child).count
        there = rows < count
        parts = self.of(child, np.minimum(rows, count - 1).ravel(), repetition).reshape(*rows.shape, 2)
        columns = [np.where(there[:, column, None], parts[:, column], 0) for column in range(rows.shape[1])]
        return _with(_together(columns), np.count_nonzero(there, axis=1))

    def _shuffled(self, number: int) -> bool:
        return any(
            isinstance(node, (g.Shuffle, g.Sample, g.Reservoir)) for node in Graph(self.units.graph.nodes[number]).nodes
        )


_PLACES = (
    g.Source,
    g.Zip,
    g.Concatenate,
    g.Repeat,
    *g.MIXING,
    g.Sample,
    g.Reservoir,
    g.Batch,
    g.PaddedBatch,
    g.SlidingWindow,
)
"""Nodes that define positions, after which random functions above them are keyed."""


def _of_source(node: g.Source, table: SplitTable, starts: Positions | None, at: Positions) -> Identities:
    """Identify data beyond a source's own parameters; those are in the fingerprint of the operators."""
    if isinstance(node, g.Range):
        return _with(_nothing(len(at)), at * node.step + node.start)
    if table.locations:
        files = ((table.names[index], table.sizes[index], table.stamps[index]) for index in at.tolist())
        return _named([f"{name}\0{size}\0{stamp}" for name, size, stamp in files])
    if not table.splits:
        return _with(_nothing(len(at)), at)
    which = at if starts is None else np.searchsorted(starts, at, side="right") - 1
    pieces, where = np.unique(which, return_inverse=True)
    splits = [table.splits[index] for index in pieces.tolist()]
    first = "" if not isinstance(node, FromCSV) or node.is_typed else _beginning(table)
    names = [f"{split.location}\0{split.version}\0{split.start}\0{split.stop}{first}" for split in splits]
    found = _named(names)[where]
    return found if starts is None else _with(found, at - starts[which])


def _beginning(table: SplitTable) -> str:
    """Name what the columns and types of all CSV files of a listing follow from: its first rows, wherever they are."""
    names = list[str]()
    for split in table.splits[:_FIRST_SPLITS]:
        names.append(f"\0{split.location}\0{split.version}")
        if split.bytes >= _SURELY_ROWS_BYTES:
            break
    return "".join(names)


def _named(names: list[str]) -> Identities:
    digests = b"".join(
        hashlib.blake2b(name.encode(errors="surrogateescape"), digest_size=16).digest() for name in names
    )
    return np.frombuffer(digests, "<u8").reshape(-1, 2)


def _nothing(count: int) -> Identities:
    return np.zeros((count, 2), np.uint64)


def _with(found: Identities, *numbers: int | Positions) -> Identities:
    """Hash identities and numbers, of each the same or one for each."""
    for number in numbers:
        column = np.asarray(number).astype(np.uint64)
        found = _mixed(found ^ mix_array(np.broadcast_to(column, len(found))[:, None] + _LANES))
    return found


def _together(parts: list[Identities]) -> Identities:
    """Hash several identities in order."""
    found = _nothing(len(parts[0]))
    for part in parts:
        found = _mixed(found ^ part)
    return found


def _mixed(found: Identities) -> Identities:
    return mix_array(found + _LANES)


def joined(found: Identities, stops: Positions) -> Identities:
    """Combine the identities of each run of consecutive units: the first ends before unit ``stops[0]``, and so on.

    Args:
        found: of the units, none of the runs empty.
        stops: int64 of shape (m,), ascending; the last is the number of units.
    """
    starts = np.concatenate([[0], stops[:-1]])
    within = np.arange(len(found)) - np.repeat(starts, stops - starts)
    return _with(np.add.reduceat(_with(found, within), starts), stops - starts)


def item_keys(fingerprint: bytes, found: Identities) -> npt.NDArray[np.uint8]:
    """Hash a point's fingerprint (16 bytes) and identities to item keys, uint8 of shape (n, 16)."""
    keys = _mixed(_mixed(found) ^ np.frombuffer(fingerprint, "<u8"))
    return np.ascontiguousarray(keys).astype("<u8").view(np.uint8).reshape(-1, 16)
