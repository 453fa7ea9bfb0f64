"""Slot cycle: which task a consumer with a fixed order reads next; a message of each slot in turn. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

from millrace.planning.progress import TaskSet


class SlotCycle:
    """Cycle of slots that one consumer reads, a message of each in turn, and in each slot tasks in plan order.

    Slot s has tasks s, s + ``length``, ... of the epoch, and they are named to the consumer in this order. A slot is
    left out once all of its tasks were read. While one more is to be named it is waited for: all consumers with these
    slots come to the same order without asking anybody.

    Args:
        length: number of slots; 1: all tasks are of one, whatever their numbers.
        tasks: number of tasks of the epoch; None: without end.
        turn: the slot that is read first.
        over: tasks that will not be named, as this consumer has read them before.

    Attributes:
        turn: the slot that is read next, unless it is left out.
    """

    def __init__(
        self, length: int = 1, *, tasks: int | None = None, turn: int = 0, over: TaskSet | None = None
    ) -> None:
        self.turn = turn % length
        self._length, self._tasks = length, tasks
        self._over = TaskSet() if over is None else over
        self._unread: list[list[int]] = [[] for _ in range(length)]  # heaps of the tasks not begun to be read
        self._reading: list[int | None] = [None] * length
        self._next = [*range(length)]  # by slot: the first task that has not been named
        self._unnamed: set[int] | None = None  # once it is known which tasks will be

    def slot(self, task: int) -> int:
        """Find the slot of a task."""
        return task % self._length

    def is_over(self, task: int) -> bool:
        """Whether the consumer has read a task before."""
        return task in self._over

    def name(self, task: int) -> None:
        """Note a task that is to be read."""
        slot = self.slot(task)
        heapq.heappush(self._unread[slot], task)
        self._next[slot] = max(self._next[slot], task + self._length)
        if self._unnamed is not None:
            self._unnamed.discard(task)

    def ends(self, unnamed: Iterable[int]) -> None:
        """Note that these tasks are still to be named, and no others."""
        self._unnamed = set(unnamed)

    def current(self, exhausted: Callable[[int], bool]) -> int | None:
        """Find the task of which a message is read next; None: it has not been named yet, or there is none.

        Args:
            exhausted: whether a task was read to its end.
        """
        for offset in range(self._length):
            slot = (self.turn + offset) % self._length
            task = self._current_of(slot, exhausted)
            if task is not None or self._awaits(slot):
                return task
        return None

    def took(self, task: int) -> None:
        """Note that a message of a task was taken."""
        self.turn = self.slot(task + 1)

    def _current_of(self, slot: int, exhausted: Callable[[int], bool]) -> int | None:
        unread = self._unread[slot]
        while (task := self._reading[slot]) is None or exhausted(task):
            if not unread:
                return None
            self._reading[slot] = unread[0]
            heapq.heappop(unread)  # once it is noted: Ctrl-C may come in between
        return task

    def _awaits(self, slot: int) -> bool:
        """Whether a further task of the slot will be named."""
        if self._unnamed is not None:
            return any(self.slot(task) == slot for task in self._unnamed)
        if self._tasks is None:
            return True
        following = self._next[slot]
        following += max(0, -(-(self._over.low - following) // self._length)) * self._length
        while following in self._over:
            following += self._length
        self._next[slot] = following
        return bool(following < self._tasks)
