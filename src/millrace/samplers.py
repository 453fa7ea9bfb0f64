"""Samplers for :meth:`millrace.Dataset.sample`: which elements an epoch has, how often, and in which order.

Each is arithmetic on hashes of a seed, the epoch and the number of the draw, so that any process computes any part of
an epoch's draws without the others. One's own needs ``positions`` alone, see :class:`Sampler`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError
from millrace.planning.orders import FullPermutation
from millrace.planning.random_keys import derive, mix_array
from millrace.planning.sampler_orders import ComputedSampler, Positions, Sampler
from millrace.whole_numbers import whole

__all__ = ["ClassBalanced", "Curriculum", "Sampler", "Shuffled", "Weighted", "Windowed", "WithReplacement"]

_TO_UNIT = 2.0**-53


class Shuffled(ComputedSampler):
    """Permutation of all elements, anew in each epoch; with more draws than elements, another one after it."""

    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws, see :meth:`ComputedSampler.at`."""
        return _permuted(draws, size, derive(seed, epoch))


class WithReplacement(ComputedSampler):
    """Draws from all elements, each as likely at each draw, whatever was drawn before (OneAccess, section 5)."""

    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws, see :meth:`ComputedSampler.at`."""
        return (_hashes(draws, derive(seed, epoch)) % np.uint64(size)).astype(np.int64)


class Weighted(ComputedSampler):
    """Draws with replacement, an element as likely as its weight says.

    Args:
        weights: of all elements, by position; none negative, not all of them zero.
        num_samples: draws of an epoch; None: as many as there are elements.

    Raises:
        PipelineError: these are no weights.
    """

    def __init__(self, weights: Sequence[float] | npt.NDArray[np.floating], num_samples: int | None = None) -> None:
        super().__init__(num_samples)
        given = np.asarray(weights, np.float64)
        if given.ndim != 1 or not np.isfinite(given).all() or (given < 0).any() or not given.sum() > 0:
            raise PipelineError(
                "Weighted: weights must be one number for each element, none negative, and some above 0"
            )
        self._last = int(np.flatnonzero(given)[-1])
        self._cumulated = np.cumsum(given)
        self._each = "weights", len(given)
        self.contents += " " + _hash(self._cumulated)

    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws, see :meth:`ComputedSampler.at`."""
        drawn = _uniform(draws, derive(seed, epoch)) * self._cumulated[-1]
        found: Positions = np.searchsorted(self._cumulated, drawn, side="right")
        return np.minimum(found, self._last)  # the product may have been rounded up to the whole sum


class ClassBalanced(ComputedSampler):
    """Draws of which each class has equally many, and within a class each element, but for one more or less.

    The classes come in rounds, each of them once in a round, in an order of its own. A class begins with another
    permutation of its elements when it has been through them.

    Args:
        labels: of all elements, by position: numbers or texts.
        num_samples: draws of an epoch; None: as many as there are elements.

    Raises:
        PipelineError: these are no labels.
    """

    def __init__(
        self, labels: Sequence[int] | Sequence[str] | npt.NDArray[np.generic], num_samples: int | None = None
    ) -> None:
        super().__init__(num_samples)
        given = np.asarray(labels)
        if given.ndim != 1 or not len(given) or given.dtype == object:
            raise PipelineError("ClassBalanced: labels must be one number or text for each element")
        names, classes = np.unique(given, return_inverse=True)
        self._members = np.argsort(classes, kind="stable")  # by class, one behind the other
        self._sizes = np.bincount(classes, minlength=len(names))
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._each = "labels", len(given)
        self.contents += " " + _hash(self._members, self._sizes)

    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws, see :meth:`ComputedSampler.at`."""
        key, count = derive(seed, epoch), len(self._sizes)
        rounds, places = np.divmod(draws, count)
        some, which = np.unique(rounds, return_inverse=True)
        numbers = (some[:, None] * count + np.arange(count)).astype(np.uint64)
        orders = np.argsort(mix_array(numbers + np.uint64(key)), axis=1, kind="stable")
        classes = orders[which, places]
        turns, within = np.divmod(rounds, self._sizes[classes])
        found = np.empty_like(draws)
        for each, turn in np.unique(np.stack([classes, turns]), axis=1).T.tolist():
            chosen = np.flatnonzero((classes == each) & (turns == turn))
            order = FullPermutation(int(self._sizes[each]), derive(key, each, turn))
            found[chosen] = self._members[self._starts[each] + order.at(within[chosen])]
        return found


class Windowed(ComputedSampler):
    """Elements in their order, but for windows of so many that are permuted, each by itself.

    Args:
        window: elements of a window.

    Raises:
        PipelineError: it is no number of elements.
    """

    def __init__(self, window: int) -> None:
        super().__init__()
        self._window = whole("Windowed", "window", window, 1)
        self.contents += f" {self._window}"

    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws, see :meth:`ComputedSampler.at`."""
        windows, within = np.divmod(draws, self._window)
        found = np.empty_like(draws)
        for window in np.unique(windows).tolist():
            chosen, start = np.flatnonzero(windows == window), window * self._window
            order = FullPermutation(min(self._window, size - start), derive(seed, epoch, window))
            found[chosen] = start + order.at(within[chosen])
        return found


