"""A consumer's session with the dispatcher: joins, reports, and comes back by itself when it breaks.

Its threads know the conversation, never the object that the user holds: so that dropping that one ends them.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import platform
import queue
import threading
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence

import msgspec

from millrace.client.age import process_age_s
from millrace.client.epoch_buffer import Outcome, Rerun
from millrace.client.joining import join
from millrace.client.monitor import Measure, Monitor
from millrace.client.notices import Notices
from millrace.client.receiver import Feed
from millrace.client.rerun_check import Reruns
from millrace.client.status_query import ask_why
from millrace.elements.lent import SealedMemory
from millrace.errors import (
    AuthenticationError,
    JobFailedError,
    MillraceError,
    PipelineError,
    ServiceError,
    ServiceUnreachableError,
    VersionMismatchError,
    anew,
)
from millrace.planning.checkpoint import Checkpoint
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import (
    BeginEpoch,
    ConsumerReport,
    EpochBegun,
    EpochEnds,
    JobFailed,
    JobJoined,
    JoinJob,
    LeaveJob,
    Notice,
    ReadTasks,
    Resumed,
    StepsReady,
    TaskProgress,
    ToConsumer,
)
from millrace.protocol.reports import Told
from millrace.version import __version__
from millrace.wire.backoff import delays
from millrace.wire.control.blob_transfer import offer, put_blob
from millrace.wire.control.control_client import ClientSession, ControlChannel
from millrace.wire.control.rpc import UnsendableError
from millrace.wire.data.compression import Compression
from millrace.wire.error_codec import error_of

CLOSE, REPORT = "close", "report"
SOON_S = 0.02
"""Least time between two reports; a task that became complete is reported that soon."""

_FATAL = (AuthenticationError, VersionMismatchError, JobFailedError)

_logger = logging.getLogger(__name__)


class Conversation:
    """One consumer's place in one job.

    Args:
        address: of the dispatcher.
        spec: of the job; its ``bundle`` is filled in.
        bundle: bytes that hold the graph's user functions.
        consumer: index wanted; None takes the lowest free one.
        token: of the service.
        compression: of what comes over the network.
        buffer_bytes: for elements that wait to be read.
        timeout: seconds until the service must have answered.
        gone: why the dispatcher will not come back, once that is known; asked when the session has broken.
        linger: the place is left to a successor: closing does not leave the job.
        states: where the job goes on.
        progress: show how far reading is.
        arrays: what the functions leave out; lent anew to a dispatcher that was started anew.

    Attributes:
        states: name of the saved states that the job went on from before this consumer came; empty: none.

    Raises:
        ServiceUnreachableError: nobody answered in time.
        AuthenticationError, VersionMismatchError, JobConflictError, ConsumerConflictError, PipelineError: as the
            dispatcher says.
    """

    def __init__(
        self,
        address: str,
        spec: JobSpec,
        bundle: bytes,
        *,
        consumer: int | None,
        token: str | None,
        compression: Compression | None = None,
        buffer_bytes: int,
        timeout: float,
        gone: Callable[[], str] | None = None,
        linger: bool = False,
        states: Sequence[Checkpoint] = (),
        progress: bool = False,
        arrays: Sequence[SealedMemory] = (),
    ) -> None:
        self._spec, self._linger, self._arrays = spec, linger, arrays
        self._gone = gone
        self.client, self.pid = uuid.uuid4().hex, os.getpid()
        self._over = threading.Event()
        self._closing = threading.Lock()
        self._words: queue.SimpleQueue[str | int] = queue.SimpleQueue()
        # Entered by the lock itself: Ctrl-C within Condition.__enter__, which is Python, would leave it held for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._begun: EpochBegun | None = None  # the epoch that the dispatcher said has begun
        self._wanted = -1  # the epoch that it was asked to begin
        self._failure: MillraceError | None = None
        self._left: tuple[int, list[TaskProgress]] = (-1, [])  # all that was read of the epoch before
        self._measures: dict[int, Measure] = {}  # of the epoch that was begun last, and of the one before
        self._ended = -1  # the epoch that was, last
        self._generation, self._heard = 0, Told()
        self.notices = Notices(self._fail)
        self._reruns = Reruns()
        self.left_out = self._unused = 0
        """Elements, over all epochs, that were not used as other consumers had no more."""
        self._sending = threading.RLock()
        self._taken = False  # what was read, and not sent: Ctrl-C came in between
        self._session: ClientSession | None = None
        self._threads: list[threading.Thread] = []
        self._channel = ControlChannel(address, token, timeout)
        try:
            self._channel.connect()
            session, joined = self._join_first(bundle, consumer, timeout, states)
        except BaseException:
            self._channel.close()
            raise
        self.job, self.consumer, self.seed = joined.job, joined.consumer, joined.seed
        self._heartbeat_s = joined.heartbeat_s
        self._generation, self.states, self._heard = joined.generation, joined.states, joined.told
        self._following: int | None = None if joined.waits else joined.epoch + 1
        self._spec = msgspec.structs.replace(self._spec, name=self.job, seed=self.seed)
        self.feed = Feed(
            self.job,
            self.consumer,
            self.client,
            generation=joined.generation,
            token=token,
            compression=compression,
            buffer_bytes=buffer_bytes,
            wake=self._wake,
            compared=self._compared,
        )
        self._monitor = Monitor(self.job, functools.partial(ask_why, self._channel, self.client), progress=progress)
        self._session = session
        _open.add(self)
        self._start(self._converse, session)
        self._start(self._beat)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=f"millrace{target.__name__}-{self.job}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join_first(
        self, bundle: bytes, consumer: int | None, timeout: float, states: Sequence[Checkpoint]
    ) -> tuple[ClientSession, JobJoined]:
        """Joins the dispatcher, which was there a moment ago: if it dies meanwhile, as soon as it is back."""

        def first() -> tuple[ClientSession, JobJoined]:
            self._spec = msgspec.structs.replace(self._spec, bundle=put_blob(self._channel, bundle))
            return self._join(consumer, timeout, states=states)

        try:
            return first()
        except ServiceUnreachableError as error:
            joined = self._once_back(error, delays(), first)
        assert joined is not None, "nobody can close what is not there yet"
        return joined

    def _once_back(
        self,
        lost: MillraceError | None,
        pauses: Iterator[float],
        join: Callable[[], tuple[ClientSession, JobJoined]],
    ) -> tuple[ClientSession, JobJoined] | None:
        """``join()`` as soon as the dispatcher is back, however long that takes; None when this is over.

        Raises:
            ServiceUnreachableError: it will never be back.
            MillraceError: it does not let this process in.
        """
        for pause in pauses:
            if lost is not None and not self._over.is_set():  # else it was this end that closed the channel
                _logger.warning("%s; waiting for it to come back", lost)
            if self._over.wait(pause):
                return None
            reason = self._gone() if self._gone is not None else ""
            if reason:
                raise ServiceUnreachableError(reason)
            try:
                self._channel.connect()
                return join()
            except ServiceUnreachableError as error:
                lost = error
        return None

    def _join(
        self, consumer: int | None, timeout: float, *, resume: bool = False, states: Sequence[Checkpoint] = ()
    ) -> tuple[ClientSession, JobJoined]:
        for memory in self._arrays:
            offer(self._channel, memory, self._spec.name, joins=not resume)
        age_s = process_age_s(self._spec.name)
        who = JoinJob(self._spec, self.client, consumer, __version__, platform.node(), self.pid, age_s=age_s)
        heard = msgspec.structs.replace(self._heard, epoch=-1 if self._begun is None else self._begun.epoch)
        told = {"generation": self._generation, "states": list(states), "lingers": self._linger, "told": heard}
        return join(self._channel, msgspec.structs.replace(who, **told, resume=resume), timeout)

    # -- epochs --------------------------------------------------------------------------------------------------------

    @property
    def spec(self) -> JobSpec:
        """What the job is."""
        return self._spec

    @property
    def next_epoch(self) -> int:
        """The first epoch that was not begun at this place; waits for the states of other ranks, if need be.

        Raises:
            MillraceError: why the job cannot go on.
        """
        with self._lock:
            self._wait(lambda: self._following is not None)
            assert self._following is not None
            return self._following

    def _wait(self, condition: Callable[[], bool]) -> None:
        """Waits with the lock held."""
        self._monitor.wanted()
        while not condition():
            if self._failure is not None:
                raise anew(self._failure)
            if self._over.is_set():
                raise ServiceError("the session was closed while an epoch was about to begin")
            self._changed.wait()

    def begin(self, number: int | None, measure: Measure) -> EpochBegun:
        """Begins an epoch (None: the next one) and returns what the dispatcher says of it.

        Raises:
            MillraceError: why the job cannot go on.
        """
        with self._lock:
            wanted = self.next_epoch if number is None else number
        if self._begun is not None:
            self.end(self._begun.epoch)  # if it was dropped, and the thread that is to end it has not come to that
        with self._lock:
            self._following = wanted + 1
            self._measures = {epoch: each for epoch, each in self._measures.items() if epoch == self._ended}
            self._measures[wanted] = measure
            self._wanted, self._unused = wanted, 0
        self._send(BeginEpoch(wanted))
        with self._lock:
            self._wait(lambda: self._begun is not None and self._begun.epoch == wanted)
            assert self._begun is not None
            return self._begun

    def end(self, number: int, *, read: bool = False) -> None:
        """Nobody reads this epoch any more; ``read``: all of it was."""
        with self._sending:  # as in report(), and once
            if self._begun is None or self._begun.epoch != number or self._ended == number:
                return
            self.notices.ended = number if read else self.notices.ended
            self._unused = self._count_unused()
            if number in self._measures:  # from here on what is read is let go of
                seen = self._measures[number]()
                self._measures[number] = lambda: seen
            self.report()
            self._left = self.feed.progress(everything=True)
            self.feed.stop(number)
            self._ended = number
        self._monitor.ended(number, self._measures.get(number))

    def _count_unused(self) -> int:
        """Elements of the epoch that were received and will not be handed out, if it is not read on."""
        measure = None if self._begun is None else self._measures.get(self._begun.epoch)
        if measure is None or self._begun is None or self._begun.epoch == self.notices.ended:
            return 0
        return max(0, self.feed.arrived[0] - measure()[0])

    # -- what the dispatcher says --------------------------------------------------------------------------------------

    def _converse(self, session: ClientSession) -> None:
        pauses = delays()
        while not self._over.is_set():
            try:
                for message in session:
                    pauses = delays()
                    self._told(message)
            except _FATAL as error:
                self._fail(error)
                return
            except MillraceError as error:
                _logger.info("dispatcher: %s", error)
            except Exception as error:  # a bug of ours must not leave the user waiting
                _logger.exception("the session failed")
                self._fail(ServiceError(f"the session with the dispatcher failed: {type(error).__name__}: {error}"))
                return
            with self._sending:
                self._session = None
            rejoined = self._rejoin(pauses)
            if rejoined is None:
                return
            session = rejoined

    def _rejoin(self, pauses: Iterator[float]) -> ClientSession | None:
        """Joins again, however long it takes; None when this is over."""
        try:
            again = self._once_back(None, pauses, lambda: self._join(self.consumer, self._heartbeat_s, resume=True))
        except MillraceError as error:
            self._fail(error)
            return None
        if again is None:
            return None
        session, joined = again
        self._told(joined)
        with self._sending:
            if self._over.is_set():
                return None
            self._session = session
            # In this order: what was not read of an epoch is dropped as the next one begins.
            self.report(everything=True)
            if self._wanted >= 0:
                self._send(BeginEpoch(self._wanted))
        return session

    def _told(self, message: ToConsumer) -> None:
        match message:
            case ReadTasks(epoch=epoch, reads=reads, alone=alone):
                self._heard = self._heard.hears_of(max((read.lease for read in reads), default=0))
                self.feed.assign(epoch, reads, alone)
            case EpochEnds(epoch=epoch, tasks=tasks, unread=unread):
                self.notices.unread(epoch, unread)
                self.feed.ends(epoch, tasks)
            case StepsReady(epoch=epoch, steps=steps, last=last):
                self.feed.allow(epoch, steps, last=last)
            case EpochBegun(epoch=epoch, held=held):
                with self._lock:
                    if epoch == self._wanted:
                        self.feed.begin(epoch, in_order=self._spec.deterministic, held=held)
                        self._begun = message
                        self._changed.notify_all()
            case Resumed(epoch=epoch):
                with self._lock:
                    self._following = epoch if self._following is None else self._following
                    self._changed.notify_all()
            case JobFailed(failure=failure):
                self._fail(error_of(failure))
            case Notice(text=text):
                self.notices.say(text)
            case JobJoined(heartbeat_s=heartbeat_s, waits=waits, epoch=last):
                self._heartbeat_s, self._heard = heartbeat_s, self._heard.let_in(message.told)
                if not waits:
                    self._told(Resumed(last + 1))

    def _fail(self, error: MillraceError) -> None:
        with self._lock:
            self._failure = self._failure or error
            self._changed.notify_all()
        self.feed.fail(error)

    # -- what it hears -------------------------------------------------------------------------------------------------

    def _send(self, message: msgspec.Struct) -> None:
        """Sends, if there is a session: who comes back says all of it again."""
        with self._sending:
            if self._session is None:
                return
            try:
                self._session.send(message)
            except UnsendableError as error:
                self._fail(error)  # nobody would ever hear of it
            except MillraceError as error:
                _logger.info("could not tell the dispatcher: %s", error)

    def report(self, *, everything: bool = False) -> None:
        """Tells the dispatcher how far reading has come and how fast it is."""
        # In one step: that an epoch was left must not overtake what was read of it, or others would get that again.
        with self._sending:
            everything = everything or self._taken
            self._taken = True
            epoch, tasks = self.feed.progress(everything=everything)
            if epoch < 0 and everything:
                epoch, tasks = self._left
            report, measure = ConsumerReport(max(self._wanted, 0)), self._measures.get(epoch)
            if measure is not None:
                handed, rates = measure()
                arrived, all_here = self.feed.arrived
                report = ConsumerReport(
                    epoch, tasks, handed, *rates[:3], arrived=arrived, all_here=all_here, pace=rates.pace
                )
            report = msgspec.structs.replace(report, ended=report.epoch == self.notices.ended)
            known = dict(zip(("reruns", "differed", "impure"), self._reruns.told, strict=True))
            self._send(msgspec.structs.replace(report, left_out=self.left_out, came=self.feed.came, **known))
            self._taken = False

    def _compared(self, epoch: int, rerun: Rerun) -> None:
        """A task that was run again was held against what had come of it before."""
        text = self._reruns.add(self._spec, epoch, rerun)
        if text and rerun.outcome is not Outcome.OTHER and self._spec.visitation == "exactly_once":
            self._fail(PipelineError(text))  # the guarantee is broken, and known to be
        elif text and self._reruns.told[1] == 1:
            self.notices.say(text)
        self._wake()

    def _wake(self) -> None:
        if self._words.empty():
            self._words.put(REPORT)

    def say(self, word: str | int) -> None:
        """Asks for a report, for the end (CLOSE), or for the end of an epoch (its number).

        All that may be done where the interpreter happens to collect garbage: any thread, with any lock held.
        """
        self._words.put(word)

    def _beat(self) -> None:
        while not self._over.is_set():
            try:
                word = self._words.get(timeout=self._monitor.pause(self._heartbeat_s))
            except queue.Empty:
                word = REPORT
                self._look_up()
            if word == CLOSE:
                self.close()
                return
            if isinstance(word, int):
                self.end(word)
            else:
                self.report()
                begun = -1 if self._begun is None else self._begun.epoch
                try:
                    self._monitor.look(begun, self._measures.get(begun), came=self.feed.has_first)
                except Exception:  # whatever that is, the dispatcher is still to hear of what is read
                    _logger.exception("cannot say how far reading is")
                self._over.wait(SOON_S)

    def _look_up(self) -> None:
        """Wakes whoever waits: Ctrl-C that came just before they began to is noticed only when they go on."""
        with self._lock:
            self._changed.notify_all()
        self.feed.look_up()

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._over.is_set()

    def close(self) -> None:
        """Leaves the job and ends all threads. May be called any number of times; harmless in a forked child."""
        if os.getpid() != self.pid or not self._closing.acquire(blocking=False):
            return
        self.report()
        if not self._linger:
            self._send(LeaveJob(self._unused or self._count_unused()))
        self._over.set()
        self._words.put(REPORT)
        with self._lock:
            self._changed.notify_all()
        self.feed.close()
        self._channel.close()
        self._arrays = ()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()


_open: weakref.WeakSet[Conversation] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for conversation in list(_open):
        conversation.close()
