"""What happened to numbers of workers; a part of :mod:`millrace.control.journal.events`."""

from __future__ import annotations

from millrace.control.journal.event import Event
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


class HomeChosen(Event, frozen=True, tag="HomeChosen"):
    """The job uses its local workers alone from now on, or (``home`` is false) others as well."""

    job: str
    home: bool
    reason: str
    at: float


class FleetPlanned(Event, frozen=True, tag="FleetPlanned"):
    """How many workers there are to be; fields as in :class:`~millrace.control.state.scaling_state.FleetPlan`."""

    workers: int
    reason: str
    at: float
    capacity: Capacity | None = None
