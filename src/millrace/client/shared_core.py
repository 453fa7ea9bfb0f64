"""A consumer's core among the threads of a training process: feeds it, and does what it says."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from millrace.client import consumer_io as io
from millrace.client.consumer_core import ConsumerCore
from millrace.client.receiver import CONNECT_TIMEOUT_S, WorkerConnections, send
from millrace.errors import MillraceError
from millrace.protocol import data_messages
from millrace.wire.control.rpc import UnsendableError
from millrace.wire.data.compression import Compression
from millrace.wire.tls_files import TlsFiles

_logger = logging.getLogger(__name__)

_Later = list[Callable[[], None]]


class DispatcherSession(Protocol):
    """Session with the dispatcher, as the core needs it."""

    def send(self, message: Any) -> None:
        """Queue a message; never wait."""


class Shell(Protocol):
    """Shell that does what is neither the network's nor the reader's."""

    def report_soon(self) -> None:
        """Have a report sent in a moment."""

    def warn(self, text: str) -> None:
        """Tell the user, once."""

    def epoch_left(self, left: io.EpochLeft) -> None:
        """Note that nobody reads an epoch any more."""


class SharedCore:
    """One core and its lock. Thread-safe; one thread takes, any may do the rest.

    Args:
        core: decides.
        shell: does the rest.

    Attributes:
        lock: held whenever the core is used, and ``changed``: whenever it was fed.
        session: with the dispatcher, while there is one.
    """

    def __init__(
        self,
        core: ConsumerCore,
        shell: Shell,
        *,
        compression: Compression | None = None,
        buffer_bytes: int,
        tls: TlsFiles | None = None,
    ) -> None:
        self.core = core
        self._shell = shell
        # Entered by the lock itself: Ctrl-C within Condition.__enter__, which is Python, would leave it held for ever.
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.session: DispatcherSession | None = None
        self._connections = WorkerConnections(self, compression=compression, buffer_bytes=buffer_bytes, tls=tls)

    def handle(self, item: io.Input) -> None:
        """Feed the core, and do what it says."""
        later: _Later = []
        with self.lock:
            self._do(self.core.handle(item, time.perf_counter()), later)
            self.changed.notify_all()
        for call in later:
            call()

    def take(self, epoch: int, closed: Callable[[], bool] = lambda: False, *, decode: bool = True) -> io.Answer | None:
        """Wait for the next message, decode it and make current what may be used; None: the reader was ``closed``.

        Args:
            epoch: that is read.
            closed: whether nobody waits any more.
            decode: False: only wait until there is something to decode.
        """
        item: io.Input
        item = ask = io.MoreWanted(epoch, time.perf_counter(), self.core.ready)
        while True:
            later: _Later = []
            with self.lock:
                if closed():
                    return None
                if self.core.actions:  # Ctrl-C left them, and their answer is none to this question
                    self._do(self.core.actions, later)
                answer = self._do(self.core.handle(item, time.perf_counter()), later)
                if answer is None and not later:
                    self.changed.wait()
            for call in later:
                call()
            if isinstance(answer, io.Decode) and decode:
                item = io.Decoded(ask, answer.arrival, answer.arrival.decoded())
            elif answer is not None:
                return answer
            else:
                item = ask

    def _do(self, actions: deque[io.Action], later: _Later) -> io.Answer | None:
        """Do what the core says, with the lock held; what may have to wait comes after it.

        Returns:
            What the core answers to who asked it.
        """
        answer = None
        while actions:
            action = actions[0]
            match action:
                case io.Decode() | io.HandedOut() | io.Over() | io.Refuse():
                    answer = action
                case io.TellWorker():
                    connection, message = self._connections.connection(action.address), action.message
                    if connection is None:
                        pass
                    elif isinstance(message, data_messages.Received):
                        send(connection, message)  # before the user can have what it is about
                    else:
                        later.append(partial(send, connection, message))
                case io.Tell(message=word):
                    self._tell(word)
                case io.ReportSoon():
                    self._shell.report_soon()
                case io.Connect(address=address, again=again):
                    self._connections.connect(address, again=again)
                case io.Disconnect(address=address):
                    self._connections.disconnect(address)
                case io.Warn(text=text):
                    later.append(partial(self._shell.warn, text))
                case io.EpochLeft():
                    later.append(partial(self._shell.epoch_left, action))
            actions.popleft()
        return answer

    def _tell(self, message: Any) -> None:
        try:
            if self.session is not None:
                self.session.send(message)
        except UnsendableError as error:
            self.core.handle(io.Broke(error), 0.0)  # nobody would ever hear of it
        except MillraceError as error:
            _logger.info("could not tell the dispatcher: %s", error)

    def look_up(self) -> None:
        """Have a thread that waits look whether there is anything else to do, e.g. a signal to handle."""
        with self.lock:
            self.changed.notify_all()

    def close(self) -> None:
        """Wait for the threads that read, once the core has been left."""
        with self.lock:
            threads = self._connections.threads
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CONNECT_TIMEOUT_S)
