"""A consumer's session with the dispatcher: joins, reports, and comes back by itself when it breaks.

Its threads know the session, never the object that the user holds: so that dropping that one ends them.
"""

from __future__ import annotations

import atexit
import functools
import logging
import multiprocessing.util
import os
import platform
import queue
import threading
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence

from msgspec.structs import replace

from millrace.client.age import process_age_s
from millrace.client.consumer_core import ConsumerCore
from millrace.client.consumer_io import Beat, Broke, End, EpochLeft, EpochWanted, Leave, SessionLost, WeightsWanted
from millrace.client.consumer_progress import EpochProgress
from millrace.client.joining import join
from millrace.client.monitor import Monitor
from millrace.client.notices import Notices
from millrace.client.own_figures import OwnFigures
from millrace.client.shared_core import SharedCore
from millrace.client.status_query import ask_why
from millrace.elements.sealed_memory import SealedMemory
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
from millrace.planning.weight_changes import TOO_LATE, checked_weights
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import EpochBegun, JobJoined, JoinJob
from millrace.version import __version__
from millrace.wire.backoff import delays
from millrace.wire.control.blob_transfer import offer, put_blob
from millrace.wire.control.client_session import ClientSession
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.data.compression import Compression
from millrace.wire.tls_files import open_tls

BUFFER_BYTES = 256 << 20
LEAST_BUFFER_BYTES = 1 << 20
"""A message of small elements."""
CLOSE, REPORT = "close", "report"
SOON_S = 0.02
"""Least time between two reports; a task that became complete is reported that soon."""
LEAVE_S = 5.0
"""In which a job is left, or the dispatcher is away."""

_FATAL = (AuthenticationError, VersionMismatchError, JobFailedError)

_REJOIN_S = 10.0
"""Seconds for a dispatcher that is back to answer, which waits for its disk first; less than the three heartbeats of
5 s after which a consumer counts as lost."""

_logger = logging.getLogger(__name__)


