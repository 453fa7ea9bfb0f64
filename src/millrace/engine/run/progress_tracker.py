"""Progress tracker: how much of an epoch was handed out in this process."""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Iterator
from typing import Any

from millrace.elements.chunk import Chunk
from millrace.elements.plain import plain
from millrace.planning.checkpoint import Merged
from millrace.planning.progress import Progress, TaskSet


class ProgressTracker:
    """Tracker of an epoch's handed-out elements. One thread computes, perhaps ahead of the one that hands out and asks.

    Tasks are numbered as they come; in a plan's order these are its own numbers.

    Args:
        begin: progress before.

    Attributes:
        ended: the reader was told that there is no more.
    """

    def __init__(self, begin: Merged, *, ended: bool = False) -> None:
        self.ended = ended
        self.current: Iterator[Any] = iter(())
        self._progress = Progress(begin.tasks_done(), dict(begin.begun))
        self._runs: deque[tuple[int, int, int]] = deque()  # (task, elements made before it, outputs left out of it)
        self._made = self._taken = 0

    def counted(self, number: int, skip: int, chunks: Iterator[Chunk]) -> Iterator[Chunk]:
        """Count chunks of task ``number`` without its first ``skip`` outputs, as they are made."""
        before = self._made
        self._runs.append((number, before, skip))
        for chunk in chunks:
            self._made += len(chunk)
            yield chunk
        self._progress.ends(number, skip + self._made - before)

    def handed(self, chunks: Iterator[Chunk]) -> Iterator[Any]:
        """Count elements of the chunks as they are handed out."""
        for chunk in chunks:
            elements = plain(chunk.elements)
            current, taken = iter(elements), self._taken + len(elements)
            self.current, self._taken = current, taken  # at once, as Ctrl-C may come in any call
            yield from self.current
        self.ended = True

    def take_back(self, count: int = 1) -> None:
        """Take back the last ``count`` elements, which were not handed out after all; negative: they are, once more."""
        self._taken -= count

    @property
    def handed_out(self) -> int:
        """Number of elements that whoever iterates has been given."""
        return self._taken - operator.length_hint(self.current)

    def closed(self) -> None:
        """Note that what was not handed out yet will not be."""
        taken = self.handed_out
        self.current, self._taken = iter(()), taken

    def now(self) -> tuple[TaskSet, list[tuple[int, int]]]:
        """Tasks of which all was handed out, and the number of outputs of each other."""
        self._count()
        return self._progress.now()

    def _count(self) -> None:
        """Note how far each task was handed out."""
        handed = self.handed_out
        while self._runs and self._runs[0][1] <= handed:
            number, before, skipped = self._runs[0]
            over = len(self._runs) > 1 and self._runs[1][1] <= handed
            self._progress.yielded(number, skipped + (self._runs[1][1] if over else handed) - before)
            if not over:
                break
            self._runs.popleft()
