"""A training process's hold of a job: a session, and one epoch at a time to iterate over."""

from __future__ import annotations

import functools
import gc
import operator
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from typing import Any

from millrace.client.consumer_io import Answer, HandedOut, Over, Refuse, Used
from millrace.client.consumer_progress import EpochProgress
from millrace.client.job_session import CLOSE, JobSession
from millrace.client.own_figures import OwnFigures
from millrace.errors import DetachedError, JobConflictError, MillraceError, PipelineError, ServiceError, anew
from millrace.graph.serialize import unpack
from millrace.planning.checkpoint import Checkpoint, Merged, Part, graph_digest, name_of, parse_all, said
from millrace.planning.epoch_cursor import EpochCursor
from millrace.planning.weight_changes import NOT_READ
from millrace.protocol.reports import Pace

Failed = Callable[[], Callable[["ConsumerSession"], None] | None]
"""Gives what to call when a session's job has failed, if that is still there."""
Alone = Callable[[Checkpoint, DetachedError], "ConsumerSession"]
"""Joins a job of its own that goes on from a state, and tells the user why."""


class ConsumerSession:
    """One consumer of one job on a service, as a user holds it. Ends with :meth:`close`, or when it is dropped.

    Args:
        job_session: does the work; it must not know this object.

    Attributes:
        job: the job's name.
        consumer: this consumer's index.
        seed: the job's seed.
    """

    def __init__(self, job_session: JobSession) -> None:
        self._job_session = job_session
        # Dropped without close(), which may happen in any thread, inside anything: only leave a word.
        weakref.finalize(self, self._job_session.say, CLOSE).atexit = False
        self._reader: weakref.ref[EpochReader] | None = None
        self.job, self.consumer, self.seed = job_session.job, job_session.consumer, job_session.seed

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._job_session.closed

    @property
    def failed(self) -> bool:
        """Whether the job cannot go on."""
        return self._job_session.core.failure is not None

    @property
    def reading(self) -> bool:
        """Whether an epoch is being read: neither read to its end, nor closed, nor dropped by everybody."""
        reader = self._reader() if self._reader is not None else None
        return reader is not None and reader.is_open

    @property
    def late(self) -> bool:
        """Whether others read an epoch that this member of their group was too late for as it came."""
        joined = self._job_session.core.joined
        return joined is not None and joined.late

    @property
    def leads(self) -> bool:
        """Whether no member of its group had begun an epoch as this one came."""
        joined = self._job_session.core.joined
        return joined is not None and joined.newest < 0

    @property
    def elements(self) -> int | None:
        """Elements of a whole epoch, as the service knows them of one that has begun; None: it doesn't, or none has."""
        begun = self._job_session.core.begun
        return None if begun is None or begun.elements < 0 else begun.elements

    def warn(self, text: str) -> None:
        """Tell the user, once."""
        self._job_session.warn(text)

    @property
    def next_epoch(self) -> int:
        """Number of the first epoch that this consumer, in this session or an earlier one, has not begun.

        Waits, if need be, until all ranks have said their states.

        Raises:
            MillraceError: why the job cannot go on.
        """
        return self._job_session.next_epoch

    def epoch(
        self,
        number: int | None = None,
        *,
        read: Merged | None = None,
        keep: object = None,
        passes: EpochCursor | None = None,
        failed: Failed = lambda: None,
        alone: Alone | None = None,
    ) -> EpochReader:
        """Begin an epoch; None: the next one.

        Args:
            number: of the epoch.
            read: what of it was read before, as far as this consumer is to say.
            keep: lives at least as long as the epoch is being read, e.g. the service it comes from.
            passes: of the dataset: told what is read.
            failed: when reading has failed.
            alone: makes the session of a job of its own that goes on from a state; None: there is none.

        Raises:
            MillraceError: why the job cannot go on.
            ServiceError: if the session is closed, or belongs to another process.
            JobConflictError: an epoch is being read, or this one was begun before.
        """
        self.check()
        if self.reading:
            gc.collect()  # nobody may know any more of one that lies in a cycle
        if self.reading:
            raise JobConflictError(
                f"an iterator of job {self.job!r} is being read in this process, and a consumer reads one epoch of a "
                "job at a time: read that one to its end or close() it first, use peek() to look at some elements, or "
                "distribute() the dataset once more, without job_name or with another one"
            )
        if number is not None and number < self.next_epoch:
            raise JobConflictError(
                f"consumer {self.consumer} of job {self.job!r} is past epoch {number}, which this process is about to "
                "begin: an earlier run, or another loader, has read the job; give this one another job_name"
            )
        reader = EpochReader(self, self._job_session, number, read, keep, passes or EpochCursor(), failed)
        reader.alone = alone
        self._reader = weakref.ref(reader)
        return reader

    def go_on(self, reader: EpochReader) -> JobSession:
        """Read on for a reader whose job goes on without it: with what the states say that this one begins with.

        Waits until all ranks have said their states: an epoch that is begun before would begin with none of them.

        Raises:
            MillraceError: why the job cannot go on.
        """
        following = self.next_epoch
        assert following <= reader.number
        self._job_session.begin(reader.progress)
        self._reader = weakref.ref(reader)
        return self._job_session

    def over(self, state: Checkpoint, passes: EpochCursor) -> EpochReader:
        """Make a reader at the end of an epoch that has ended before; no epoch begins."""
        reader = EpochReader(self, self._job_session, state.epoch, None, None, passes, lambda: None, over=state)
        reader.close()
        return reader

    def check(self) -> None:
        """Check that the session can be used here and now.

        Raises:
            ServiceError: if the session is closed, or belongs to another process.
        """
        if os.getpid() != self._job_session.pid:
            raise ServiceError(
                f"this session of job {self.job!r} belongs to process {self._job_session.pid}, this is "
                f"{os.getpid()}, forked from it: open another one here"
            )
        if self.closed:
            raise ServiceError(f"this session of job {self.job!r} is closed")

    def close(self) -> None:
        """Leave the job: its consumer's place is free. May be called any number of times."""
        self._job_session.close()

    @property
    def waits_until_left(self) -> Callable[[], None]:
        """A call that waits until this session, which may be dropped by then, has left its job."""
        return self._job_session.wait_until_left


