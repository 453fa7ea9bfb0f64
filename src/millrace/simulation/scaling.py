"""Autoscaling policies against random jobs in virtual time: where they end, how soon, and what it costs."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

import msgspec
from rich.console import Console
from rich.table import Table

from millrace.policies.prices import HourlyRates
from millrace.policies.scaling import autoscale, cachew_scaling, cost_scaling, hpa
from millrace.policies.scaling.autoscale import Limits, look_elements, pause_elements
from millrace.simulation.scaling_workloads import MOST, Workload, drifted, workload

LOOKS = 120
"""Of a job; in a third of them it changes after half of these."""
ACCELERATOR = 10.0
"""Price of a second of the consumer's accelerator, in seconds of a worker."""
TRAINING = (0.5, 200.0)
"""Between these it is where elements are to be cheap."""
RIGHT = 0.03
"""A number of workers that is off by less, or by one, is right."""
LIMITS = Limits(1, MOST)


class Policy(Protocol):
    """Plays one job."""

    def __call__(self, looks: Iterator[Workload], rng: random.Random, training: float) -> Iterator[int]:
        """Yield the number of workers behind each look; before the first it is 1.

        Args:
            looks: the job at each look.
            rng: of their noise.
            training: price of a second of the consumer, in seconds of a worker.
        """
        ...


class ScalingOutcome(msgspec.Struct, frozen=True):
    """Result of a policy with one job.

    Attributes:
        kind: of the job.
        changed: it changed on the way.
        right: whether the number of workers is, at the end.
        decisions: changes of the number until it was right for the first time; None: it never was.
        cost: of all elements beside that of an oracle, who has the right number from the first look on.
        element: cost of an element at the end beside that with the cheapest number.
    """

    kind: str
    changed: bool
    right: bool
    decisions: int | None
    cost: float
    element: float


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


def ours(looks: Iterator[Workload], rng: random.Random, training: float) -> Iterator[int]:
    """:mod:`millrace.policies.scaling.autoscale`."""
    scale = autoscale.begin(1, LIMITS).value
    for job in looks:
        scale = autoscale.step(scale, job.look(scale.workers, rng), LIMITS).value
        yield scale.workers


def cheap(looks: Iterator[Workload], rng: random.Random, training: float) -> Iterator[int]:
    """:mod:`millrace.policies.scaling.cost_scaling`."""
    scale = cost_scaling.begin(1, LIMITS).value
    for job in looks:
        scale = cost_scaling.step(scale, job.look(scale.workers, rng), LIMITS, HourlyRates(1.0, training)).value
        yield scale.workers


def cachew(looks: Iterator[Workload], rng: random.Random, training: float) -> Iterator[int]:
    """:mod:`millrace.policies.scaling.cachew_scaling`; the queue is long where the consumer doesn't wait."""
    scale = cachew_scaling.CachewScale()
    for job in looks:
        look = job.look(scale.workers, rng)
        queue = min(100.0, scale.workers * (1 / max(look.busy, 0.01) - 1))
        scale = cachew_scaling.step(scale, look, LIMITS, queue).value
        yield scale.workers


def kubernetes(looks: Iterator[Workload], rng: random.Random, training: float) -> Iterator[int]:
    """:mod:`millrace.policies.scaling.hpa`; a look is as long as its period."""
    scale, now = hpa.HpaScale(), 0.0
    for job in looks:
        now += hpa.PERIOD_S
        cpu = min(1.0, job.cpu * job.busy(scale.workers) * max(0.0, rng.gauss(1, 0.05)))
        scale = hpa.step(scale, cpu, now, LIMITS).value
        yield scale.workers


POLICIES: dict[str, Policy] = {"millrace": ours, "cachew": cachew, "hpa": kubernetes, "cheapest": cheap}
QUICK = ("millrace", "cheapest")
"""They take shorter looks at consumers that wait for most of the time."""


def play(seed: int, policy: str = "millrace") -> ScalingOutcome:
    """One job."""
    rng = random.Random(seed)
    job = workload(rng)
    changes = rng.random() < 1 / 3
    after = drifted(job, rng) if changes else job
    jobs = [job] * (LOOKS // 2) + [after] * (LOOKS - LOOKS // 2)
    training = math.exp(random.Random(f"prices of {seed}").uniform(*map(math.log, TRAINING)))
    goals = {id(each): goal_of(each, training) for each in (job, after)}
    workers, decisions, first = 1, 0, None
    spent = oracle = 0.0
    for each, chosen in zip(jobs, POLICIES[policy](iter(jobs), rng, training), strict=True):
        goal = goals[id(each)]
        waits = 1 - each.own_s / each.batch_s(workers) if policy in QUICK else 0.0
        count = pause_elements(waits) + look_elements(waits)
        if policy == "cheapest":
            spent += count * _cost(each, workers, training)
            oracle += count * goal.cost
        else:
            spent += count * _cost(each, workers, ACCELERATOR)
            oracle += count * _cost(each, goal.least, ACCELERATOR)
        decisions += chosen != workers
        workers = chosen
        if first is None and goal.met(each, workers, policy):
            first = decisions
    goal = goals[id(after)]
    element = _cost(after, workers, training) / goal.cost
    return ScalingOutcome(job.kind, changes, goal.met(after, workers, policy), first, spent / oracle, element)


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


def run(seeds: Iterable[int], policy: str = "millrace") -> ScalingReport:
    """Plays a job for each seed."""
    outcomes = {seed: play(seed, policy) for seed in seeds}
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