class Curriculum(ComputedSampler):
    """Permutations of the easiest elements, of ever more of them as epochs go by.

    Each epoch has equally many draws: the easiest elements come again where they are fewer (Bengio and others,
    "Curriculum learning", 2009; Platanios and others, "Competence-based curriculum learning", 2019).

    Args:
        difficulties: of all elements, by position; the lowest is the easiest.
        shares: of all elements, from above 0 to 1, by epoch: the easiest ones that it draws from. The last one stands
            for all later epochs.
        num_samples: draws of an epoch; None: as many as there are elements.

    Raises:
        PipelineError: these are no difficulties, or no shares.
    """

    def __init__(
        self,
        difficulties: Sequence[float] | npt.NDArray[np.number],
        shares: Sequence[float],
        num_samples: int | None = None,
    ) -> None:
        super().__init__(num_samples)
        given = np.asarray(difficulties)
        if given.ndim != 1 or not np.issubdtype(given.dtype, np.number) or np.isnan(given).any():
            raise PipelineError("Curriculum: difficulties must be one number for each element")
        if not len(shares) or not all(0 < share <= 1 for share in shares):
            raise PipelineError("Curriculum: shares must be numbers above 0, and at most 1, for the epochs in turn")
        self._easiest = np.argsort(given, kind="stable")
        self._shares = tuple(map(float, shares))
        self._each = "difficulties", len(given)
        self.contents += " " + _hash(self._easiest, np.array(self._shares))

    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws, see :meth:`ComputedSampler.at`."""
        share = self._shares[min(epoch, len(self._shares) - 1)]
        return self._easiest[_permuted(draws, max(1, round(share * size)), derive(seed, epoch))]


def _permuted(draws: Positions, size: int, key: int) -> Positions:
    """Find the positions of draws that go through permutations of ``range(size)``, one after the other."""
    turns, within = np.divmod(draws, size)
    found = np.empty_like(draws)
    for turn in np.unique(turns).tolist():
        chosen = np.flatnonzero(turns == turn)
        found[chosen] = FullPermutation(size, derive(key, turn)).at(within[chosen])
    return found


def _hash(*arrays: npt.NDArray[np.generic]) -> str:
    """Hash what a sampler draws by."""
    found = hashlib.blake2b(digest_size=16)
    for array in arrays:
        found.update(np.ascontiguousarray(array).astype(array.dtype.newbyteorder("<")).tobytes())
    return found.hexdigest()


def _hashes(draws: Positions, key: int) -> npt.NDArray[np.uint64]:
    return mix_array(mix_array(draws.astype(np.uint64)) ^ np.uint64(key))


def _uniform(draws: Positions, key: int) -> npt.NDArray[np.float64]:
    """Draw numbers from [0, 1)."""
    return (_hashes(draws, key) >> np.uint64(11)).astype(np.float64) * _TO_UNIT
