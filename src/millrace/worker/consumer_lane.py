"""A lane: what one worker does for one consumer. A thread of its own runs the consumer's leases one after the other.

A consumer that does not read fills its lane's buffer and thereby stops its lane's thread, and nobody else's.
"""

from __future__ import annotations

import enum
import threading
import time
from collections.abc import Callable, Container
from typing import Protocol

import msgspec

from millrace.engine.user_code.crash_probe import RunStoppedError
from millrace.errors import ElementTooLargeError
from millrace.protocol import data_messages
from millrace.protocol.messages import HeldTask, LeaseTask, TaskAt, TaskGoOn, TaskRef
from millrace.protocol.reports import LaneReport
from millrace.worker.outbox import Allowance, LaneBuffer, Message, Parcel, TaskKey
from millrace.worker.packing import LEAST, MOST_BYTES


class Stop(enum.Enum):
    """Why a run is stopped."""

    RETURN = "return"
    """The lease is to be given back."""
    FORGET = "forget"
    """Nobody wants to hear of it any more."""


class StoppedError(RunStoppedError):
    """A run is to stop; raised inside the lane's thread, caught by it."""

    def __init__(self, stop: Stop) -> None:
        super().__init__(stop.value)
        self.stop = stop


class Outlet(Protocol):
    """The connection to a consumer, as far as a lane cares."""

    def close(self) -> None:
        """Ends the connection; whoever sends or receives on it notices."""
        ...


