"""History of jobs and their epochs, as the invariants note it.

Some of it is what the journal says, and is noted from events that are durable: where a copy of the journal is put in
its place that lacks the last ones, nobody has ever heard of those. The rest is what consumers and their users have, and
what has gone wrong; it stays.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from millrace.control.journal.consumer_events import ConsumerJoined, ConsumerLeft, EpochBegan
from millrace.control.journal.epoch_events import EpochClosed, EpochOpened
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobBroke, JobKept, ShareUnread
from millrace.control.journal.task_events import PoisonFound, TailDealt, TaskDone, TaskLeased, TaskMoved, TaskSpared
from millrace.protocol.job_spec import JobSpec


@dataclass
class EpochHistory:
    """History of one epoch of one job.

    Attributes:
        yielded: elements that a user has, and by which client; ``void``: the same of who was given up and did not know;
            ``received``: elements that a consumer had.
        dealt: tasks that became some consumer's, by which it is now; ``dropped``: of those, what nobody reads to the
            end. The journal says so.
        said: consumers of whose part the journal says that nobody reads all of it; ``closed``: that all have left it.
        resumed: some of it was read before states were saved.
        begun: somebody reads it; ``interrupted``: and somebody stopped before its end.
        at: by client, the task that it read last; ``steps``: how many outputs it read up to the end.
        reused: the cache point below which the epoch is as the first one, as its readers were told; None: none was.
        told: clients that were.
        chunks: that it is read in, as the journal says; 0: as a whole.
    """

    yielded: dict[int, str] = field(default_factory=dict)
    void: dict[int, str] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    dealt: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    steps: dict[str, int] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)
    closed: bool = False
    begun: bool = False
    resumed: bool = False
    interrupted: bool = False
    at: dict[str, int] = field(default_factory=dict)
    reused: int | None = None
    told: set[str] = field(default_factory=set)
    chunks: int = 0


@dataclass
class JobHistory:
    """History of one job, from its creation to its end.

    Attributes:
        joined: by consumer, the client that reads as it; ``reads``: the epoch that it has begun. The journal says so.
        gone: consumers that left; ``kept_at``: when the last one had, on the dispatcher's clock. The journal says so.
        never: expected consumers that had not come when the job was removed.
        broken: it failed.
        skipped: elements that no worker may touch.
    """

    spec: JobSpec
    epochs: dict[int, EpochHistory] = field(default_factory=dict)
    joined: dict[int, str] = field(default_factory=dict)
    reads: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    kept_at: float = math.inf
    never: list[int] = field(default_factory=list)
    broken: bool = False
    skipped: set[int] = field(default_factory=set)

    def epoch(self, number: int) -> EpochHistory:
        """Return the history of an epoch."""
        return self.epochs.setdefault(number, EpochHistory())

    def interrupt(self, upto: int) -> None:
        """Somebody reads epoch ``upto`` no further, and may not have said what it had of those before."""
        for number, history in self.epochs.items():
            history.interrupted |= number <= upto

    def enter(self, event: Event) -> None:
        """Note an event of this job."""
        match event:
            case (
                TaskLeased(epoch=epoch, task=task, consumer=consumer, fresh=True)
                | TailDealt(epoch=epoch, task=task, consumer=consumer)
                | TaskMoved(epoch=epoch, task=task, consumer=consumer)
            ):
                self.epoch(epoch).dealt[task] = consumer
            case TaskDone(epoch=epoch, task=task, dropped=True) | TaskSpared(epoch=epoch, task=task):
                self.epoch(epoch).dropped.add(task)
            case ShareUnread(share=share):
                self.epoch(share.epoch).said.add(share.consumer)
            case EpochOpened(epoch=epoch, chunks=chunks):
                self.epoch(epoch).chunks = chunks
            case EpochClosed(epoch=epoch):
                self.epoch(epoch).closed = True
            case PoisonFound(poison=poison) if poison.place[0] >= 0:
                self.skipped.add(poison.place[4])
            case JobBroke():
                self.broken = True
            case _:
                self._enter_readers(event)

    def _enter_readers(self, event: Event) -> None:
        match event:
            case EpochBegan(consumer=consumer, epoch=epoch):
                self.reads[consumer] = epoch
            case ConsumerJoined(consumer=consumer, client=client, epoch=epoch):
                self.reads[consumer] = epoch
                if self.joined.get(consumer, client) != client:
                    self.interrupt(epoch)  # who names a place gets it once its session has broken; its reader may live
                self.joined[consumer] = client
            case ConsumerLeft(reason=reason, consumer=consumer):
                self.gone.add(consumer)
                for history in self.epochs.values():
                    history.interrupted |= reason != "left"
            case JobKept(at=at):
                self.kept_at = at

    def forget(self, spec: JobSpec) -> None:
        """Forget what the journal says, to be told it anew of a job with this spec."""
        self.spec = spec
        for facts in (self.joined, self.reads, self.gone):
            facts.clear()
        self.kept_at = math.inf
        for history in self.epochs.values():
            for tasks in (history.dealt, history.dropped, history.said):
                tasks.clear()
            history.closed, history.chunks = False, 0
