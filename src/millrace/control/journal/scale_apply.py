"""What events about numbers of workers change in the state; a part of :mod:`millrace.control.journal.replay`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from millrace.control.journal import scale_events as ev
from millrace.control.state.scaling_state import REMEMBERED, FleetPlan, Home, Scaling
from millrace.control.state.state import State


def _scale_chosen(state: State, event: ev.ScaleChosen) -> None:
    job = state.jobs[event.job]
    before = job.scaling
    at, history = (event.at, []) if before is None else (before.at, before.history)
    if before is None or before.scale.workers != event.scale.workers:
        at, history = event.at, [*history, (event.at, event.scale.workers, event.reason)][-100:]
    job.scaling = Scaling(event.scale, event.regime, event.reason, at, history, event.other)
    state.sizes.pop(job.kind, None)  # it comes last now
    state.sizes[job.kind] = event.scale.workers
    if len(state.sizes) > REMEMBERED:
        del state.sizes[next(iter(state.sizes))]


def _home_chosen(state: State, event: ev.HomeChosen) -> None:
    state.jobs[event.job].home = Home(event.reason, event.at) if event.home else None


def _fleet_planned(state: State, event: ev.FleetPlanned) -> None:
    state.fleet = FleetPlan(event.workers, event.reason, event.at, event.capacity)


SCALE_APPLY: dict[type, Callable[[State, Any], None]] = {
    ev.ScaleChosen: _scale_chosen,
    ev.HomeChosen: _home_chosen,
    ev.FleetPlanned: _fleet_planned,
}
