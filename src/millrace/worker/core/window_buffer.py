"""Window buffer: a slot's newest outputs, for readers that may each miss what they come too late for."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable

from millrace.worker.core.outbox import ReaderCursor, ReaderOutbox, TaskBuffer, TaskKey
from millrace.worker.core.slot_buffer import SlotBuffer
from millrace.worker.core.worker_inputs import OutputMessage

MESSAGES = 16
"""Least number of a window's messages: one is dropped as a whole, and so much less of the window is there."""


class WindowBuffer(SlotBuffer):
    """A slot buffer that keeps the newest messages, whoever has them.

    Messages are numbered in the order in which they were put in, over all tasks. A reader's *mark* is the first one
    kept that it lacks, and the reader with the highest mark is the *furthest*. A run waits for that one alone: room is
    made by dropping the oldest message, if it lies before the highest mark. So the furthest reader gets everything, and
    whoever still lacked what is dropped is told how far to go on (:class:`millrace.protocol.data_messages.Skipped`).

    What lies before the highest mark is the *window*. Runs leave room for it: what the furthest lacks has half of the
    buffer, or more if the window is to be smaller. Else a worker that computes faster than anybody reads would fill the
    buffer with that, and drop each message as soon as one reader has it, so that readers of one speed shared nothing.

    A reader that reads an epoch lacks nothing of those before it.

    Args:
        limit: in bytes.
        audience: the readers of the slot.
        window: bytes that the furthest reader has and are kept for others; None: what it lacks leaves of ``limit``.
        in_order: see :class:`ReaderOutbox`.
    """

    def __init__(
        self, limit: int, audience: Iterable[int] = (), *, window: int | None = None, in_order: bool = False
    ) -> None:
        self._window = window
        self._kept: dict[int, tuple[TaskBuffer, int]] = {}  # (task, number of the message in its run), by number here
        self._numbers: dict[TaskKey, deque[int]] = {}  # of the messages that are kept of a task
        self._oldest = self._next = 0  # nothing before and from there on is kept
        self._marks: dict[int, int] = {}
        self._mark = 0  # the highest
        self._lacked: dict[int, int] = {}  # bytes from there on, by epoch
        self._settled: dict[TaskKey, TaskBuffer] = {}  # of which nothing is kept: a late reader asks what it missed
        super().__init__(limit, audience, in_order=in_order)

    # -- readers -------------------------------------------------------------------------------------------------------

    def join(self, reader: int, since: int = 0) -> ReaderOutbox:
        """Add a reader: it gets what is still kept, and what comes."""
        self._marks[reader] = self._oldest
        outbox = super().join(reader, since)
        self._advance()
        return outbox

    def _outbox(self, reader: int) -> ReaderOutbox:
        return ReaderOutbox(reader, in_order=self._in_order, skips=True)

    def leave(self, reader: int) -> None:
        """Remove a reader for good; what it lacked is kept as long as it lies in the window."""
        del self._marks[reader]
        super().leave(reader)
        self._advance()

    def received(self, outbox: ReaderOutbox, key: TaskKey, upto: int, *, complete: bool = False) -> None:
        """Note that the reader holds the outputs below ``upto``, and the mark of the end if it is ``complete``."""
        super().received(outbox, key, upto, complete=complete)
        self._advance()

    def lacks(self, key: TaskKey, lease: int, start: int, outbox: ReaderOutbox | None = None) -> bool:
        """Deny it: who asks for what is not kept any more is told so, and nobody runs it again."""
        return False

    def read(self, outbox: ReaderOutbox, key: TaskKey, lease: int, start: int) -> None:
        """Have a reader sent the outputs of this lease from ``start`` on, as far as they are kept."""
        task = self._settled.get(key)
        if task is not None and task.lease == lease:
            self._revive(task)
        before = outbox.reading
        if self.has(key, lease):
            self.tasks[key].spared = outbox.cursors[key].spared = False
        super().read(outbox, key, lease, start)
        if self.has(key, lease):
            self._rewind(outbox, self.tasks[key])
        if key[0] > before:
            self._pass(outbox)
        self._advance()

    def _revive(self, task: TaskBuffer) -> None:
        """Have the end of a task told once more, to who asks for it."""
        del self._settled[task.key]
        self.tasks[task.key] = task
        self._numbers[task.key] = deque()
        for outbox in self.outboxes.values():
            outbox.cursors[task.key] = ReaderCursor(task, received=task.freed, sent=task.freed, done=True)

    def _rewind(self, outbox: ReaderOutbox, task: TaskBuffer) -> None:
        """Move a reader's mark back to what it lacks of a task, if it asked for it once more."""
        number = outbox.cursors[task.key].received - task.freed
        if number < len(task.messages):
            self._marks[outbox.reader] = min(self._marks[outbox.reader], self._numbers[task.key][number])

    def _pass(self, outbox: ReaderOutbox) -> None:
        """Note that a reader lacks nothing of the epochs before the one that it reads."""
        for key, cursor in list(outbox.cursors.items()):
            if key[0] < outbox.reading and not cursor.done:
                cursor.done, cursor.wanted = True, False
                self._settle(cursor.task)

    # -- runs ----------------------------------------------------------------------------------------------------------

    def begin(self, key: TaskKey, lease: int, first: int, changed: str = "", readers: Collection[int] = ()) -> None:
        """Begin to keep a run of the task, for these readers or for all; outputs from number ``first`` on come."""
        super().begin(key, lease, first, changed, readers)
        self._numbers[key] = deque()
        for outbox in self.outboxes.values():
            outbox.cursors[key].done |= key[0] < outbox.reading
        self._settle(self.tasks[key])
        self._advance()

    def put(self, key: TaskKey, lease: int, message: OutputMessage) -> bool:
        """Add a message, and drop the oldest; return False if the lease was forgotten, or nobody lacks its outputs."""
        if not super().put(key, lease, message):
            return False
        task = self.tasks[key]
        self._kept[self._next] = task, task.freed + len(task.messages) - 1
        self._numbers[key].append(self._next)
        self._next += 1
        self._lacked[key[0]] = self._lacked.get(key[0], 0) + message.size
        self._advance()
        return True

    def finish(
        self, key: TaskKey, lease: int, outputs: int, skipped: int, *, nothing: bool = False, left_out: int = 0
    ) -> bool:
        """Note that the run has ended with so many outputs; return False if the lease was forgotten meanwhile."""
        finished = super().finish(key, lease, outputs, skipped, nothing=nothing, left_out=left_out)
        if finished:
            self._settle(self.tasks[key])
        return finished

    def room(self, epoch: int, size: int) -> bool:
        """Whether ``size`` more bytes may be put in: not while nobody is there, so that runs stop where they are."""
        return not self.paused and super().room(epoch, size)

    @property
    def paused(self) -> bool:
        """Whether nobody is there."""
        return not self.outboxes

    @property
    def keeps_ends(self) -> bool:
        """Keep the end of each task, until it is forgotten: whoever comes later is told what it missed."""
        return True

    def waits(self, key: TaskKey, lease: int) -> bool:
        """Whether outputs of this lease are kept that the furthest reader has not acknowledged."""
        return self.has(key, lease) and any(number >= self._mark for number in self._numbers[key])

    def spare(self, key: TaskKey, readers: Collection[int] = ()) -> None:
        """Note that these readers, or all, lack no outputs of the task, and may not take them from this run."""
        super().spare(key, readers)
        task = self.tasks.get(key)
        if task is not None and not readers:
            for number in list(self._numbers[key]):
                self._drop(number)
            self._settle(task)
        self._advance()

    def spared(self, key: TaskKey) -> bool:
        """Whether nothing of the task's outputs is kept any more, nor waits for who comes."""
        return not self.paused and super().spared(key)

    def forget(self, key: TaskKey) -> None:
        """Drop a task with all that is kept of it."""
        self._remove(key)
        self._advance()

    def _remove(self, key: TaskKey) -> None:
        self._settled.pop(key, None)
        for number in self._numbers.pop(key, ()):
            task, at = self._kept.pop(number)
            if number >= self._mark:
                self._count_lacked(key[0], -task.messages[at - task.freed].size)
        super().forget(key)

    def ended(self) -> list[TaskBuffer]:
        """List the tasks that ran to their ends and are not forgotten, be anything of them kept or not."""
        return [*super().ended(), *self._settled.values()]

    @property
    def ahead(self) -> int:
        """Bytes that may be kept of what the furthest reader lacks."""
        half = self.limit // 2
        return self.limit - (half if self._window is None else min(self._window, half))

    def resize(self, limit: int) -> None:
        """Keep at most so many bytes from now on."""
        super().resize(limit)
        self._advance()

    # -- what is kept --------------------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether no reader lacks anything that is here, or will be."""
        return all(task.spared for task in self.tasks.values())

    @property
    def furthest(self) -> ReaderOutbox | None:
        """The reader that sets the pace; None: there is none."""
        return max(
            self.outboxes.values(),
            key=lambda each: (self._marks[each.reader], each.reading, -each.reader),
            default=None,
        )

    @property
    def message_bytes(self) -> int:
        """Bytes that messages should have: of these a window drops one after the other, and has at least so many."""
        window = self.limit // 2 if self._window is None else self._window
        return max(1, min(super().message_bytes, window // MESSAGES))

    @property
    def filled(self) -> bool:
        """Whether the furthest reader lacks something that is here of the epoch that it reads."""
        furthest = self.furthest
        return furthest is None or furthest.filled

    @property
    def waiting(self) -> bool:
        """Whether the furthest reader would take more at once."""
        furthest = self.furthest
        return furthest is not None and furthest.waiting

    @property
    def hungry(self) -> bool:
        """Whether the furthest reader has nothing to receive."""
        furthest = self.furthest
        return furthest is not None and furthest.hungry

    def _lacked_bytes(self, epoch: int) -> dict[int, int]:
        """Bytes, by epoch, that are lacked by the reader whom a run of this epoch waits for.

        That is the furthest; once it reads a later epoch, the furthest of those that it left behind.
        """
        behind = [each for each in self.outboxes.values() if each.reading <= epoch]
        if epoch >= self._reading or not behind:
            return self._lacked
        mark, lacked = max(self._marks[each.reader] for each in behind), dict[int, int]()
        for number in range(mark, self._next):
            if number in self._kept:
                task, at = self._kept[number]
                lacked[task.key[0]] = lacked.get(task.key[0], 0) + task.messages[at - task.freed].size
        return lacked

    def _free(self, task: TaskBuffer) -> None:
        """Keep what nobody lacks: it goes as room is needed."""

    def _settle(self, task: TaskBuffer) -> None:
        """Keep no more than the end of a task of which nothing is here, and nobody lacks anything."""
        task.spared = all(outbox.cursors[task.key].done for outbox in self.outboxes.values())
        if task.finished and task.spared and not task.messages:
            self._remove(task.key)
            self._settled[task.key] = task

    def _advance(self) -> None:
        """Move each mark to the first message that its reader lacks, and see what may be dropped."""
        for reader, outbox in self.outboxes.items():
            mark = max(self._marks[reader], self._oldest)
            while mark < self._next and not self._lacks(outbox, mark):
                mark += 1
            self._marks[reader] = mark
        furthest = self.furthest
        self._reading = -1 if furthest is None else furthest.reading
        self._set_mark(self._oldest if furthest is None else self._marks[furthest.reader])
        if self._trim():
            self._advance()  # those who lacked what is dropped have come further by that

    def _lacks(self, outbox: ReaderOutbox, number: int) -> bool:
        """Whether a message is kept that a reader lacks."""
        if number not in self._kept:
            return False
        task, at = self._kept[number]
        cursor = outbox.cursors[task.key]
        return not cursor.done and cursor.received <= at

    def _set_mark(self, mark: int) -> None:
        """Note which messages the furthest reader lacks."""
        sign = 1 if mark < self._mark else -1
        for number in range(min(mark, self._mark), max(mark, self._mark)):
            if number in self._kept:
                task, at = self._kept[number]
                self._count_lacked(task.key[0], sign * task.messages[at - task.freed].size)
        self._mark = mark

    def _count_lacked(self, epoch: int, size: int) -> None:
        left = self._lacked.get(epoch, 0) + size
        if left:
            self._lacked[epoch] = left
        else:
            self._lacked.pop(epoch, None)

    @property
    def _overfull(self) -> bool:
        """Whether more is kept than there is room for, or more than the window has of what the furthest reader has."""
        behind = self.bytes - sum(self._lacked.values())
        return self.bytes > self.limit or (self._window is not None and behind > self._window)

    def _trim(self) -> bool:
        """Drop the oldest messages that the furthest reader has, as long as there are too many; whether there were."""
        count = len(self._kept)
        while self._oldest < self._next and (
            self._oldest not in self._kept or (self._overfull and self._oldest < self._mark)
        ):
            self._oldest += 1
            if self._oldest - 1 in self._kept:
                task, _ = self._kept[self._oldest - 1]
                self._drop(self._oldest - 1)
                self._settle(task)
        return len(self._kept) < count

    def _drop(self, number: int) -> None:
        """Drop the oldest message of its task, whoever lacks it."""
        task, at = self._kept.pop(number)
        assert at == task.freed
        self._numbers[task.key].popleft()
        size = task.messages.popleft().size
        task.freed += 1
        self._count(task.key[0], -size)
        if number >= self._mark:
            self._count_lacked(task.key[0], -size)
        for outbox in self.outboxes.values():
            cursor = outbox.cursors[task.key]
            cursor.received = max(cursor.received, task.freed)
            cursor.sent = max(cursor.sent, task.freed)

    def validate(self) -> None:
        """Check that what is counted is what is kept, and that no more is kept than lies in the window or is lacked.

        Raises:
            AssertionError: it is not.
        """
        held: dict[int, int] = {}
        lacked: dict[int, int] = {}
        assert self.tasks.keys() == self._numbers.keys()
        for key, task in self.tasks.items():
            assert task.key == key
            assert len(task.messages) == len(self._numbers[key])
            for at, (number, message) in enumerate(zip(self._numbers[key], task.messages, strict=True)):
                assert self._oldest <= number < self._next
                assert self._kept[number] == (task, task.freed + at)
                held[key[0]] = held.get(key[0], 0) + message.size
                if number >= self._mark:
                    lacked[key[0]] = lacked.get(key[0], 0) + message.size
            cursors = [outbox.cursors[key] for outbox in self.outboxes.values()]
            assert all(cursor.task is task for cursor in cursors)
            assert task.spared == all(cursor.done for cursor in cursors)
            assert all(task.freed <= cursor.received <= cursor.sent and cursor.unsent >= 0 for cursor in cursors)
            assert not (task.finished and task.spared) or task.messages, "it is settled"
        assert all(outbox.cursors.keys() == self.tasks.keys() for outbox in self.outboxes.values())
        assert {epoch: size for epoch, size in held.items() if size} == self._epoch_bytes
        assert {epoch: size for epoch, size in lacked.items() if size} == self._lacked
        assert sum(held.values()) == self.bytes
        assert len(self._kept) == sum(len(numbers) for numbers in self._numbers.values())
        assert self._marks.keys() == self.outboxes.keys()
        assert self._mark == max(self._marks.values(), default=self._mark)
        for reader, outbox in self.outboxes.items():
            first = min((number for number in self._kept if self._lacks(outbox, number)), default=self._next)
            assert max(self._marks[reader], self._oldest) <= first
            assert not any(self._marks[reader] <= number < first for number in self._kept)
        assert not self._overfull or self._oldest >= self._mark, "more is kept than has room"
