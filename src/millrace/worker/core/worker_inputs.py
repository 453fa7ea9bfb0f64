"""Inputs of the worker's core: what the dispatcher, peers, runs of tasks and the process itself tell it."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

from millrace.protocol import messages as msg
from millrace.protocol.crash_sites import CrashSite
from millrace.protocol.data_messages import ToServer

Peer = Hashable
"""A connection of a consumer, or of another worker that fetches leftovers; the shell chooses what stands for it."""


# -- the session with the dispatcher -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SessionOpened:
    """The dispatcher can be talked to (again). ``hello``: who this worker is; the core adds what it holds."""

    hello: msg.WorkerHello


@dataclass(frozen=True, slots=True)
class SessionClosed:
    """The session has ended."""


@dataclass(frozen=True, slots=True)
class Heard:
    """A message of the dispatcher."""

    message: msg.ToWorker


@dataclass(frozen=True, slots=True)
class Say:
    """The shell has a message for the dispatcher: what listing sources or measuring a store has given."""

    message: msg.FromWorker


@dataclass(frozen=True, slots=True)
class HeartbeatDue:
    """Time for a report. ``measured`` holds what the shell has measured; ``nodes`` are those of its ``job``."""

    measured: msg.WorkerReport


# -- peers -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class PeerCame:
    """A connection was made to this worker."""

    peer: Peer


@dataclass(frozen=True, slots=True)
class PeerSaid:
    """A message on a peer's connection."""

    peer: Peer
    message: ToServer


@dataclass(frozen=True, slots=True)
class PeerLeft:
    """A peer's connection has ended."""

    peer: Peer


# -- runs --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class OutputMessage:
    """Some consecutive outputs, encoded.

    Attributes:
        index: number of the first within the task.
        count: how many.
        buffers: bytes-like objects that together are one codec message; they may be views of the user's arrays.
        size: their length in bytes.
    """

    index: int
    count: int
    buffers: list[Any]
    size: int


@dataclass(frozen=True, slots=True)
class Enter:
    """The run wants to begin; it waits until no other job's code runs, and with care until no other run with care."""


@dataclass(frozen=True, slots=True)
class BeginOutputs:
    """The run will put out outputs from number ``first`` on; ``changed``: see :class:`TaskBuffer`."""

    first: int
    changed: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """The run has another chunk, and asks whether to go on."""


@dataclass(frozen=True, slots=True)
class Put:
    """Some outputs; the run waits until there is room for them.

    ``place`` and ``where``: what a run with care announces if it had to wait, before it goes on.
    """

    message: OutputMessage
    place: CrashSite = ()
    where: str = ""


@dataclass(frozen=True, slots=True)
class Announce:
    """Where a run with care is; it waits until the dispatcher knows."""

    place: CrashSite
    where: str


Want = Enter | BeginOutputs | Step | Put | Announce


@dataclass(frozen=True, slots=True)
class RunAsks:
    """The run of a lane asks for something, and waits for :class:`Resume`."""

    lane: int
    want: Want


@dataclass(frozen=True, slots=True)
class RunFinished:
    """The run came to its end. ``leftovers``: what is kept for the task's parent; None: nothing."""

    outputs: int
    skipped: int = 0
    passed: Sequence[int] = ()
    nothing: bool = False
    leftovers: Any = None


@dataclass(frozen=True, slots=True)
class RunFailed:
    """The run failed; with ``needs``, as an output has so many bytes, more than this worker may keep."""

    failure: msg.Failure
    needs: int = 0


@dataclass(frozen=True, slots=True)
class Missing:
    """The leftovers of these tasks could not be fetched."""

    tasks: list[int]


@dataclass(frozen=True, slots=True)
class Stopped:
    """The run has stopped as it was told to."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    """The run of a lane is over; ``told``: what the dispatcher hears of it first, whatever came of it."""

    lane: int
    outcome: RunFinished | RunFailed | Missing | Stopped
    told: Sequence[msg.FromWorker] = ()


@dataclass(frozen=True, slots=True)
class CodeWanted:
    """A thread beside the lanes is about to run code of a job; :class:`CodeGranted` tells it when it may."""

    who: Hashable
    job: str


@dataclass(frozen=True, slots=True)
class CodeDone:
    """It has run it."""

    who: Hashable


# -- the end -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drain:
    """The process is to end in good order within so many seconds; at once if it has been told before."""

    within_s: float


@dataclass(frozen=True, slots=True)
class TimeUp:
    """The seconds of :class:`Drain` are over."""


@dataclass(frozen=True, slots=True)
class CloseAll:
    """The process ends: all jobs are closed."""


Input = (
    SessionOpened
    | SessionClosed
    | Heard
    | Say
    | HeartbeatDue
    | PeerCame
    | PeerSaid
    | PeerLeft
    | RunAsks
    | RunEnded
    | CodeWanted
    | CodeDone
    | Drain
    | TimeUp
    | CloseAll
)
