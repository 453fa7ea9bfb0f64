"""An epoch as its reader gets it where operators stand behind ``distribute()``: they run here, on what arrives."""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Self

import msgspec

from millrace.client.deferred_reader import DeferredReader
from millrace.client.epoch_iterator import NOTHING, ServedIterator
from millrace.elements.chunk import Chunk
from millrace.engine.run.arrival_metrics import ArrivalMetrics
from millrace.engine.run.arrival_operators import Account, Arrival, ArrivalOperators, Begin, counted
from millrace.engine.user_code.crash_probe import RunStoppedError
from millrace.errors import MillraceError, StateError, anew
from millrace.graph.operator_graph import Graph
from millrace.planning.checkpoint import Checkpoint, pack, parts_of

Fit = Callable[[Any], tuple[Checkpoint, ...]]
"""Parser of a consumer's states, which refuses those that are not of the operators behind ``distribute()``."""


class BehindReader(ServedIterator):
    """Elements of one epoch, as operators behind ``distribute()`` make them.

    Args:
        reader: gives what arrives.
        graph: the operators, behind :class:`millrace.graph.nodes.Arrivals`.
        digest: of them, for states.
        loaded: the states that ``reader`` goes on from.
        fit: refuses states of others.
        started: is told that somebody asks for an element.
        now: holds what says how far the epoch was read; it may be asked when the reader is gone, and does not keep it.
        metrics: of the operators and of who reads.
    """

    def __init__(
        self,
        reader: DeferredReader,
        graph: Graph,
        digest: str,
        loaded: Sequence[Checkpoint],
        fit: Fit,
        started: Callable[[], None],
        now: list[Callable[[], Checkpoint]],
        metrics: ArrivalMetrics,
    ) -> None:
        self._reader, self._graph, self._digest, self._loaded = reader, graph, digest, loaded
        self._fit, self._started, self._metrics = fit, started, metrics
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._failure: Exception | None = None
        self._closed = False
        self._begin: Begin | None = None
        self._account: Account | None = None
        self._behind: ArrivalOperators | None = None
        self._now = now
        self._look()

    def _look(self) -> None:
        """Note where to begin, once that is known."""
        reader = self._reader.reader
        if reader is None:
            self._now[:] = [functools.partial(_before, self._reader.checkpoint, self._digest)]
            return
        seed, epoch, rank, parts = reader.opening
        states = [each for each in self._loaded if each.epoch == epoch and each.counts]
        own = [each.counts for each in states if each.rank == rank]
        # On another number of ranks they only number what is made from now on, so that no number comes again.
        counts = own[0] if own else [max(each) for each in zip(*(each.counts for each in states), strict=True)]
        if counts and len(counts) != len(counted(self._graph)):
            raise StateError(f"the state is damaged: it counts {len(counts)} operators behind distribute()")
        loaded = [each for each in self._loaded if each.rank == rank or not reader.coordinated]
        self._begin = Begin(seed, epoch, rank, counts, parts or parts_of(loaded, epoch))
        self._account = Account(self._graph, self._begin, reader.progress.made_of, ended=reader.over)
        kept = self._account, self._digest
        self._now[:] = [functools.partial(_during, weakref.ref(self._reader), self._reader.checkpoint, *kept)]

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        element: Any = NOTHING
        try:
            with self._lock:
                if self._account is not None and not (self._closed or self._failure):
                    for element in self._account.current:  # nothing can come between taking one and knowing of it
                        return element
                if self._advance() and self._account is not None:
                    for element in self._account.current:
                        return element
        except BaseException:
            if element is not NOTHING:  # Ctrl-C on the way out: nobody has it
                self.put_back(element)
            del self, element  # whoever keeps the traceback must not keep what reads
            raise
        raise StopIteration

    def put_back(self, element: Any) -> None:
        """See :class:`ElementIterator`."""
        with self._lock:
            if self._account is not None:
                self._account.current = iter([element, *self._account.current])

    def _advance(self) -> bool:
        """Make the next elements current; False if there are none."""
        if self._failure is not None:
            raise anew(self._failure)
        if self._closed:
            return False
        try:
            chunk = self._next_chunk()
        except RunStoppedError:
            return False  # it was closed meanwhile
        except BaseException as error:
            self._failure = (
                anew(error)
                if isinstance(error, Exception)
                else MillraceError(
                    "this iterator was interrupted while it computed an element: iterate anew, or go on from its state"
                )
            )
            if isinstance(error, MillraceError) and self._reader.reader is not None:
                self._reader.reader.fail(error)
            self.close()
            raise
        if chunk is None:
            self.close()
        return chunk is not None

    def _next_chunk(self) -> Chunk | None:
        if self._account is None or self._reader.reader is None:  # where it was to begin another one begins now
            self._reader.begin()
            self._look()
        if self._account is None or self._begin is None or self._reader.reader is None:
            return None  # it was closed meanwhile
        self._started()  # not before it has begun, with the states that were loaded
        if self._behind is None:
            take = functools.partial(_take, self._reader, self._closing)
            wake = functools.partial(_wake, self._reader, self._closing)
            self._behind = ArrivalOperators(self._graph, self._begin, self._account, take, wake, self._metrics)
        self._account.hand_out(None)
        chunk = next(self._behind.chunks, None)
        if self._closing.is_set():
            raise RunStoppedError("the iterator was closed")
        if chunk is None:
            self._account.end()
        else:
            self._account.hand_out(chunk)
        return chunk

    @property
    def skipped(self) -> int:
        """See :class:`ElementIterator`."""
        return self._reader.skipped + (0 if self._behind is None else self._behind.skipped)

    def state_dict(self) -> dict[str, Any]:
        """How far the epoch was read, as plain values, without asking the service.

        Raises:
            StateError: there is none, because of the job or of operators behind ``distribute()``.
        """
        return pack(self._now[0]())

    def load_state_dict(self, state: Any) -> None:
        """See :class:`ElementIterator`."""
        loaded = self._fit(state)
        with self._lock:
            if self._behind is not None:
                _wake(self._reader, self._closing)
                self._behind.close()
                self._failure = StateError(
                    "this iterator ended as a state was loaded into it from which it could not go on: load another "
                    "one, or iterate anew"
                )  # unless it can
            self._closing = threading.Event()
            self._reader.load([pack(each) for each in loaded])
            self._begin = self._account = self._behind = self._failure = None
            self._closed, self._loaded = False, loaded
            self._look()

    def close(self) -> None:
        """See :class:`ElementIterator`."""
        _wake(self._reader, self._closing)  # a thread that waits for an element gives up
        with self._lock:
            self._closed = True
            try:
                self._reader.close()
            finally:
                if self._behind is not None:
                    self._behind.close()


