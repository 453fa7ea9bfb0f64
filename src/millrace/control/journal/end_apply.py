"""What the events of :mod:`millrace.control.journal.end_events` change in the state.

As :mod:`millrace.control.journal.replay`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.control.journal import end_events as ev
from millrace.control.state.state import State


def _task_broke(state: State, event: ev.TaskBroke) -> None:
    state.jobs[event.job].epochs[event.epoch].failures[event.task] = event.failure


def _epoch_cut(state: State, event: ev.EpochCut) -> None:
    epoch = state.jobs[event.job].epochs[event.epoch]
    epoch.tasks = event.tasks
    epoch.nothing = None
    # Where there is no end nobody counts what consumers have read; from now on they have to have what is listed here.
    epoch.shares = {consumer: sorted(tasks) for consumer, tasks in epoch.unread.items()}


def _epoch_held(state: State, event: ev.EpochHeld) -> None:
    state.jobs[event.job].epochs[event.epoch].held = True


def _steps_ended(state: State, event: ev.StepsEnded) -> None:
    state.jobs[event.job].epochs[event.epoch].steps = event.steps


END_APPLY: dict[type[msgspec.Struct], Callable[[State, Any], None]] = {
    ev.TaskBroke: _task_broke,
    ev.EpochHeld: _epoch_held,
    ev.StepsEnded: _steps_ended,
    ev.EpochCut: _epoch_cut,
}
