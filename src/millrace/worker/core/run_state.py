"""The run of one lease: what it waits for, and why it is to stop."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from millrace.protocol import messages as msg
from millrace.worker.core.outbox import TaskKey
from millrace.worker.core.worker_inputs import Put, RunFailed

ALONE = 2
"""From this :attr:`LeaseTask.care` on each step is announced, and one lease at a time is run in that way."""


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
    """The run waits for other jobs' code to leave, and with care for other runs with care."""


@dataclass(frozen=True, slots=True)
class Working:
    """User code runs, or was told to stop."""


@dataclass(frozen=True, slots=True)
class Announced:
    """The run waits for the dispatcher to know where it is."""

    message: msg.ProbeReport


@dataclass(frozen=True, slots=True)
class Blocked:
    """The run waits for room in the outbox since then; with care others may run meanwhile."""

    put: Put
    since: float


@dataclass(frozen=True, slots=True)
class Reentering:
    """There was room, and the run with care waits for its turn to go on."""

    put: Put


@dataclass(frozen=True, slots=True)
class Delivering:
    """The run has failed, and the consumer has not received all that came before since then."""

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
    Blocked     there is room            Working, or Reentering if it runs with care
    Reentering  it has its turn          Announced
    Delivering  the consumer has it all  over
    ==========  =======================  ============================================

    From each state in which it waits a ``stop`` leads to Working with :class:`Halt`, and from Delivering to its end.

    Attributes:
        started: when the lane took it up, in seconds.
        stop: it is to stop.
        spared: the consumer has all outputs already; the run goes on for what it leaves over.
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
        """Of its task."""
        return self.lease.ref.epoch, self.lease.ref.task

    @property
    def blocked_since(self) -> float | None:
        """Since when it waits for its consumer; None: it does not."""
        return self.state.since if isinstance(self.state, Blocked | Delivering) else None
