"""Autoscaling policies on clusters that hold fewer workers than a job needs, and more later, in virtual time."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from millrace.policies.scaling import capacity
from millrace.policies.scaling.autoscale import Limits
from millrace.policies.scaling.capacity import Capacity, Shortage
from millrace.policies.scaling.scaling_policies import Kind
from millrace.simulation import scaling
from millrace.simulation.scaling import PolicyRun, goal_of
from millrace.simulation.scaling_workloads import MOST, Workload, workload

LOOK_S = 30.0
"""From one look to the next, in seconds."""
PATIENCE_S = 60.0
"""Seconds that the simulated dispatcher waits for a requested worker, as the service does."""
FULL_LOOKS, ROOMY_LOOKS = 60, 120
"""While the cluster is full, and after there is room; a limit may hold for forty minutes."""
LAST = 10
"""Looks at the end of a simulated job that are judged; in some of them another number of workers is tried."""
ROOM = (0.2, 0.9)
"""Least and most part of the workers that are needed for which the simulated cluster has room at first."""
FEWEST = 3
"""Workers that a job needs, so that fewer can be had."""
TRAINING = 10.0
"""Price of a second of the consumer, in seconds of a worker."""


class FullClusterOutcome(msgspec.Struct, frozen=True):
    """Result of a policy with one job.

    Attributes:
        settled: while the cluster was full it found the best number that had room.
        pending: share of the time, at the end of that, in which workers were asked for that had no room.
        recovered: the number was right in most of the last looks, when there was room for all.
    """

    settled: bool
    pending: float
    recovered: bool


class FullClusterRun(PolicyRun):
    """The same on a cluster that may not have room for all workers that are asked for.

    Attributes:
        plan: workers that were asked for; ``there``: of these, those that have room.
    """

    def __init__(self, kind: Kind, job: Workload, rng: random.Random) -> None:
        super().__init__(kind, rng, TRAINING)
        self.plan = self.there = 1
        self._job, self._now = job, 0.0
        self._known: Capacity | None = None
        self._short: Shortage | None = None

    def look_with(self, room: int) -> None:
        """Take the next look, on a cluster with room for so many workers."""
        self._now += LOOK_S
        self.there = min(self.plan, room)
        self._known, self._short = capacity.watch(
            self._known, self._short, self.plan, self.there, PATIENCE_S, self._now
        )
        limit = capacity.in_force(self._known, self._now)
        most, why = (MOST, "") if limit is None else (min(MOST, limit.workers), limit.reason)
        self.look(self._job, self.there, self._now, Limits(1, most, why))
        self.plan = self.workers


def play(seed: int, kind: Kind = "millrace") -> FullClusterOutcome:
    """One job, of those that need three workers or more."""
    rng = random.Random(f"full_cluster {seed}")
    job = workload(rng)
    while job.least() < FEWEST:
        job = workload(rng)
    room = max(1, math.floor(job.least() * rng.uniform(*ROOM)))
    played, settled, pending = FullClusterRun(kind, job, rng), False, 0
    goal = goal_of(job, TRAINING, room)
    for number in range(FULL_LOOKS):
        played.look_with(room)
        if number >= FULL_LOOKS // 2:
            settled = settled or goal.met(job, played.there, kind)
            pending += played.plan > room
    goal, right = goal_of(job, TRAINING), 0
    for number in range(ROOMY_LOOKS):
        played.look_with(MOST)
        if number >= ROOMY_LOOKS - LAST:
            right += goal.met(job, played.there, kind)
    return FullClusterOutcome(settled, pending / (FULL_LOOKS - FULL_LOOKS // 2), 2 * right > LAST)


class FullClusterReport(msgspec.Struct, frozen=True):
    """Results of a policy with many jobs.

    Attributes:
        jobs: how many.
        settled: share of them that found the best number that had room.
        pending: largest share of the time in which workers were asked for that had no room.
        recovered: share of them that had the right number when there was room for all.
        wrong: seeds of those that did not settle, or not recover.
    """

    jobs: int
    settled: float
    pending: float
    recovered: float
    wrong: list[int]


def run(seeds: Iterable[int], kind: Kind = "millrace") -> FullClusterReport:
    """Plays a job for each seed."""
    outcomes = {seed: play(seed, kind) for seed in seeds}
    return FullClusterReport(
        len(outcomes),
        statistics.fmean(each.settled for each in outcomes.values()),
        max(each.pending for each in outcomes.values()),
        statistics.fmean(each.recovered for each in outcomes.values()),
        [seed for seed, each in outcomes.items() if not (each.settled and each.recovered)],
    )


def as_json(reports: Mapping[str, scaling.ScalingReport], full: Mapping[str, FullClusterReport]) -> str:
    """Encode the reports; those of clusters without room for all stand under ``full_cluster``."""
    both = {name: {**msgspec.to_builtins(each), "full_cluster": full[name]} for name, each in reports.items()}
    return msgspec.json.format(msgspec.json.encode(both), indent=2).decode()


def show(reports: Mapping[str, FullClusterReport]) -> None:
    """Print a line for each policy."""
    table = Table("policy", "right while the cluster is full", "workers pending", "right when there is room again")
    for policy, each in reports.items():
        shares = (f"{100 * share:.0f} %" for share in (each.settled, each.pending, each.recovered))
        table.add_row(policy, *shares)
    Console().print(table)
