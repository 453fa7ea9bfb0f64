"""Outputs that wait in a worker until their consumer has them, and what may be sent of them."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from millrace.protocol.data_messages import Short

LEAST_BYTES, MOST_BYTES = 1 << 20, 4 << 20
"""Bytes of a message, unless a single element is larger: each wakes two threads on either side, whatever its size, and
is in use as long as one of its elements is. The larger ones are for who has room for several on their way."""

TaskKey = tuple[int, int]
"""(epoch, task)."""


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """Some consecutive outputs, encoded.

    Attributes:
        index: number of the first within the task.
        count: how many.
        buffers: bytes-like objects that together are one codec message; they may be views of the user's arrays.
        size: their length in bytes.
    """

    index: int
    count: int
    buffers: list[Any]
    size: int


@dataclass(slots=True)
class TaskBuffer:
    """What one lease has put out and its consumer has not acknowledged.

    Attributes:
        end: one past the number of the last output put in.
        finished: the task ran to its end; then ``end`` is the number of its outputs, and ``nothing`` as in
            :class:`TaskFinished`.
        changed: for a task that was run before, a file of its source that was written since it was listed.
        wanted: the consumer asked for it on the connection it has now.
        spared: the consumer has all that can come; nothing is kept.
        sent: messages (from the left) already sent on that connection.
        end_sent: the mark of the end was sent on that connection.
    """

    lease: int
    end: int
    messages: deque[OutputMessage] = field(default_factory=deque)
    finished: bool = False
    skipped: int = 0
    changed: str = ""
    nothing: bool = False
    spared: bool = False
    wanted: bool = False
    sent: int = 0
    end_sent: bool = False


@dataclass(frozen=True, slots=True)
class Parcel:
    """What to send next. ``message`` is None for a bare mark of the end."""

    key: TaskKey
    lease: int
    message: OutputMessage | None
    index: int
    last: bool
    skipped: int
    changed: str = ""


class ConsumerOutbox:
    """All outputs that one worker keeps for one consumer, at most ``limit`` bytes or one message.

    Args:
        limit: in bytes.
        in_order: send tasks by (epoch, number) rather than in the order in which they were begun.
    """

    def __init__(self, limit: int, *, in_order: bool = False) -> None:
        self.limit = limit
        self.bytes = 0
        self._in_order = in_order
        self._tasks: dict[TaskKey, TaskBuffer] = {}
        self._asked: dict[TaskKey, int] = {}  # leases asked for before they came
        self._epoch_bytes: dict[int, int] = {}
        self._reading = -1  # the epoch that the consumer asked for last

    def __iter__(self) -> Iterator[tuple[TaskKey, TaskBuffer]]:
        return iter(self._tasks.items())

    def has(self, key: TaskKey, lease: int) -> bool:
        """Whether outputs of this lease are (still) kept."""
        task = self._tasks.get(key)
        return task is not None and task.lease == lease

    def begin(self, key: TaskKey, lease: int, first: int, changed: str = "") -> None:
        """A run of the task starts; its outputs from number ``first`` on will be put in."""
        self.forget(key)
        asked = self._asked.get(key, -1)
        self._tasks[key] = TaskBuffer(lease, first, changed=changed, wanted=asked == lease)
        if asked <= lease:  # a later lease of the task may be on its way
            self._asked.pop(key, None)

    def room(self, epoch: int, size: int) -> bool:
        """Whether ``size`` more bytes may be put in.

        What is computed ahead for later epochs has half of the buffer: nobody reads it before the epoch that is being
        read is over, so it must leave room for tasks of that one that come back.
        """
        held = sum(count for number, count in self._epoch_bytes.items() if number <= epoch)
        limit = self.limit // 2 if epoch > self._reading else self.limit - (self.bytes - held)
        return held == 0 or held + size <= limit

    def put(self, key: TaskKey, lease: int, message: OutputMessage) -> bool:
        """Adds a message; False if the lease was forgotten or spared meanwhile."""
        if not self.has(key, lease) or self._tasks[key].spared:
            return False
        task = self._tasks[key]
        task.messages.append(message)
        task.end = message.index + message.count
        self._count(key[0], message.size)
        return True

    def finish(self, key: TaskKey, lease: int, outputs: int, skipped: int, *, nothing: bool = False) -> bool:
        """The run has ended with so many outputs; False if the lease was forgotten meanwhile."""
        if not self.has(key, lease):
            return False
        task = self._tasks[key]
        task.finished = True
        task.end = outputs
        task.skipped = skipped
        task.nothing = nothing
        return True

    def read(self, key: TaskKey, lease: int, start: int) -> None:
        """The consumer wants the outputs of this lease from ``start`` on; it has those before."""
        self._reading = key[0]
        if not self.has(key, lease):
            # The dispatcher tells both sides at once; the consumer may be the faster. It reads one epoch at a time.
            self._asked = {other: asked for other, asked in self._asked.items() if other[0] == key[0]}
            self._asked[key] = max(lease, self._asked.get(key, -1))
            return
        task = self._tasks[key]
        task.sent = 0
        task.end_sent = False
        task.wanted = True
        self._drop(key, task, start)

    def next(self) -> Parcel | None:
        """The next thing to send; the caller says :meth:`sent` before anything else changes."""
        for key in sorted(self._tasks) if self._in_order else self._tasks:
            task = self._tasks[key]
            if not task.wanted:
                continue
            if task.sent < len(task.messages):
                message = task.messages[task.sent]
                last = task.finished and task.sent == len(task.messages) - 1
                return Parcel(key, task.lease, message, message.index, last, task.skipped if last else 0, task.changed)
            if task.finished and not task.end_sent:
                return Parcel(key, task.lease, None, task.end, last=True, skipped=task.skipped, changed=task.changed)
        return None

    def sent(self, parcel: Parcel) -> None:
        """``parcel``, from :meth:`next`, is on its way."""
        task = self._tasks[parcel.key]
        task.sent += parcel.message is not None
        task.end_sent = parcel.last

    @property
    def filled(self) -> bool:
        """Whether anything of the epoch that is read is kept: the consumer does not have it yet, or has not said so."""
        return any(epoch <= self._reading for epoch in self._epoch_bytes)

    @property
    def waiting(self) -> bool:
        """Whether the consumer would take more at once: it has asked, and all there was is on its way."""
        wanted = [task for task in self._tasks.values() if task.wanted]
        return bool(wanted) and all(task.sent == len(task.messages) for task in wanted)

    def received(self, key: TaskKey, upto: int, *, complete: bool) -> bool:
        """The consumer holds the outputs below ``upto``; True if nothing more of the task is needed."""
        task = self._tasks.get(key)
        if task is None:
            return False
        self._drop(key, task, upto)
        if complete and task.finished:
            self.forget(key)
            return True
        return False

    def waits(self, key: TaskKey, lease: int) -> bool:
        """Whether outputs of this lease are kept that the consumer has not acknowledged."""
        return self.has(key, lease) and bool(self._tasks[key].messages)

    def spare(self, key: TaskKey) -> None:
        """The consumer has all outputs of the task from another run, and may not take them from this one."""
        task = self._tasks.get(key)
        if task is not None and task.finished:
            self.forget(key)
        elif task is not None:
            task.spared = True
            self._drop(key, task, task.end)

    def spared(self, key: TaskKey) -> bool:
        """Whether nothing of the task's outputs is kept any more."""
        task = self._tasks.get(key)
        return task is not None and task.spared

    def forget(self, key: TaskKey) -> None:
        """Drops a task with all that is kept of it."""
        task = self._tasks.pop(key, None)
        if task is not None:
            self._count(key[0], -sum(message.size for message in task.messages))

    def detach(self) -> None:
        """The connection is gone: whoever comes next has to ask again."""
        self._asked.clear()
        for task in self._tasks.values():
            task.wanted = False
            task.sent = 0
            task.end_sent = False

    def validate(self) -> None:
        """Checks that what is counted is what is kept.

        Raises:
            AssertionError: it is not.
        """
        held: dict[int, int] = {}
        for (epoch, _), task in self._tasks.items():
            assert 0 <= task.sent <= len(task.messages)
            for message in task.messages:
                held[epoch] = held.get(epoch, 0) + message.size
        assert {epoch: size for epoch, size in held.items() if size} == self._epoch_bytes
        assert sum(held.values()) == self.bytes

    def _drop(self, key: TaskKey, task: TaskBuffer, upto: int) -> None:
        while task.messages and task.messages[0].index + task.messages[0].count <= upto:
            message = task.messages.popleft()
            task.sent = max(task.sent - 1, 0)
            self._count(key[0], -message.size)

    def _count(self, epoch: int, size: int) -> None:
        self.bytes += size
        held = self._epoch_bytes.get(epoch, 0) + size
        if held:
            self._epoch_bytes[epoch] = held
        else:
            self._epoch_bytes.pop(epoch, None)


