"""Outbox: what one reader of a slot has received and may be sent; the outputs are held once, for all readers."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

from millrace.protocol.data_messages import Delivery, Short, Skipped
from millrace.protocol.messages import TaskRef
from millrace.worker.core.worker_inputs import OutputMessage, Peer, Share

TaskKey = tuple[int, int]
"""(epoch, task)."""


def key_of(ref: TaskRef) -> TaskKey:
    """Key of a task within its job."""
    return ref.epoch, ref.task


@dataclass(slots=True, eq=False)
class TaskBuffer:
    """Outputs of one lease that not all readers have acknowledged.

    Attributes:
        key: its task.
        end: one past the number of the last output put in.
        messages: those that a reader lacks, oldest first.
        freed: number of messages before these.
        finished: the task ran to its end; then ``end`` is the number of its outputs, and ``nothing`` and ``left_out``
            are as in :class:`TaskFinished`.
        skipped: elements that ``on_error`` left out.
        changed: for a task that was run before, a file of its source that was written since it was listed.
        spared: no reader lacks anything that can come.
        shown: one past the last output that some reader was sent.
    """

    key: TaskKey
    lease: int
    end: int
    messages: deque[OutputMessage] = field(default_factory=deque)
    freed: int = 0
    finished: bool = False
    skipped: int = 0
    changed: str = ""
    nothing: bool = False
    left_out: int = 0
    spared: bool = False
    shown: int = 0

    @property
    def first(self) -> int:
        """Number of the first output that is kept, or of the next one."""
        return self.messages[0].index if self.messages else self.end

    def header(self, index: int, count: int, *, last: bool) -> Delivery:
        """Make the header of some outputs, or of the mark of the end."""
        ended = (self.skipped, self.left_out) if last else (0, 0)
        return Delivery(*self.key, self.lease, index, count, last, ended[0], self.changed, ended[1])


@dataclass(slots=True, eq=False)
class ReaderCursor:
    """Progress of one reader with one lease. Messages are numbered from the beginning of its run.

    Attributes:
        wanted: the reader asked for the lease on the connection that it has now.
        received: messages that it has acknowledged.
        sent: number of the next message to send on that connection.
        end_sent: the mark of the end was sent on that connection.
        told: one past the last output that it was sent on that connection, or had before, or was told to do without.
        done: the reader has all that can come.
        spared: likewise, or it will read no further, says the dispatcher of this reader alone.
        shown: one past the last output that the reader was sent, on whatever connection.
    """

    task: TaskBuffer
    wanted: bool = False
    received: int = 0
    sent: int = 0
    end_sent: bool = False
    done: bool = False
    told: int = 0
    spared: bool = False
    shown: int = 0

    def spare(self) -> None:
        """Let the reader have no more, though others do."""
        self.done = self.spared = True

    def acknowledge(self, upto: int) -> None:
        """Note that the reader has the outputs below ``upto``."""
        task = self.task
        kept = len(task.messages)
        while (number := self.received - task.freed) < kept:
            message = task.messages[number]
            if message.index + message.count > upto:
                break
            self.received += 1
        self.sent = max(self.sent, self.received)

    def read(self, start: int) -> None:
        """Have the outputs from ``start`` on sent, those too that another process in the reader's place had."""
        self.wanted, self.told = True, start
        if not (self.task.spared or self.spared):
            self.received, self.done = self.task.freed, False
        self.rewind()
        self.acknowledge(start)

    def rewind(self) -> None:
        """Have everything that was not acknowledged sent again."""
        self.sent, self.end_sent = self.received, False

    @property
    def unsent(self) -> int:
        """Number of messages that are still to be sent."""
        return self.task.freed + len(self.task.messages) - self.sent

    @property
    def lacking(self) -> int:
        """Number of messages that the reader has not said that it has."""
        return self.task.freed + len(self.task.messages) - self.received


@dataclass(frozen=True, slots=True)
class Parcel:
    """Next thing to send to a reader.

    Attributes:
        share: None for a bare mark of the end.
        skipped: what is to be said before it; None: nothing.
    """

    cursor: ReaderCursor
    header: Delivery
    share: Share | None
    skipped: Skipped | None = None


