"""Which jobs of a schedule read in rounds: all ranks together, from slots in turn."""

from __future__ import annotations

import random
from typing import Literal, get_args

import msgspec

from millrace.graph.rounds import refusal
from millrace.protocol.job_spec import JobSpec
from millrace.simulation.member_arrivals import has_group, has_window
from millrace.simulation.pipelines import SimulatedPipeline, catalogue

IN_ROUNDS = 0.2
"""Share of the schedules that have such jobs."""
OF_JOBS = 0.7
"""Share of the jobs of such a schedule."""
OF_GROUPS = 0.35
"""Share of the groups of jobs that share one computation."""
LEAST_BUFFER = 8
"""Bytes that each worker of such a schedule may keep: a round has one for each rank."""
MOST_RANKS = 5
MOST_SLOTS = 4

Incomplete = Literal["drop", "mix"]


class DrawnRounds:
    """Draws jobs that read in rounds.

    Args:
        seed: of the schedule.

    Attributes:
        any: the schedule may have such jobs, or has a group of them.
        shared: the schedule's group, if it has one, reads in rounds.
        windowed: the group that shares a window does.
    """

    def __init__(self, seed: int) -> None:
        self._rng = random.Random(f"rounds {seed}")
        self._some = self._rng.random() < IN_ROUNDS
        self._of_group = random.Random(f"rounds of a group {seed}")
        self.shared = self._of_group.random() < OF_GROUPS and has_group(seed)
        self._of_window = random.Random(f"rounds that windows share {seed}")
        self.windowed = self._of_window.random() < OF_GROUPS and has_window(seed)
        self.any = self._some or self.shared or self.windowed

    def draw(self, spec: JobSpec, pipelines: dict[bytes, SimulatedPipeline]) -> JobSpec:
        """Make a job one that reads in rounds, or leave it as it is.

        Args:
            spec: of the job.
            pipelines: by structure; gets the one that the job reads then.
        """
        if not self._some or self._rng.random() >= OF_JOBS:
            return spec
        return self._in_rounds(spec, pipelines, self._rng)

    def draw_group(self, spec: JobSpec, pipelines: dict[bytes, SimulatedPipeline]) -> JobSpec:
        """Do the same with the jobs of a group."""
        return self._in_rounds(spec, pipelines, self._of_group) if self.shared else spec

    def draw_window(self, spec: JobSpec, pipelines: dict[bytes, SimulatedPipeline]) -> JobSpec:
        """Do the same with the jobs that share a window."""
        if not self.windowed:
            return spec
        spec = self._in_rounds(spec, pipelines, self._of_window)
        return msgspec.structs.replace(spec, visitation="at_most_once", window_bytes=0)

    @staticmethod
    def _in_rounds(spec: JobSpec, pipelines: dict[bytes, SimulatedPipeline], rng: random.Random) -> JobSpec:
        ranks, incomplete = rng.randrange(2, MOST_RANKS + 1), rng.choice(get_args(Incomplete))
        able = [each for each in catalogue() if each.plan.length and not refusal(each.graph, incomplete)]
        pipeline = rng.choice(able).in_rounds(ranks, incomplete)
        pipelines[pipeline.structure] = pipeline
        return msgspec.structs.replace(
            spec,
            structure=pipeline.structure,
            tasks=pipeline.tasks,
            num_consumers=ranks,
            deterministic=True,
            sharding="dynamic",
            visitation="exactly_once",
            equal_steps=False,
            coordinated=incomplete,
            cycle_length=rng.randrange(1, MOST_SLOTS + 1),
        )
