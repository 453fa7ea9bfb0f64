"""Jobs that share one computation: when they come, how many epochs each reads, and where it stops."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from millrace.control.membership.groups import group_spec
from millrace.protocol.job_spec import JobSpec
from millrace.simulation.pipelines import SimulatedPipeline, catalogue

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster

SHARED = 0.25
"""Share of the schedules in which a group of jobs is read beside the others."""
WINDOW_MODES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"deterministic": True},
    {"sharding": "static"},
    {"sharding": "static_contiguous", "deterministic": True},
)
MODES = (*WINDOW_MODES, {"visitation": "at_most_once"})
STALLS = 0.1
"""Share of the members that stand still for a long time."""
COME_S = (0.5, 0.5, 5.0, 30.0)
"""Seconds in which the members of a simulated group come, each as likely as the others."""


def has_group(seed: int) -> bool:
    """Whether a schedule has a group."""
    return random.Random(f"members {seed}").random() < SHARED


def has_window(seed: int) -> bool:
    """Whether a schedule has a group that shares a window."""
    return random.Random(f"windows {seed}").random() < SHARED


def group_of(rng: random.Random, pipeline: SimulatedPipeline, modes: Sequence[dict[str, Any]], **drawn: Any) -> JobSpec:
    """Draw what the members of a group have in common, their pipeline aside and what else was ``drawn`` before."""
    priority = rng.choice((0.2, 1.0, 5.0))
    mode = rng.choice(modes)
    return JobSpec("", pipeline.structure, "bundle", tasks=pipeline.tasks, priority=priority, **drawn, **mode)


def finite_pipeline(rng: random.Random) -> SimulatedPipeline:
    """Draw a pipeline of which an epoch has an end."""
    return rng.choice([each for each in catalogue() if each.plan.length is not None])


def stops_of(rng: random.Random) -> dict[int, int]:
    """Draw the epochs that a member breaks off, and after how many messages."""
    return {epoch: rng.randrange(1, 20) for epoch in range(10) if rng.random() < 0.1}


class MemberArrivals:
    """Members of the group of a schedule, if it has one.

    Args:
        cluster: where they come to.
        seed: of the schedule.

    Attributes:
        drawn: there is a group.
        stream: of the random numbers that it is drawn from.
    """

    stream = "members"

    def __init__(self, cluster: SimulatedCluster, seed: int) -> None:
        self._cluster = cluster
        rng = self._rng = random.Random(f"{self.stream} {seed}")
        self.drawn = rng.random() < SHARED
        if self.drawn:
            self._draw()

    def _draw(self) -> None:
        cluster, rng = self._cluster, self._rng
        pipeline, tenant = finite_pipeline(rng), rng.choice(("default", "default", "small"))
        spec = group_of(rng, pipeline, MODES, sharing="lockstep", tenant=tenant)
        spec = cluster.rounds.draw_group(spec, cluster.pipelines)
        cluster.tenants[group_spec(spec).name] = spec.tenant
        within = rng.choice(COME_S)
        for number in range(rng.randrange(2, 6)):
            name = f"member-{number}"
            mine = msgspec.structs.replace(spec, name=name, epochs=rng.randrange(1, 4))
            stops = stops_of(rng)
            self._come(mine, rng.uniform(0.0, within), stops)

    def _come(self, spec: JobSpec, at: float, stops: dict[int, int]) -> None:
        """Have a member come with all its ranks."""
        cluster, rng = self._cluster, self._rng
        for rank in range(spec.together):
            cluster.expected += 1
            cluster.network.after(
                at + (rng.uniform(0.0, 1.0) if rank else 0.0), cluster.add_consumer, spec, rank, stops
            )

    def stall(self, spec: JobSpec, name: str) -> int:
        """Draw the message with which a member stands still; -1: with none."""
        rng = random.Random(f"stall {self._cluster.seed} {name}")
        return rng.randrange(1, 12) if spec.sharing and rng.random() < STALLS else -1