class Lane:
    """Leases, buffer and connection of one consumer. All methods may be called from any thread.

    Args:
        job: name of the job.
        consumer: index of the consumer.
        limit: bytes of outputs to keep.
        total: bytes of outputs that the worker may keep for all lanes, for messages.
        in_order: the consumer reads tasks in plan order.
        run: runs one lease, putting its outputs into the lane; called in the lane's thread.
    """

    def __init__(
        self, job: str, consumer: int, limit: int, total: int, *, in_order: bool, run: Callable[[Lane, LeaseTask], None]
    ) -> None:
        self.job = job
        self.consumer = consumer
        self._total = total
        self._in_order = in_order
        self._run = run
        # Two conditions of one lock: what wakes the sender for each message should wake nobody else, and vice versa.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)
        self._sendable = threading.Condition(lock)
        self._buffer = LaneBuffer(limit, in_order=in_order)
        self._pending: list[LeaseTask] = []
        self._running: LeaseTask | None = None
        self._stop: Stop | None = None
        self._spared = False  # what runs, perhaps before it put out anything
        self._closed = False
        self._outlet: Outlet | None = None
        self._allowance = Allowance()
        self._blocked_since = 0.0
        self._began = time.monotonic()
        self._running_since = self._filled_since = 0.0
        self._computed_s = self._filled_s = 0.0
        self._said: TaskAt | None = None
        self._noted = 0
        self._thread = threading.Thread(target=self._work, name=f"millrace-lane-{consumer}", daemon=True)
        self._thread.start()

    # -- leases --------------------------------------------------------------------------------------------------------

    def submit(self, lease: LeaseTask) -> None:
        """Takes a lease on. Those of earlier epochs come first: a consumer reads nothing else until it has them."""
        with self._changed:
            self._pending.append(lease)
            if self._in_order:
                self._pending.sort(key=lambda each: (each.ref.epoch, each.ref.task))
            else:
                self._pending.sort(key=lambda each: each.ref.epoch)
            self._changed.notify_all()

    def revoke(self, key: TaskKey, lease: int) -> bool:
        """Gives a lease up; False if it runs: then the end of the run will say so."""
        with self._changed:
            running = self._running
            if running is not None and running.lease == lease:
                self._stop = Stop.RETURN
                self._changed.notify_all()
                return False
            self._pending = [each for each in self._pending if each.lease != lease]
            if self._buffer.has(key, lease):
                self._buffer.forget(key)
            self._changed.notify_all()
            return True

    def forget(self, key: TaskKey) -> None:
        """Drops what is kept of a task, and stops it if it runs."""
        with self._changed:
            self._buffer.forget(key)
            self._pending = [each for each in self._pending if (each.ref.epoch, each.ref.task) != key]
            running = self._running
            if running is not None and (running.ref.epoch, running.ref.task) == key:
                self._stop = Stop.FORGET
            self._changed.notify_all()

    def spare(self, key: TaskKey) -> None:
        """The consumer takes no more outputs of a task; its run goes on for what it leaves over."""
        with self._changed:
            self._buffer.spare(key)
            running = self._running
            self._spared = self._spared or (running is not None and (running.ref.epoch, running.ref.task) == key)
            self._pending = [
                msgspec.structs.replace(each, received=-1) if (each.ref.epoch, each.ref.task) == key else each
                for each in self._pending
            ]
            self._changed.notify_all()

    def drop(self, leases: Container[int]) -> None:
        """Leases that are not this worker's any more; nobody wants to hear of them."""
        with self._changed:
            self._pending = [each for each in self._pending if each.lease not in leases]
            for key in [key for key, task in self._buffer if task.finished and task.lease in leases]:
                self._buffer.forget(key)
            if self._running is not None and self._running.lease in leases:
                self._stop = Stop.FORGET
            self._changed.notify_all()

    def unstarted(self) -> list[LeaseTask]:
        """Leases that had not begun; they are no longer this lane's."""
        with self._changed:
            pending, self._pending = self._pending, []
            return pending

    def coming(self) -> list[LeaseTask]:
        """Leases that have not begun, in the order in which they will."""
        with self._changed:
            return list(self._pending)

    @property
    def idle(self) -> bool:
        """Nothing runs, waits or is kept."""
        with self._changed:
            return self._running is None and not self._pending and not any(True for _ in self._buffer)

    def held(self, leftovers: Callable[[TaskRef], bool]) -> list[HeldTask]:
        """All leases of this lane."""
        with self._changed:
            held = [HeldTask(each.ref, each.lease, self.consumer) for each in self._pending]
            if self._running is not None:
                held.append(HeldTask(self._running.ref, self._running.lease, self.consumer))
            for (epoch, task), buffer in self._buffer:
                if buffer.finished:
                    ref = TaskRef(self.job, epoch, task)
                    end = buffer.end, leftovers(ref), buffer.nothing
                    held.append(HeldTask(ref, buffer.lease, self.consumer, True, *end))
            return held

    def report(self) -> LaneReport:
        """How this lane fares."""
        with self._changed:
            now = time.monotonic()
            blocked = now - self._blocked_since if self._blocked_since else 0.0
            running = now - self._running_since if self._running_since else 0.0
            self._look(now)
            return LaneReport(
                self.consumer,
                self._running is not None,
                blocked,
                self._buffer.bytes,
                now - self._began,
                max(0.0, self._computed_s + running - blocked),
                self._filled_s + (now - self._filled_since if self._filled_since else 0.0),
            )

    def _look(self, now: float) -> None:
        """Counts the time in which something lies ready; whenever that may have changed."""
        if self._buffer.filled:
            self._filled_since = self._filled_since or now
        elif self._filled_since:
            self._filled_s += now - self._filled_since
            self._filled_since = 0.0

    # -- the run, in the lane's thread ---------------------------------------------------------------------------------

    def begin(self, lease: LeaseTask, first: int, changed: str) -> None:
        """A run starts to put out, from output ``first`` on; ``changed``: see :class:`TaskBuffer`."""
        with self._changed:
            self._check()
            key = (lease.ref.epoch, lease.ref.task)
            self._buffer.begin(key, lease.lease, first, changed)
            if self._spared:
                self._buffer.spare(key)

    def check(self) -> None:
        """To be called now and then by a run.

        Raises:
            StoppedError: if the run is to stop.
        """
        with self._changed:
            self._check()

    def announce(self, message: TaskAt, tell: Callable[[TaskAt], None]) -> None:
        """Tells the dispatcher where a run is, and returns once it knows.

        Raises:
            StoppedError: if the run is to stop.
        """
        with self._changed:
            self._said = message
            self._noted = 0
        tell(message)
        with self._changed:
            while self._noted < message.number:
                self._check()
                self._changed.wait()
            self._said = None

    def noted(self, message: TaskGoOn) -> None:
        """The dispatcher knows where the run is."""
        with self._changed:
            if self._said is not None and (self._said.lease, self._said.number) == (message.lease, message.number):
                self._noted = message.number
                self._changed.notify_all()

    @property
    def unanswered(self) -> TaskAt | None:
        """What the dispatcher was told and has not answered."""
        with self._changed:
            return self._said

    @property
    def message_bytes(self) -> int:
        """What messages should have: so much that the consumer lets a few of them come and the buffer holds a few."""
        with self._changed:
            wanted = max(LEAST, min(MOST_BYTES, self._allowance.share // 4))
            return max(1, min(wanted, self._buffer.limit // 4))

    @property
    def hungry(self) -> bool:
        """Whether the consumer would take a message at once, however small.

        If it has let nobody here send anything, that is what tells it that there is something.
        """
        with self._changed:
            return self._buffer.waiting

    def put(self, lease: LeaseTask, message: Message) -> float:
        """Puts a message into the buffer as soon as there is room; returns the seconds waited.

        Raises:
            StoppedError: if the run is to stop.
            ElementTooLargeError: if a single element is larger than all that the worker may keep.
        """
        if message.size > self._total and message.count == 1:
            error = ElementTooLargeError(
                f"output {message.index} of task {lease.ref.task} has {message.size:,} bytes, more than the "
                f"{self._total:,} that this worker may keep: yield smaller elements (smaller batches), or give the "
                f"worker more, e.g. millrace worker --buffer-bytes {2 * message.size}"
            )
            error.needs = message.size
            raise error
        started = time.monotonic()
        key = (lease.ref.epoch, lease.ref.task)
        with self._changed:
            try:
                while not self._buffer.spared(key) and not self._buffer.room(lease.ref.epoch, message.size):
                    self._check()
                    if self._pending and self._pending[0].ref.epoch < lease.ref.epoch:
                        # Computed ahead, and nobody reads it before this lane has done what came in meanwhile.
                        raise StoppedError(Stop.RETURN)
                    self._blocked_since = self._blocked_since or started
                    self._changed.wait()
                self._check()
            finally:
                self._blocked_since = 0.0
            self._buffer.put(key, lease.lease, message)
            self._sendable.notify()
            now = time.monotonic()
            self._look(now)
            self._computed_s -= now - started  # of the time of the run, which is added at its end
        return now - started

    def finish(self, lease: LeaseTask, outputs: int, skipped: int, *, nothing: bool) -> None:
        """The run ended with so many outputs."""
        with self._changed:
            self._check()
            key = (lease.ref.epoch, lease.ref.task)
            kept = self._buffer.finish(key, lease.lease, outputs, skipped, nothing=nothing)
            assert kept, "whoever forgets a running task revokes it"
            self._running = None
            self._wake_all()

    def deliver(self, lease: LeaseTask) -> None:
        """Returns once the consumer has all that a run has put out.

        Raises:
            StoppedError: if the run is to stop.
        """
        key = (lease.ref.epoch, lease.ref.task)
        with self._changed:
            started = self._blocked_since = time.monotonic()
            try:
                while self._buffer.waits(key, lease.lease):
                    self._check()
                    if self._pending and self._pending[0].ref.epoch < lease.ref.epoch:
                        raise StoppedError(Stop.RETURN)  # nobody reads it before that
                    self._changed.wait()
                self._check()
            finally:
                self._blocked_since = 0.0
                self._computed_s -= time.monotonic() - started

    def abandon(self, lease: LeaseTask) -> None:
        """The run failed or was stopped: drops what it put out."""
        with self._changed:
            key = (lease.ref.epoch, lease.ref.task)
            if self._buffer.has(key, lease.lease):
                self._buffer.forget(key)
            self._running = None
            self._changed.notify_all()

    def _check(self) -> None:
        if self._closed:
            raise StoppedError(Stop.FORGET)
        if self._stop is not None:
            raise StoppedError(self._stop)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._pending and not self._closed:
                    self._changed.wait()
                if self._closed:
                    return
                lease = self._running = self._pending.pop(0)
                self._stop = self._said = None
                self._spared = False
                self._running_since = time.monotonic()
            self._run(self, lease)
            with self._changed:
                self._running = None
                self._computed_s += time.monotonic() - self._running_since
                self._running_since = 0.0
                self._changed.notify_all()

    # -- the consumer's connection -------------------------------------------------------------------------------------

    def attach(self, outlet: Outlet) -> None:
        """A new connection of the consumer; an older one is closed."""
        with self._changed:
            older, self._outlet = self._outlet, outlet
            self._allowance.void()
            self._buffer.detach()
            self._wake_all()
        if older is not None:
            older.close()

    def detach(self, outlet: Outlet) -> None:
        """A connection has ended."""
        with self._changed:
            if self._outlet is outlet:
                self._outlet = None
                self._allowance.void()
                self._buffer.detach()
            self._wake_all()

    def told(self, outlet: Outlet, message: data_messages.ToServer) -> None:
        """What the consumer said on its connection; nothing if that has been replaced."""
        with self._changed:
            if self._outlet is not outlet:
                return
            match message:
                case data_messages.Credit(bytes=count, share=share):
                    self._allowance.grant(count, share)
                    self._sendable.notify()
                case data_messages.Read(epoch=epoch, task=task, lease=lease, start=start):
                    self._buffer.read((epoch, task), lease, start)
                    self._wake_all()
                case data_messages.Received(epoch=epoch, task=task, upto=upto, complete=complete):
                    self._buffer.received((epoch, task), upto, complete=complete)
                    self._look(time.monotonic())
                    self._changed.notify_all()
                case _:
                    pass

    def next_to_send(self, outlet: Outlet) -> Parcel | data_messages.Short | None:
        """Waits for something to send on ``outlet``; None once it is no longer the consumer's connection."""
        with self._changed:
            while self._outlet is outlet and not self._closed:
                found = self._allowance.next(self._buffer)
                if found is not None:
                    return found
                self._sendable.wait()
            return None

    def _wake_all(self) -> None:
        self._changed.notify_all()
        self._sendable.notify_all()

    # -- the end -------------------------------------------------------------------------------------------------------

    def resize(self, limit: int) -> None:
        """Another share of the worker's bytes."""
        with self._changed:
            self._buffer.limit = limit
            self._changed.notify_all()

    def wait_idle(self, deadline: float) -> bool:
        """Waits until nothing is kept any more or ``deadline`` (monotonic seconds) has come; whether it is idle."""
        with self._changed:
            return self._changed.wait_for(
                lambda: self._running is None and not self._pending and not any(True for _ in self._buffer),
                max(deadline - time.monotonic(), 0.0),
            )

    def close(self) -> None:
        """Stops the run at its next chunk, ends the thread and the connection, drops all. Does not wait."""
        with self._changed:
            self._closed = True
            for key in [key for key, _ in self._buffer]:
                self._buffer.forget(key)
            outlet, self._outlet = self._outlet, None
            self._wake_all()
        if outlet is not None:
            outlet.close()

    def join(self, timeout: float) -> bool:
        """Waits for the thread, up to ``timeout`` seconds; whether it has ended."""
        self._thread.join(timeout)
        return not self._thread.is_alive()
