"""What one reader has handed out of an epoch: how much, how fast, and of which tasks."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from typing import Any

from millrace.client.epoch_buffer import Arrival
from millrace.client.read_rate import Meter, Rates
from millrace.client.receiver import Feed
from millrace.planning.checkpoint import Merged
from millrace.planning.progress import Progress, TaskSet


class Tally:
    """Knows nothing of the reader, so that it can be asked when that one is gone, and does not keep it alive.

    Args:
        read: what was read of the epoch before.

    Attributes:
        meter: measures.
        current: what is still to be handed out of the message that was taken last.
        ended: the reader was told that there is no more.
        alone: tasks that are known to leave nothing over.
        taken: elements that operators behind ``distribute()`` took, of which not all is handed out that they make.
    """

    def __init__(self, read: Merged | None = None) -> None:
        self.meter = Meter()
        self.current: Iterator[Any] = iter(())
        self.ended = False
        self.alone = TaskSet()
        self.taken: int | None = None
        self._arrival: Arrival | None = None
        self._held = 0
        self._progress = Progress()
        if read is not None:
            self.resume(read)

    @property
    def untouched(self) -> bool:
        """Nothing was handed out, nor its end said."""
        return self._arrival is None and not self.ended

    def forget(self) -> None:
        """Nothing was read before of what comes now."""
        self.alone, self._progress = TaskSet(), Progress()

    def resume(self, read: Merged) -> None:
        """This was read of the epoch before."""
        self.alone |= read.tasks_alone()
        self._progress.resume(read.tasks_done(), dict(read.begun))

    def hand_out(self, elements: list[Any], arrival: Arrival | None, held: int = 0) -> None:
        """These are handed out next; those before were, or never will be.

        Args:
            elements: of a message that arrived.
            arrival: the message; None: that of the elements before.
            held: how many elements of the message come after these.
        """
        self._count()
        arrival = arrival or (self._arrival if elements else None)
        current = iter(elements)
        self._arrival, self._held, self.current = arrival, held, current  # at once, as Ctrl-C may come in any call

    def _count(self) -> None:
        """Note how far the message was handed out."""
        if self._arrival is not None and self.taken is None:
            left = operator.length_hint(self.current) + self._held
            self._progress.yielded(self._arrival.task.number, self._arrival.end - left)

    def take(self) -> tuple[list[Any], int, int]:
        """What is current, its task, and the number of the first of these outputs; :meth:`made_of` counts them."""
        elements = list(self.current)
        self.taken = (self.taken or 0) + len(elements)
        if self._arrival is None or not elements:
            return [], 0, 0
        return elements, self._arrival.task.number, self._arrival.end - self._held - len(elements)

    def made_of(self, task: int, outputs: int, count: int) -> None:
        """All was handed out that was made of so many outputs of a task, ``count`` more than before."""
        self.taken = (self.taken or 0) - count
        self._progress.yielded(task, outputs)

    def measure(self) -> tuple[int, Rates]:
        """Elements handed out since the epoch began, and how fast; for the thread that reports."""
        left = operator.length_hint(self.current) + (self.taken or 0)  # of a list's iterator, so exact
        now = time.perf_counter()
        handed = self.meter.handed + self.meter.pending - left
        return max(handed, int(not self.untouched)), self.meter.rates(now, left)  # one is being handed out by now

    def now(self, feed: Feed, epoch: int) -> tuple[TaskSet, list[tuple[int, int]]]:
        """Tasks of which all was handed out, and how many outputs of others."""
        self._count()
        for task, outputs in feed.ended(epoch):
            self._progress.ends(task, outputs)
        for task in feed.alone(epoch):
            self.alone.add(task)
        return self._progress.now()
