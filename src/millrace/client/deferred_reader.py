"""The reader behind an iterator: begins at once, or once somebody asks for an element or loads a state."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import Any

from millrace.client.consumer_progress import EpochProgress
from millrace.client.epoch_reader import EpochReader
from millrace.client.own_epoch_reader import OwnEpochReader, OwnProgress
from millrace.errors import PipelineError, StateError, anew
from millrace.planning.checkpoint import Checkpoint
from millrace.planning.epoch_cursor import EpochCursor
from millrace.planning.weight_changes import NOT_READ

AnyReader = EpochReader | OwnEpochReader
Reload = Callable[[Any], AnyReader]
"""Makes a reader that goes on with these states."""


class DeferredReader:
    """Holds the reader of an epoch, and takes another one where a state is loaded.

    It may begin late: while another iterator of the dataset is read, as whether that one is still read by then decides
    where this epoch is; or for one of several ranks, as others have loaded states and its own is to come.

    Args:
        begin: begins to read the epoch; None: it was begun.
        reader: reads the epoch; None: it has not begun.
        awaits: what whoever asks is told, as the state of this rank is to come first.
        fresh: state of who has read nothing of it.
        passes: of the dataset: told of an epoch that is still to begin.
        reload: makes a reader that goes on with these states.

    Attributes:
        reader: reads the epoch; None: it has not begun.
        closed: nobody reads it any more, unless a state is loaded.
        number: of the epoch.
        progress: of the epoch; empty before it begins.
        checkpoint: how far the epoch was read; may be asked when the reader is gone, and does not keep it.
    """

    def __init__(
        self,
        reload: Reload,
        *,
        reader: AnyReader | None = None,
        begin: Callable[[], AnyReader] | None = None,
        awaits: StateError | None = None,
        fresh: Checkpoint | None = None,
        passes: EpochCursor | None = None,
    ) -> None:
        self._reload, self._begin, self._awaits, self._passes = reload, begin, awaits, passes
        self._load_id = None if passes is None else passes.load_id
        self._lock = threading.RLock()
        self.progress: EpochProgress | OwnProgress
        self._now: list[Callable[[], Checkpoint]] = []
        self.checkpoint = functools.partial(_latest, self._now)
        self.reader: AnyReader | None = None
        self.closed = False
        if reader is not None:
            self._read_on(reader)
        else:
            assert fresh is not None
            self._wait(fresh)

    def _wait(self, fresh: Checkpoint) -> None:
        self.number, self.progress = fresh.next_epoch, EpochProgress(fresh.next_epoch)
        self._now[:] = [lambda: fresh]
        if self._passes is not None:
            self._passes.begin(self.number, self.checkpoint)

    def _read_on(self, reader: AnyReader) -> None:
        self.number, self.progress = reader.number, reader.progress
        self._now[:] = [reader.checkpoint]
        self.reader, self._begin = reader, None

    def hand_over(self, begin: Callable[[], AnyReader], fresh: Checkpoint) -> AnyReader | None:
        """Give the reader to somebody who was asked before this one, and begin another epoch when this one is.

        Returns:
            The reader; None if it is being read by now, or was closed.
        """
        if not self._lock.acquire(blocking=False):
            return None  # it is being asked this moment
        try:
            reader = self.reader
            if reader is None or reader.over or not reader.progress.untouched:
                return None
            self.reader, self._begin = None, begin
            self._wait(fresh)
            return reader
        finally:
            self._lock.release()

    def begin(self) -> None:
        """Begin to read the epoch, unless it has begun, or was closed."""
        try:
            with self._lock:
                if self.reader is None and self._awaits is not None:
                    raise anew(self._awaits)  # noqa: TRY301 (no other frame is to hold this)
                if self.reader is None and self._begin is not None:
                    if self._passes is not None:
                        self._passes.started(self._load_id)
                    self._read_on(self._begin())
        except BaseException:
            del self  # whoever keeps the traceback must not keep what reads
            raise

    def advance(self) -> bool:
        """Make the next elements current; False if there are none."""
        try:
            self.begin()
            return self.reader is not None and self.reader.advance()
        except BaseException:
            del self  # as above
            raise

    def set_weights(self, weights: Sequence[float]) -> int:
        """Set the weights of the mixture, see :meth:`.StatefulIterator.set_weights`; the epoch begins, if need be."""
        self.begin()
        if isinstance(self.reader, OwnEpochReader):
            raise PipelineError(
                "set_weights would set weights for all jobs that share the computation of the epoch: leave sharing= out"
            )
        if self.reader is None:
            raise PipelineError(NOT_READ)
        return self.reader.set_weights(weights)

    def put_back(self, element: Any) -> None:
        """Hand this element out once more, as who has just got it could not use it; no state counts it."""
        if self.reader is not None:
            self.reader.put_back(element)

    @property
    def skipped(self) -> int:
        """Elements that ``on_error`` left out so far."""
        return 0 if self.reader is None else self.reader.skipped

    @property
    def missed(self) -> int:
        """Equal to that of :class:`EpochReader`."""
        return 0 if self.reader is None else self.reader.missed

    @property
    def members(self) -> int:
        """Equal to that of :class:`EpochReader`."""
        return 0 if self.reader is None else self.reader.members

    def take(self) -> tuple[list[Any], int, int]:
        """Equal to that of :class:`EpochReader`."""
        return ([], 0, 0) if self.reader is None else self.reader.take()

    def wake(self) -> None:
        """Equal to that of :class:`EpochReader`."""
        if self.reader is not None:
            self.reader.wake()

    def load(self, state: Any) -> None:
        """Go on where ``state`` was taken; see :meth:`EpochIterator.load_state_dict`."""
        with self._lock:
            before = self.reader
            if before is not None and before.begins_with(state):
                return
            other = self._reload(state)
            if before is not None and other is not before:
                before.close()
            self._read_on(other)
            self.closed = False

    def close(self) -> None:
        """Stop reading, or never begin. May be called any number of times."""
        if self.reader is not None:
            self.reader.close()  # a thread that waits for an element gives up
        with self._lock:
            self.closed, self._begin, self._awaits = True, None, None
            if self.reader is not None:
                self.reader.close()


def _latest(now: list[Callable[[], Checkpoint]]) -> Checkpoint:
    return now[0]()
