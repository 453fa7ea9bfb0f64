"""When the expected ranks of a job come: with the others, late, when all others have closed, or never."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from millrace.control.tasks.slots import is_missing
from millrace.control.tasks.task_queue import held_back
from millrace.protocol.job_spec import JobSpec

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import Town
    from millrace.simulation.simulated_consumer import Consumer

LOST = 0.3
"""Share of the killed consumers that are not started again."""
LATE = 0.35
"""Share of the jobs with several expected consumers of which some come late or never."""
SAID_S = 10.0
"""How often somebody looks whether the others wait for a rank that was lost, in seconds."""
ANEW = 0.2
"""Share of the jobs whose last consumers come when the others have closed, in which these are started again as well."""


class Late(NamedTuple):
    """A rank that comes when all others have closed."""

    spec: JobSpec
    rank: int
    stops: dict[int, int]
    born: float


class Ranks:
    """Who comes late to the jobs of a schedule.

    Args:
        town: where they come to.
        seed: of the schedule.
    """

    def __init__(self, town: Town, seed: int) -> None:
        self._town = town
        self._rng = random.Random(f"ranks {seed}")
        self._after: dict[str, list[Late]] = {}

    def late(self, spec: JobSpec) -> dict[int, str]:
        """How those come that don't come with the others: "late", "after" these have closed, or "never"."""
        count = spec.num_consumers or 0
        if spec.equal_steps:
            return {}  # the others would wait for it
        if count < 2 or self._rng.random() >= LATE:
            return {}
        kind = self._rng.choice(("late", "after", "after", "never"))
        return dict.fromkeys(self._rng.sample(range(count), self._rng.randrange(1, count)), kind)

    def expect(self, spec: JobSpec, index: int, stops: dict[int, int], kind: str) -> None:
        """A rank comes, or does not, as :meth:`late` said."""
        town, world = self._town, self._town.world
        town.fired[f"rank {kind}"] += 1
        if kind == "never":
            return
        town.expected += 1
        if kind == "late":
            at = self._rng.uniform(3.0, 1.2 * town.settings.job_gc_timeout_s)
            world.after(at, town.add_consumer, spec, index, stops)
        else:
            self._after.setdefault(spec.name, []).append(Late(spec, index, stops, world.now))

    def replaced(self, consumer: Consumer) -> bool:
        """Whether another process is started for a consumer that was killed."""
        if self._rng.random() >= LOST:
            return True
        self._town.fired["consumer not replaced"] += 1
        self._town.expected -= 1
        self._town.one_less(consumer.spec.name)
        if consumer.spec.equal_steps:
            self._town.world.after(SAID_S, self._look_for, consumer)
        return False

    def _look_for(self, lost: Consumer) -> None:
        """Nobody has a step before all ranks have been there, and the job says whom it waits for: it is started."""
        town, spec = self._town, lost.spec
        state = None if town.dispatcher is None else town.dispatcher.state
        job = None if state is None else state.jobs.get(spec.name)
        if town.ranks[spec.name, lost.consumer] is not lost or town.expected <= 0:
            return
        if job is None or not (held_back(job) and is_missing(job, lost.consumer)):
            town.world.after(SAID_S, self._look_for, lost)
            return
        town.fired["lost rank asked for"] += 1
        town.expected += 1
        town.add_consumer(spec, lost.consumer, {**lost.stops}, None, lost.states)

    def nobody_reads(self, name: str) -> None:
        """All that were there of a job have closed, or died: now the others come, sooner or later than is waited."""
        town, rng = self._town, self._rng
        waiting = self._after.pop(name, [])
        again = bool(waiting) and rng.random() < ANEW
        if again:
            town.fired["run again"] += 1
            town.run_again(name)
        for each in waiting:
            at = rng.uniform(0.1, (0.5 if again else 1.3) * town.settings.job_gc_timeout_s)
            born = each.born if rng.random() < 0.5 else town.world.now + at
            town.world.after(at, town.add_consumer, each.spec, each.rank, each.stops, born)
