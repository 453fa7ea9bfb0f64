"""Crash isolation: report each step before running it, and skip elements that ended a worker.

A *place* is (node, origin's node, split, repetition, position, how often the node was given that element before): the
same in each run of a task. Places below are no function's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

from millrace.elements.chunk import Origin
from millrace.protocol.crash_sites import CrashSite

BEGINNING: CrashSite = (-1, 0)
"""Place before the first step: the pipeline is built, leftovers are fetched."""


def between(outputs: int, steps: int) -> CrashSite:
    """Place between two steps, after so many outputs and steps: elements are put together or encoded."""
    return (-2, outputs, steps)


class RunStoppedError(Exception):
    """Whoever was told where a run is has stopped it; no failure of the element."""


class WorkerEndedError(Exception):
    """Stand-in for what cannot be caught: the process ended when it came to an element."""

    def __init__(self) -> None:
        super().__init__(
            "the process of every worker that came to it ended: a crash in native code, os._exit, or all memory taken"
        )


class CrashProbe:
    """Watch over one run: what it must not touch, and whom it tells where it is.

    Args:
        poison: places that end the process.
        announce: called with a place and the place in words, before it is entered, and with ``((), "")`` after it;
            returns once that is known elsewhere, or raises RunStoppedError. None: nobody wants to know.

    Attributes:
        each: elements go through the pipeline one by one, on one thread.
    """

    def __init__(self, poison: Collection[CrashSite], announce: Callable[[CrashSite, str], None] | None) -> None:
        self._poison = frozenset(poison)
        self._announce = announce
        # Where a function gives one element after the other, which step ends it depends on how many are asked for.
        self.each = announce is not None or any(place[-1] for place in self._poison)
        self._steps: Counter[CrashSite] = Counter()

    @contextmanager
    def at(self, node: int, origin: Origin, position: int, where: Callable[[], str]) -> Iterator[None]:
        """Report while the body runs that node ``node`` deals with one element; ``where`` says which, in words.

        Raises:
            WorkerEndedError: it is known not to survive that; the body does not run.
        """
        element = (node, *origin, int(position))
        step = self._steps[element]
        self._steps[element] += 1
        place = (*element, step)
        if place in self._poison:
            raise WorkerEndedError
        if self._announce is None:
            yield
            return
        self._announce(place, where())
        try:
            yield
        finally:
            self._announce((), "")
