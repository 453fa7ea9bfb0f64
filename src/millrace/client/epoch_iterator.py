"""The iterator that ``iter()`` of a distributed dataset gives, and what it has in common with others."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any, Self

from millrace.client.deferred_reader import DeferredReader
from millrace.engine.run.element_iterator import ElementIterator
from millrace.planning.checkpoint import pack

NOTHING: Any = object()
"""What no element is."""


class ServedIterator(ElementIterator):
    """Iterator over an epoch that a service computes, perhaps for several jobs at once."""

    _reader: DeferredReader

    def set_weights(self, weights: Sequence[float]) -> int:
        """See :class:`StatefulIterator`; waits for the dispatcher.

        Raises:
            PipelineError: the pipeline or the job does not allow it.
            MillraceError: why the job cannot go on.
        """
        return self._reader.set_weights(weights)

    @property
    def missed(self) -> int:
        """Number of elements so far that this job missed, as the window which it shares with others had no room."""
        return self._reader.missed

    @property
    def members(self) -> int:
        """Number of jobs for which the epoch is computed, as of when all of it was dealt; 0: it is not shared."""
        return self._reader.members


class EpochIterator(ServedIterator):
    """Elements of one epoch, in the order in which they come (or in plan order, if the job is deterministic).

    Arrays are views of the memory they were received into.

    Args:
        reader: reads the epoch.
    """

    def __init__(self, reader: DeferredReader) -> None:
        self._lock = threading.RLock()
        self._reader = reader

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        element: Any = NOTHING
        try:
            with self._lock:
                for element in self._reader.progress.current:  # nothing can come between taking one and knowing of it
                    return element
                if self._reader.advance():
                    for element in self._reader.progress.current:
                        return element
        except BaseException:
            if element is not NOTHING:  # Ctrl-C on the way out: nobody has it
                self.put_back(element)
            del self, element  # who keeps the traceback, as interpreters do with the last one, must not keep what reads
            raise
        raise StopIteration

    def put_back(self, element: Any) -> None:
        """See :class:`ElementIterator`."""
        with self._lock:
            self._reader.put_back(element)

    @property
    def skipped(self) -> int:
        """See :class:`ElementIterator`."""
        return self._reader.skipped

    def state_dict(self) -> dict[str, Any]:
        """How far this epoch was read, as plain values, without asking the service.

        Raises:
            StateError: the job has no states, as its epochs are not the data or its consumers not numbered.
        """
        return pack(self._reader.checkpoint())

    def load_state_dict(self, state: Any) -> None:
        """Go on where ``state`` was taken, see :class:`StatefulIterator`; the job begins anew with it.

        Raises:
            StateError: it is not of this pipeline over these data.
            MillraceError: the job does not let this process in with it.
        """
        with self._lock:
            self._reader.load(state)

    def close(self) -> None:
        """See :class:`ElementIterator`."""
        self._reader.close()
