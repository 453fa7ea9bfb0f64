"""Bugs to be planted in the worker's core."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any
from unittest import mock

from millrace.protocol.messages import OutputsReceived
from millrace.worker.core.code_turns import CodeTurns
from millrace.worker.core.lane import Lane
from millrace.worker.core.outbox import SendCredit, TaskKey
from millrace.worker.core.run_control import RunControl
from millrace.worker.core.run_state import Blocked, Delivering, TaskRun, Working
from millrace.worker.core.worker_core import WorkerCore


def _lost_beginning() -> AbstractContextManager[Any]:
    """What a task gave before it failed is dropped, if it has not gone out by then."""

    def hasty(self: RunControl, lane: Lane, run: TaskRun, delivering: Delivering, now: float) -> None:
        self._conclude(lane, run, delivering.outcome, now)

    return mock.patch.object(RunControl, "_deliver", hasty)


def _running_on() -> AbstractContextManager[Any]:
    """A lease that runs is given back at once, and runs on."""
    revoke = Lane.revoke

    def hasty(self: Lane, key: TaskKey, lease: int) -> bool:
        running = self.run is not None and self.run.lease.lease == lease
        return True if running else revoke(self, key, lease)

    return mock.patch.object(Lane, "revoke", hasty)


def _old_credit() -> AbstractContextManager[Any]:
    """What a consumer lets a worker send on one connection is sent on the next one."""
    return mock.patch.object(SendCredit, "void", return_value=None)


def _resumed_twice() -> AbstractContextManager[Any]:
    """A run that has waited for room goes on, and once more."""
    unblock = RunControl._unblock  # noqa: SLF001

    def eager(self: RunControl, lane: Lane, run: TaskRun, blocked: Blocked, now: float) -> None:
        unblock(self, lane, run, blocked, now)
        if isinstance(run.state, Working):
            self._go_on(lane, run)

    return mock.patch.object(RunControl, "_unblock", eager)


def _spared_leftovers() -> AbstractContextManager[Any]:
    """Whoever has all outputs of a task is taken to need nothing of it any more."""
    spare = WorkerCore._spare  # noqa: SLF001

    def thorough(self: WorkerCore, message: OutputsReceived) -> None:
        spare(self, message)
        self.leftovers.forget(message.refs)

    return mock.patch.object(WorkerCore, "_spare", thorough)


def _silent_drain() -> AbstractContextManager[Any]:
    """A worker that leaves drops the leases that it has not begun, and nobody hears of it."""

    def silent(self: Lane) -> list[Any]:
        self.pending.clear()
        return []

    return mock.patch.object(Lane, "unstarted", silent)


def _jobs_beside_one_another() -> AbstractContextManager[Any]:
    """The code of one job runs while another one's modules are in force."""

    def impatient(self: CodeTurns, who: Any, name: str) -> bool:
        self.name = name
        self.inside.add(who)
        return True

    return mock.patch.object(CodeTurns, "want", impatient)


def _kept_though_stale() -> AbstractContextManager[Any]:
    """What somebody else runs by now is kept where it was."""
    return mock.patch.object(Lane, "drop", return_value=None)


def _deaf_outbox() -> AbstractContextManager[Any]:
    """A run that waits for room is not looked at when the consumer has received something."""
    return mock.patch.object(RunControl, "_unblock", return_value=None)


WORKER_PLANTS: dict[str, Callable[[], AbstractContextManager[Any]]] = {
    "lost-beginning": _lost_beginning,
    "running-on": _running_on,
    "old-credit": _old_credit,
    "resumed-twice": _resumed_twice,
    "spared-leftovers": _spared_leftovers,
    "silent-drain": _silent_drain,
    "jobs-beside-one-another": _jobs_beside_one_another,
    "kept-though-stale": _kept_though_stale,
    "deaf-outbox": _deaf_outbox,
}
