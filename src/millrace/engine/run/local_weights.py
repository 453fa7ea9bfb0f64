"""Local weights: those that the training loop sets of a mixture while an epoch is read in this process."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from millrace.planning.checkpoint import Merged
from millrace.planning.epoch_shape import WeightChange
from millrace.planning.weight_changes import Reweighted, with_change

Decide = Callable[[int, int, Reweighted, Sequence[float]], WeightChange]
"""Finds the change that weights make: of the first task that has not begun, the epoch, the changes before, and them."""


class LocalWeights:
    """Changes of weights in one epoch. Tasks begin one after the other, perhaps on another thread than weights are set.

    Args:
        begin: where reading begins.

    Attributes:
        changes: those so far.
    """

    def __init__(self, begin: Merged) -> None:
        self.changes: Reweighted = begin.reweighted
        done = begin.tasks_done()
        self._epoch = begin.epoch
        self._first = max([done.low + done.bits.bit_length(), *(task + 1 for task, _ in begin.begun)])
        self._lock = threading.Lock()

    def begins(self, task: int) -> None:
        """Note that a task begins: weights that are set from now on hold behind it."""
        with self._lock:
            self._first = max(self._first, task + 1)

    def set(self, weights: Sequence[float], decide: Decide) -> WeightChange:
        """Have weights hold from the first task on that has not begun.

        Raises:
            PipelineError: the pipeline doesn't allow it.
        """
        with self._lock:
            change = decide(self._first, self._epoch, self.changes, weights)
            self.changes = with_change(self.changes, change)
            return change
