"""Events of numbers of workers."""

from __future__ import annotations

from typing import ClassVar

from millrace.control.journal.event import Changes, Event, JobEvent
from millrace.control.state.scaling_state import REMEMBERED, FleetPlan, Home, Scaling
from millrace.control.state.state import State
from millrace.policies.scaling.autoscale import Scale
from millrace.policies.scaling.capacity import Capacity
from millrace.policies.scaling.scaling_policies import Other


class ScaleChosen(JobEvent, frozen=True, tag="ScaleChosen"):
    """How many workers the job is to have, and where the search has come to; fields as in :class:`Scaling`.

    :class:`~millrace.control.state.scaling_state.Scaling` has them.
    """

    scale: Scale
    regime: str
    reason: str
    at: float
    other: Other | None = None
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        job = state.jobs[self.job]
        before = job.scaling
        at, history = (self.at, []) if before is None else (before.at, before.history)
        if before is None or before.scale.workers != self.scale.workers:
            at, history = self.at, [*history, (self.at, self.scale.workers, self.reason)][-100:]
        job.scaling = Scaling(self.scale, self.regime, self.reason, at, history, self.other)
        state.sizes.pop(job.kind, None)  # it comes last now
        state.sizes[job.kind] = self.scale.workers
        if len(state.sizes) > REMEMBERED:
            del state.sizes[next(iter(state.sizes))]


class HomeChosen(JobEvent, frozen=True, tag="HomeChosen"):
    """The job uses its local workers alone from now on, or (``home`` is false) others as well."""

    home: bool
    reason: str
    at: float
    changes: ClassVar = Changes.SERVING

    def apply(self, state: State) -> None:
        state.jobs[self.job].home = Home(self.reason, self.at) if self.home else None


class FleetPlanned(Event, frozen=True, tag="FleetPlanned"):
    """How many workers there are to be; fields as in :class:`~millrace.control.state.scaling_state.FleetPlan`."""

    workers: int
    reason: str
    at: float
    capacity: Capacity | None = None

    def apply(self, state: State) -> None:
        state.fleet = FleetPlan(self.workers, self.reason, self.at, self.capacity)
