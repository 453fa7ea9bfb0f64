"""Epochs that begin later: once somebody asks for an element, or says what was read before."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NoReturn, Self

from millrace.client.epoch_reader import EpochReader, Reload
from millrace.errors import MillraceError, ShippingError, StateError, anew
from millrace.planning.checkpoint import Checkpoint, Part, pack
from millrace.planning.epoch_cursor import EpochCursor


class LaterReader(Iterator[Any]):
    """Elements of an epoch, whose iterator was made while another one of the same dataset was being read.

    Whether that one is still read when this one is first asked decides where this epoch is read; often it is gone by
    then, as in ``iterator = iter(dataset)`` for a second time.

    Args:
        number: of the epoch.
        begin: begins to read it.
        fresh: state of who has read nothing of it.
        passes: of the dataset.
        reload: makes a reader that goes on with these states.

    Attributes:
        number: of the epoch.
    """

    def __init__(
        self,
        number: int,
        begin: Callable[[], EpochReader],
        fresh: Checkpoint,
        passes: EpochCursor,
        reload: Reload,
    ) -> None:
        self.number = number
        self._begin: Callable[[], EpochReader] | None = begin
        self._reload = reload
        self._passes = passes
        self._lock = threading.RLock()
        self._reader: EpochReader | None = None
        self._now: list[Callable[[], Checkpoint]] = [lambda: fresh]
        passes.begin(number, functools.partial(_latest, self._now))

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        try:
            for element in self._reader or self._begun():  # which puts it back, should Ctrl-C come on the way out
                return element
        except BaseException:
            del self  # whoever keeps the traceback must not keep what reads
            raise
        raise StopIteration

    def put_back(self, element: Any) -> None:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        if self._reader is not None:
            self._reader.put_back(element)

    def _begun(self) -> Iterator[Any]:
        with self._lock:
            if self._reader is None and self._begin is not None:
                self._passes.started()
                self._read_on(self._begin())
            return iter(()) if self._reader is None else self._reader

    def _read_on(self, reader: EpochReader) -> None:
        self._reader, self._begin, self.number = reader, None, reader.number
        self._now[0] = reader.checkpoint

    @property
    def checkpoint(self) -> Callable[[], Checkpoint]:
        """How far the epoch was read; may be asked when the reader is gone, and does not keep it."""
        return self._now[0]

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return 0 if self._reader is None else self._reader.skipped

    @property
    def opening(self) -> tuple[int, int, int, list[Part]] | None:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        return None if self._reader is None else self._reader.opening

    @property
    def over(self) -> bool:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        return self._reader is not None and self._reader.over

    @property
    def made_of(self) -> Callable[[int, int, int], None]:
        """As of :class:`millrace.client.epoch_reader.EpochReader`, once the epoch has begun."""
        assert self._reader is not None
        return self._reader.made_of

    def begin(self) -> None:
        """Begins to read the epoch, unless it was closed."""
        self._begun()

    def take(self) -> tuple[list[Any], int, int]:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        return ([], 0, 0) if self._reader is None else self._reader.take()

    def wake(self) -> None:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        if self._reader is not None:
            self._reader.wake()

    def fail(self, error: MillraceError) -> None:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        if self._reader is not None:
            self._reader.fail(error)

    def state_dict(self) -> dict[str, Any]:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        return pack(self.checkpoint())

    def load_state_dict(self, state: Any) -> None:
        """As of :class:`millrace.client.epoch_reader.EpochReader`."""
        with self._lock:
            if self._reader is None:
                self._read_on(self._reload(state))
            else:
                self._reader.load_state_dict(state)
                self._read_on(self._reader)

    get_state, set_state = state_dict, load_state_dict

    def close(self) -> None:
        """Stops reading, or never begins. May be called any number of times."""
        if self._reader is not None:
            self._reader.close()  # a thread that waits for an element gives up
        with self._lock:
            self._begin = None
            if self._reader is not None:
                self._reader.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __reduce__(self) -> NoReturn:
        raise ShippingError("an iterator over an epoch cannot be pickled; iterate anew on the other side")


class AwaitedReader(EpochReader):
    """Stands for an epoch of a job that waits for this consumer's state, until that is loaded into it.

    Args:
        error: what the dispatcher said, which whoever asks for an element is told.
        checkpoint: how far the consumer has read.
        reload: makes the reader that this one becomes.
    """

    def __init__(self, error: StateError, checkpoint: Callable[[], Checkpoint], reload: Reload) -> None:
        self._lock = threading.RLock()
        self._error, self.checkpoint, self._reload = error, checkpoint, reload
        self.number = checkpoint().next_epoch

    @property
    def skipped(self) -> int:
        """None yet."""
        return 0

    @property
    def opening(self) -> None:
        """It has not begun."""

    def begin(self) -> NoReturn:
        """It cannot."""
        raise anew(self._error)

    take = begin

    @property
    def is_open(self) -> bool:
        """There may be something to read once the state is loaded."""
        return True

    def __next__(self) -> Any:
        raise anew(self._error)

    def load_state_dict(self, state: Any) -> None:
        """Goes on where ``state`` was taken; see :meth:`EpochReader.load_state_dict`."""
        assert self._reload is not None
        with self._lock:
            other = self._reload(state)
            self.__class__ = EpochReader  # type: ignore[assignment]
            self.become(other)

    def close(self) -> None:
        """Nothing is open."""


def _latest(now: list[Callable[[], Checkpoint]]) -> Checkpoint:
    return now[0]()
