"""Open iterators: those that a script still holds as it ends are closed before Python stops threads where they are."""

from __future__ import annotations

import atexit
import os
import weakref
from typing import Protocol

_LAST_S = 1.0
"""Seconds for which a thread that reads from an iterator when Python ends is waited for."""


class Closing(Protocol):
    """Iterator that can be closed, unless a thread waits for its elements for so many seconds."""

    def close(self, wait_s: float = -1) -> None:
        """Stop threads and let go of everything."""


_open: weakref.WeakSet[Closing] = weakref.WeakSet()


def close_at_exit(iterator: Closing) -> None:
    """Have an iterator closed when Python ends, if it is still held then."""
    _open.add(iterator)


os.register_at_fork(after_in_child=_open.clear)  # a child has none of the threads that it would wait for


@atexit.register
def _close_all() -> None:
    # Once Python clears modules away it has stopped all threads, perhaps one that holds a lock which closing needs.
    for iterator in list(_open):
        iterator.close(_LAST_S)
