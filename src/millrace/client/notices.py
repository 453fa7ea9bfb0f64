"""Warnings for the user, each said once: as it is heard, or where the epoch that it is about ends."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Callable

from millrace.errors import JobFailedError, MillraceError, MillraceWarning


class Notices:
    """Warnings of one session. Thread-safe.

    Args:
        fail: where warnings are errors and no thread of the user's is there to get one: what reads fails with it.
    """

    def __init__(self, fail: Callable[[MillraceError], None]) -> None:
        self._fail = fail
        self._lock = threading.Lock()
        self._said: set[str] = set()

    def say(self, text: str) -> None:
        """Warn, unless that was said before."""
        if not self._is_new(text):
            return
        try:
            warnings.warn(text, MillraceWarning, stacklevel=2)
        except MillraceWarning as warning:  # warnings are errors here: then it is the reader's, not this thread's
            self._fail(JobFailedError(str(warning)))

    def at_end(self, text: str) -> None:
        """Warn of what is not read of an epoch, in the user's thread, which has come to its end."""
        if self._is_new(text):
            warnings.warn(text, MillraceWarning, stacklevel=4)  # where the loop asks for the next element

    def _is_new(self, text: str) -> bool:
        with self._lock:
            known = not text or text in self._said
            self._said.add(text)
            return not known
