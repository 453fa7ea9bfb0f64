"""Actions of the worker's core: what its shell is to do, in their order. None of them waits for anything."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Delivery, Short
from millrace.worker.core.worker_inputs import Peer


@dataclass(frozen=True, slots=True)
class TellDispatcher:
    """Send a message to the dispatcher; the session is there."""

    message: msg.FromWorker


@dataclass(frozen=True, slots=True)
class HurryReport:
    """Feed :class:`HeartbeatDue` before the next one is due: the dispatcher waits for what it says."""


@dataclass(frozen=True, slots=True)
class StartRun:
    """TaskRun a lease for a lane, which runs nothing now; its run asks and ends under the number of the lane."""

    lane: int
    job: str
    consumer: int
    lease: msg.LeaseTask


@dataclass(frozen=True, slots=True)
class GoOn:
    """The run goes on.

    Attributes:
        coming: the lane's leases that have not begun, in the order in which they will.
        hungry: the consumer would take a message at once, however small. If it has let nobody here send anything, a
            message is what tells it that there is something.
        message_bytes: what messages should have: so much that the consumer lets a few of them come and a few fit here.
    """

    coming: Sequence[msg.LeaseTask] = ()
    hungry: bool = False
    message_bytes: int = 1


@dataclass(frozen=True, slots=True)
class Halt:
    """The run is to stop."""


@dataclass(frozen=True, slots=True)
class TooLarge:
    """An output has more bytes than all that this worker may keep."""

    limit: int


Verdict = GoOn | Halt | TooLarge


@dataclass(frozen=True, slots=True)
class Resume:
    """Answer what the run of a lane has asked."""

    lane: int
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class CodeGranted:
    """The thread that wanted to run code may."""

    who: Hashable


@dataclass(frozen=True, slots=True)
class Send:
    """Send to a consumer, behind all that it was sent before."""

    peer: Peer
    header: Delivery | Short
    buffers: Sequence[Any] = ()


@dataclass(frozen=True, slots=True)
class SendLeftovers:
    """Answer another worker what a task left; ``kept`` is None if that is not here."""

    peer: Peer
    ref: msg.TaskRef
    kept: Any


@dataclass(frozen=True, slots=True)
class HangUp:
    """Close a peer's connection."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class OpenPipeline:
    """A job is served from now on; or more is known of it."""

    opened: msg.OpenJob


@dataclass(frozen=True, slots=True)
class ClosePipeline:
    """A job is over here: once the runs of these lanes have stopped, nothing of it is needed."""

    job: str
    lanes: Sequence[int]


@dataclass(frozen=True, slots=True)
class EndLane:
    """Nothing will run on a lane any more."""

    lane: int


@dataclass(frozen=True, slots=True)
class StartListing:
    """List the sources of a job that is open."""

    job: str


@dataclass(frozen=True, slots=True)
class StartSharding:
    """Ask the user's sharding function of a job that is open."""

    message: msg.ChooseSharding


@dataclass(frozen=True, slots=True)
class Rest:
    """Nothing has run for a while: give memory back."""


@dataclass(frozen=True, slots=True)
class EndProcess:
    """End the process; ``in_time``: before the time for that was up."""

    in_time: bool


Action = (
    TellDispatcher
    | HurryReport
    | StartRun
    | Resume
    | CodeGranted
    | Send
    | SendLeftovers
    | HangUp
    | OpenPipeline
    | ClosePipeline
    | EndLane
    | StartListing
    | StartSharding
    | Rest
    | EndProcess
)
