"""Events of numbers of workers."""

from __future__ import annotations

from millrace.control.journal.event import Changes, Event, reduces
from millrace.control.state.scaling_state import REMEMBERED, FleetPlan, Home, Scaling
from millrace.control.state.state import (
    State,
)
from millrace.policies.scaling.autoscale import Scale
from millrace.policies.scaling.capacity import Capacity
from millrace.policies.scaling.scaling_policies import Other


class ScaleChosen(Event, frozen=True, tag="ScaleChosen"):
    """How many workers the job is to have, and where the search has come to; fields as in :class:`Scaling`.

    :class:`~millrace.control.state.scaling_state.Scaling` has them.
    """

    job: str
    scale: Scale
    regime: str
    reason: str
    at: float
    other: Other | None = None


@reduces(ScaleChosen, Changes.SERVING)
def _scale_chosen(state: State, event: ScaleChosen) -> None:
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


class HomeChosen(Event, frozen=True, tag="HomeChosen"):
    """The job uses its local workers alone from now on, or (``home`` is false) others as well."""

    job: str
    home: bool
    reason: str
    at: float


@reduces(HomeChosen, Changes.SERVING)
def _home_chosen(state: State, event: HomeChosen) -> None:
    state.jobs[event.job].home = Home(event.reason, event.at) if event.home else None


class FleetPlanned(Event, frozen=True, tag="FleetPlanned"):
    """How many workers there are to be; fields as in :class:`~millrace.control.state.scaling_state.FleetPlan`."""

    workers: int
    reason: str
    at: float
    capacity: Capacity | None = None


@reduces(FleetPlanned)
def _fleet_planned(state: State, event: FleetPlanned) -> None:
    state.fleet = FleetPlan(event.workers, event.reason, event.at, event.capacity)
