"""Worker process: its session with the dispatcher, its server for consumers, and its end."""

from __future__ import annotations

import functools
import logging
import os
import platform
import sys
import threading
import uuid
from collections.abc import Callable

from millrace.elements.shared import AVAILABLE, Arena
from millrace.errors import (
    AccessDeniedError,
    AuthenticationError,
    JobFailedError,
    MillraceError,
    ProtocolError,
    ServiceError,
    VersionMismatchError,
)
from millrace.host_limits import process_space, usable_cores
from millrace.protocol import messages as msg
from millrace.version import __version__
from millrace.wire.address import WILDCARDS, format_address, is_loopback
from millrace.wire.backoff import delays
from millrace.wire.broker.brokered_store import BrokeredStore
from millrace.wire.control.blob_transfer import fetch_blob, fetch_memory, put_blob
from millrace.wire.control.client_session import ClientSession
from millrace.wire.control.control_client import ControlChannel
from millrace.wire.control.rpc import UnsendableError, about_job
from millrace.wire.data.data_connection import DataServer
from millrace.wire.error_codec import error_of, failure_of
from millrace.wire.tls_files import TlsFiles, beyond_loopback
from millrace.worker.core import worker_inputs as inp
from millrace.worker.task_manager import JOIN_S, TaskManager

BUFFER_BYTES = 256 << 20
DRAIN_S = 30.0
"""Seconds that an orderly end waits for tasks to be done and consumers to read what is ready."""
CONNECT_S = 10.0

_FATAL = (AuthenticationError, AccessDeniedError, VersionMismatchError, JobFailedError, UnsendableError)
"""Errors of a session that another one would have as well: what a worker says first is always the same."""

_logger = logging.getLogger(__name__)


