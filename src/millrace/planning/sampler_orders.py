"""Sampler orders: which element of its input each draw of ``sample`` is, as the user's sampler says."""

from __future__ import annotations

import functools
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.whole_numbers import whole

Positions = npt.NDArray[np.int64]
_REMEMBERED = 4
"""Epochs of a sampler whose positions are remembered: of one that is read, and of those computed ahead."""


class Sampler(Protocol):
    """Sampler: an object that chooses which elements an epoch has, and in which order.

    It may have an attribute ``num_samples``, the number of draws of an epoch; without it, or where that is None, there
    are as many as elements.
    """

    def positions(self, size: int, seed: int, epoch: int) -> Positions:
        """Draw an epoch.

        It must depend on its arguments and on nothing else, as several processes call it, and have to agree.

        Args:
            size: number of elements that there are.
            seed: of 63 bits.
            epoch: number of the epoch, from 0 on.

        Returns:
            int64 of shape (num_samples,), each in [0, size).
        """
        ...


class ComputedSampler(ABC):
    """Sampler that computes any draws of an epoch without the others.

    Args:
        num_samples: draws of an epoch; None: as many as there are elements.

    Attributes:
        contents: name, and hash of the weights and the like that it draws by: a state of other ones is refused.
    """

    def __init__(self, num_samples: int | None = None) -> None:
        name = type(self).__name__
        self.num_samples = None if num_samples is None else whole(name, "num_samples", num_samples, 0)
        self._each = "", 0  # what it has one of for each element, and how many
        self.contents = name

    @abstractmethod
    def at(self, draws: Positions, size: int, seed: int, epoch: int) -> Positions:
        """Find the positions of some draws.

        Args:
            draws: their numbers, int64, each in [0, num_samples).
            size: number of elements that there are.
            seed: of 63 bits.
            epoch: number of the epoch, from 0 on.

        Returns:
            int64 of the same shape, each in [0, size).
        """

    def positions(self, size: int, seed: int, epoch: int) -> Positions:
        """Draw an epoch: int64 of shape (num_samples,), each in [0, size)."""
        count = size if self.num_samples is None else self.num_samples
        return self.at(np.arange(count, dtype=np.int64), size, seed, epoch)

    def check(self, size: int) -> None:
        """Check that there are as many elements as the sampler has something of each for.

        Raises:
            PipelineError: there are not.
        """
        what, count = self._each
        if what and count != size:
            raise PipelineError(
                f"{type(self).__name__} has {count} {what}, and there are {size} elements to draw from: it needs one of"
                " each"
            )


class Draw(NamedTuple):
    """Sampler and epoch that positions are of.

    Attributes:
        number: of the node.
        size: number of elements that there are.
        draws: number of these in an epoch.
        seed: given to the sampler.
        epoch: number of the epoch.
    """

    number: int
    size: int
    draws: int
    seed: int
    epoch: int


class SamplerOrder:
    """Order of the draws of one epoch.

    Args:
        at: finds the elements of draws; int64 of the same shape.
    """

    windowed = False

    def __init__(self, at: Callable[[Positions], Positions]) -> None:
        self.at = at

    def stretches(self, positions: Positions) -> Iterator[Positions]:
        """Elements of these draws; any costs the same, so that they are read in one go."""
        yield self.at(positions)


class SamplerDraws:
    """Positions that users' own samplers have drawn, of the last epochs.

    Args:
        samplers: number of samplers in the graph.
    """

    def __init__(self, samplers: int) -> None:
        self._drawn_by = functools.lru_cache(_REMEMBERED * samplers)(drawn_by)

    def order(self, node: g.Sample, draw: Draw) -> tuple[SamplerOrder, str | None]:
        """Make the order of an epoch's draws.

        Returns:
            the order, and of a user's own sampler a hash of all positions.

        Raises:
            PipelineError: the sampler fails, or gives what are no positions.
        """
        sampler = node.sampler.value
        if isinstance(sampler, ComputedSampler) and type(sampler).positions is ComputedSampler.positions:
            return SamplerOrder(lambda draws: sampler.at(draws, draw.size, draw.seed, draw.epoch)), None
        positions, digest = self._drawn_by(node, draw)
        return SamplerOrder(positions.__getitem__), digest


def drawn_by(node: g.Sample, draw: Draw) -> tuple[Positions, str]:
    """Have a user's own sampler draw an epoch, and check what it gives.

    Returns:
        positions, and a hash of them.

    Raises:
        PipelineError: it fails, or gives what are no positions, or not as many as there should be.
    """
    try:
        positions = np.asarray(node.sampler.value.positions(draw.size, draw.seed, draw.epoch))
    except Exception as error:
        where = f"positions({draw.size}, {draw.seed}, {draw.epoch})"
        raise PipelineError(f"{node}: {where} of the sampler raised {type(error).__name__}: {error}") from error
    if positions.ndim != 1 or not (np.issubdtype(positions.dtype, np.integer) or not positions.size):
        raise PipelineError(
            f"{node}: the sampler must give whole numbers in one dimension, and gave {positions.dtype}"
            f" of shape {positions.shape} for epoch {draw.epoch}"
        )
    if len(positions) != draw.draws:
        raise PipelineError(
            f"{node}: the sampler gave {len(positions)} positions for epoch {draw.epoch}, and an epoch has {draw.draws}"
            " draws: its num_samples says how many, None stands for as many as there are elements"
        )
    if len(positions) and not (positions.min() >= 0 and positions.max() < draw.size):
        raise PipelineError(
            f"{node}: the sampler gave positions from {positions.min()} to {positions.max()} for epoch {draw.epoch},"
            f" and there are {draw.size} elements, from 0 on"
        )
    found = positions.astype(np.int64)
    return found, hashlib.blake2b(found.tobytes(), digest_size=8).hexdigest()
