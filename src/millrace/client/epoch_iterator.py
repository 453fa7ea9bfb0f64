"""The iterator that ``iter()`` of a distributed dataset gives."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Any, NoReturn, Self

from millrace.client.deferred_reader import DeferredReader
from millrace.errors import ShippingError
from millrace.planning.checkpoint import pack

_NOTHING: Any = object()


class EpochIterator(Iterator[Any]):
    """The elements of one epoch, in the order in which they come (or in plan order, if the job is deterministic).

    Arrays are views of the memory they were received into. Several threads may read from it: each element goes to one
    of them. Once it has failed, it fails in the same way for ever.

    Args:
        reader: reads the epoch.
    """

    def __init__(self, reader: DeferredReader) -> None:
        self._lock = threading.RLock()
        self._reader = reader

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        element: Any = _NOTHING
        try:
            with self._lock:
                for element in self._reader.progress.current:  # nothing can come between taking one and knowing of it
                    return element
                if self._reader.advance():
                    for element in self._reader.progress.current:
                        return element
        except BaseException:
            if element is not _NOTHING:  # Ctrl-C on the way out: nobody has it
                self.put_back(element)
            del self, element  # who keeps the traceback, as interpreters do with the last one, must not keep what reads
            raise
        raise StopIteration

    def put_back(self, element: Any) -> None:
        """Hand this element out once more, as who has just got it could not use it; no state counts it."""
        with self._lock:
            self._reader.put_back(element)

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return self._reader.skipped

    def state_dict(self) -> dict[str, Any]:
        """How far this epoch was read, as plain values, without asking the service.

        Raises:
            StateError: the job has no states, as its epochs are not the data or its consumers not numbered.
        """
        return pack(self._reader.checkpoint())

    def load_state_dict(self, state: Any) -> None:
        """Goes on where ``state`` was taken: in that epoch, or at its end. The job begins anew with it.

        Args:
            state: what ``state_dict()`` gave, here or in process; or the list of all ranks' states.

        Raises:
            StateError: it is not of this pipeline over these data.
            MillraceError: the job does not let this process in with it.
        """
        with self._lock:
            self._reader.load(state)

    get_state, set_state = state_dict, load_state_dict

    def close(self) -> None:
        """Stops reading; what was not read of the epoch is dropped. May be called any number of times."""
        self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("an iterator over an epoch cannot be pickled; iterate anew on the other side")
