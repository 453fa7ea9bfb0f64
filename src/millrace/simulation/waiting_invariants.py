"""Invariant of waiting: no job waits for a worker for ever, and for how long at most follows from its share."""

from __future__ import annotations

from millrace.control.state.observed import Division
from millrace.simulation.virtual_network import Violation

PATIENCE_S = 120.0
"""A task that is too long for a turn is cut after half a minute, and then after twice as long."""
TURN_S = 5.0
"""Whose share is a hundredth of a worker has one turn of a hundred, each about so long."""


class WaitingJobs:
    """Jobs that wait, with the least share that each had meanwhile: when others leave, it has more of a sudden.

    Whoever had less than his share before comes first, so a job waits as well for what others are behind it.
    """

    def __init__(self) -> None:
        self._least: dict[str, tuple[float, float, float]] = {}

    def check(self, division: Division | None, now: float) -> None:
        """Check that none waits for too long."""
        waiting = {} if division is None else division.waiting
        self._least = {name: each for name, each in self._least.items() if waiting.get(name) == each[0]}
        for name, since in waiting.items():
            assert division is not None
            share = division.shares[name].value
            ahead = {job: division.standing(job, now).ahead for job in division.shares}
            behind = max(0.0, ahead[name] - min(ahead.values()))
            _, least, most = self._least.get(name, (since, share, behind))
            self._least[name] = since, min(least, share), max(most, behind)
            patience_s = PATIENCE_S + (TURN_S + self._least[name][2]) / max(self._least[name][1], 1e-3)
            if now - since > patience_s:
                raise Violation(f"job {name} has waited for a worker for more than {patience_s:.0f} s")
