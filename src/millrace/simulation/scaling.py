"""Autoscaling policies against random jobs in virtual time: where they end, how soon, and what it costs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Mapping

import msgspec
from rich.console import Console
from rich.table import Table

from millrace.policies.prices import HourlyRates
from millrace.policies.scaling import hpa, scaling_policies
from millrace.policies.scaling.autoscale import Limits, look_elements, pause_elements
from millrace.policies.scaling.scaling_policies import Kind, Observation
from millrace.simulation.scaling_workloads import MOST, Workload, drifted, workload

LOOKS = 120
"""Looks at each simulated job; a third of the jobs change after half of them."""
ACCELERATOR = 10.0
"""Price of a second of the consumer's accelerator, in seconds of a worker."""
TRAINING = (0.5, 200.0)
"""Least and most seconds of a simulated training's step where its elements are to be cheap."""
RIGHT = 0.03
"""A number of workers that is off by less, or by one, is right."""
LIMITS = Limits(1, MOST)


class ScalingOutcome(msgspec.Struct, frozen=True):
    """Result of a policy with one job.

    Attributes:
        kind: of the job.
        changed: it changed on the way.
        right: whether the number of workers is, at the end.
        decisions: changes of the number until it was right for the first time; None: it never was.
        cost: of all elements beside that of an oracle, who has the right number from the first look on.
        element: cost of an element at the end beside that with the cheapest number.
        needed: the fewest workers that are enough at the end.
    """

    kind: str
    changed: bool
    right: bool
    decisions: int | None
    cost: float
    element: float
    needed: int


class Goal(msgspec.Struct, frozen=True):
    """Right numbers of workers for a job.

    Attributes:
        least: the fewest workers that are enough.
        cost: of an element with the cheapest number, where a second of the consumer costs ``training``.
        training: in seconds of a worker.
    """

    least: int
    cost: float
    training: float

    def met(self, job: Workload, workers: int, policy: str) -> bool:
        """Return whether the number is nearly the least, or for the policy ``cheapest`` nearly the cheapest."""
        if policy == "cheapest":
            return _cost(job, workers, self.training) <= (1 + RIGHT) * self.cost
        return abs(workers - self.least) <= max(1.0, RIGHT * self.least)


class PolicyRun:
    """One policy with one job, from look to look in virtual time.

    Args:
        kind: of the policy.
        rng: of the looks' noise.
        training: price of a second of the consumer, in seconds of a worker.

    Attributes:
        workers: number that is to be there; 1 at first.
    """

    def __init__(self, kind: Kind, rng: random.Random, training: float) -> None:
        self.workers = 1
        self._scale = scaling_policies.begin(kind, 1, LIMITS).value
        self._rng, self._rates = rng, HourlyRates(1.0, training)

    def look(self, job: Workload, there: int, now: float, limits: Limits = LIMITS) -> None:
        """Take one look, while ``there`` workers are; the queue is long where the consumer doesn't wait."""
        look = job.look(there, self._rng)
        queue = min(100.0, there * (1 / max(look.busy, 0.01) - 1))
        cpu = min(1.0, job.cpu * job.busy(there) * max(0.0, self._rng.gauss(1, 0.05)))
        seen = Observation(look, queue, cpu, now, self._rates)
        self._scale = scaling_policies.step(self._scale, seen, limits).value
        self.workers = min(self._scale.workers, limits.most)


QUICK = ("millrace", "cheapest")
"""Simulated policies that take shorter looks at consumers which wait for most of the time."""


