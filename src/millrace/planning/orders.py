"""Orders: which unit of its input a shuffle takes at each position, computed from a key and not stored.

An order is either a permutation of all units or one of blocks of units, behind which a window mixes what lies near.
:class:`EpochOrders` chooses those of a graph's shuffles, and converts a node's units to those of its inputs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from millrace.graph import nodes as g
from millrace.planning.chunks import ChunkMembers, shuffle_in_chunks
from millrace.planning.drawn_order import DrawnOrder
from millrace.planning.epoch_shape import WeightChange
from millrace.planning.node_mixtures import InputSequence
from millrace.planning.random_keys import derive, mix, mix_array, repetition_of
from millrace.planning.sampler_orders import Draw
from millrace.planning.shard_chunks import shard_chunks
from millrace.planning.unit_boundaries import boundaries, fences
from millrace.planning.units import INFINITE, Positions, UnitMap

_ROUNDS = 6
_SMALL = 1024


class Order(Protocol):
    """Order in which the units of an input are taken, as a function from positions to units.

    Attributes:
        windowed: whether it orders blocks only, so that elements are to be mixed within a window behind it.
    """

    windowed: bool

    def at(self, positions: Positions) -> Positions:
        """Units at these positions, int64 of the same shape; any positions in any sequence."""
        ...

    def stretches(self, positions: Positions) -> Iterator[Positions]:
        """Units at these positions, an array for each part of the input that is best read in one go."""
        ...


class FullPermutation:
    """Permutation of ``range(count)`` that a key chooses, at no memory and about 0.2 µs a position.

    It is a balanced Feistel network over the smallest even number of bits that covers the domain, with cycle walking
    for what falls outside (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002). Small domains, over which
    such a network reaches too few permutations and walks too far, are sorted by a hash instead.

    Args:
        count: size of the domain, below 2**62.
        key: 64-bit number.
    """

    windowed = False

    def __init__(self, count: int, key: int) -> None:
        self._count = count
        self._sorted: Positions | None = None
        if count <= _SMALL:
            self._sorted = np.argsort(_block_hashes(count, key), kind="stable")
            return
        half = ((count - 1).bit_length() + 1) // 2
        self._bits, self._mask = np.uint64(half), np.uint64((1 << half) - 1)
        self._keys = [np.uint64(mix(key + number)) for number in range(_ROUNDS)]

    def at(self, positions: Positions) -> Positions:
        """Units at these positions, each in [0, count)."""
        if self._sorted is not None:
            return self._sorted[positions]
        out = self._encrypt(positions.astype(np.uint64))
        outside = np.flatnonzero(out >= np.uint64(self._count))
        while outside.size:
            walked = self._encrypt(out[outside])
            out[outside] = walked
            outside = outside[walked >= np.uint64(self._count)]
        return out.astype(np.int64)

    def stretches(self, positions: Positions) -> Iterator[Positions]:
        """Units at these positions; any unit costs the same, so that they are read in one go."""
        yield self.at(positions)

    def _encrypt(self, values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
        left, right = values >> self._bits, values & self._mask
        for key in self._keys:
            left, right = right, left ^ (mix_array(right ^ key) & self._mask)
        return (left << self._bits) | right


class ChunkedPermutation:
    """Order of the chunks of ``range(count)``, one after the other, each permuted as a key chooses.

    Args:
        count: size of the domain.
        key: 64-bit number.
        chunks: number of chunks, at most ``count``.
    """

    windowed = False

    def __init__(self, count: int, key: int, chunks: int) -> None:
        self._members, self._key = ChunkMembers(count, chunks), key
        self._orders: dict[int, FullPermutation] = {}

    def at(self, positions: Positions) -> Positions:
        """Units at these positions, each in [0, count)."""
        bounds, found = self._members.bounds, np.empty_like(positions)
        which = np.searchsorted(bounds, positions, side="right") - 1
        for chunk in np.unique(which).tolist():
            chosen = np.flatnonzero(which == chunk)
            if chunk not in self._orders:
                size = int(bounds[chunk + 1] - bounds[chunk])
                self._orders[chunk] = FullPermutation(size, derive(self._key, chunk))
            found[chosen] = self._members.units(chunk, self._orders[chunk].at(positions[chosen] - bounds[chunk]))
        return found

    def stretches(self, positions: Positions) -> Iterator[Positions]:
        """Units at these positions; any unit costs the same, so that they are read in one go."""
        yield self.at(positions)


class BlockOrder:
    """Order of blocks of units that a key chooses; within a block units follow one another.

    Args:
        bounds: first unit of each block, and one past the last unit, ascending.
        key: 64-bit number.
        groups: numbers of each block, the most significant last; blocks are ordered by these, and at random within.
    """

    windowed = True

    def __init__(self, bounds: Positions, key: int, groups: Sequence[Positions] = ()) -> None:
        order = np.lexsort((_block_hashes(len(bounds) - 1, key), *groups))
        begins, stops = bounds[:-1][order], bounds[1:][order]
        self._ends = np.cumsum(stops - begins)
        self._shifts = stops - self._ends

    def at(self, positions: Positions) -> Positions:
        """Units at these positions."""
        return positions + self._shifts[self._blocks(positions)]

    def stretches(self, positions: Positions) -> Iterator[Positions]:
        """Units at these positions, an array for each block."""
        blocks = self._blocks(positions)
        units = positions + self._shifts[blocks]
        for start, stop in runs(blocks):
            yield units[start:stop]

    def _blocks(self, positions: Positions) -> Positions:
        return np.searchsorted(self._ends, positions, side="right")


def runs(labels: Positions) -> Iterator[tuple[int, int]]:
    """Find each run of equal labels as (start, stop)."""
    if len(labels):
        yield from pairwise([0, *(np.flatnonzero(labels[1:] != labels[:-1]) + 1).tolist(), len(labels)])


def _block_hashes(count: int, key: int) -> npt.NDArray[np.uint64]:
    return mix_array(np.arange(count, dtype=np.uint64) + np.uint64(mix(key)))


class InputUnits(NamedTuple):
    """Units of one input that are the same elements as some units of a node.

    Attributes:
        which: number of the input among the node's.
        node: the input's node id.
        chosen: which of the node's units they are, as an index into these.
        at: the input's units.
        repetition: of the input.
    """

    which: int
    node: int
    chosen: Positions | slice
    at: Positions
    repetition: int


class EpochOrders:
    """Orders of all shuffles of a graph in one epoch.

    Args:
        units: of the graph.
        seed: the job's.
        epoch: number of the epoch.
        chunks: as in the epoch's shape, see :class:`~millrace.planning.epoch_shape.RunShape`.
        reweighted: likewise.

    Attributes:
        drawn: hashes of what users' own samplers have drawn for these orders, by sampler, repetition and epoch; as
            given, if it was.
    """

    def __init__(
        self,
        units: UnitMap,
        seed: int,
        epoch: int,
        chunks: int = 0,
        drawn: dict[str, str] | None = None,
        reweighted: Sequence[WeightChange] = (),
    ) -> None:
        self.units, self.seed, self.epoch, self.chunks = units, seed, epoch, chunks
        self._reweighted = reweighted
        self.drawn: dict[str, str] = {} if drawn is None else drawn
        self._sampled_orders: dict[tuple[int, int], Order] = {}
        self._in_chunks = shuffle_in_chunks(units) if chunks else None

    def key(self, number: int, repetition: int) -> int:
        """Key of the order of shuffle ``number``; the same in every epoch and repetition unless it reshuffles."""
        node = self._shuffle(number)
        seed, key = self.seed if node.seed is None else node.seed, self.units.graph.keys[number]
        return derive(seed, key, self.epoch, repetition) if node.reshuffle_each_iteration else derive(seed, key)

    def of(self, number: int, repetition: int) -> Order:
        """Choose the order of ``number``, a shuffle: of all units if any sequence costs the same, else of blocks.

        That of a ``sample`` is what its sampler says, that of a ``reservoir`` always one of all units.

        Blocks stay within their repetition, and within their part of a concatenation, if operators below collect
        elements there: what is collected in one must not be torn apart by another.
        """
        if isinstance(self.units.graph.nodes[number], g.Sample):
            return self._sampled(number, repetition)
        if isinstance(self.units.graph.nodes[number], g.Reservoir):
            return self.of_reservoir(number, repetition, self.units.of(number).count)
        units, key = self.units, self.key(number, repetition)
        child = units.graph.id_of(self._shuffle(number).inputs[0])
        below = units.of(child)
        if units.permutes(number):
            in_chunks = number == self._in_chunks
            return ChunkedPermutation(below.count, key, self.chunks) if in_chunks else FullPermutation(below.count, key)
        if below.count >= INFINITE:
            return BlockOrder(np.array([0, INFINITE]), key)
        bounds = boundaries(units, child)
        if number == self._in_chunks:
            return BlockOrder(bounds, key, (self._chunks_of_blocks(bounds),))
        turns, within = np.divmod(bounds[:-1], below.period)
        return BlockOrder(bounds, key, (np.searchsorted(fences(units, child), within, side="right"), turns))

    def mixture(self, number: int) -> InputSequence:
        """Sequence in which node ``number``, a mixture, has the elements of its inputs."""
        changes = tuple((each.element, each.weights) for each in self._reweighted if each.node == number)
        return self.units.mixtures[number].of_epoch(self.epoch, changes)

    def reservoir_key(self, number: int, repetition: int) -> int:
        """Derive the key of the random choices of ``number``, a reservoir."""
        node = self.units.graph.nodes[number]
        assert isinstance(node, g.Reservoir), f"{node} has no order of this kind"
        return derive(
            self.seed if node.seed is None else node.seed, self.units.graph.keys[number], self.epoch, repetition
        )

    def of_reservoir(self, number: int, repetition: int, count: int) -> Order:
        """Order of ``count`` elements that ``number``, a reservoir, brings them into."""
        node, key = self.units.graph.nodes[number], self.reservoir_key(number, repetition)
        assert isinstance(node, g.Reservoir), f"{node} has no order of this kind"
        return DrawnOrder(count, key) if node.with_replacement else FullPermutation(count, key)

    def _sampled(self, number: int, repetition: int) -> Order:
        node = self.units.graph.nodes[number]
        assert isinstance(node, g.Sample), f"{node} draws nothing"
        seed = self.seed if node.seed is None else node.seed
        key = derive(seed, self.units.graph.keys[number], repetition) >> 1
        size = self.units.of(self.units.graph.id_of(node.inputs[0])).count
        if (number, repetition) in self._sampled_orders:
            return self._sampled_orders[number, repetition]
        draw = Draw(number, size, self.units.of(number).count, key, self.epoch)
        order, drawn = self.units.draws.order(node, draw)
        if drawn is not None:
            self.drawn[f"{derive(key, self.epoch):016x}"] = drawn
        self._sampled_orders[number, repetition] = order
        return order

    def _chunks_of_blocks(self, bounds: Positions) -> Positions:
        """Find the chunk of each block of the only source, which are splits with all that lies in these."""
        ((source, _),) = self.units.graph.sources()
        groups, starts = self.units.summaries[source].groups, self.units.starts.get(source)
        assert groups is not None
        splits = bounds[:-1] if starts is None else np.searchsorted(starts, bounds[:-1], side="right") - 1
        return shard_chunks(groups, self.chunks).of_splits(len(self.units.tables[source].splits))[splits]

    def _shuffle(self, number: int) -> g.Shuffle:
        node = self.units.graph.nodes[number]
        assert isinstance(node, g.Shuffle), f"{node} has no order"
        return node

    def inputs(self, number: int, at: Positions, repetition: int) -> Iterator[InputUnits]:
        """Find the units of inputs that units of a node are, where a unit of it is one of one of its inputs.

        Args:
            number: of the node: no source, nor one that joins elements.
            at: its units, int64.
            repetition: of a ``repeat`` above.
        """
        units, node = self.units, self.units.graph.nodes[number]
        below = [units.graph.id_of(child) for child in node.inputs]
        match node:
            case g.Concatenate():
                starts = units.firsts(below)
                which = np.searchsorted(starts, at, side="right") - 1
                at = at - starts[which]
            case g.SampleFromDatasets() | g.ChooseFromDatasets():
                which, at = self.mixture(number).resolve(at)
            case g.Repeat():
                turns, at = np.divmod(at, units.of(below[0]).count)
                for turn in np.unique(turns).tolist():
                    chosen = np.flatnonzero(turns == turn)
                    yield InputUnits(0, below[0], chosen, at[chosen], repetition_of(repetition, turn))
                return
            case _:
                yield InputUnits(0, below[0], slice(None), self._moved(number, node, at, repetition), repetition)
                return
        for index in np.unique(which).tolist():
            chosen = np.flatnonzero(which == index)
            yield InputUnits(index, below[index], chosen, at[chosen], repetition)

    def _moved(self, number: int, node: g.Node, at: Positions, repetition: int) -> Positions:
        match node:
            case g.Skip():
                return at + node.count
            case g.Shard():
                return at * node.num_shards + node.index
            case g.Shuffle() | g.Sample() | g.Reservoir():
                return self.of(number, repetition).at(at)
        return at
