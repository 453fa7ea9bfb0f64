"""Mixtures: which input each element of a random mixture comes from.

The sequence is a function of (seed, weights, counts) alone and can be asked for at any position, so that a mixture of
inputs of known length is cut into tasks like any other data. Uniform numbers come in blocks from a counter-based
generator; only how far each input was read at the start of each block is kept, and a block is computed again when
somebody asks for a position in it.

An input is found to be exhausted when a draw selects it and nothing is left, as a streaming mixture finds out. That
draw yields nothing: it ends the mixture, or, if it goes on with the others, all later draws are among those.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

BLOCK = 65536
"""Draws per block."""

ENDLESS = 1 << 62
"""Count of an input that never ends, and of a mixture that doesn't."""

Seed = int | np.random.SeedSequence


def seed_from(generator: np.random.Generator) -> int:
    """Draw a seed of 128 bits for :class:`Mixture` and :func:`uniforms` from ``generator``."""
    return int.from_bytes(generator.bytes(16), "little")


def uniforms(seed: Seed, block: int) -> npt.NDArray[np.float64]:
    """Compute the ``BLOCK`` uniform numbers in [0, 1) of block number ``block``."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    key = sequence.generate_state(2, np.uint64)
    # Raw words, as numpy promises the same ones for ever, of Philox but not of Generator.
    words = np.random.Philox(key=key, counter=np.array([0, 0, block, 0], dtype=np.uint64)).random_raw(BLOCK)
    return (words >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def choose(
    draws: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], alive: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """Choose for each uniform number of ``draws`` one of the ``alive`` inputs, in proportion to ``weights``."""
    edges = np.cumsum(np.where(alive, weights, 0.0))
    picked = np.searchsorted(edges, draws * edges[-1], side="right")
    # Rounding may carry a draw to the last edge, beyond which there is nothing.
    return np.asarray(np.minimum(picked, np.flatnonzero(alive)[-1]), dtype=np.int64)


def check_weights(weights: Sequence[float]) -> npt.NDArray[np.float64]:
    """Check ``weights`` and convert them to float64.

    Raises:
        ValueError: unless they are finite, none negative and one positive.
    """
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < 0).any() or not (array > 0).any():
        raise ValueError(f"weights must be finite, none negative and at least one positive, not {list(weights)}")
    return array


@dataclass(frozen=True, slots=True)
class _Block:
    """Elements of one block of draws: the input of each and the position within it; and the state after."""

    which: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]
    alive: npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class _Drawn:
    """State at the start of each block drawn so far and, last, of the one after them.

    Attributes:
        starts: number of elements before the block, int64.
        used: how many of them came from each input, int64, shape (blocks + 1, inputs).
        alive: which inputs are drawn from, bool, likewise. If at most one is left, no block follows: its elements do.
    """

    starts: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]
    alive: npt.NDArray[np.bool_]


class WeightSchedule:
    """Weights that change with the number of elements that were drawn before.

    Args:
        phases: each set of weights, with the number of the element from which on it holds, from 0 on, ascending.

    Attributes:
        weights: float64 of shape (phases, inputs).
        last: number of the element from which on the last ones hold.
        varied: whether some of them draw inputs that others don't.

    Raises:
        ValueError: a set of weights makes no sense.
    """

    def __init__(self, phases: Sequence[tuple[int, Sequence[float]]]) -> None:
        self.weights = np.array([check_weights(weights) for _, weights in phases])
        self._begins = np.array([begin for begin, _ in phases], np.int64)
        self.last = int(self._begins[-1])
        self.varied = bool(((self.weights > 0) != (self.weights[0] > 0)).any())

    def at(self, element: int, alive: npt.NDArray[np.bool_]) -> tuple[npt.NDArray[np.float64], int]:
        """Find the weights that hold from an element on, and for how many elements at most.

        Where they leave no input that has elements left, the next ones hold at once. Inputs that neither these nor
        later ones draw are taken out of ``alive``.
        """
        if len(self._begins) == 1:
            return self.weights[0], BLOCK
        phase = int(np.searchsorted(self._begins, element, side="right")) - 1
        alive &= (self.weights[phase:] > 0).any(0)
        while alive.any() and not (self.weights[phase] > 0)[alive].any():
            phase += 1
        after = int(self._begins[phase + 1]) if phase + 1 < len(self._begins) else ENDLESS
        return self.weights[phase], min(after - element, BLOCK)


class Mixture:
    """Mixture of inputs of known length; it holds ``8 + 9 * len(counts)`` bytes for each 65536 draws.

    Args:
        seed: the same seed gives the same mixture, on any machine and numpy.
        weights: inputs are drawn in proportion to them; not negative, and one of weight 0 is never drawn.
        counts: number of elements of each input, ``ENDLESS`` or more if it never ends.
        stop_on_empty: end at the first draw of an exhausted input; else go on with the others until all are exhausted.
        passes: of inputs that begin again, the elements of one pass of each: the mixture ends where all have been
            found at the end of a pass. ``counts`` are then those without end.
        changes: other weights, and the number of the element from which on they hold; ascending, of equal ones the
            last counts; see :class:`WeightSchedule`.

    Attributes:
        total: its number of elements; ``ENDLESS`` if it never ends.

    Raises:
        ValueError: if weights or counts make no sense.
    """

    def __init__(
        self,
        seed: Seed,
        weights: Sequence[float],
        counts: Sequence[int],
        stop_on_empty: bool = False,
        passes: Sequence[int] | None = None,
        changes: Sequence[tuple[int, Sequence[float]]] = (),
    ) -> None:
        self._seed = seed
        self._schedule = WeightSchedule([(0, weights), *changes])
        self._counts = np.array([min(count, ENDLESS) for count in counts], dtype=np.int64)
        if self._counts.shape != self._schedule.weights[0].shape or (self._counts < 0).any():
            raise ValueError(f"a count >= 0 is needed for each of {len(weights)} weights, not {list(counts)}")
        self._stop_on_empty = stop_on_empty
        self._passes = None if passes is None else np.array([min(each, ENDLESS) for each in passes], np.int64)
        self._phases = [(0, weights), *changes]
        self._last: tuple[int, _Block] | None = None
        alive: npt.NDArray[np.bool_] = np.any(self._schedule.weights > 0, axis=0)
        self._drawn = _Drawn(np.zeros(1, np.int64), np.zeros((1, len(alive)), np.int64), alive[None])
        self.total = self._total(alive)

    def changed(self, *changes: tuple[int, Sequence[float]]) -> Mixture:
        """Make the mixture that is this one up to an element, and has other weights from there on.

        What was drawn of this one before that element is not drawn again, unless weights leave inputs out. Weights that
        hold from the same element on are replaced; from element 0 on, those that the mixture was made with.

        Args:
            changes: the number of the element from which on weights hold, and these, one for each input; ascending, and
                not before earlier changes.

        Raises:
            ValueError: if the weights make no sense.
        """
        phases, element = [*self._phases], changes[0][0]
        for change in changes:
            while phases and phases[-1][0] >= change[0]:
                phases.pop()
            phases.append(change)
        (_, first), *after = phases
        passes = None if self._passes is None else self._passes.tolist()
        other = Mixture(self._seed, first, self._counts.tolist(), self._stop_on_empty, passes, after)
        drawn = self._drawn
        if element > 0 and not (self._schedule.varied or other._schedule.varied):
            kept = max(1, int(np.searchsorted(drawn.starts, element)))
            other._drawn = _Drawn(drawn.starts[:kept], drawn.used[:kept], drawn.alive[:kept])
        return other

    def _total(self, alive: npt.NDArray[np.bool_]) -> int:
        lengths = self._counts if self._passes is None else self._passes
        if not self._schedule.varied:
            drawn_from: list[int] = lengths[alive].tolist()
            if self._passes is not None:
                if max(drawn_from) >= ENDLESS:
                    return ENDLESS
            elif not self._stop_on_empty:
                return min(sum(drawn_from), ENDLESS)
            if len(drawn_from) == 1 or min(drawn_from) >= ENDLESS:
                return min(*drawn_from, ENDLESS)
        ends = self._ends(lengths)
        if not ends and (not self._stop_on_empty or lengths[alive].min() >= ENDLESS):
            return ENDLESS  # nothing ends it before the last weights
        drawn = self._draw_until(ENDLESS if ends else self._schedule.last)
        left = drawn.alive[-1]
        if np.count_nonzero(left) > 1:
            return ENDLESS
        more = max(0, int((lengths[left] - drawn.used[-1][left]).sum()))
        return min(int(drawn.starts[-1]) + more, ENDLESS)

    def _ends(self, lengths: npt.NDArray[np.int64]) -> bool:
        """Whether the mixture ends with the last weights, however far it has come before these."""
        last = lengths[self._schedule.weights[-1] > 0]
        if self._passes is None and self._stop_on_empty:
            return bool(last.min() < ENDLESS)
        return bool(last.max() < ENDLESS)

    def resolve(self, positions: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Find for each of ``positions`` (int64, any order) the input's number and the position within that input.

        The first to ask for a position draws all blocks up to it, some 40 million elements a second.

        Raises:
            IndexError: if a position is negative or not below :attr:`total`.
        """
        wanted = np.asarray(positions, dtype=np.int64)
        if not len(wanted):
            return wanted, wanted.copy()
        if wanted.min() < 0 or wanted.max() >= self.total:
            raise IndexError(f"positions of this mixture are below {self.total}, not {wanted.min()} to {wanted.max()}")
        drawn = self._draw_until(int(wanted.max()))
        which = np.empty(len(wanted), dtype=np.int64)
        index = np.empty(len(wanted), dtype=np.int64)
        blocks = np.searchsorted(drawn.starts, wanted, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        numbers, firsts = np.unique(blocks[order], return_index=True)
        for number, members in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            within = wanted[members] - drawn.starts[number]
            if number == len(drawn.starts) - 1:
                only = int(np.flatnonzero(drawn.alive[number])[0])
                which[members] = only
                index[members] = drawn.used[number, only] + within
            else:
                block = self._block(number, drawn)
                which[members] = block.which[within]
                index[members] = block.index[within]
        return which, index

    def _draw_until(self, position: int) -> _Drawn:
        """Draw blocks until ``position`` is in one of them, or only one input is left or none."""
        drawn = self._drawn
        starts, used, alive = [drawn.starts[-1]], [drawn.used[-1]], [drawn.alive[-1]]
        while starts[-1] <= position and self._draws_on(int(starts[-1]), alive[-1]):
            block = self._draw(len(drawn.starts) + len(starts) - 2, used[-1], alive[-1])
            starts.append(starts[-1] + len(block.which))
            used.append(block.used)
            alive.append(block.alive)
        if len(starts) > 1:
            # Replaced as a whole: of two threads that draw at once either result is right.
            drawn = self._drawn = _Drawn(
                np.append(drawn.starts, starts[1:]),
                np.concatenate([drawn.used, used[1:]]),
                np.concatenate([drawn.alive, alive[1:]]),
            )
        return drawn

    def _draws_on(self, element: int, alive: npt.NDArray[np.bool_]) -> bool:
        """Whether it takes draws to tell which inputs the elements from this one on come from."""
        left = int(np.count_nonzero(alive))
        return left > 1 or (left == 1 and self._schedule.varied and element < self._schedule.last)

    def _block(self, number: int, drawn: _Drawn) -> _Block:
        # The last one is kept: tasks ask for consecutive positions in many small steps.
        last = self._last
        if last is None or last[0] != number:
            last = (number, self._draw(number, drawn.used[number], drawn.alive[number]))
            self._last = last
        return last[1]

    def _draw(self, number: int, used: npt.NDArray[np.int64], alive: npt.NDArray[np.bool_]) -> _Block:
        draws = uniforms(self._seed, number)
        used, alive = used.copy(), alive.copy()
        whiches, indices = [], []
        while len(draws) and alive.any():
            weights, room = self._schedule.at(int(used.sum()), alive)
            if not alive.any():
                break
            which = choose(draws[:room], weights, alive)
            index = used[which] + _ranks(which, len(used))
            over = index >= self._counts[which]
            end = int(np.argmax(over)) if over.any() else len(which)
            stop = self._stop(which[:end], index[:end], alive, used)
            whiches.append(which[:stop])
            indices.append(index[:stop])
            used += np.bincount(which[:stop], minlength=len(used))
            if stop < end:
                alive[:] = False
            elif end < len(which):
                alive[slice(None) if self._stop_on_empty else which[end]] = False
                if self._passes is not None and (used[alive] > self._passes[alive]).all():
                    alive[:] = False
            draws = draws[end + (end < len(which)) :]
        self._schedule.at(int(used.sum()), alive)
        empty = np.empty(0, np.int64)
        return _Block(np.concatenate([empty, *whiches]), np.concatenate([empty, *indices]), used, alive)

    def _stop(
        self,
        which: npt.NDArray[np.int64],
        index: npt.NDArray[np.int64],
        alive: npt.NDArray[np.bool_],
        used: npt.NDArray[np.int64],
    ) -> int:
        """Find the draw at which the last of the inputs that begin again is at the end of a pass; else count all."""
        if self._passes is None:
            return len(which)
        ended = used > self._passes
        stop = 0
        for number in np.flatnonzero(alive & ~ended).tolist():
            found = np.flatnonzero((which == number) & (index == self._passes[number]))
            if not len(found):
                return len(which)
            stop = max(stop, int(found[0]))
        return stop


def _ranks(values: npt.NDArray[np.int64], kinds: int) -> npt.NDArray[np.int64]:
    """Count for each value the equal ones before it."""
    narrow = values.astype(np.uint16) if kinds <= 2**16 else values  # 16 bits are sorted by radix, in linear time
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(values, minlength=kinds)
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks
