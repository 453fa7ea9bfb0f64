"""How many workers jobs are to have: what the state knows of it."""

from __future__ import annotations

import msgspec

from millrace.policies.scaling.autoscale import Scale
from millrace.policies.scaling.capacity import Capacity
from millrace.policies.scaling.scaling_policies import Other

REMEMBERED = 1000
"""Jobs whose numbers are kept for the next of their kind; the longest unused are forgotten first."""


class Scaling(msgspec.Struct, frozen=True):
    """Workers that a job is to have.

    Attributes:
        scale: where the search has come to; of another policy only the number, and whether it is settled.
        other: where that one's search has come to.
        regime: mode of its cache in which that was measured; in another one it begins anew.
        reason: of the last decision, in words.
        at: when the number was changed last.
        history: (when, workers, why) of each change, the last 100.
    """

    scale: Scale
    regime: str = ""
    reason: str = ""
    at: float = 0.0
    history: list[tuple[float, int, str]] = []
    other: Other | None = None

    @property
    def search(self) -> Scale | Other:
        """Where the search has come to, of whatever policy."""
        return self.scale if self.other is None else self.other


class Home(msgspec.Struct, frozen=True):
    """A job uses its local workers alone, since ``at``; ``reason`` in words."""

    reason: str
    at: float


class FleetPlan(msgspec.Struct, frozen=True):
    """How many workers there are to be.

    Attributes:
        workers: their number.
        reason: in words.
        at: when that was decided.
        capacity: how many the cluster was last found to hold; None: as many as it was asked for.
    """

    workers: int = 0
    reason: str = ""
    at: float = 0.0
    capacity: Capacity | None = None
