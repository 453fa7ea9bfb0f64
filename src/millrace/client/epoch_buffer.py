"""Buffer of an epoch in a consumer: each output once, in the order it is to be read. Pure: callers hold a lock."""

from __future__ import annotations

import enum
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.client.slot_cycle import SlotCycle
from millrace.elements import codec
from millrace.elements.sampled_checksum import sampled_checksum
from millrace.errors import CodecError, ProtocolError
from millrace.protocol.data_messages import Delivery
from millrace.protocol.group_messages import TasksGone
from millrace.protocol.job_spec import JobSpec
from millrace.protocol.messages import EpochBegun, EpochEnds, TaskProgress

Decode = Callable[[Any], list[Any]]
"""Gives the elements of a payload."""
Source = tuple[str, int]
"""Address of a worker, and a slot: whose messages a reader grants bytes to."""


class RerunOutcome(enum.Enum):
    """Outcome of a task that was run again after it had been received in part."""

    SAME = "the same"
    OTHER = "another element"
    SHORTER = "fewer elements"
    LONGER = "more elements"


@dataclass(frozen=True, slots=True)
class Rerun:
    """A run held against the one before it: at output ``number`` of the task, the last that had been received.

    ``changed``: a file of the source that was written since it was listed, says the worker; empty if it knows none.
    """

    task: int
    number: int
    outcome: RerunOutcome
    changed: str = ""


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that waits to be read.

    Attributes:
        payload: one codec message.
        count: elements in it.
        skip: of which the first ``skip`` were held already, from another lease of the task.
        size: bytes of the payload.
        worker: address it came from, to which the credit goes back.
        task: what it belongs to.
        end: one past the number of its last element in the task.
        decode: gives the elements of a payload.
    """

    payload: Any
    count: int
    skip: int
    size: int
    worker: str
    task: TaskArrivals
    end: int
    decode: Decode

    def decoded(self) -> list[Any]:
        """Decode the elements that were not held already, for the user, who may change them: what they were is noted.

        Raises:
            CodecError: if the payload is no message of elements.
        """
        elements = self.decode(self.payload)
        if not self.task.complete:  # else it is not run again, or only as the dispatcher does not know yet
            self.task.noted = self.end - 1, sampled_checksum(elements[-1])
        return elements[self.skip :] if self.skip else elements


@dataclass(slots=True)
class TaskArrivals:
    """One task: ``held`` outputs need not come any more, of which ``messages`` wait; all of it once ``complete``.

    ``reach``: one past the last output that came; those from there to ``held`` were missed.

    ``again``: it is complete, and runs once more at a worker that is still to be told so, or would keep its outputs.
    ``noted``: (number, checksum) of an output that went to the user; of the last one of each message.
    ``rerun``: it runs once more, and the last output held is still to be compared with what that run gives.
    """

    lease: int
    address: str
    held: int = 0
    reach: int = 0
    complete: bool = False
    again: bool = False
    skipped: int = 0
    messages: deque[Arrival] = field(default_factory=deque)
    noted: tuple[int, int] = (-1, 0)
    rerun: bool = False
    number: int = -1

    @property
    def start(self) -> int:
        """Number of the first output to ask for: what is not held, and if it is to be compared the last that is."""
        return self.held - 1 if self.rerun else self.held


class EpochBuffer:
    """All tasks of one epoch that one consumer was told to read.

    Args:
        number: the epoch.
        cycle: says which task is read next; None: whatever comes first.
        rounds: each message is a round of coordinated reads.
        decode: gives the elements of a payload, anew each time.
    """

    def __init__(
        self, number: int, *, cycle: SlotCycle | None = None, rounds: bool = False, decode: Decode = codec.decode
    ) -> None:
        self.number = number
        self.ready = 0
        """Elements that lie ready."""
        self.arrived = 0
        """Elements that came, taken or not."""
        self.taken = 0
        """Messages that were taken, or of which the taking was interrupted."""
        self.skipped = 0
        """Elements that ``on_error`` left out, of the tasks that are complete."""
        self.missed = 0
        """Elements that a shared window did not keep until they could be sent here."""
        self.members = 0
        """Most jobs that shared the epoch's computation, as was heard; 0: it is not to be shared."""
        self.left_out = 0
        """Elements that filled no round, of the tasks whose outputs this buffer has had."""
        self._cycle, self._rounds = cycle, rounds
        self._decode = decode
        self.reruns: list[Rerun] = []
        """Runs that were compared with the one before."""
        self.alone: set[int] = set()
        """Tasks that leave nothing over, as was heard."""
        self.past = False
        """Whether others were further as it was begun, so that nobody says how much it had."""
        self.left_out_tasks: set[int] = set()
        """Tasks whose rounds all ranks of this job skip, as it was behind others."""
        self.uncounted: set[int] = set()
        """Tasks of which nothing will come, and nobody has said how much they had."""
        self._tasks: dict[int, TaskArrivals] = {}
        self._arrived: deque[TaskArrivals] = deque()  # one entry for each message; unused with a cycle
        self._missing: set[int] | None = None  # of the consumer's share, once it is known
        self._given_up: set[int] = set()  # begun, and then not of its share: a window's epoch was over meanwhile
        self._moved: set[int] = set()
        self._ended: list[tuple[int, int, int]] = []

    def assign(self, task: int, lease: int, address: str, start: int = 0) -> int:
        """Note where a task is (now) read from; return the number of the first output to ask for.

        Outputs before ``start`` are another consumer's, or were read before a resume.
        """
        inbox = self._tasks.get(task)
        if inbox is None:
            inbox = self._tasks[task] = TaskArrivals(lease, address, start, start, number=task)
            if self._is_over(task):  # who leases it does not know of it: an older journal
                inbox.complete = inbox.again = True
                self._moved.add(task)
            elif self._cycle is not None:
                self._cycle.name(task)
        inbox.again |= inbox.complete and lease != inbox.lease
        inbox.rerun |= inbox.held > 0 and lease != inbox.lease
        if lease != inbox.lease:
            self._moved.add(task)  # who leases it again may not know what is here, and is told
        self._given_up.discard(task)
        inbox.lease = lease
        inbox.address = address
        return inbox.start

    def accept_delivery(self, worker: str, header: Delivery, payload: Any, size: int) -> bool:
        """Take in what a worker sent in ``size`` bytes, see :meth:`accept`."""
        return self.accept(
            header.task,
            header.index,
            header.count,
            payload,
            size,
            worker,
            lease=header.lease,
            last=header.last,
            skipped=header.skipped,
            changed=header.changed,
            left_out=header.left_out,
        )

    def accept(
        self,
        task: int,
        index: int,
        count: int,
        payload: Any,
        size: int,
        worker: str,
        *,
        lease: int,
        last: bool,
        skipped: int = 0,
        changed: str = "",
        left_out: int = 0,
    ) -> bool:
        """Take in a delivery; False if nothing in it was new.

        What a run gives beyond the end that the task had in an earlier run is left out, and what one that is no longer
        read gives behind outputs that it has skipped: the one that is read may have these.

        Raises:
            ProtocolError: if outputs are missing between what is held and what came, or it is not one round.
        """
        inbox = self._tasks.get(task)
        if inbox is None or task in self._given_up:
            return False
        if index > inbox.held and not inbox.complete:
            if lease != inbox.lease:
                return False
            raise ProtocolError(
                f"task {task} of epoch {self.number}: output {inbox.held} is missing, {worker} went on with {index}"
            )
        if self._rounds and count > 1:
            raise ProtocolError(f"task {task} of epoch {self.number}: {worker} sent {count} rounds in one message")
        if inbox.rerun and (last or index + count >= inbox.held):
            self._compare(task, inbox, index, count, payload, changed, last=last)
        fresh = 0 if inbox.complete else index + count - inbox.held
        if fresh > 0:
            inbox.held += fresh
            inbox.reach = inbox.held
            inbox.messages.append(Arrival(payload, count, count - fresh, size, worker, inbox, inbox.held, self._decode))
            self.ready += fresh
            self.arrived += fresh
            if self._cycle is None:
                self._arrived.append(inbox)
        ended = last and not inbox.complete
        inbox.again &= not last
        if ended:
            inbox.complete = True
            if self._missing is not None:
                self._missing.discard(task)
            self._ended.append((task, inbox.reach, inbox.held - inbox.reach))
            inbox.skipped = skipped
            self.skipped += skipped
            self.left_out += left_out
        if fresh > 0 or ended:
            self._moved.add(task)
        return fresh > 0

    def skip(self, task: int, lease: int, upto: int) -> bool:
        """Go on behind outputs that will not come from this lease; False if nothing is missed by that."""
        inbox = self._tasks.get(task)
        if inbox is None or inbox.lease != lease or inbox.complete or upto < inbox.held:
            return False
        inbox.rerun = False  # what was to be compared is gone as well
        missed = upto - inbox.held
        if missed:
            self.missed += missed
            inbox.held = upto
            self._moved.add(task)
        return missed > 0

    def _compare(
        self, task: int, inbox: TaskArrivals, index: int, count: int, payload: Any, changed: str, *, last: bool
    ) -> None:
        """Hold what another run gives against the last output that is held."""
        inbox.rerun = False
        number, end = inbox.held - 1, index + count
        if end <= number or (inbox.complete and end > inbox.held):
            self.reruns.append(
                Rerun(task, number, RerunOutcome.LONGER if end > number else RerunOutcome.SHORTER, changed)
            )
            return
        before = inbox.noted[1] if inbox.noted[0] == number else None
        if inbox.messages:
            before = self._checksum_of(inbox.messages[-1].payload, -1)
        now = self._checksum_of(payload, number - index) if index <= number else None
        if before is not None and now is not None:  # else it is in the user's hands this very moment
            self.reruns.append(Rerun(task, number, RerunOutcome.SAME if before == now else RerunOutcome.OTHER, changed))

    def _checksum_of(self, payload: Any, place: int) -> int | None:
        """Imprint of one element of a message; None if it cannot be read, which whoever reads it all is told."""
        try:
            return sampled_checksum(self._decode(payload)[place])
        except (CodecError, IndexError):
            return None

    def take(self) -> Arrival | None:
        """Take the next message to read; None if it has not arrived."""
        inbox = self._current()
        if inbox is None or not inbox.messages:
            return None
        self.taken += 1  # before it is: Ctrl-C may come in between
        if self._cycle is None:
            self._arrived.popleft()
        else:
            self._cycle.took(inbox.number)
        arrival = inbox.messages.popleft()
        self.ready -= arrival.count - arrival.skip
        return arrival

    def needed(self) -> Source | None:
        """Find whose next message is waited for; None: any will do, or it is not known yet where it will come from."""
        if self._cycle is None:
            return None
        inbox = self._current()
        return None if inbox is None or inbox.messages else (inbox.address, self._cycle.slot(inbox.number))

    @property
    def any_will_do(self) -> bool:
        """Whether whatever comes next can be read."""
        return self._cycle is None

    def less_to_come(self, told: EpochEnds | TasksGone) -> None:
        """Note which tasks are all of the epoch, or that nothing more of some will come."""
        if isinstance(told, EpochEnds):
            self.members = max(self.members, told.members)
            self.past = told.past
            self.ends(told.tasks)
            return
        for task, outputs in told.outputs.items():
            inbox = self._tasks.get(task)
            if inbox is None:
                inbox = self._tasks[task] = TaskArrivals(0, "", number=task)
                if self._rounds and self._cycle is not None:
                    self._cycle.leave_out(task)
                    self.left_out_tasks.add(task)
            if inbox.complete and task not in self.uncounted:
                continue
            missed = max(0, outputs - inbox.held)
            self.missed += missed
            inbox.held += missed
            (self.uncounted.discard if outputs >= 0 else self.uncounted.add)(task)
            if inbox.complete:
                continue
            inbox.complete, inbox.rerun = True, False
            if self._missing is not None:
                self._missing.discard(task)
            if task not in self.left_out_tasks:
                self._ended.append((task, inbox.reach, inbox.held - inbox.reach))
            self._moved.add(task)

    def ends(self, tasks: Sequence[int]) -> None:
        """Note that the consumer's share of the epoch is these tasks and no others: nothing more of those will come."""
        self._missing = {task for task in tasks if not self.holds(task)[1]}
        self._given_up = {task for task, inbox in self._tasks.items() if not inbox.complete}.difference(tasks)
        if self._cycle is not None:
            self._cycle.ends(self._missing - self._tasks.keys())

    @property
    def finished(self) -> bool:
        """Whether everything was taken that there will be."""
        return not self.ready and self.all_here

    @property
    def unfilled(self) -> str:
        """Sentence that says why the epoch has no rounds; empty if it has some, or there was nothing to read."""
        if not self.left_out or self._cycle is None or self._cycle.gone_on or any(t.held for t in self._tasks.values()):
            return ""
        return (
            f"epoch {self.number} is empty: its elements, {self.left_out} in all, are too few for a round, which is a "
            "batch of one bucket for each rank; smaller batches, fewer ranks or incomplete='mix' would leave fewer out"
        )

    @property
    def outputs(self) -> int | None:
        """Number of outputs that the epoch has, once it is finished; None: it was over before anything of it came."""
        outputs = self.arrived + self.missed
        return None if self.past and not outputs else outputs

    @property
    def all_here(self) -> bool:
        """Whether everything has arrived that there will be."""
        return self._missing is not None and not self._missing

    def unfinished(self, address: str) -> list[tuple[int, int, int]]:
        """List (task, lease, first output to ask for) of what is still to come from the worker at ``address``."""
        return [
            (number, inbox.lease, inbox.start)
            for number, inbox in self._tasks.items()
            if inbox.address == address and self.wanted(number)
        ]

    def progress(self, *, everything: bool = False) -> list[TaskProgress]:
        """Progress of the tasks that moved since the last call; with ``everything``, of each task of the epoch."""
        numbers = sorted(self._tasks if everything else self._moved)
        report = [TaskProgress(number, self._tasks[number].held, self._tasks[number].complete) for number in numbers]
        self._moved = set()
        return report

    def ended(self) -> list[tuple[int, int, int]]:
        """List (task, one past its last output that came, those missed behind it) of what ended since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def wanted(self, task: int) -> bool:
        """Whether its worker is to be asked for it."""
        inbox = self._tasks.get(task)
        return inbox is not None and task not in self._given_up and (inbox.again or not inbox.complete)

    def compares(self, source: Source) -> bool:
        """Whether a worker is to send once more what came of a task before, to be compared with that and dropped."""
        address, slot = source
        return any(
            inbox.rerun and inbox.address == address and (self._cycle is None or self._cycle.slot(number) == slot)
            for number, inbox in self._tasks.items()
        )

    def address_of(self, task: int) -> str:
        """Return the address of the worker that has a task."""
        return self._tasks[task].address

    def holds(self, task: int) -> tuple[int, bool]:
        """Tell how far a task is: (outputs that need not come any more, whether it is complete)."""
        inbox = self._tasks.get(task)
        return (0, self._is_over(task)) if inbox is None else (inbox.start, inbox.complete)

    def _is_over(self, task: int) -> bool:
        return self._cycle is not None and self._cycle.is_over(task)

    def _current(self) -> TaskArrivals | None:
        """Find the task of which a message is read next, be it there or not; None: it is not known."""
        if self._cycle is None:
            return self._arrived[0] if self._arrived else None
        task = self._cycle.current(self._is_exhausted, self._is_ready)
        return None if task is None else self._tasks[task]

    def _is_exhausted(self, task: int) -> bool:
        inbox = self._tasks[task]
        return (inbox.complete or task in self._given_up) and not inbox.messages

    def _is_ready(self, task: int) -> bool:
        return task in self._tasks and bool(self._tasks[task].messages)


def buffer_of(begun: EpochBegun, spec: JobSpec, decode: Decode = codec.decode) -> EpochBuffer:
    """Make the buffer of an epoch that has begun, in the order that its job reads in."""
    cycle = SlotCycle() if spec.deterministic else None
    if spec.coordinated:
        cycle = SlotCycle(spec.cycle_length, tasks=begun.tasks, turn=begun.turn, over=begun.read.done())
    return EpochBuffer(begun.epoch, cycle=cycle, rounds=bool(spec.coordinated), decode=decode)
