"""Progress through an epoch: the tasks read to their end, and the outputs read of the others."""

from __future__ import annotations

import base64
import binascii
import zlib
from collections import deque
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

PLAIN_BYTES = 2048
"""Bytes of a set that are written as they are: deflating more takes longer than a step should wait."""
_AT_ONCE = 1 << 14
"""Bytes of a bitmap that are looked at together."""
MOST_TASKS = 1 << 27
"""Most tasks that a set read from text may have beyond its first gap: a bound on what 64 KiB of it could become."""


class TaskSet:
    """Growing set of tasks: all below ``low``, and those whose bit is set in ``bits``, which begins there.

    Tasks are read about in their order, so that there are few bits; with several readers each has bits for the others'.
    """

    __slots__ = ("_text", "bits", "low")

    def __init__(self, low: int = 0, bits: int = 0) -> None:
        self.low, self.bits = low, bits
        self._text: str | None = None
        self._close_gap()

    @classmethod
    def of(cls, tasks: Iterable[int]) -> TaskSet:
        """Make the set of these tasks."""
        found = cls()
        for task in tasks:
            found.add(task)
        return found

    def add(self, task: int) -> None:
        """Add a task; harmless if it is there."""
        if task >= self.low:
            self.bits |= 1 << (task - self.low)
            self._close_gap()

    def _close_gap(self) -> None:
        self._text = None
        if self.bits & 1:
            count = (~self.bits & (self.bits + 1)).bit_length() - 1
            self.bits >>= count
            self.low += count

    def __contains__(self, task: int) -> bool:
        return task < self.low or bool(self.bits >> (task - self.low) & 1)

    def __len__(self) -> int:
        return self.low + self.bits.bit_count()

    def __or__(self, other: TaskSet) -> TaskSet:
        less, more = sorted((self, other), key=lambda each: each.low)
        return TaskSet(more.low, more.bits | less.bits >> (more.low - less.low))

    def __and__(self, other: TaskSet) -> TaskSet:
        less, more = sorted((self, other), key=lambda each: each.low)
        shift = more.low - less.low
        return TaskSet(less.low, less.bits & (more.bits << shift | (1 << shift) - 1))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TaskSet) and (self.low, self.bits) == (other.low, other.bits)

    __hash__ = None  # type: ignore[assignment]  # it grows

    def __iter__(self) -> Iterator[int]:
        yield from range(self.low)
        yield from (self.low + place for place, bit in enumerate(f"{self.bits:b}"[::-1]) if bit == "1")

    def copy(self) -> TaskSet:
        """Copy the set."""
        return TaskSet(self.low, self.bits)

    def bitmap(self) -> bytes:
        """Convert ``bits`` to bytes, the lowest first: quick to look up."""
        return self.bits.to_bytes((self.bits.bit_length() + 7) // 8, "little")

    def beyond(self) -> Iterator[Numbers]:
        """Tasks of the set from ``low`` on, some at a time, int64."""
        bitmap = np.frombuffer(self.bitmap(), np.uint8)
        for start in range(0, len(bitmap), _AT_ONCE):
            bits = np.unpackbits(bitmap[start : start + _AT_ONCE], bitorder="little")
            yield self.low + 8 * start + np.flatnonzero(bits)

    def absent(self, end: int) -> Iterator[tuple[int, int]]:
        """Find the runs of tasks below ``end`` that are not in the set, as (first, one past the last)."""
        first = self.low
        for tasks in self.beyond():
            before = np.concatenate([[first - 1], tasks[:-1]])
            gaps = tasks - before > 1
            yield from zip((before[gaps] + 1).tolist(), tasks[gaps].tolist(), strict=True)
            first = int(tasks[-1]) + 1 if len(tasks) else first
        if first < end:
            yield first, end

    def counts(self, every: int) -> list[int]:
        """Count for each remainder by ``every`` the tasks of the set that have it."""
        found = np.array([len(range(rest, self.low, every)) for rest in range(every)], np.int64)
        for tasks in self.beyond():
            found += np.bincount(tasks % every, minlength=every)
        return [int(count) for count in found]

    def text(self) -> str:
        """Encode ``bits`` in base64; if there are many, deflated after a ``~``: short where readers take turns."""
        if self._text is None:
            bitmap = self.bitmap()
            deflated = len(bitmap) > PLAIN_BYTES
            encoded = base64.b64encode(zlib.compress(bitmap, 1) if deflated else bitmap).decode()
            self._text = f"~{encoded}" if deflated else encoded
        return self._text

    @classmethod
    def parse(cls, low: int, text: str) -> TaskSet:
        """Parse the set that has this ``low`` and :meth:`text`.

        Raises:
            ValueError: if it is no such text.
        """
        if low < 0:
            raise ValueError(f"a set of tasks does not begin at {low}")
        try:
            bitmap = base64.b64decode(text.removeprefix("~"), validate=True)
            if text.startswith("~"):
                stream = zlib.decompressobj()
                bitmap = stream.decompress(bitmap, MOST_TASKS // 8)
                if not stream.eof:
                    raise ValueError("not a whole set of tasks, or one of far too many")
        except (binascii.Error, zlib.error) as error:
            raise ValueError(f"not a set of tasks: {error}") from error
        return cls(low, int.from_bytes(bitmap, "little"))


class Progress:
    """Outputs of an epoch that one reader has yielded. One thread notes what it yields, others may say what ends."""

    def __init__(self, done: TaskSet | None = None, begun: Mapping[int, int] | None = None) -> None:
        self._done = TaskSet() if done is None else done.copy()
        self._begun = dict(begun or {})
        self._ends: deque[tuple[int, int, int]] = deque()
        self._totals: dict[int, tuple[int, int]] = {}
        self._settled = -sum(self._begun.values())
        self.last = -1
        """Task of the output that was yielded last; -1: none was."""

    def resume(self, done: TaskSet, begun: Mapping[int, int]) -> None:
        """Add what was yielded before."""
        self._done |= done
        self._settled += sum(self._begun.values())
        self._begun.update(begun)
        self._settled -= sum(self._begun.values())

    def yielded(self, task: int, outputs: int) -> None:
        """Note that ``outputs`` outputs of the task, those before a resume included, were yielded."""
        if task not in self._done:
            self.last = task if outputs > self._begun.get(task, 0) else self.last
            self._begun[task] = outputs

    def ends(self, task: int, outputs: int, missed: int = 0) -> None:
        """Note that the task is over once ``outputs`` outputs of it were yielded; any thread may, before that or after.

        Args:
            task: that ends.
            outputs: that are to be yielded, those that were left out before one of them included.
            missed: further ones, which nobody is to yield.
        """
        self._ends.append((task, outputs, missed))

    def now(self) -> tuple[TaskSet, list[tuple[int, int]]]:
        """Tasks of which all was yielded, and the number of outputs of each other."""
        while self._ends:
            task, outputs, missed = self._ends.popleft()
            self._totals[task] = outputs, missed
        for task in [task for task, (total, _) in self._totals.items() if self._begun.get(task, 0) >= total]:
            self._settled += 0 if task in self._done else sum(self._totals[task])
            self._done.add(task)
            del self._totals[task]
            self._begun.pop(task, None)
        return self._done, sorted((task, outputs) for task, outputs in self._begun.items() if outputs)

    @property
    def outputs(self) -> int:
        """Number of outputs that count as yielded, without those before a resume."""
        self.now()
        return self._settled + sum(self._begun.values())

    def copy(self) -> Progress:
        """Copy the progress; what ends is to be said to both."""
        twin = Progress()
        twin._done, twin._begun, twin._totals = self._done.copy(), dict(self._begun), dict(self._totals)
        twin._ends, twin._settled, twin.last = deque(self._ends), self._settled, self.last
        return twin
