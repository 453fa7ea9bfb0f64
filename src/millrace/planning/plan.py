"""A plan: an epoch cut into tasks, before any worker is involved.

Pure: the same graph and split tables give the same tasks anywhere. Seeds and epochs don't matter here; they decide
which data a unit is (:mod:`millrace.planning.units`), not where tasks begin.
"""

from __future__ import annotations

import msgspec


class Task(msgspec.Struct, frozen=True):
    """A range of the graph's units, or a tail that takes what other tasks left over.

    Attributes:
        index: number within the epoch; order of indices is the order of the data.
        start: first unit.
        stop: one past the last unit.
        inputs: for a tail, the tasks whose leftovers it takes, in this order; then it has no units of its own.
        parent: the tail that takes this task's leftovers; -1 if the task flushes them itself.
    """

    index: int
    start: int
    stop: int
    inputs: tuple[int, ...] = ()
    parent: int = -1