def _take(reader: DeferredReader, closing: threading.Event) -> Arrival:
    """Take what comes next.

    Raises:
        RunStoppedError: nothing, as nobody is to have it: what operators hold is not to come out as if at the end.
    """
    taken = reader.take()
    if not taken[0] and closing.is_set():
        raise RunStoppedError("the iterator was closed")
    return taken


def _wake(reader: DeferredReader, closing: threading.Event) -> None:
    """Have whoever waits for what comes give up."""
    closing.set()
    reader.wake()


def _before(there: Callable[[], Checkpoint], digest: str) -> Checkpoint:
    """State of an epoch of which nobody has asked for anything."""
    return msgspec.structs.replace(there(), behind=digest)


def _during(
    reader: weakref.ref[DeferredReader], there: Callable[[], Checkpoint], account: Account, digest: str
) -> Checkpoint:
    """State of an epoch being read: an input counts as yielded when all that was made of it was handed out."""
    known = reader()
    if known is not None and known.reader is None:  # another iterator reads that one
        return _before(there, digest)
    counts, parts = account.now()
    state = there()
    if state.own is not None and state.own.known:
        parts = []  # outputs read in part: the window's other elements come in the place of theirs
    return msgspec.structs.replace(state, behind=digest, counts=counts, parts=parts, ended=account.ended)
