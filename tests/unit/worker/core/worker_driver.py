"""A worker's core with a shell that only takes note."""

from __future__ import annotations

from typing import Any

from millrace.protocol import data_messages
from millrace.protocol import messages as msg
from millrace.protocol.job_spec import JobSpec
from millrace.worker.core import worker_actions as act
from millrace.worker.core import worker_inputs as inp
from millrace.worker.core.worker_core import WorkerCore
from millrace.worker.core.worker_inputs import OutputMessage


class CoreDriver:
    """Feeds a core, each input a second after the one before.

    Args:
        buffer_bytes: see :class:`WorkerCore`.

    Attributes:
        actions: all that it said and nobody has :meth:`taken`.
    """

    def __init__(self, buffer_bytes: int = 1000, *jobs: str) -> None:
        self.core = WorkerCore(buffer_bytes, 0.0)
        self.now = 0.0
        self.actions: list[act.Action] = []
        self.feed(inp.SessionOpened(msg.WorkerHello("w", "w:1")))
        for job in jobs or ("a",):
            self.heard(msg.OpenJob(job, JobSpec(job, b"", "bundle"), 1, "tables"))
        self.actions.clear()

    def feed(self, item: inp.Input) -> None:
        """Has the core take an input."""
        self.now += 1.0
        self.actions += self.core.handle(item, self.now)
        self.core.validate()

    def heard(self, message: msg.ToWorker) -> None:
        """The dispatcher says something."""
        self.feed(inp.Heard(message))

    def taken(self, kind: type[act.Action]) -> list[Any]:
        """Actions of a kind so far; each is taken once."""
        found = [each for each in self.actions if isinstance(each, kind)]
        self.actions = [each for each in self.actions if not isinstance(each, kind)]
        return found

    def told(self) -> list[Any]:
        """Messages that the dispatcher was told so far, but for reports."""
        return [
            each.message for each in self.taken(act.TellDispatcher) if not isinstance(each.message, msg.WorkerReport)
        ]

    def lease(self, task: int, lease: int, *, job: str = "a", consumer: int = 0, epoch: int = 0, **rest: Any) -> int:
        """Leases a task; the number of the lane whose run begins by that, 0 if none does."""
        self.heard(msg.LeaseTask(msg.TaskRef(job, epoch, task), lease, consumer, **rest))
        started = self.taken(act.StartRun)
        lane: int = started[0].lane if started else 0
        return lane

    def ask(self, lane: int, want: inp.Want) -> Any:
        """A run asks; what it is answered, None if it waits."""
        self.feed(inp.RunAsks(lane, want))
        return self.answer()

    def answer(self) -> Any:
        """What a run was answered; None if it waits."""
        answers = self.taken(act.Resume)
        assert len(answers) <= 1
        return answers[0].verdict if answers else None

    def begin(self, lane: int) -> None:
        """A run begins to put out."""
        assert isinstance(self.ask(lane, inp.Enter()), act.GoOn)
        assert isinstance(self.ask(lane, inp.BeginOutputs(0)), act.GoOn)

    def put(self, lane: int, index: int, size: int) -> Any:
        """A run puts out one output."""
        return self.ask(lane, inp.Put(OutputMessage(index, 1, [], size), (-2, index, 0), "between"))

    def finish(self, lane: int, outputs: int, leftovers: Any = None) -> None:
        """A run comes to its end."""
        self.feed(inp.RunEnded(lane, inp.RunFinished(outputs, leftovers=leftovers)))

    def connect(self, peer: str, consumer: int = 0, *, credit: int = 1 << 30, job: str = "a") -> None:
        """A consumer connects, and lets the worker send so many bytes."""
        self.say(peer, data_messages.Open(job, consumer))
        self.say(peer, data_messages.Credit(credit))

    def say(self, peer: str, message: data_messages.ToServer) -> None:
        """A peer says something."""
        self.feed(inp.PeerSaid(peer, message))

    def sent(self) -> list[tuple[str, int, int, bool]]:
        """(peer, task, index, last) of the outputs sent so far."""
        return [
            (str(each.peer), each.header.task, each.header.index, each.header.last)
            for each in self.taken(act.Send)
            if isinstance(each.header, data_messages.Delivery)
        ]
