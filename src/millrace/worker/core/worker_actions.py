"""Actions of the worker's core: what its shell is to do, in their order. None of them waits for anything."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from millrace.protocol import messages as msg
from millrace.protocol.data_messages import Delivery, Short, Skipped
from millrace.worker.core.worker_inputs import Peer


class Action(msgspec.Struct, frozen=True):
    """Base of all actions."""


class TellDispatcher(Action, frozen=True):
    """Send a message to the dispatcher; the session is there."""

    message: msg.FromWorker


class HurryReport(Action, frozen=True):
    """Feed :class:`HeartbeatDue` before the next one is due: the dispatcher waits for what it says."""


class StartRun(Action, frozen=True):
    """Run a lease for a lane, which runs nothing now; its run asks and ends under the number of the lane."""

    lane: int
    job: str
    slot: int
    lease: msg.LeaseTask


class GoOn(msgspec.Struct, frozen=True):
    """Verdict: the run goes on.

    Attributes:
        coming: the lane's leases that have not begun, in the order in which they will.
        waiting: a reader would take a message at once, however small. If it has let nobody here send anything, a
            message is what tells it that there is something.
        hungry: it has nothing to receive, either: no message is on its way to it.
        message_bytes: what messages should have: so much that a reader lets a few of them come and a few fit here.
    """

    coming: Sequence[msg.LeaseTask] = ()
    waiting: bool = False
    hungry: bool = False
    message_bytes: int = 1


class Halt(msgspec.Struct, frozen=True):
    """Verdict: the run is to stop."""


class TooLarge(msgspec.Struct, frozen=True):
    """Verdict: an output has more than ``limit`` bytes, all that this worker may keep."""

    limit: int


Verdict = GoOn | Halt | TooLarge


class Resume(Action, frozen=True):
    """Answer what the run of a lane has asked."""

    lane: int
    verdict: Verdict


class CodeGranted(Action, frozen=True):
    """Let the thread that wanted to run code do so."""

    who: Hashable


class Send(Action, frozen=True):
    """Send to a reader, behind all that it was sent before; ``shared``: others get the same buffers, or may."""

    peer: Peer
    header: Delivery | Short | Skipped
    buffers: Sequence[Any] = ()
    shared: bool = False


class SendLeftovers(Action, frozen=True):
    """Answer another worker what a task left; ``kept`` is None if that is not here."""

    peer: Peer
    ref: msg.TaskRef
    kept: Any


class HangUp(Action, frozen=True):
    """Close a peer's connection."""

    peer: Peer


class PrepareJob(Action, frozen=True):
    """Do what the dispatcher wants of a job that is open.

    That is to serve it from now on (or to take note of what more is known of it), to list its sources, or to ask its
    user's sharding function.
    """

    message: msg.OpenJob | msg.ListSources | msg.ChooseSharding


class ClosePipeline(Action, frozen=True):
    """End a job: once the runs of these lanes have stopped, nothing of it is needed."""

    job: str
    lanes: Sequence[int]


class EndLane(Action, frozen=True):
    """End a lane: nothing will run on it any more."""

    lane: int


class Rest(Action, frozen=True):
    """Give memory back: nothing has run for a while."""


class EndProcess(Action, frozen=True):
    """End the process; ``in_time``: before the time for that was up."""

    in_time: bool
