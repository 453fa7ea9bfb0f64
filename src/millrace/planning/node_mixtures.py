"""Mixtures of nodes: the sequence in which a node that mixes inputs takes their elements, in each epoch."""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from itertools import pairwise
from typing import Protocol

import numpy as np
import numpy.typing as npt

from millrace.errors import PipelineError
from millrace.graph import nodes as g
from millrace.planning.choice_pattern import ChoicePattern
from millrace.planning.mixture import ENDLESS, Mixture

Positions = npt.NDArray[np.int64]
Changes = tuple[tuple[int, tuple[float, ...]], ...]
"""Weights that were set while an epoch was read, each behind the element from which on they hold; ascending."""
_REMEMBERED = 4
"""Sequences with changes that are kept: tasks of before and behind the last change may run side by side."""


class InputSequence(Protocol):
    """Sequence of elements of several inputs, each of these in its own order.

    Attributes:
        total: its number of elements; :data:`millrace.planning.mixture.ENDLESS` if it never ends.
    """

    total: int

    def resolve(self, positions: npt.ArrayLike) -> tuple[Positions, Positions]:
        """Find for each of ``positions`` the input's number and the position within that input."""
        ...


class NodeMixture:
    """Mixture of the inputs of a node, in any epoch.

    Args:
        node: that mixes its inputs; what is chosen is known without reading.
        seed: of random choices.
        counts: number of elements of each input.
        passes: of inputs that begin again, the number of elements of one pass of each; else None.

    Attributes:
        shares: of the elements, by input; about, and not all of them 0.
        total: number of elements in each epoch.
    """

    def __init__(
        self,
        node: g.SampleFromDatasets | g.ChooseFromDatasets,
        seed: int,
        counts: Sequence[int],
        passes: Sequence[int] | None,
    ) -> None:
        self.shares: list[float]
        self._node, self._counts, self._passes = node, counts, passes
        self._changed: dict[tuple[int, Changes], Mixture] = {}
        self._sequences: dict[int, InputSequence]
        if isinstance(node, g.SampleFromDatasets):
            self.shares = [float(share) for share in np.mean([_shares(weights) for _, weights in node.phases], axis=0)]
            begins = [begin for begin, _ in node.phases] if node.weights_by == "epoch" else [0]
            self._sequences = {begin: _mixture(node, begin, seed, counts, passes) for begin in begins}
        else:
            assert node.choices is not None, "it takes reading to know the choices"
            share = 1 / max(1, len(node.choices))
            self.shares = [share * node.choices.count(number) for number in range(len(counts))]
            pattern = ChoicePattern(node.choices, node.times, counts, node.stop_on_empty_dataset, passes)
            self._sequences = {0: pattern}
        self._begins = sorted(self._sequences)
        self.total = self._sequences[0].total
        for epoch, sequence in self._sequences.items():
            if sequence.total != self.total:
                raise PipelineError(
                    f"{node} has {self.total} elements in epoch 0, and {sequence.total} by the weights from epoch"
                    f" {epoch} on, but all epochs must have equally many: end it with take(n), of datasets that"
                    " repeat() without end, or let all weights draw the same datasets until all have ended"
                )

    def of_epoch(self, epoch: int, changes: Changes = ()) -> InputSequence:
        """Sequence in which an epoch has the elements of the inputs.

        Args:
            epoch: its number.
            changes: weights that were set while it was read; of a node that draws by weights.

        Raises:
            ValueError: weights that are none, or not one for each input.
        """
        begin = self._begins[bisect.bisect_right(self._begins, epoch) - 1]
        return self._with(begin, changes) if changes else self._sequences[begin]

    def _with(self, begin: int, changes: Changes) -> Mixture:
        found = self._changed.get((begin, changes))
        if found is None:
            known = self._changed.get((begin, changes[:-1]))
            found = _mixed(self._sequences[begin]).changed(*changes) if known is None else known.changed(changes[-1])
            # Replaced as a whole: of two threads that make one at once either result is right.
            kept = list(self._changed.items())[1 - _REMEMBERED :]
            self._changed = {**dict(kept), (begin, changes): found}
        return found

    def keeps_length(self, epoch: int, changes: Changes) -> bool:
        """Whether an epoch has as many elements with the last of ``changes`` as others have; draws nothing.

        Of weights from one element on the last count, so that changes at element 0 replace those that are written.

        Args:
            epoch: its number.
            changes: weights that were set while it was read, of which all but the last are known to keep the number.
        """
        node = self._node
        assert isinstance(node, g.SampleFromDatasets)
        phases = [*node.weights_of(epoch), *changes]
        sets = [each for (at, each), (after, _) in pairwise(phases) if at < after] + [phases[-1][1]]
        drawn = [{number for number, weight in enumerate(each) if weight > 0} for each in sets]
        lengths = self._counts if self._passes is None else self._passes
        endless = {number for number, length in enumerate(lengths) if length >= ENDLESS}
        if len(drawn) == 1:
            return self.total == self._length(drawn[0], endless)
        if node.stop_on_empty_dataset:
            return all(each <= endless for each in drawn)
        if drawn[-1] & endless and drawn[-2] & endless:
            return True
        return self._passes is None and all(each == drawn[-1] for each in drawn) and not drawn[-1] & endless

    def _length(self, drawn: set[int], endless: set[int]) -> int | None:
        """Count the elements of an epoch of which all draw these inputs; None: it takes drawing them to know."""
        if drawn <= endless or (drawn & endless and not self._node.stop_on_empty_dataset):
            return ENDLESS
        if self._node.stop_on_empty_dataset or self._passes is not None:
            return None
        return min(ENDLESS, sum(self._counts[number] for number in drawn))


def _mixed(sequence: InputSequence) -> Mixture:
    assert isinstance(sequence, Mixture), "weights are set of what draws by weights"
    return sequence


def _mixture(
    node: g.SampleFromDatasets, epoch: int, seed: int, counts: Sequence[int], passes: Sequence[int] | None
) -> Mixture:
    (_, first), *changes = node.weights_of(epoch)
    return Mixture(seed, first, counts, node.stop_on_empty_dataset, passes, changes)


def _shares(weights: Sequence[float]) -> list[float]:
    return [weight / sum(weights) for weight in weights]