def play(seed: int, policy: Kind = "millrace") -> ScalingOutcome:
    """One job."""
    rng = random.Random(seed)
    job = workload(rng)
    changes = rng.random() < 1 / 3
    after = drifted(job, rng) if changes else job
    jobs = [job] * (LOOKS // 2) + [after] * (LOOKS - LOOKS // 2)
    training = math.exp(random.Random(f"prices of {seed}").uniform(*map(math.log, TRAINING)))
    goals = {id(each): goal_of(each, training) for each in (job, after)}
    run, decisions, first = PolicyRun(policy, rng, training), 0, None
    spent = oracle = 0.0
    for number, each in enumerate(jobs, 1):
        goal, workers = goals[id(each)], run.workers
        batch_s = each.batch_s(workers)
        waits = 1 - each.own_s / batch_s if policy in QUICK else 0.0
        count = pause_elements(waits, batch_s) + look_elements(waits, batch_s)
        if policy == "cheapest":
            spent += count * _cost(each, workers, training)
            oracle += count * goal.cost
        else:
            spent += count * _cost(each, workers, ACCELERATOR)
            oracle += count * _cost(each, goal.least, ACCELERATOR)
        run.look(each, workers, number * hpa.PERIOD_S)
        decisions += run.workers != workers
        if first is None and goal.met(each, run.workers, policy):
            first = decisions
    goal, workers = goals[id(after)], run.workers
    element = _cost(after, workers, training) / goal.cost
    right = goal.met(after, workers, policy)
    return ScalingOutcome(job.kind, changes, right, first, spent / oracle, element, goal.least)


def goal_of(job: Workload, training: float, most: int = MOST) -> Goal:
    """Return the goal for a job that may have so many workers."""
    return Goal(job.least(most), min(_cost(job, count, training) for count in range(1, most + 1)), training)


def _cost(job: Workload, workers: int, training: float) -> float:
    """Return the cost of an element, in seconds of a worker."""
    return job.batch_s(workers) * (workers + training)


class ScalingReport(msgspec.Struct, frozen=True):
    """Results of a policy with many jobs.

    Attributes:
        jobs: how many.
        right: share of them with the right number at the end.
        decisions: median of those until it was right; None: mostly it never was.
        cost: mean, beside an oracle's.
        element: mean cost of an element at the end, beside the least.
        wrong: seeds that ended with another number, by kind.
    """

    jobs: int
    right: float
    decisions: float | None
    cost: float
    element: float
    wrong: dict[str, list[int]]


def run(seeds: Iterable[int], policy: Kind = "millrace") -> ScalingReport:
    """Plays a job for each seed."""
    return report_on({seed: play(seed, policy) for seed in seeds})


def report_on(outcomes: Mapping[int, ScalingOutcome]) -> ScalingReport:
    """Sum up what a policy did with jobs, by their seeds; at least one."""
    wrong: dict[str, list[int]] = {}
    for seed, each in outcomes.items():
        if not each.right:
            wrong.setdefault(each.kind, []).append(seed)
    # Those that never were right took more decisions than any other.
    decisions = statistics.median(float("inf") if o.decisions is None else o.decisions for o in outcomes.values())
    return ScalingReport(
        len(outcomes),
        sum(each.right for each in outcomes.values()) / len(outcomes),
        None if decisions == float("inf") else decisions,
        statistics.fmean(each.cost for each in outcomes.values()),
        statistics.fmean(each.element for each in outcomes.values()),
        wrong,
    )


def show(reports: Mapping[str, ScalingReport]) -> None:
    """Print a line for each policy."""
    table = Table("policy", "jobs", "right number at the end", "decisions to it (median)", "cost, of an oracle's")
    table.add_column("an element at the end, of the cheapest")
    for policy, each in reports.items():
        decisions = "never" if each.decisions is None else f"{each.decisions:g}"
        table.add_row(
            policy, f"{each.jobs:,}", f"{100 * each.right:.1f} %", decisions, f"{each.cost:.3f}", f"{each.element:.3f}"
        )
    Console().print(table)
    for policy, each in reports.items():
        for kind, seeds in sorted(each.wrong.items()) if policy in QUICK else ():
            print(f"{policy}: another number at the end for {kind}, seeds {', '.join(map(str, seeds))}")