class JobSession:
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
        tls: folder of certificates; empty: the service has none.

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
        buffer_bytes: int = BUFFER_BYTES,
        timeout: float = 10.0,
        gone: Callable[[], str] | None = None,
        linger: bool = False,
        states: Sequence[Checkpoint] = (),
        progress: bool = False,
        arrays: Sequence[SealedMemory] = (),
        tls: str = "",
    ) -> None:
        self._arrays, self._gone = arrays, gone
        files = open_tls(tls)
        self.client, self.pid = uuid.uuid4().hex, os.getpid()
        self._over, self._left = threading.Event(), threading.Event()
        self._closing, self._asking = threading.Lock(), threading.Lock()
        self._words: queue.SimpleQueue[str | int] = queue.SimpleQueue()
        who = JoinJob(spec, self.client, consumer, __version__, platform.node(), self.pid)
        who = replace(who, states=list(states), lingers=linger)
        core = ConsumerCore(who, buffer_bytes)
        self.shared = SharedCore(core, self, compression=compression, buffer_bytes=buffer_bytes, tls=files)
        self.core = core
        self.notices = Notices(lambda error: self.shared.handle(Broke(error)))
        self._own: OwnFigures | None = None
        self._threads: list[threading.Thread] = []
        self._channel = ControlChannel(address, token, timeout, files)
        try:
            self._owner = self._channel.connect().owner
            session, joined = self._join_first(bundle, timeout)
        except BaseException:
            self._channel.close()
            raise
        self.job, self.seed, self.states = joined.job, joined.seed, joined.states
        self.consumer = spec.rank(joined.consumer)
        self._monitor = Monitor(self.job, functools.partial(ask_why, self._channel, self.client), progress=progress)
        self._resume(session, joined)
        _close_at_exit(self)
        self._start(self._converse, session)
        self._start(self._beat)

    def _start(self, target: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=target, args=args, name=f"millrace{target.__name__}-{self.job}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _join_first(self, bundle: bytes, timeout: float) -> tuple[ClientSession, JobJoined]:
        """Join the dispatcher, which was there a moment ago: if it dies meanwhile, as soon as it is back."""

        def first() -> tuple[ClientSession, JobJoined]:
            self.core.spec = replace(self.core.spec, bundle=put_blob(self._channel, bundle))
            return self._join(timeout)

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
        """Return ``join()`` as soon as the dispatcher is back, however long that takes; None when this is over.

        Raises:
            ServiceUnreachableError: it will never be back.
            MillraceError: it does not let this process in.
        """
        for pause in pauses:
            if lost is not None and not self._over.is_set():  # else it was this end that closed the channel
                _logger.warning("%s; waiting for it to come back", lost)
            if self._over.wait(pause):
                return None
            reason = self._why_gone()
            if reason:
                raise ServiceUnreachableError(reason)
            try:
                self._channel.connect()
                return join()
            except ServiceUnreachableError as error:
                lost = error
        return None

    def _why_gone(self) -> str:
        """Why the dispatcher will not come back; empty while it may."""
        if self._gone is not None:
            return self._gone()
        if not self._owner or not self._channel.is_refused():
            return ""
        return (
            f"the service at {self._channel.address} is gone: it belonged to {self._owner}, and ended with it. A "
            "service that outlives the processes that use it is started with `millrace dispatcher`"
        )

    def _join(self, timeout: float) -> tuple[ClientSession, JobJoined]:
        for memory in self._arrays:
            offer(self._channel, memory, self.core.spec.name, joins=self.core.joined is None)
        with self.shared.lock:
            who = self.core.join(process_age_s(self.core.spec.name))
        return join(self._channel, who, timeout)

    def _resume(self, session: ClientSession, joined: JobJoined) -> None:
        with self.shared.lock:
            if not self._over.is_set():
                self.shared.session = session
                self.shared.handle(joined)

    # -- epochs --------------------------------------------------------------------------------------------------------

    @property
    def next_epoch(self) -> int:
        """First epoch that was not begun at this place; waits for the states of other ranks, if need be.

        Raises:
            MillraceError: why the job cannot go on.
        """
        with self.shared.lock:
            self._wait(lambda: self.core.following is not None)
            assert self.core.following is not None
            return self.core.following

    def _wait(self, condition: Callable[[], bool], meanwhile: str = "an epoch was about to begin") -> None:
        """Wait for a condition with the lock held."""
        self._monitor.wanted()
        while not condition():
            if self.core.failure is not None:
                raise anew(self.core.failure)
            if self._over.is_set():
                raise ServiceError(f"the session was closed while {meanwhile}")
            self.shared.changed.wait()

    def begin(self, reading: EpochProgress) -> EpochBegun:
        """Begin an epoch, of which ``reading`` knows what was read before, and is told what is read from now on.

        Raises:
            MillraceError: why the job cannot go on.
        """
        wanted = reading.number
        self.shared.handle(EpochWanted(wanted, reading))
        with self.shared.lock:
            self._wait(lambda: self.core.begun is not None and self.core.begun.epoch == wanted)
            assert reading.begun is not None
            return reading.begun

    def set_weights(self, epoch: int, weights: Sequence[float]) -> int:
        """Set the weights of the mixture in an epoch that was begun; the element from which on they hold.

        Raises:
            PipelineError: the pipeline or the job does not allow it.
            MillraceError: why the job cannot go on.
        """
        wanted = WeightsWanted(epoch, tuple(checked_weights(weights)))
        with self._asking:  # one after the other
            self.shared.handle(wanted)
            with self.shared.lock:
                self._wait(lambda: self.core.weights.answer is not None, "weights were being set")
                answer = self.core.weights.answer
        assert answer is not None
        if answer.refused:
            raise PipelineError(answer.refused)
        if answer.late:
            self.notices.at_end(TOO_LATE)
        return answer.element

    def end(self, number: int) -> None:
        """End an epoch that nobody reads any more."""
        self.shared.handle(End(number))

    def state(self, reading: EpochProgress, graph: str, *, taken: bool = False) -> Checkpoint:
        """State of who reads an epoch; see :meth:`EpochProgress.state`."""
        with self.shared.lock:
            return reading.state(self.core.spec, self.consumer, graph, taken=taken)

    # -- what the dispatcher says --------------------------------------------------------------------------------------

    def _converse(self, session: ClientSession) -> None:
        pauses = delays()
        while not self._over.is_set():
            try:
                for message in session:
                    pauses = delays()
                    self.shared.handle(message)
            except _FATAL as error:
                self.shared.handle(Broke(error))
                return
            except MillraceError as error:
                _logger.info("dispatcher: %s", error)
            except Exception as error:  # a bug of ours must not leave the user waiting
                _logger.exception("the session failed")
                text = f"the session with the dispatcher failed: {type(error).__name__}: {error}"
                self.shared.handle(Broke(ServiceError(text)))
                return
            with self.shared.lock:
                self.shared.session = None
                self.shared.handle(SessionLost())
            rejoined = self._rejoin(pauses)
            if rejoined is None:
                return
            session = rejoined

    def _rejoin(self, pauses: Iterator[float]) -> ClientSession | None:
        """Join again, however long it takes; None when this is over."""
        try:
            again = self._once_back(None, pauses, lambda: self._join(_REJOIN_S))
        except MillraceError as error:
            self.shared.handle(Broke(error))
            return None
        if again is None:
            return None
        self._resume(*again)
        return None if self._over.is_set() else again[0]

    # -- what it is to do ----------------------------------------------------------------------------------------------

    def warn(self, text: str) -> None:
        """Tell the user, once."""
        self.notices.say(text)

    def epoch_left(self, left: EpochLeft) -> None:
        """Note that nobody reads an epoch any more."""
        if self._own is None:
            self._monitor.ended(left.number, lambda: (left.handed, left.rates), left.missed, left.members)

    def tell(self, own: OwnFigures | None) -> None:
        """Have lines be of a member's own epoch from now on; None: it is over."""
        over, self._own = self._own, own
        if over is not None and own is None:
            self._monitor.ended(over.number, lambda: over.seen, over.missed, over.members, made_up_for=True)

    def report_soon(self) -> None:
        """Have a report sent in a moment."""
        if self._words.empty():
            self._words.put(REPORT)

    def say(self, word: str | int) -> None:
        """Ask for a report, for the end (CLOSE), or for the end of an epoch (its number).

        All that may be done where the interpreter happens to collect garbage: any thread, with any lock held.
        """
        self._words.put(word)

    def _beat(self) -> None:
        while not self._over.is_set():
            try:
                word = self._words.get(timeout=self._monitor.pause(self.core.heartbeat_s))
            except queue.Empty:
                word = REPORT
                self.shared.look_up()  # Ctrl-C that came just before somebody waited is noticed when they go on
            if word == CLOSE:
                self.close()
                return
            if isinstance(word, int):
                self.end(word)
            else:
                self.shared.handle(Beat())
                self._look()
                self._over.wait(SOON_S)

    def _look(self) -> None:
        """Say how far reading is, and what is waited for."""
        with self.shared.lock:
            epoch, came = -1 if self.core.begun is None else self.core.begun.epoch, self.core.has_first
            measured = self.core.measure(epoch, time.perf_counter())
            if self._own is not None:
                epoch, measured = self._own.number, measured and self._own.with_group(measured[0], measured[1].pace)
        try:
            self._monitor.look(epoch, measured and (lambda: measured), came=came)
        except Exception:  # whatever that is, the dispatcher is still to hear of what is read
            _logger.exception("cannot say how far reading is")

    # -- the end -------------------------------------------------------------------------------------------------------

    @property
    def closed(self) -> bool:
        """Whether :meth:`close` was called."""
        return self._over.is_set()

    def close(self) -> None:
        """Leave the job and end all threads. May be called any number of times; harmless in a forked child."""
        if os.getpid() != self.pid or not self._closing.acquire(blocking=False):
            return
        self.shared.handle(Leave())
        self._over.set()
        self._words.put(REPORT)
        self.shared.look_up()
        self.shared.close()
        try:
            self._channel.close()
        finally:
            self._left.set()
        self._arrays = ()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join()

    def wait_until_left(self) -> None:
        """Wait until the dispatcher has heard that this leaves the job, or will not hear of it, as it is away."""
        if os.getpid() == self.pid:
            self._left.wait(LEAVE_S)


_open: weakref.WeakSet[JobSession] = weakref.WeakSet()
_finalized: set[int] = set()
"""Numbers of processes that are children of :mod:`multiprocessing` and close their sessions as they end."""


def _close_at_exit(job_session: JobSession) -> None:
    """Have a session closed as the process ends: children of :mod:`multiprocessing` end without :mod:`atexit`."""
    _open.add(job_session)
    if multiprocessing.parent_process() is not None and os.getpid() not in _finalized:
        _finalized.add(os.getpid())
        multiprocessing.util.Finalize(None, _close_all, exitpriority=0)


@atexit.register
def _close_all() -> None:
    for job_session in list(_open):
        job_session.close()
        job_session.wait_until_left()