class WorkerProcess:
    """Worker process; :meth:`run` is its whole life.

    Args:
        dispatcher: address of the dispatcher.
        token: of the service; None if it has none.
        host: address to listen on for consumers; other than loopback demands a token.
        port: to listen on; 0 takes a free one.
        advertise: host name under which consumers reach it; None: ``host``, or this machine's name if that is a
            wildcard.
        threads: for user functions; None: by the machine.
        buffer_bytes: for outputs that wait to be read, all consumers together.
        shared_memory: lend consumers on this host the memory that batches are in.
        drain_timeout: seconds that an orderly end may take; what is not done by then goes to other workers.
        name: unique in the service; None draws one.
        job: the one job that it serves, which is read on this host; empty: any.
        tls: this host's certificates; None: none, and what is said can be heard.
        insecure: that it can be heard on other networks than loopback is no mistake.
        broker: store of the service, whose folder this process may not look into; None: it may.
        zone: that it is in; empty: in none. It asks the cache servers there, if there are any, and else all.
    """

    def __init__(
        self,
        dispatcher: str,
        *,
        token: str | None = None,
        host: str = "127.0.0.1",
        port: int = 0,
        advertise: str | None = None,
        threads: int | None = None,
        buffer_bytes: int = BUFFER_BYTES,
        shared_memory: bool = True,
        drain_timeout: float = DRAIN_S,
        name: str | None = None,
        job: str = "",
        tls: TlsFiles | None = None,
        insecure: bool = False,
        broker: BrokeredStore | None = None,
        zone: str = "",
    ) -> None:
        self._job = job
        self.id = name or uuid.uuid4().hex
        self._life = f"{process_space()}/{uuid.uuid4().hex}"
        self._dispatcher = dispatcher
        self._token = token
        self._host, self._insecure = host, insecure
        self._port = port
        self._advertised = advertise or (platform.node() if host in WILDCARDS else host)
        self._drain_timeout = drain_timeout
        self._join_timeout_s = JOIN_S
        # Consumers know the address alone: on loopback nobody else hears anything.
        self._tls = beyond_loopback(tls, self._advertised)
        if tls is not None and self._tls is None and not is_loopback(host):
            raise ServiceError(
                f"--advertise {self._advertised} says that consumers are on this host alone, which --host {host} does"
                " not: with TLS say one name for both, or leave --advertise out"
            )
        self._channel = ControlChannel(dispatcher, token, CONNECT_S, tls)
        self._session: ClientSession | None = None
        self._report_now = threading.Event()
        self._heartbeat_s = 5.0
        self._over = threading.Event()
        self._leaving = False
        self._error: MillraceError | None = None
        # For what waits here, for as much that waits in consumers on this host, and for what is being made.
        self._buffer_bytes = buffer_bytes
        self._arena = Arena(2 * buffer_bytes + buffer_bytes // 4) if shared_memory and AVAILABLE else None
        self._tasks = TaskManager(
            self._tell,
            functools.partial(fetch_blob, self._channel),
            functools.partial(put_blob, self._channel, waits=True),
            threads=threads,
            buffer_bytes=buffer_bytes,
            arena=self._arena,
            hurry=self._report_now.set,
            end=self._end,
            share=functools.partial(fetch_memory, self._channel),
        )
        self._tasks.tls, self._tasks.zone = tls, zone
        self._tasks.caches.broker = broker

    def run(self, listening: Callable[[], object] | None = None) -> None:
        """Work until told to stop, by :meth:`stop` or by the dispatcher.

        Args:
            listening: called once the worker can be reached.

        Raises:
            AuthenticationError, AccessDeniedError, VersionMismatchError: the dispatcher will never take this worker.
            AddressInUseError: the port to listen on is taken.
        """
        server = DataServer(
            self._host,
            self._tasks.serve,
            port=self._port,
            token=self._token,
            arena=self._arena,
            key_of=self._tasks.key_of,
            tls=self._tls,
            insecure=self._insecure,
        )
        self._tasks.address = format_address(self._advertised, server.port)
        threads = [
            threading.Thread(target=self._converse, name="millrace-session", daemon=True),
            threading.Thread(target=self._beat, name="millrace-heartbeat", daemon=True),
        ]
        try:
            for thread in threads:
                thread.start()
            if listening is not None:
                listening()
            self._over.wait()
        finally:
            self._over.set()
            self._report_now.set()
            self._channel.close()  # first: what is not done is somebody else's from now on
            self._tasks.close(self._join_timeout_s)
            server.close()
            for thread in threads:
                thread.join(CONNECT_S)
        if self._error is not None:
            raise self._error

    def stop(self, reason: str) -> None:
        """Leave in good order, in the background: :meth:`run` returns when it is done. The second call ends at once.

        May be called from a signal handler.
        """
        # A signal may come while this very thread holds any lock; another thread can wait for it.
        threading.Thread(target=self._leave, args=(reason,), name="millrace-leave", daemon=True).start()

    def _leave(self, reason: str) -> None:
        again, self._leaving = self._leaving, True
        if not again:
            _logger.info("leaving: %s", reason)
        self._tasks.feed(inp.Drain(self._drain_timeout))
        if not self._over.wait(self._drain_timeout):
            self._tasks.feed(inp.TimeUp())

    def _end(self, in_time: bool) -> None:
        if not in_time:
            self._join_timeout_s = 0.0
            _logger.warning("not everything was done and read within %g s: others do the rest", self._drain_timeout)
        self._over.set()

    # -- the session ---------------------------------------------------------------------------------------------------

    def _converse(self) -> None:
        pauses, told = delays(), False
        while not self._over.is_set():
            answered = False
            try:
                self._channel.connect()
                answered, told = True, False
                session = self._channel.open_session(msg.ToWorker)
                self._greet(session)
                for message in session:
                    if isinstance(message, msg.WorkerWelcome):
                        pauses = delays()
                    self._told(message)
                _logger.info("the dispatcher ended the session")
            except _FATAL as error:
                self._error = error
                self._over.set()
            except ServiceError as error:
                expected = answered or told or self._leaving
                _logger.log(logging.INFO if expected else logging.WARNING, "%s. Tries on", error)
                told = not answered
            except Exception as error:
                # A bug of ours. Trying again would fail again, for ever and unseen; an end is noticed.
                _logger.exception("the session failed")
                self._error = MillraceError(f"the worker cannot go on: {type(error).__name__}: {error}")
                self._over.set()
            finally:
                self._tasks.feed(inp.SessionClosed())
                self._session = None
            self._over.wait(next(pauses))

    def _greet(self, session: ClientSession) -> None:
        self._session = session
        hello = msg.WorkerHello(
            self.id,
            self._tasks.address,
            platform.node(),
            os.getpid(),
            usable_cores(),
            __version__,
            f"{sys.version_info.major}.{sys.version_info.minor}",
            only=self._job,
            buffer_bytes=self._buffer_bytes,
            asks_caches=True,
            zone=self._tasks.zone,
            life=self._life,
        )
        self._tasks.feed(inp.SessionOpened(hello))

    def _told(self, message: msg.ToWorker) -> None:
        match message:
            case msg.StopWorker(reason=reason):
                self.stop(reason)  # once it is leaving this says that nothing of it is needed any more
            case msg.JobFailed(failure=failure):
                raise error_of(failure)
            case _:
                if isinstance(message, msg.WorkerWelcome):
                    self._heartbeat_s = message.heartbeat_s
                    self._tasks.caches.located(message.cache, message.compression)
                self._tasks.told(message)

    def _tell(self, message: msg.FromWorker) -> None:
        """Send to the dispatcher: who comes back says what it holds, so nothing is lost."""
        session = self._session
        assert session is not None
        if isinstance(message, msg.WorkerHello):
            session.send(message)  # what can't be said first ends the session
            return
        try:
            self._send(session, message)
        except MillraceError as error:
            _logger.info("could not tell the dispatcher %s: %s", type(message).__name__, error)

    def _send(self, session: ClientSession, message: msg.FromWorker) -> None:
        """Send; what can't be sent fails the job that it is about, as others would wait for it."""
        try:
            session.send(message)
        except UnsendableError as error:
            job = about_job(message)
            _logger.error("worker %s: %s", self.id, error)  # noqa: TRY400 - it says it all
            if not job:
                raise
            failure = failure_of(ProtocolError(f"job {job!r} cannot go on: worker {self.id}: {error}"))
            session.send(msg.JobUnsendable(job, failure))

    def _beat(self) -> None:
        while not self._over.is_set():
            self._report_now.wait(self._heartbeat_s)
            self._report_now.clear()
            self._tasks.report()