class SendCredit:
    """How many bytes a consumer lets a lane send on its connection.

    If the next message is larger than what is left, that is said once, and what is left is given back with it: from
    then on the consumer owes what the message needs, which may come in pieces.

    Attributes:
        left: bytes that may be sent now.
        share: what the consumer lets each of its workers have on their way; 0 if it hasn't said so on this connection.
    """

    def __init__(self) -> None:
        self.left = self.share = 0
        self._said = 0

    def grant(self, count: int, share: int = 0) -> None:
        """So many bytes more, of such a share."""
        self.left += max(count, 0)
        self.share = share

    def void(self) -> None:
        """The connection is another one."""
        self.left = self.share = self._said = 0

    def next(self, buffer: ConsumerOutbox) -> Parcel | Short | None:
        """What to send now, taken off; None if there is nothing, or it is not allowed yet."""
        parcel = buffer.next()
        if parcel is None:
            return self._return()
        size = 0 if parcel.message is None else parcel.message.size
        if parcel.message is not None and size > self.left:
            if size == self._said:
                return None
            returned, self.left, self._said = self.left, 0, size
            return Short(size, parcel.message.count, returned)
        buffer.sent(parcel)
        if size:
            self.left -= size
            self._said = 0
        return parcel

    def _return(self) -> Short | None:
        """What came for a message that has been withdrawn meanwhile: others may wait for it."""
        if not (self._said and self.left):
            return None
        returned, self.left, self._said = self.left, 0, 0
        return Short(0, 0, returned)
