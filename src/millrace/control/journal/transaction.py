"""The work on one input: what is decided is applied at once, so that the next choice sees it."""

from __future__ import annotations

import msgspec

from millrace.control.actions import Action, SendToClient, SendToWorker
from millrace.control.journal.event import Event
from millrace.control.journal.replay import apply
from millrace.control.state.observed import Observed
from millrace.control.state.state import Job, State
from millrace.errors import ProtocolError
from millrace.protocol.group_messages import DropLeftovers, TasksGone
from millrace.protocol.messages import ForgetTasks, OutputsReceived, ReadTasks, ToConsumer, ToWorker

_encoder = msgspec.msgpack.Encoder()


class Transaction:
    """Collects the events and actions of one input.

    Events are applied as they are emitted; actions only become real once the shell knows that the events are durable.
    If they never do, the state is rebuilt from the journal.

    Attributes:
        encoded: the events as they are journalled. Encoded before they are applied: what can't be must not become so.
    """

    __slots__ = ("actions", "encoded", "events", "now", "observed", "state")

    def __init__(self, state: State, observed: Observed, now: float) -> None:
        self.state = state
        self.observed = observed
        self.now = now
        self.events: list[Event] = []
        self.encoded: list[msgspec.Raw] = []
        self.actions: list[Action] = []
        state.index.touched.clear()

    def emit(self, event: Event) -> None:
        """Apply an event, and keep it for the journal.

        Raises:
            ProtocolError: it could not be journalled; nothing has changed.
        """
        try:
            encoded = msgspec.Raw(_encoder.encode(event))
        except (OverflowError, TypeError, ValueError) as error:
            raise ProtocolError(f"{type(event).__name__} cannot be journalled: {error}") from error
        apply(self.state, event)
        self.encoded.append(encoded)
        self.events.append(event)

    def act(self, action: Action) -> None:
        """Have the shell do this."""
        self.actions.append(action)

    def to_worker(self, worker: str, message: ToWorker) -> None:
        """Tell a worker, if its session is alive: if not, it is told anew when it comes back."""
        known = self.state.workers.get(worker)
        if known is not None and known.lost_at is None:
            self.actions.append(SendToWorker(worker, message))

    def to_consumer(self, job: Job, consumer: int, message: ToConsumer) -> None:
        """Tell a consumer, if it is there: if not, it is told anew when it comes back."""
        known = job.consumers.get(consumer)
        if known is not None and known.lost_at is None:
            self.actions.append(SendToClient(known.client, message))

    def to_all(self, job: Job, message: ToConsumer) -> None:
        """Tell all consumers of a job."""
        for consumer in job.consumers:
            self.to_consumer(job, consumer, message)


def merged(actions: list[Action]) -> list[Action]:
    """Join neighbouring lists for one peer (tasks to read, tasks to forget) to one message."""
    out: list[Action] = []
    last: dict[str, int] = {}
    for action in actions:
        if isinstance(action, SendToClient):
            key = f"client {action.client}"
        elif isinstance(action, SendToWorker):
            key = f"worker {action.worker}"
        else:
            out.append(action)
            continue
        at = last.get(key)
        joined = None if at is None else _join(out[at], action)
        if at is not None and joined is not None:
            out[at] = joined
        else:
            last[key] = len(out)
            out.append(action)
    return out


def _join(first: Action, second: Action) -> Action | None:
    if isinstance(first, SendToClient) and isinstance(second, SendToClient):
        a, b = first.message, second.message
        if isinstance(a, ReadTasks) and isinstance(b, ReadTasks) and a.epoch == b.epoch:
            joined = ReadTasks(a.epoch, [*a.reads, *b.reads], [*a.alone, *b.alone])
            return SendToClient(first.client, joined)
        if isinstance(a, TasksGone) and isinstance(b, TasksGone) and a.epoch == b.epoch:
            return SendToClient(first.client, TasksGone(a.epoch, {**a.outputs, **b.outputs}))
    if isinstance(first, SendToWorker) and isinstance(second, SendToWorker):
        c, d = first.message, second.message
        if isinstance(c, ForgetTasks) and isinstance(d, ForgetTasks):
            return SendToWorker(first.worker, ForgetTasks([*c.refs, *d.refs]))
        if isinstance(c, DropLeftovers) and isinstance(d, DropLeftovers):
            return SendToWorker(first.worker, DropLeftovers([*c.refs, *d.refs]))
        if isinstance(c, OutputsReceived) and isinstance(d, OutputsReceived) and c.readers == d.readers:
            return SendToWorker(first.worker, OutputsReceived([*c.refs, *d.refs], c.readers))
    return None
