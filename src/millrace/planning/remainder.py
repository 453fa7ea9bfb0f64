"""Remainder of an epoch that was read in part: outputs that nobody has had, and leftovers that tails still need.

The cost is proportional to what the sets of tasks name, and not to the number of tasks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Protocol

from millrace.planning.plan import Piece, Task
from millrace.planning.progress import TaskSet


def leftover_reruns(task: Callable[[int], Task], done: TaskSet, alone: TaskSet) -> tuple[list[int], list[int]]:
    """On resume: finished tasks to rerun for their leftovers; unfinished tasks whose leftovers were consumed.

    Leftovers have become outputs that were read once the tail at the end of their round is done. Before that, tasks
    that are done have to run again for what they leave over.

    Args:
        task: of a plan, by index.
        done: those whose outputs were all read.
        alone: those that leave nothing over, as their tails began without them.

    Returns:
        Tasks that are done and whose leftovers are needed; tasks that are not done and whose leftovers are not.
    """
    spent: dict[int, bool] = {-1: True}  # by tail: what it took has been read

    def is_spent(tail: int) -> bool:
        if tail not in spent:
            spent[tail] = tail in done and is_spent(tail_of(tail))
        return spent[tail]

    def tail_of(index: int) -> int:
        return -1 if index in alone else task(index).parent

    again: list[int] = []
    freed: list[int] = []
    end = done.low + done.bits.bit_length()
    if end and task(0).parent >= 0:  # else nothing is left over by any
        last = 0
        while task(last).parent >= 0:
            last = task(last).parent
        for index in range(done.low - done.low % (last + 1), end):  # of whole rounds nothing is needed any more
            parent = tail_of(index)
            if parent >= 0 and (index in done) != is_spent(parent):
                (again if index in done else freed).append(index)
    return again, freed


class Divisible(Protocol):
    """Plan of units that each give one output, as far as its remainder needs it."""

    @property
    def length(self) -> int | None:
        """Number of tasks; None: endless."""

    def before(self, index: int) -> int:
        """Count the outputs of the tasks before ``index``."""

    def between(self, start: int, stop: int) -> Iterator[Piece]:
        """Pieces of outputs ``start`` to ``stop`` of all tasks in their order."""

    def undivided(self) -> list[Piece]:
        """Pieces that no task has."""


NOTHING = Piece(0, 0, 0, 0)
"""Remainder of an epoch that is over."""


def left_of(plan: Divisible, done: TaskSet, begun: Mapping[int, int]) -> list[Piece]:
    """Pieces left of an epoch in which each unit gives one output, in the order of the data; nothing is one piece."""
    found = plan.undivided()
    parts = deque(sorted(begun.items()))
    for first, stop in done.absent(plan.length or 0):
        at = plan.before(first)
        while parts and parts[0][0] < stop:
            index, read = parts.popleft()
            if index >= first:
                start, end = plan.before(index), plan.before(index + 1)
                found += plan.between(at, start)
                found += _unread(plan.between(start, end), read, index)
                at = end
        found += plan.between(at, plan.before(stop))
    joined: list[Piece] = []
    for piece in sorted(found, key=lambda each: (each.start, each.first)):
        if joined and piece.whole and joined[-1].whole and joined[-1].stop == piece.start:
            joined[-1] = Piece.of(joined[-1].start, piece.stop)
        else:
            joined.append(piece)
    return joined or [NOTHING]


def _unread(pieces: Iterable[Piece], read: int, index: int) -> Iterator[Piece]:
    """Pieces of a task behind ``read`` outputs."""
    for piece in pieces:
        count = min(read, len(piece))
        read -= count
        if count < len(piece):
            yield piece.behind(count, index)


def is_even(plan: Divisible, done: TaskSet, begun: Mapping[int, int], ranks: int) -> bool:
    """Whether ranks that are to have equally many outputs of an epoch have read equally many."""
    read = [0] * ranks
    for tasks in done.beyond():
        for index in tasks.tolist():
            read[index % ranks] += plan.before(index + 1) - plan.before(index)
    for index in range(done.low - done.low % ranks, done.low):
        read[index % ranks] += plan.before(index + 1) - plan.before(index)
    for index, outputs in begun.items():
        read[index % ranks] += 0 if index in done else outputs
    return len(set(read)) == 1
