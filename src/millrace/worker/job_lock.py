"""One job at a time: the user's modules of one job are in force while its code runs, and no other's."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class Gate:
    """Any number of threads may be inside for one job; those of another wait until all have left."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._job = ""
        self._inside = 0

    @contextmanager
    def inside(self, job: str, check: Callable[[], None] | None = None) -> Iterator[None]:
        """While the body runs, no other job's does.

        Args:
            job: name of the job.
            check: called while waiting, after each :meth:`poke`; it may raise to give up.
        """
        self._enter(job, check)
        try:
            yield
        finally:
            self._leave()

    @contextmanager
    def outside(self, job: str) -> Iterator[None]:
        """Inside for a job: while the body runs, another one's may."""
        self._leave()
        try:
            yield
        finally:
            self._enter(job, None)

    def _enter(self, job: str, check: Callable[[], None] | None) -> None:
        with self._changed:
            while self._inside and self._job != job:
                if check is not None:
                    check()
                self._changed.wait()
            self._job = job
            self._inside += 1

    def _leave(self) -> None:
        with self._changed:
            self._inside -= 1
            self._changed.notify_all()

    def poke(self) -> None:
        """Has those that wait check whether they still should."""
        with self._changed:
            self._changed.notify_all()