class EpochReader:
    """Reader of one epoch of a session. Made by :meth:`ConsumerSession.epoch`; dropping it ends the epoch.

    Attributes:
        number: of the epoch.
        progress: of it; who iterates takes elements from there.
        checkpoint: how far it was read; may be asked when the reader is gone, and does not keep it.
        alone: see :meth:`ConsumerSession.epoch`.
    """

    alone: Alone | None = None
    outputs: int | None = None
    """Number of the epoch's outputs, those that were missed included, at its end; None: nobody says."""
    _shared = 0, 0
    _read_before = _missed_before = 0

    def __init__(
        self,
        session: ConsumerSession,
        job_session: JobSession,
        number: int | None,
        read: Merged | None,
        keep: object,
        passes: EpochCursor,
        failed: Failed,
        over: Checkpoint | None = None,
    ) -> None:
        self._lock = threading.RLock()
        self._closing = threading.Event()
        self._failure: MillraceError | None = None
        self._session: ConsumerSession | None = session  # it lives as long as somebody reads
        self._keep = keep
        self._job_session = job_session
        self._passes, self._failed = passes, failed
        self._parts: list[Part] = []
        self.checkpoint: Callable[[], Checkpoint]
        if over is None:
            self.number = session.next_epoch if number is None else number
            self.progress = progress = EpochProgress(self.number, read)
            begun = job_session.begin(progress)
            self._anew, self._parts = begun.anew, begun.parts
            graph = graph_digest(unpack(job_session.core.spec.structure))
            self._taken = functools.partial(job_session.state, progress, graph, taken=True)
            self.checkpoint = functools.partial(job_session.state, progress, graph)
        else:
            self.number, self.progress = over.epoch, EpochProgress(over.epoch)
            self.checkpoint = lambda: over
        self._load_id = passes.load_id
        passes.begin(self.number, self.checkpoint)
        self._finalizer = weakref.finalize(self, self._job_session.say, self.number)
        self._finalizer.atexit = False

    def put_back(self, element: Any) -> None:
        """Hand this element out once more, as who has just got it could not use it; no state counts it."""
        with self._lock:
            if self._session is not None or operator.length_hint(self.progress.current):
                self.progress.current = iter([element, *self.progress.current])

    def hand_on(self) -> None:
        """Have another one take elements from here: what was not handed out to the one before comes again."""
        with self._lock, self._job_session.shared.lock:
            self._closing = threading.Event()
            self.progress.hand_on()

    @property
    def figures(self) -> tuple[int, Pace]:
        """Number of elements that were handed out, and how fast."""
        handed, rates = self.progress.measure(time.perf_counter())
        return handed, rates.pace

    def tell(self, own: OwnFigures | None) -> None:
        """Have lines of progress be of a member's own epoch, instead of the group's; None: that one is over."""
        self._job_session.tell(own)

    @property
    def is_open(self) -> bool:
        """Whether there may be more to read."""
        return self._session is not None

    def advance(self) -> bool:
        """Make the next elements current; False if there are none.

        Ctrl-C may come anywhere: then nothing is lost, or the reader has failed.
        """
        try:
            self._passes.started(self._load_id)
            if self._failure is not None:
                raise anew(self._failure)  # noqa: TRY301 (no other frame is to hold this)
            if self._session is None:
                return False
            self._session.check()
            match self._answer():
                case HandedOut(first=first):
                    if first:
                        self._job_session.shared.handle(Used())
                    return True
                case Over(unread=unread):
                    inbox = self._job_session.core.inbox
                    if inbox is not None and inbox.outputs is not None:
                        self.outputs = self._read_before + inbox.outputs
                    self.close()
                    self._job_session.notices.at_end(unread)
                case Refuse(error=error, lost=lost):
                    if lost:
                        self._failure = anew(error)
                        self.close()
                    raise anew(error)  # noqa: TRY301
        except BaseException as error:
            if isinstance(error, MillraceError) and self._session is not None:
                self._fail(self._session, error)
            del self  # as above
            raise
        return False

    def _answer(self) -> Answer | None:
        """Wait for more, in a job of its own if the one that was read goes on without this process."""
        while True:
            answer = self._job_session.shared.take(self.number, self._closing.is_set)
            match answer:
                case Refuse(error=DetachedError() as error, lost=False) if self.alone is not None:
                    self._read_before += self.progress.read(taken=True)
                    self._missed_before = self.missed
                    self.progress.detach()
                    session = self.alone(self._taken(), error)
                    self.progress.detached()
                    self._job_session, self._session = session.go_on(self), session
                    self._finalizer.detach()
                    self._finalizer = weakref.finalize(self, self._job_session.say, self.number)
                    self._finalizer.atexit = False
                case _:
                    return answer

    def _fail(self, session: ConsumerSession, error: MillraceError) -> None:
        """Let go of everything: whoever keeps the error may keep what reads, and would keep the service with it."""
        if os.getpid() == self._job_session.pid:
            self._failure = anew(error)
            self.close()
            leave = self._failed()
            if leave is not None:
                leave(session)

    def set_weights(self, weights: Sequence[float]) -> int:
        """Set the weights of the mixture, see :meth:`.StatefulIterator.set_weights`.

        Raises:
            PipelineError: it is read no more, or the pipeline or the job does not allow it.
            MillraceError: why the job cannot go on.
        """
        if self._session is None or self._session.closed:
            raise PipelineError(NOT_READ)
        return self._job_session.set_weights(self.number, weights)

    @property
    def opening(self) -> tuple[int, int, int, list[Part]]:
        """Seed, epoch, consumer and the outputs that were handed out in part."""
        return self._job_session.seed, self.number, self._job_session.consumer, self._parts

    @property
    def coordinated(self) -> bool:
        """Whether all ranks read the same tasks, each for itself."""
        return bool(self._job_session.core.spec.coordinated)

    @property
    def over(self) -> bool:
        """Whether it began at its epoch's end, or was closed."""
        return self._session is None

    def take(self) -> tuple[list[Any], int, int]:
        """Take elements for operators behind ``distribute()``, their task, the first's number in it; none: the end."""
        with self._lock:
            progress = self.progress
            progress.behind = progress.behind or 0  # from now on it is for them to say what was handed out
            return progress.take_current() if operator.length_hint(progress.current) or self.advance() else ([], 0, 0)

    def wake(self) -> None:
        """Have whoever waits for an element give up, for good."""
        self._closing.set()
        self._job_session.shared.look_up()

    def fail(self, error: MillraceError) -> None:
        """Note that what reads here has failed."""
        if self._session is not None:
            self._fail(self._session, error)

    def prime(self) -> bool:
        """Wait for the first elements; False if there are none.

        Raises:
            MillraceError: why the job cannot go on.
        """
        match self._job_session.shared.take(self.number, decode=False):
            case Refuse(error=error):
                raise anew(error)
            case Over():
                self.close()
                return False
        return True

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out so far."""
        return self._job_session.core.skipped

    @property
    def missed(self) -> int:
        """Number of elements so far that a shared window no longer had when they could have come here."""
        return self._look()[0]

    @property
    def members(self) -> int:
        """Number of jobs that share the computation of the epoch, this one included; 0: it is not shared."""
        return self._look()[1]

    def _look(self) -> tuple[int, int]:
        """Look how the epoch is shared, while it is read; what was seen last stays."""
        inbox = self._job_session.core.inbox
        if self._session is not None and inbox is not None and inbox.number == self.number:
            self._shared = self._missed_before + inbox.missed, inbox.members
        return self._shared

    def begins_with(self, state: Any) -> bool:
        """Whether another rank has loaded these states before this one joined, so that the epoch begins with them."""
        if not self._job_session.states or self._session is None or not self.progress.untouched:
            return False
        loaded = parse_all(state)
        epoch = min(each.next_epoch for each in loaded)
        if self._job_session.states != name_of(loaded) or self.number != epoch:
            return False
        if not (self._anew or self.coordinated):
            self.progress.resume(said(loaded, epoch))
        return True

    def close(self) -> None:
        """Stop reading; what was not read of the epoch is dropped. May be called any number of times."""
        self.wake()
        with self._lock:
            self._look()
            self._session = self._keep = self.alone = None
            try:
                if self._finalizer.detach() is not None:
                    self._job_session.end(self.number)  # while it counts what it has left
            finally:
                self.progress.close()
