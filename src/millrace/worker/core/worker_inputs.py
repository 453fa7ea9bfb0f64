"""Inputs of the worker's core: what the dispatcher, peers, runs of tasks and the process itself tell it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import msgspec

from millrace.protocol import messages as msg
from millrace.protocol.crash_sites import CrashSite
from millrace.protocol.data_messages import ToServer

Peer = Hashable
"""Connection of a reader, or of another worker that fetches leftovers; the shell chooses what stands for it."""


class Input(msgspec.Struct, frozen=True):
    """Base of all inputs."""


# -- the session with the dispatcher -----------------------------------------------------------------------------------


class SessionOpened(Input, frozen=True):
    """The dispatcher can be talked to (again). ``hello``: who this worker is; the core adds what it holds."""

    hello: msg.WorkerHello


class SessionClosed(Input, frozen=True):
    """The session has ended."""


class Heard(Input, frozen=True):
    """A message of the dispatcher."""

    message: msg.ToWorker


class Say(Input, frozen=True):
    """A message of the shell for the dispatcher: what listing sources or measuring a store has given."""

    message: msg.FromWorker


class HeartbeatDue(Input, frozen=True):
    """Time for a report. ``measured`` holds what the shell has measured; ``nodes`` are those of its ``job``."""

    measured: msg.WorkerReport


# -- peers -------------------------------------------------------------------------------------------------------------


class PeerSaid(Input, frozen=True):
    """A message on a peer's connection."""

    peer: Peer
    message: ToServer


class PeerLeft(Input, frozen=True):
    """A peer's connection has ended."""

    peer: Peer


# -- runs --------------------------------------------------------------------------------------------------------------


class Share(msgspec.Struct, frozen=True):
    """Share of one reader in a message: bytes-like objects that together are one codec message, and their length."""

    buffers: list[Any]
    size: int


class OutputMessage(msgspec.Struct, frozen=True):
    """Consecutive outputs of a task, encoded.

    Attributes:
        index: number of the first within the task.
        count: how many.
        buffers: bytes-like objects that together are one codec message; they may be views of the user's arrays. Every
            reader gets them all, unless there are shares.
        size: the length in bytes of all that it holds.
        shares: of a round, which is one output: what each reader gets, by number.
    """

    index: int
    count: int
    buffers: list[Any]
    size: int
    shares: tuple[Share, ...] = ()

    @classmethod
    def of_round(cls, index: int, shares: tuple[Share, ...]) -> OutputMessage:
        """Make the message of one round."""
        return cls(index, 1, [], sum([share.size for share in shares]), shares)

    def share(self, reader: int) -> Share:
        """Return what a reader gets of it; of members of a group those of one rank get the same."""
        return self.shares[reader % len(self.shares)] if self.shares else Share(self.buffers, self.size)


class Enter(msgspec.Struct, frozen=True):
    """The run wants to begin; it waits until no other job's code runs, and if probed until no other probed run does."""


class BeginOutputs(msgspec.Struct, frozen=True):
    """The run will put out outputs from number ``first`` on; ``changed``: see :class:`TaskBuffer`."""

    first: int
    changed: str = ""


class Step(msgspec.Struct, frozen=True):
    """The run has another chunk, and asks whether to go on."""


class Put(msgspec.Struct, frozen=True):
    """The run has outputs, and waits until there is room for them.

    ``place`` and ``where``: what a probed run announces if it had to wait, before it goes on.
    """

    message: OutputMessage
    place: CrashSite = ()
    where: str = ""


class Announce(msgspec.Struct, frozen=True):
    """The run says where it is, and waits until the dispatcher knows."""

    place: CrashSite
    where: str


Want = Enter | BeginOutputs | Step | Put | Announce


class RunAsks(Input, frozen=True):
    """The run of a lane asks for something, and waits for :class:`Resume`."""

    lane: int
    want: Want


class RunFinished(msgspec.Struct, frozen=True):
    """The run came to its end.

    ``leftovers``: what is kept for the task's parent; None: nothing. ``left_out``: as in :class:`TaskFinished`.
    """

    outputs: int
    skipped: int = 0
    passed: Sequence[int] = ()
    nothing: bool = False
    leftovers: Any = None
    left_out: int = 0


class RunFailed(msgspec.Struct, frozen=True):
    """The run failed; if the failure ``needs`` something, as an output is larger than what this worker may keep."""

    failure: msg.Failure


class Missing(msgspec.Struct, frozen=True):
    """The leftovers of these tasks could not be fetched."""

    tasks: list[int]


class Stopped(msgspec.Struct, frozen=True):
    """The run has stopped as it was told to."""


Outcome = RunFinished | RunFailed | Missing | Stopped


class RunEnded(Input, frozen=True):
    """The run of a lane is over; ``told``: what the dispatcher hears of it first, whatever came of it."""

    lane: int
    outcome: Outcome
    told: Sequence[msg.FromWorker] = ()


class CodeWanted(Input, frozen=True):
    """A thread beside the lanes is about to run code of a job; :class:`CodeGranted` tells it when it may."""

    who: Hashable
    job: str


class CodeDone(Input, frozen=True):
    """The thread has run it."""

    who: Hashable


# -- the end -----------------------------------------------------------------------------------------------------------


class Drain(Input, frozen=True):
    """The process is to end in good order within so many seconds; at once if it has been told before."""

    within_s: float


class TimeUp(Input, frozen=True):
    """The seconds of :class:`Drain` are over."""


class CloseAll(Input, frozen=True):
    """The process ends: all jobs are closed."""
