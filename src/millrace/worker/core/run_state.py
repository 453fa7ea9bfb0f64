"""The run of one lease: what it waits for, and why it is to stop."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from millrace.protocol import messages as msg
from millrace.worker.core.outbox import TaskKey, key_of
from millrace.worker.core.worker_inputs import Put, RunFailed

PROBED = 2
"""Least :attr:`LeaseTask.probe_level` of a probed run, which announces each step and runs beside no other one."""


class Stop(enum.Enum):
    """Why a run is to stop."""

    RETURN = "return"
    """The lease is to be given back."""
    FORGET = "forget"
    """Nobody wants to hear of it any more."""


@dataclass(frozen=True, slots=True)
class Starting:
    """The shell was told to run it, and the run has not asked for anything yet."""


@dataclass(frozen=True, slots=True)
class Entering:
    """The run waits for other jobs' code to leave, and a probed one for other probed runs."""


@dataclass(frozen=True, slots=True)
class Working:
    """User code runs, or was told to stop."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The run waits for the dispatcher to know where it is."""

    message: msg.ProbeReport


@dataclass(frozen=True, slots=True)
class Blocked:
    """The run waits for room since then; other probed runs may run meanwhile."""

    put: Put
    since: float


@dataclass(frozen=True, slots=True)
class Reentering:
    """There was room, and the probed run waits for its turn to go on."""

    put: Put


@dataclass(frozen=True, slots=True)
class Delivering:
    """The run has failed, and a reader has not received all that came before since then."""

    outcome: RunFailed
    since: float


RunState = Starting | Entering | Working | Announced | Blocked | Reentering | Delivering


@dataclass(slots=True)
class TaskRun:
    """One attempt at a lease.

    ==========  =======================  ============================================
    state       what ends it             next
    ==========  =======================  ============================================
    Starting    Enter                    Entering
    Entering    it has its turns         Working
    Working     Announce                 Announced
    ..          Put                      Working, or Blocked if there is no room
    ..          RunEnded                 over, or Delivering if it failed
    Announced   ProbeAck                 Working
    Blocked     there is room            Working, or Reentering if it is probed
    Reentering  it has its turn          Announced
    Delivering  all readers have it all  over
    ==========  =======================  ============================================

    From each state in which it waits a ``stop`` leads to Working with :class:`Halt`, and from Delivering to its end.

    Attributes:
        started: when the lane took it up, in seconds.
        stop: it is to stop.
        spared: the readers have all outputs already; the run goes on for what it leaves over.
        number: announcements so far.
        active: it counts as computing.
        began: when it began to put out; None: not yet.
        waited_s: seconds for which it was blocked since then.
    """

    lease: msg.LeaseTask
    started: float
    state: RunState = field(default_factory=Starting)
    stop: Stop | None = None
    spared: bool = False
    number: int = 0
    active: bool = False
    began: float | None = None
    waited_s: float = 0.0

    @property
    def key(self) -> TaskKey:
        """Key of the task."""
        return key_of(self.lease.ref)

    @property
    def probed(self) -> bool:
        """Whether each step is announced, so that the dispatcher knows what ended the process."""
        return self.lease.probe_level >= PROBED

    @property
    def blocked_since(self) -> float | None:
        """Second since when it waits for a reader; None: it does not."""
        return self.state.since if isinstance(self.state, Blocked | Delivering) else None
