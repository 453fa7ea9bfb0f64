"""Slot buffer: outputs that wait in a worker until all readers of their slot have them, held once for all."""

from __future__ import annotations

from collections.abc import Collection, Iterable

from millrace.worker.core.outbox import ReaderOutbox, TaskBuffer, TaskKey
from millrace.worker.core.worker_inputs import OutputMessage

LEAST_BYTES, MOST_BYTES = 1 << 20, 4 << 20
"""Bytes of a message, unless a single element is larger: each wakes two threads on either side, whatever its size, and
is in use as long as one of its elements is. The larger ones are for who has room for several on their way."""


class SlotBuffer:
    """Outputs that one worker keeps for one slot, at most ``limit`` bytes or one message.

    A message is freed once its last reader has acknowledged it, so the slowest one bounds the buffer. One that has a
    share for each reader counts with all of them until then.

    Args:
        limit: in bytes.
        audience: the readers of the slot.
        in_order: see :class:`ReaderOutbox`.

    Attributes:
        bytes: of all messages that are kept.
        tasks: what is kept, in the order in which it was begun.
        outboxes: by reader.
    """

    def __init__(self, limit: int, audience: Iterable[int] = (0,), *, in_order: bool = False) -> None:
        self.limit = limit
        self.bytes = 0
        self.tasks: dict[TaskKey, TaskBuffer] = {}
        self.outboxes: dict[int, ReaderOutbox] = {}
        self._in_order = in_order
        self._since: dict[int, int] = {}  # by reader, the first epoch that it reads, where that is not the first
        self._read_out: dict[TaskKey, int] = {}  # leases that were read to their ends and are not forgotten
        self._epoch_bytes: dict[int, int] = {}
        self._hits = 0  # of readers that have left
        self._reading = -1  # the epoch that the slowest reader asked for last
        for reader in audience:
            self.join(reader)

    # -- readers -------------------------------------------------------------------------------------------------------

    def join(self, reader: int, since: int = 0) -> ReaderOutbox:
        """Add a reader: it gets what is still kept, and what comes, of the epochs ``since`` this one."""
        outbox = self.outboxes[reader] = self._outbox(reader)
        self._since[reader] = since
        for task in self.tasks.values():
            outbox.begin(task)
            if task.key[0] >= since:
                task.spared = False
            else:
                outbox.cursors[task.key].spare()
        self._reading = -1
        return outbox

    def _outbox(self, reader: int) -> ReaderOutbox:
        return ReaderOutbox(reader, in_order=self._in_order)

    def leave(self, reader: int) -> None:
        """Remove a reader for good: what it alone lacked is freed."""
        self._hits += self.outboxes.pop(reader).hits
        del self._since[reader]
        self._reading = min([each.reading for each in self.outboxes.values()], default=-1)
        for task in list(self.tasks.values()):
            self._free(task)
            self._settle(task)

    def received(self, outbox: ReaderOutbox, key: TaskKey, upto: int, *, complete: bool = False) -> None:
        """Note that the reader holds the outputs below ``upto``, and the mark of the end if it is ``complete``."""
        cursor = outbox.cursors.get(key)
        if cursor is not None:
            cursor.acknowledge(upto)
            self._free(cursor.task)
            if complete and cursor.task.finished:
                cursor.done = True
                self._settle(cursor.task)

    def lacks(self, key: TaskKey, lease: int, start: int, outbox: ReaderOutbox | None = None) -> bool:
        """Whether outputs of this lease from ``start`` on are not kept any more, as all who were there have them.

        Or not for this one, as was said. Who asks for them all the same has joined since, or has the place of another
        process in a journal that is newer than the one that the dispatcher was started on.
        """
        if not self.has(key, lease):
            return self._read_out.get(key) == lease
        task = self.tasks[key]
        if outbox is not None and outbox.cursors[key].spared:
            return not task.finished or start < task.end
        return not task.spared and task.freed > 0 and start < task.first

    def read(self, outbox: ReaderOutbox, key: TaskKey, lease: int, start: int) -> None:
        """Have a reader sent the outputs of this lease from ``start`` on; it has those before."""
        outbox.read(key, lease, start)
        self._reading = min([each.reading for each in self.outboxes.values()])
        if self.has(key, lease):
            self._free(self.tasks[key])

    # -- runs ----------------------------------------------------------------------------------------------------------

    def has(self, key: TaskKey, lease: int) -> bool:
        """Whether outputs of this lease are (still) kept."""
        task = self.tasks.get(key)
        return task is not None and task.lease == lease

    def begin(self, key: TaskKey, lease: int, first: int, changed: str = "", readers: Collection[int] = ()) -> None:
        """Begin to keep a run of the task, for these readers or for all; outputs from number ``first`` on come."""
        self.forget(key)
        task = self.tasks[key] = TaskBuffer(key, lease, first, changed=changed)
        for reader, outbox in self.outboxes.items():
            outbox.begin(task)
            if (readers and reader not in readers) or key[0] < self._since[reader]:
                self._let_go(outbox, key)
        task.spared = all(outbox.cursors[key].done for outbox in self.outboxes.values())

    @property
    def ahead(self) -> int:
        """Bytes that may be kept of what is still lacked."""
        return self.limit

    def room(self, epoch: int, size: int) -> bool:
        """Whether ``size`` more bytes may be put in.

        What is computed ahead for later epochs has half of that: nobody reads it before the epoch that is being
        read is over, so it must leave room for tasks of that one that come back.
        """
        lacked = self._lacked_bytes(epoch)
        held = sum(count for number, count in lacked.items() if number <= epoch)
        limit = self.ahead // 2 if epoch > self._reading else self.ahead - (sum(lacked.values()) - held)
        return held == 0 or held + size <= limit

    def _lacked_bytes(self, epoch: int) -> dict[int, int]:
        """Bytes, by epoch, that are lacked by the reader whom a run of this epoch waits for."""
        return self._epoch_bytes

    def put(self, key: TaskKey, lease: int, message: OutputMessage) -> bool:
        """Add a message; return False if the lease was forgotten meanwhile, or nobody lacks its outputs."""
        task = self.tasks.get(key)
        if task is None or task.lease != lease or task.spared:
            return False
        task.messages.append(message)
        task.end = message.index + message.count
        self._count(key[0], message.size)
        return True

    def finish(
        self, key: TaskKey, lease: int, outputs: int, skipped: int, *, nothing: bool = False, left_out: int = 0
    ) -> bool:
        """Note that the run has ended with so many outputs; return False if the lease was forgotten meanwhile."""
        if not self.has(key, lease):
            return False
        task = self.tasks[key]
        task.finished, task.end, task.skipped = True, outputs, skipped
        task.nothing, task.left_out = nothing, left_out
        return True

    @property
    def keeps_ends(self) -> bool:
        """Whether a reader that comes later may ask for a task that nobody lacked as it ran."""
        return False

    def waits(self, key: TaskKey, lease: int) -> bool:
        """Whether outputs of this lease are kept that a reader has not acknowledged."""
        return self.has(key, lease) and bool(self.tasks[key].messages)

    def spare(self, key: TaskKey, readers: Collection[int] = ()) -> None:
        """Note that these readers, or all, lack no outputs of the task, and may not take them from this run."""
        task = self.tasks.get(key)
        if task is not None:
            for reader, outbox in self.outboxes.items():
                if reader in readers:
                    self._let_go(outbox, key)
                outbox.cursors[key].done |= not readers
            self._free(task)
            self._settle(task)

    def _let_go(self, outbox: ReaderOutbox, key: TaskKey) -> None:
        """Let a reader go of a task, which it has, or which is of an epoch that it will not read: it is past that."""
        outbox.cursors[key].spare()
        outbox.reading = max(outbox.reading, key[0])
        self._reading = min(each.reading for each in self.outboxes.values())

    def spared(self, key: TaskKey) -> bool:
        """Whether nothing of the task's outputs is kept any more."""
        task = self.tasks.get(key)
        return task is not None and task.spared

    def forget(self, key: TaskKey) -> None:
        """Drop a task with all that is kept of it."""
        self._read_out.pop(key, None)
        task = self.tasks.pop(key, None)
        if task is not None:
            self._count(key[0], -sum(message.size for message in task.messages))
            for outbox in self.outboxes.values():
                del outbox.cursors[key]

    def ended(self) -> list[TaskBuffer]:
        """List the tasks that ran to their ends and are not forgotten."""
        return [task for task in self.tasks.values() if task.finished]

    def revoke(self, key: TaskKey, lease: int) -> None:
        """Drop a task, if what is kept of it is of this lease."""
        held = any(task.key == key and task.lease == lease for task in self.ended()) or self.has(key, lease)
        if held or self._read_out.get(key) == lease:
            self.forget(key)

    def resize(self, limit: int) -> None:
        """Keep at most so many bytes from now on."""
        self.limit = limit

    @property
    def paused(self) -> bool:
        """Whether nothing is to run, as all have gone that it would be for, and others may come."""
        return False

    # -- what is kept --------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no reader lacks anything that is here, or will be."""
        return not self.tasks

    @property
    def filled(self) -> bool:
        """Whether no reader has everything that is here of the epoch that it reads; of those alone that are there."""
        there = [outbox for outbox in self.outboxes.values() if outbox.peer is not None]
        return all(outbox.filled for outbox in there or self.outboxes.values())

    @property
    def waiting(self) -> bool:
        """Whether a reader would take more at once."""
        return any(outbox.waiting for outbox in self.outboxes.values())

    @property
    def hungry(self) -> bool:
        """Whether a reader has nothing to receive."""
        return any(outbox.hungry for outbox in self.outboxes.values())

    @property
    def hits(self) -> int:
        """Number of outputs that a reader was sent after another one."""
        return self._hits + sum(outbox.hits for outbox in self.outboxes.values())

    @property
    def message_bytes(self) -> int:
        """Bytes that messages should have: so many that readers let a few of them come and a few fit here."""
        share = min([outbox.credit.share for outbox in self.outboxes.values()], default=0)
        wanted = max(LEAST_BYTES, min(MOST_BYTES, share // 4))
        return max(1, min(wanted, self.limit // 4))

    def validate(self) -> None:
        """Check that what is counted is what is kept, and that nothing is kept that no reader lacks.

        Raises:
            AssertionError: it is not.
        """
        held: dict[int, int] = {}
        for key, task in self.tasks.items():
            assert task.key == key
            for message in task.messages:
                held[key[0]] = held.get(key[0], 0) + message.size
            cursors = [outbox.cursors[key] for outbox in self.outboxes.values()]
            assert all(cursor.task is task for cursor in cursors)
            assert task.spared == all(cursor.done for cursor in cursors)
            assert all(task.freed <= cursor.received <= cursor.sent and cursor.unsent >= 0 for cursor in cursors)
            lacking = [cursor.received for cursor in cursors if not cursor.done]
            assert not task.messages or task.freed == min(lacking, default=-1)
        assert all(outbox.cursors.keys() == self.tasks.keys() for outbox in self.outboxes.values())
        assert {epoch: size for epoch, size in held.items() if size} == self._epoch_bytes
        assert sum(held.values()) == self.bytes

    def _free(self, task: TaskBuffer) -> None:
        """Drop the messages of a task that nobody lacks."""
        cursors = [outbox.cursors[task.key] for outbox in self.outboxes.values()]
        upto = min((cursor.received for cursor in cursors if not cursor.done), default=task.freed + len(task.messages))
        while task.freed < upto:
            self._count(task.key[0], -task.messages.popleft().size)
            task.freed += 1
        for cursor in cursors:  # of those that have all
            cursor.received = max(cursor.received, upto)
            cursor.sent = max(cursor.sent, upto)

    def _settle(self, task: TaskBuffer) -> None:
        """Keep nothing more of a task of which nobody lacks anything, and drop it if it has ended."""
        task.spared = all(outbox.cursors[task.key].done for outbox in self.outboxes.values())
        if task.finished and task.spared:
            self.forget(task.key)
            self._read_out[task.key] = task.lease

    def _count(self, epoch: int, size: int) -> None:
        self.bytes += size
        held = self._epoch_bytes.get(epoch, 0) + size
        if held:
            self._epoch_bytes[epoch] = held
        else:
            self._epoch_bytes.pop(epoch, None)
