"""Slot cycle: which task a consumer with a fixed order reads next; a message of each slot in turn. Pure."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from typing import NamedTuple

from millrace.planning.plan import tail_inputs
from millrace.planning.progress import TaskSet


class _Look(NamedTuple):
    """Look at what of the tasks has come and was read, as :meth:`SlotCycle.current` is told."""

    exhausted: Callable[[int], bool]
    ready: Callable[[int], bool]


class SlotCycle:
    """Cycle of slots that one consumer reads, a message of each in turn, and in each slot tasks in plan order.

    Slot s has tasks s, s + ``length``, ... of the epoch, and they are named to the consumer in this order. A slot is
    left out once all of its tasks were read, and while its next one is a tail of which an input was not read to its
    end, as that input may need room before it can be computed. While one more task is to be named it is waited for. So
    which task is next follows from what was read alone: all consumers with these slots come to the same order without
    asking anybody, wherever they begin.

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
        self._left_out: set[int] = set()  # tasks that will not be named, as this consumer skips them
        self._free: set[int] = set()  # first tasks of slots that wait for no input

    def slot(self, task: int) -> int:
        """Find the slot of a task."""
        return task % self._length

    def is_over(self, task: int) -> bool:
        """Whether the consumer has read a task before."""
        return task in self._over

    @property
    def gone_on(self) -> bool:
        """Whether the consumer has read a task before."""
        return bool(self._over.low or self._over.bits)

    def name(self, task: int) -> None:
        """Note a task that is to be read."""
        slot = self.slot(task)
        heapq.heappush(self._unread[slot], task)
        self._next[slot] = max(self._next[slot], task + self._length)
        if self._unnamed is not None:
            self._unnamed.discard(task)

    def leave_out(self, task: int) -> None:
        """Note that a task will not be named, as nothing of it is to be read here."""
        self._left_out.add(task)

    def ends(self, unnamed: Iterable[int]) -> None:
        """Note that these tasks are still to be named, and no others."""
        self._unnamed = set(unnamed)

    def current(self, exhausted: Callable[[int], bool], ready: Callable[[int], bool]) -> int | None:
        """Find the task of which a message is read next; None: it has not been named yet, or there is none.

        Args:
            exhausted: whether all of a task has come and was read.
            ready: whether a message of a task lies ready.
        """
        look = _Look(exhausted, ready)
        for offset in range(self._length):
            slot = (self.turn + offset) % self._length
            first = self._first(slot, look)
            chosen = None if first is None else self._awaited(first, look)
            if chosen is not None:
                return chosen if self._reading[self.slot(chosen)] == chosen else None
        return None

    def took(self, task: int) -> None:
        """Note that a message of a task was taken."""
        self.turn = self.slot(task + 1)

    def _first(self, slot: int, look: _Look, upto: int | None = None) -> int | None:
        """Find the first task of a slot that was not read to its end, be it named or not; None: there is none.

        Nobody looks whether tasks beyond ``upto`` were.
        """
        unread = self._unread[slot]
        while True:
            task = self._reading[slot]
            if task is not None:
                if upto is not None and task > upto:
                    return task
                # A tail that gives nothing may come before those who do not know of it yet are past its inputs.
                if not look.exhausted(task) or self._awaited(task, look) != task:
                    return task
            if not unread:
                return self._following(slot)
            self._reading[slot] = unread[0]
            heapq.heappop(unread)  # once it is noted: Ctrl-C may come in between

    def _awaited(self, first: int, look: _Look) -> int | None:
        """Find what is read where a slot has a turn: its first task, or one that must show first whether it has more.

        None: the slot is left out, as its first task is a tail and an input of it has more.
        """
        if first in self._free or self._length == 1:
            return first
        for task in tail_inputs(first, self._tasks):
            # Of a task that gives nothing a state may say that it is over before those in front of it in its slot are.
            before = self._first(self.slot(task), look, task)
            if before is not None and before <= task:
                return None if look.ready(before) else self._awaited(before, look)
        self._free = {each for each in self._free if self.slot(each) != self.slot(first)} | {first}
        return first

    def _following(self, slot: int) -> int | None:
        """Find the next task of a slot that will be named; None: there is none."""
        if self._unnamed is not None:
            return min((task for task in self._unnamed if self.slot(task) == slot), default=None)
        following = self._next[slot]
        following += max(0, -(-(self._over.low - following) // self._length)) * self._length
        while following in self._over or following in self._left_out:
            following += self._length
        self._next[slot] = following
        return following if self._tasks is None or following < self._tasks else None
