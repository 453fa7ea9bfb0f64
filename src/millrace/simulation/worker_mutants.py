"""Bugs of a worker's core, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from typing import Any

from millrace.protocol import messages as msg
from millrace.simulation.planting import MutantList, always
from millrace.worker.core.code_turns import CodeTurns
from millrace.worker.core.lane import Lane
from millrace.worker.core.outbox import SendCredit, TaskKey
from millrace.worker.core.run_control import RunControl
from millrace.worker.core.run_state import Blocked, Delivering, TaskRun, Working
from millrace.worker.core.worker_core import WorkerCore

WORKER_MUTANTS = MutantList()
_is, _replaces, _always = WORKER_MUTANTS.add, WORKER_MUTANTS.replaces, always

_revoke, _unblock, _spare = Lane.revoke, RunControl._unblock, WorkerCore._spare  # noqa: SLF001

_is("old-credit", "What a worker may send on one connection is sent on the next.", SendCredit, "void", _always(None))
_is("kept-though-stale", "What somebody else runs by now is kept where it was.", Lane, "drop", _always(None))
_is(
    "deaf-outbox",
    "A run that waits for room is not looked at when the consumer has received something.",
    RunControl,
    "_unblock",
    _always(None),
)


@_replaces(
    "lost-beginning",
    "What a task gave before it failed is dropped, if it has not gone out by then.",
    RunControl,
    "_deliver",
)
def _hasty_end(self: RunControl, lane: Lane, run: TaskRun, delivering: Delivering, now: float) -> None:
    self._conclude(lane, run, delivering.outcome, now)


@_replaces("running-on", "A lease that runs is given back at once, and runs on.", Lane, "revoke")
def _hasty_revoke(self: Lane, key: TaskKey, lease: int) -> bool:
    running = self.run is not None and self.run.lease.lease == lease
    return True if running else _revoke(self, key, lease)


@_replaces("resumed-twice", "A run that has waited for room goes on, and once more.", RunControl, "_unblock")
def _eager(self: RunControl, lane: Lane, run: TaskRun, blocked: Blocked, now: float) -> None:
    _unblock(self, lane, run, blocked, now)
    if isinstance(run.state, Working):
        self._go_on(lane, run)


@_replaces(
    "spared-leftovers",
    "Whoever has all outputs of a task is taken to need nothing of it any more.",
    WorkerCore,
    "_spare",
)
def _thorough(self: WorkerCore, message: msg.OutputsReceived) -> None:
    _spare(self, message)
    self.leftovers.drop(lambda ref, _: ref in message.refs)


_is(
    "spared-for-all",
    "What one rank lacks no more is taken to be lacked by none.",
    WorkerCore,
    "_spare",
    lambda self, message: _spare(self, msg.OutputsReceived(message.refs)),
)


@_replaces(
    "silent-drain",
    "A worker that leaves drops the leases that it has not begun, and nobody hears of it.",
    Lane,
    "unstarted",
)
def _silent_drain(self: Lane) -> list[Any]:
    self.pending.clear()
    return []


@_replaces(
    "jobs-beside-one-another", "The code of one job runs while another one's modules are in force.", CodeTurns, "want"
)
def _beside(self: CodeTurns, who: Any, name: str) -> bool:
    self.name = name
    self.inside.add(who)
    return True
