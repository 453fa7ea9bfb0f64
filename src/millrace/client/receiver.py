"""Brings elements from workers to one consumer: a connection and a thread for each worker, one bounded buffer."""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from millrace.client.credit import CreditPool
from millrace.client.epoch_buffer import Arrival, EpochInbox, Rerun
from millrace.errors import (
    AuthenticationError,
    ElementTooLargeError,
    MillraceError,
    ProtocolError,
    ServiceError,
    VersionMismatchError,
    anew,
)
from millrace.protocol import data_messages
from millrace.protocol.messages import TaskProgress, TaskRead
from millrace.protocol.reports import Flow
from millrace.wire.backoff import delays
from millrace.wire.data.buffer_pool import BufferPool
from millrace.wire.data.compression import Compression
from millrace.wire.data.data_connection import BulkConnection, bulk_connect

CONNECT_TIMEOUT_S = 10.0
IDLE_PART = 4
"""One part in so many of the buffer's bytes may be held besides, in memory that awaits its next use."""

_logger = logging.getLogger(__name__)


class Feed:
    """What a consumer reads from. Thread-safe; one thread takes, any may do the rest.

    Args:
        job: name of the job.
        consumer: index of the consumer.
        client: id of this process's session.
        generation: of the job that it has joined.
        token: that workers demand.
        compression: of what comes over the network.
        buffer_bytes: bound on what is held and granted.
        wake: called when a task has become complete.
        compared: called with the epoch when a run of a task was compared with the one before it.
    """

    def __init__(
        self,
        job: str,
        consumer: int,
        client: str,
        *,
        generation: int = 0,
        token: str | None,
        compression: Compression | None = None,
        buffer_bytes: int,
        wake: Callable[[], None],
        compared: Callable[[int, Rerun], None] = lambda epoch, rerun: None,
    ) -> None:
        self._open = data_messages.Open(job, consumer, client, generation)
        self._token = token
        self._compression = compression
        self._wake = wake
        self._compared = compared
        # Entered by the lock itself: Ctrl-C within Condition.__enter__, which is Python, would leave it held for ever.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._pool = CreditPool(buffer_bytes)
        self._memory = BufferPool(buffer_bytes // IDLE_PART)
        self._inbox: EpochInbox | None = None
        self._allowed: tuple[int, bool] | None = None
        self._failure: MillraceError | None = None
        self._closed = False
        self._retry: set[str] = set()
        self._local: set[str] = set()
        self.came = Flow(), Flow()
        """What came so far, over all epochs: from local workers, and from others."""
        self._threads: dict[str, threading.Thread] = {}
        self._connections: dict[str, BulkConnection] = {}

    # -- epochs --------------------------------------------------------------------------------------------------------

    def begin(self, epoch: int, *, in_order: bool, held: bool = False) -> None:
        """The epoch to read from now on; what was held of another is dropped.

        ``held``: its elements are not to be used before :meth:`allow` says so.
        """
        with self._lock:
            if self._inbox is not None and self._inbox.number == epoch:
                return  # said again after the dispatcher was lost
            self._inbox = EpochInbox(epoch, in_order=in_order)
            self._allowed = (0, False) if held else None
            orders = self._route(self._pool.clear())
            self._changed.notify_all()
        _send_all(orders)

    def stop(self, epoch: int) -> None:
        """Nobody reads this epoch any more. What workers hold of it stays there until the dispatcher says otherwise."""
        with self._lock:
            if self._inbox is None or self._inbox.number != epoch or self._inbox.finished:
                return
            # What is still to come would have to be received to be dropped.
            connections = list(self._connections.values())
            self._inbox = None
            orders = self._route(self._pool.clear())
            self._changed.notify_all()
        _send_all(orders)
        for connection in connections:
            connection.close()

    def assign(self, epoch: int, reads: Sequence[TaskRead], alone: Sequence[int] = ()) -> None:
        """Tasks are (now) to be read from these workers; ``alone``: some tasks that leave nothing over, for states."""
        orders: dict[str, list[data_messages.Read]] = {}
        with self._lock:
            if self._closed or self._inbox is None or self._inbox.number != epoch:
                return
            self._inbox.alone.update(alone)
            for read in reads:
                if read.local:
                    self._local.add(read.address)
                start = self._inbox.assign(read.task, read.lease, read.address, read.start)
                if self._inbox.wanted(read.task):
                    orders.setdefault(read.address, []).append(data_messages.Read(epoch, read.task, read.lease, start))
            connections = {address: self._connections.get(address) for address in orders}
            for address, connection in connections.items():
                if address not in self._threads:
                    self._start(address)
                elif connection is None:
                    self._retry.add(address)
            self._changed.notify_all()
        for address, connection in connections.items():
            if connection is not None:  # else it will ask for all that is unfinished once it is there
                _send(connection, orders[address])

    def ends(self, epoch: int, tasks: Sequence[int]) -> None:
        """These are all tasks of the consumer's share of the epoch."""
        with self._lock:
            if self._inbox is not None and self._inbox.number == epoch:
                self._inbox.ends(tasks)
                self._changed.notify_all()
        self._wake()

    def allow(self, epoch: int, steps: int, *, last: bool) -> None:
        """So many elements of the epoch may be used in all, and with ``last`` never more."""
        with self._lock:
            current = self._inbox is not None and self._inbox.number == epoch
            if current and self._allowed is not None and not self._allowed[1]:
                self._allowed = max(self._allowed[0], steps), last
                self._changed.notify_all()

    def usable(self, epoch: int, used: int, closed: Callable[[], bool] = lambda: False) -> int | None:
        """Waits until more than ``used`` elements may be used, and says how many; None: there is no limit.

        As many as ``used``: there will be no more, or the reader was closed meanwhile.

        Raises:
            MillraceError: what made the job fail, once all has been used that may be.
            ServiceError: if the feed was closed.
        """
        with self._lock:
            while True:
                if self._closed:
                    self._check()
                if closed() or self._inbox is None or self._inbox.number != epoch:
                    return used
                if self._allowed is None:
                    return None
                steps, last = self._allowed
                if steps > used or last:
                    return max(steps, used)
                self._check()  # a failure comes after all that may be used without what will not come any more
                self._changed.wait()

    @property
    def arrived(self) -> tuple[int, bool]:
        """Elements of the epoch that came, and whether these are all."""
        with self._lock:
            return (0, False) if self._inbox is None else (self._inbox.arrived, self._inbox.all_here)

    @property
    def has_first(self) -> bool:
        """Whether there is an element of the epoch that may be used: with equal steps all ranks have to have one."""
        with self._lock:
            return (
                self._inbox is not None and self._inbox.arrived > 0 and (self._allowed is None or self._allowed[0] > 0)
            )

    def _check(self) -> None:
        if self._failure is not None:
            raise anew(self._failure)
        if self._closed:
            raise ServiceError("the session was closed while an epoch was being read")

    def fail(self, error: MillraceError) -> None:
        """From now on reading raises ``error``; the first one counts."""
        with self._lock:
            self._failure = self._failure or error
            self._changed.notify_all()

    @property
    def failed(self) -> bool:
        """Whether reading raises an error from now on."""
        return self._failure is not None

    def look_up(self) -> None:
        """Has a thread that waits look whether there is anything else to do, e.g. a signal to handle."""
        with self._lock:
            self._changed.notify_all()

    # -- reading -------------------------------------------------------------------------------------------------------

    def take(self, epoch: int, closed: Callable[[], bool] = lambda: False) -> Arrival | None:
        """The next message, as soon as it is there; None at the epoch's end, or when the reader was ``closed``.

        Raises:
            MillraceError: what made the job fail, once all has been taken that had come.
            ServiceError: if the feed was closed.
        """
        while True:
            with self._lock:
                inbox = self._inbox
                arrival = None if closed() or inbox is None or inbox.number != epoch else inbox.take()
                if arrival is None:
                    self._check()  # a failure comes after all that came before it
                if closed() or inbox is None or inbox.number != epoch:
                    return None
                if arrival is not None:
                    grants = self._pool.used(arrival.worker, arrival.size)
                elif inbox.finished:
                    return None
                else:
                    grants = self._pool.force(inbox.needed())
                    if not grants:
                        self._changed.wait()
                        continue
                orders = self._route(grants)
            _send_all(orders)
            if arrival is not None:
                return arrival

    @property
    def taken(self) -> int:
        """Messages of the epoch that were taken, or of which the taking was interrupted."""
        with self._lock:
            return 0 if self._inbox is None else self._inbox.taken

    @property
    def ready(self) -> int:
        """Elements that have arrived and were not taken."""
        with self._lock:
            return 0 if self._inbox is None else self._inbox.ready

    def progress(self, *, everything: bool = False) -> tuple[int, list[TaskProgress]]:
        """(epoch, tasks that moved since the last call; with ``everything``, all); epoch -1 between epochs."""
        with self._lock:
            if self._inbox is None:
                return -1, []
            return self._inbox.number, self._inbox.progress(everything=everything)

    def ended(self, epoch: int) -> list[tuple[int, int]]:
        """(task, number of its outputs) of this epoch's tasks that have ended since the last call."""
        with self._lock:
            return [] if self._inbox is None or self._inbox.number != epoch else self._inbox.ended()

    def alone(self, epoch: int) -> set[int]:
        """Tasks of this epoch that leave nothing over, as was heard since the last call."""
        with self._lock:
            if self._inbox is None or self._inbox.number != epoch:
                return set()
            alone, self._inbox.alone = self._inbox.alone, set()
            return alone

    @property
    def skipped(self) -> int:
        """Elements of this epoch that ``on_error`` left out."""
        with self._lock:
            return 0 if self._inbox is None else self._inbox.skipped

    # -- workers -------------------------------------------------------------------------------------------------------

    def _start(self, address: str) -> None:
        thread = threading.Thread(target=self._serve, args=(address,), name=f"millrace-read-{address}", daemon=True)
        self._threads[address] = thread
        thread.start()

    def _serve(self, address: str) -> None:
        """Reads from one worker while anything is to come from it, through as many connections as it takes."""
        pauses = delays()
        near = True  # if the worker is on this host, and this process can have the descriptors of what is shared
        while True:
            began = time.monotonic()
            try:
                with bulk_connect(
                    address, self._token, CONNECT_TIMEOUT_S, local=near, compression=self._compression
                ) as connection:
                    self._receive(address, connection)
            except (AuthenticationError, VersionMismatchError, ProtocolError) as error:
                self.fail(error)
            except ServiceError as error:
                # Lost, or not there. If it is dead the dispatcher names another; until then it is worth trying again.
                _logger.debug("worker %s: %s", address, error)
                if near and getattr(error.__cause__, "errno", 0) == errno.EMFILE:
                    near = False
                    _logger.warning(
                        "no file descriptor is left in this process (ulimit -n) for what worker %s shares with it:"
                        " elements are copied through a socket from now on",
                        address,
                    )
            if time.monotonic() - began > CONNECT_TIMEOUT_S:
                pauses = delays()  # it went well for a while
            with self._lock:
                wanted = self._inbox is not None and self._inbox.unfinished(address) and self._failure is None
                if self._closed or not wanted:
                    del self._threads[address]
                    return
                self._retry.discard(address)
                self._changed.wait_for(lambda: self._closed or address in self._retry, next(pauses))

    def _receive(self, address: str, connection: BulkConnection) -> None:
        """Reads until the connection ends, which raises."""
        connection.send(self._open)
        with self._lock:
            if self._closed or self._inbox is None:
                return
            self._connections[address] = connection
            epoch = self._inbox.number
            orders = [data_messages.Read(epoch, *unfinished) for unfinished in self._inbox.unfinished(address)]
            grants, share = self._pool.join(address), self._pool.share
        try:
            for order in (*(data_messages.Credit(amount, share) for amount in grants.values()), *orders):
                connection.send(order)
            while True:
                header, payload = connection.receive(data_messages.TO_READER, self._memory.allocate)
                if isinstance(header, data_messages.Delivery):
                    self._arrived(address, connection, header, payload)
                elif isinstance(header, data_messages.Short):
                    self._short(address, header)
                else:
                    raise ProtocolError(f"{address} sent {type(header).__name__}, which nobody asked for")
        finally:
            with self._lock:
                if self._connections.get(address) is connection:
                    del self._connections[address]
                    routed = self._route(self._pool.leave(address))
                else:
                    routed = []
                self._changed.notify_all()
            _send_all(routed)

    def _arrived(self, address: str, connection: BulkConnection, header: data_messages.Delivery, payload: Any) -> None:
        size = payload.nbytes if header.count else 0
        complete = False
        with self._lock:
            self._pool.arrived(address, size)
            inbox = self._inbox
            current = inbox is not None and inbox.number == header.epoch
            fresh = False
            reruns: list[Rerun] = []
            if inbox is not None and current:
                fresh = inbox.accept(
                    header.task,
                    header.index,
                    header.count,
                    payload,
                    size,
                    address,
                    last=header.last,
                    skipped=header.skipped,
                    changed=header.changed,
                )
                if fresh:
                    self._count(address, header.count, size)
                reruns, inbox.reruns = inbox.reruns, []
                upto, complete = inbox.holds(header.task)
                # Said before the user can have it: what may be sent again to a successor was never written to here.
                _send(connection, [data_messages.Received(header.epoch, header.task, upto, complete)])
            held = fresh and self._allowed is not None
            orders = [] if fresh else self._route(self._pool.used(address, size))
            self._changed.notify_all()
        _send_all(orders)
        for rerun in reruns:
            self._compared(header.epoch, rerun)
        if complete or held:
            self._wake()

    def _count(self, address: str, elements: int, size: int) -> None:
        local, others = self.came
        came = local if address in self._local else others
        came = Flow(came.elements + elements, came.bytes + size)
        self.came = (came, others) if address in self._local else (local, came)

    def _short(self, address: str, header: data_messages.Short) -> None:
        with self._lock:
            if header.size > self._pool.total and header.count == 1:
                self._failure = self._failure or ElementTooLargeError(
                    f"an element of {header.size:,} bytes is more than this process's buffer of "
                    f"{self._pool.total:,}: yield smaller elements (smaller batches), or raise "
                    f"with_options(buffer_bytes=...)"
                )
            grants = self._pool.short(address, header.size, header.returned)
            orders = self._route(grants)
            self._changed.notify_all()  # who waits may have to let it in
        _send_all(orders)

    def _route(self, grants: Mapping[str, int]) -> list[tuple[BulkConnection, list[data_messages.BulkMessage]]]:
        share = self._pool.share
        return [(self._connections[name], [data_messages.Credit(more, share)]) for name, more in grants.items() if more]

    # -- the end -------------------------------------------------------------------------------------------------------

    def close(self) -> None:
        """Closes all connections and waits for their threads. May be called any number of times."""
        with self._lock:
            self._closed = True
            self._inbox = None
            connections = list(self._connections.values())
            threads = list(self._threads.values())
            self._changed.notify_all()
        for connection in connections:
            connection.close()
        for thread in threads:
            if thread is not threading.current_thread():
                thread.join(CONNECT_TIMEOUT_S)


def _send_all(orders: Sequence[tuple[BulkConnection, Sequence[data_messages.BulkMessage]]]) -> None:
    for connection, messages in orders:
        _send(connection, messages)


def _send(connection: BulkConnection, messages: Sequence[data_messages.BulkMessage]) -> None:
    try:
        for message in messages:
            connection.send(message)
    except ServiceError:
        connection.close()  # the thread that receives on it sees it and connects anew