class ReaderOutbox:
    """One reader's cursors in what a slot keeps, its connection, and what may be sent on it.

    Args:
        reader: its number among the consumers of the job.
        in_order: send tasks by (epoch, number) rather than in the order in which they were begun.
        skips: the reader is told of outputs that are not kept for it any more; else all are.

    Attributes:
        cursors: by task, in the order in which the tasks were begun.
        reading: the epoch that the reader asked for last; -1: none yet.
        peer: the reader's connection; None: there is none.
        credit: what may be sent on it.
        hits: outputs that the reader was sent after another one.
    """

    def __init__(self, reader: int, *, in_order: bool = False, skips: bool = False) -> None:
        self.reader = reader
        self.cursors: dict[TaskKey, ReaderCursor] = {}
        self.reading = -1
        self.peer: Peer | None = None
        self.credit = SendCredit()
        self.hits = 0
        self._in_order = in_order
        self._skips = skips
        self._asked: dict[TaskKey, tuple[int, int]] = {}  # leases asked for before they came, and from which output on

    def begin(self, task: TaskBuffer) -> None:
        """Add a lease whose outputs will come."""
        asked, start = self._asked.get(task.key, (-1, 0))
        self.cursors[task.key] = ReaderCursor(task, asked == task.lease, task.freed, task.freed, told=start)
        if asked <= task.lease:  # a later lease of the task may be on its way
            self._asked.pop(task.key, None)

    def read(self, key: TaskKey, lease: int, start: int) -> None:
        """Have the outputs of this lease sent from ``start`` on; the reader has those before.

        If its credit does not suffice that is said once more: it may let in what it is only to compare.
        """
        self.reading = key[0]
        self.credit.say_again()
        cursor = self.cursors.get(key)
        if cursor is None or cursor.task.lease != lease:
            # The dispatcher tells both sides at once; the reader may be the faster. It reads one epoch at a time.
            self._asked = {other: asked for other, asked in self._asked.items() if other[0] == key[0]}
            self._asked[key] = max((lease, start), self._asked.get(key, (-1, 0)))
            return
        cursor.read(start)

    def next(self) -> Parcel | None:
        """Find the next thing to send; the caller says :meth:`sent` before anything else changes.

        Nothing is sent behind outputs that are not kept, but to who skips them: who asks for these is a process that
        the dispatcher has given up, for which they were let go, and that will hear so from there.
        """
        for key in sorted(self.cursors) if self._in_order else self.cursors:
            cursor = self.cursors[key]
            if not cursor.wanted or cursor.spared:
                continue
            task = cursor.task
            if task.spared and cursor.told < task.first and not self._skips:
                continue
            if unsent := cursor.unsent:
                message = task.messages[cursor.sent - task.freed]
                last = task.finished and unsent == 1 and message.index + message.count == task.end
                header = task.header(message.index, message.count, last=last)
                return Parcel(cursor, header, message.share(self.reader), self._gap(cursor, message.index))
            if task.finished and not cursor.end_sent:
                return Parcel(cursor, task.header(task.end, 0, last=True), None, self._gap(cursor, task.end))
        return None

    def _gap(self, cursor: ReaderCursor, upto: int) -> Skipped | None:
        """Say what the reader will not get, if it was not told yet: the outputs before ``upto``."""
        task = cursor.task
        return Skipped(*task.key, task.lease, upto) if self._skips and cursor.told < upto else None

    def sent(self, parcel: Parcel) -> None:
        """Note that ``parcel``, from :meth:`next`, is on its way."""
        cursor, end = parcel.cursor, parcel.header.index + parcel.header.count
        cursor.sent += parcel.share is not None
        cursor.end_sent = parcel.header.last
        cursor.told = max(cursor.told, end)
        if cursor.shown < end <= cursor.task.shown:
            self.hits += parcel.header.count
        cursor.shown, cursor.task.shown = max(cursor.shown, end), max(cursor.task.shown, end)

    def attach(self, peer: Peer | None) -> Peer | None:
        """Replace the connection, by none perhaps, so that the reader has to ask again; return the one before."""
        older, self.peer = self.peer, peer
        self.credit.void()
        self._asked.clear()
        for cursor in self.cursors.values():
            cursor.wanted = False
            cursor.rewind()
        return older

    @property
    def filled(self) -> bool:
        """Whether the reader lacks anything that is here of the epoch that it reads, or has not said that it has it."""
        return any(
            not cursor.done and cursor.lacking for (epoch, _), cursor in self.cursors.items() if epoch <= self.reading
        )

    @property
    def waiting(self) -> bool:
        """Whether the reader would take more at once: it has asked, and all there was is on its way."""
        wanted = [cursor for cursor in self.cursors.values() if cursor.wanted and not cursor.spared]
        return bool(wanted) and not any(cursor.unsent for cursor in wanted)

    @property
    def hungry(self) -> bool:
        """Whether the reader has nothing to receive, either: it has said that it has all there was of what it reads."""
        lacks = any(
            cursor.lacking
            for (epoch, _), cursor in self.cursors.items()
            if epoch == self.reading and cursor.wanted and not (cursor.spared or cursor.done)
        )
        return self.waiting and not lacks


class SendCredit:
    """Bytes that a reader lets a lane send on its connection.

    If the next message is larger than what is left, that is said once, and what is left is given back with it: from
    then on the reader owes what the message needs, which may come in pieces.

    Attributes:
        left: bytes that may be sent now.
        share: what the reader lets each of its workers have on their way; 0 if it hasn't said so on this connection.
        slot: see :class:`Short`.
    """

    def __init__(self) -> None:
        self.left = self.share = self.slot = 0
        self._said = 0  # what the next message needs
        self._owed = False  # what was said, and has not come or was not used yet

    def grant(self, count: int, share: int = 0) -> None:
        """Add so many bytes, of such a share."""
        self.left += max(count, 0)
        self.share = share

    def say_again(self) -> None:
        """Forget that it was said what the next message needs."""
        if not self.left:
            self._said = 0

    def void(self) -> None:
        """Forget all: the connection is another one."""
        self.left = self.share = self._said = 0
        self._owed = False

    def next(self, outbox: ReaderOutbox) -> Parcel | Short | None:
        """Take off what to send now; None if there is nothing, or it is not allowed yet."""
        parcel = outbox.next()
        if parcel is None:
            return self._return()
        size = 0 if parcel.share is None else parcel.share.size
        if size > self.left:
            if size == self._said:
                return None
            returned, self.left, self._said, self._owed = self.left, 0, size, True
            return Short(size, parcel.header.count, returned, self.slot)
        outbox.sent(parcel)
        if size:
            self.left -= size
            self._said, self._owed = 0, False
        return parcel

    def _return(self) -> Short | None:
        """Give back what came for a message that has been withdrawn meanwhile: others may wait for it."""
        if not (self._owed and self.left):
            return None
        returned, self.left, self._said, self._owed = self.left, 0, 0, False
        return Short(0, 0, returned, self.slot)
