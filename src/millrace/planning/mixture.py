"""Which input each element of a random mixture comes from.

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

Seed = int | np.random.SeedSequence


def seed_from(generator: np.random.Generator) -> int:
    """A seed of 128 bits for :func:`choices` and :func:`uniforms`, drawn from ``generator``."""
    return int.from_bytes(generator.bytes(16), "little")


def uniforms(seed: Seed, block: int) -> npt.NDArray[np.float64]:
    """The ``BLOCK`` uniform numbers in [0, 1) of block number ``block``."""
    sequence = seed if isinstance(seed, np.random.SeedSequence) else np.random.SeedSequence(seed)
    key = sequence.generate_state(2, np.uint64)
    # Raw words, as numpy promises the same ones for ever, of Philox but not of Generator.
    words = np.random.Philox(key=key, counter=np.array([0, 0, block, 0], dtype=np.uint64)).random_raw(BLOCK)
    return (words >> np.uint64(11)).astype(np.float64) * np.float64(2.0**-53)


def choose(
    draws: npt.NDArray[np.float64], weights: npt.NDArray[np.float64], alive: npt.NDArray[np.bool_]
) -> npt.NDArray[np.int64]:
    """For each uniform number of ``draws`` one of the inputs that are ``alive``, in proportion to ``weights``."""
    edges = np.cumsum(np.where(alive, weights, 0.0))
    picked = np.searchsorted(edges, draws * edges[-1], side="right")
    # Rounding may carry a draw to the last edge, beyond which there is nothing.
    return np.asarray(np.minimum(picked, np.flatnonzero(alive)[-1]), dtype=np.int64)


def check_weights(weights: Sequence[float]) -> npt.NDArray[np.float64]:
    """``weights`` as float64.

    Raises:
        ValueError: unless they are finite, none negative and one positive.
    """
    array = np.asarray(weights, dtype=np.float64)
    if array.ndim != 1 or not np.isfinite(array).all() or (array < 0).any() or not (array > 0).any():
        raise ValueError(f"weights must be finite, none negative and at least one positive, not {list(weights)}")
    return array


@dataclass(slots=True)
class _Block:
    """What one block of draws yields: for each element its input and the position within that input."""

    which: npt.NDArray[np.int64]
    index: npt.NDArray[np.int64]
    used: npt.NDArray[np.int64]
    alive: npt.NDArray[np.bool_]
    ended: bool


class Mixture:
    """A mixture of inputs of known length. Made by :func:`choices`.

    Attributes:
        total: its number of elements.
    """

    def __init__(self, seed: Seed, weights: Sequence[float], counts: Sequence[int], stop_on_empty: bool) -> None:
        self._seed = seed
        self._weights = check_weights(weights)
        self._counts = np.asarray(counts, dtype=np.int64)
        if self._counts.shape != self._weights.shape or (self._counts < 0).any():
            raise ValueError(f"a count >= 0 is needed for each of {len(weights)} weights, not {list(counts)}")
        self._stop_on_empty = stop_on_empty
        self._last: tuple[int, _Block] | None = None
        used = np.zeros(len(self._counts), dtype=np.int64)
        alive = self._weights > 0
        starts, used_at, alive_at, total = [], [], [], 0
        ended = False
        while not ended:
            starts.append(total)
            used_at.append(used)
            alive_at.append(alive)
            if np.count_nonzero(alive) == 1:  # from here on no draw matters, so that no block is needed
                only = int(np.flatnonzero(alive)[0])
                total += int(self._counts[only] - used[only])
                break
            block = self._draw(len(starts) - 1, used, alive)
            total += len(block.which)
            used, alive, ended = block.used, block.alive, block.ended
        self.total = total
        self._starts = np.array(starts, dtype=np.int64)
        self._used_at = np.stack(used_at)
        self._alive_at = np.stack(alive_at)

    def resolve(self, positions: npt.ArrayLike) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """For each of ``positions`` (int64, any order) the input's number and the position within that input.

        Raises:
            IndexError: if a position is negative or not below :attr:`total`.
        """
        wanted = np.asarray(positions, dtype=np.int64)
        if not len(wanted):
            return wanted, wanted.copy()
        if wanted.min() < 0 or wanted.max() >= self.total:
            raise IndexError(f"positions of this mixture are below {self.total}, not {wanted.min()} to {wanted.max()}")
        which = np.empty(len(wanted), dtype=np.int64)
        index = np.empty(len(wanted), dtype=np.int64)
        blocks = np.searchsorted(self._starts, wanted, side="right") - 1
        order = np.argsort(blocks, kind="stable")
        numbers, firsts = np.unique(blocks[order], return_index=True)
        for number, members in zip(numbers.tolist(), np.split(order, firsts[1:]), strict=True):
            within = wanted[members] - self._starts[number]
            alive = self._alive_at[number]
            if np.count_nonzero(alive) == 1:
                only = int(np.flatnonzero(alive)[0])
                which[members] = only
                index[members] = self._used_at[number, only] + within
            else:
                block = self._block(number)
                which[members] = block.which[within]
                index[members] = block.index[within]
        return which, index

    def _block(self, number: int) -> _Block:
        # The last one is kept: tasks ask for consecutive positions in many small steps.
        last = self._last
        if last is None or last[0] != number:
            last = (number, self._draw(number, self._used_at[number], self._alive_at[number]))
            self._last = last
        return last[1]

    def _draw(self, number: int, used: npt.NDArray[np.int64], alive: npt.NDArray[np.bool_]) -> _Block:
        draws = uniforms(self._seed, number)
        used, alive, ended = used.copy(), alive.copy(), False
        whiches, indices = [], []
        while len(draws) and not ended:
            which = choose(draws, self._weights, alive)
            index = used[which] + _ranks(which, len(used))
            over = index >= self._counts[which]
            end = int(np.argmax(over)) if over.any() else len(draws)
            whiches.append(which[:end])
            indices.append(index[:end])
            used += np.bincount(which[:end], minlength=len(used))
            if end < len(draws):
                alive[which[end]] = False
                ended = self._stop_on_empty or not alive.any()
            draws = draws[end + 1 :]
        return _Block(np.concatenate(whiches), np.concatenate(indices), used, alive, ended)


def choices(seed: Seed, weights: Sequence[float], counts: Sequence[int], stop_on_empty: bool = False) -> Mixture:
    """The mixture of inputs of ``counts`` elements, each element drawn from input i in proportion to ``weights[i]``.

    Args:
        seed: the same seed gives the same mixture, on any machine and numpy.
        weights: not negative; an input of weight 0 is never drawn.
        counts: number of elements of each input.
        stop_on_empty: end at the first draw of an exhausted input; else go on with the others until all are exhausted.

    Returns:
        A :class:`Mixture`; it holds ``8 + 9 * len(counts)`` bytes for each 65536 draws.

    Raises:
        ValueError: if weights or counts make no sense.
    """
    return Mixture(seed, weights, counts, stop_on_empty)


def _ranks(values: npt.NDArray[np.int64], kinds: int) -> npt.NDArray[np.int64]:
    """For each value, how many equal ones stand before it."""
    narrow = values.astype(np.uint16) if kinds <= 2**16 else values  # 16 bits are sorted by radix, in linear time
    order = np.argsort(narrow, kind="stable")
    counts = np.bincount(values, minlength=kinds)
    ranks = np.empty(len(values), dtype=np.int64)
    ranks[order] = np.arange(len(values)) - np.repeat(np.cumsum(counts) - counts, counts)
    return ranks
