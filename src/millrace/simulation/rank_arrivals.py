"""When the expected ranks of a job come: with the others, late, when all others have closed, or never."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, NamedTuple

from millrace.control.tasks.slots import is_missing
from millrace.control.tasks.task_queue import held_back
from millrace.protocol.job_spec import JobSpec

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer

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


class RankArrivals:
    """Ranks that come late to the jobs of a schedule.

    Args:
        cluster: where they come to.
        seed: of the schedule.
    """

    def __init__(self, cluster: SimulatedCluster, seed: int) -> None:
        self._cluster = cluster
        self._rng = random.Random(f"ranks {seed}")
        self._after: dict[str, list[Late]] = {}

    def late(self, spec: JobSpec) -> dict[int, str]:
        """How those come that don't come with the others: "late", "after" these have closed, or "never"."""
        count = spec.num_consumers or 0
        if spec.equal_steps:
            return {}  # the others would wait for it
        if count < 2 or self._rng.random() >= LATE:
            return {}
        kind = self._rng.choice(("late", "after", "never"))
        if spec.coordinated:
            kind = "late"  # the others wait for it, and say so
        return dict.fromkeys(self._rng.sample(range(count), self._rng.randrange(1, count)), kind)

    def expect(self, spec: JobSpec, index: int, stops: dict[int, int], kind: str) -> None:
        """Have a rank come, or not, as :meth:`late` said."""
        cluster, network = self._cluster, self._cluster.network
        cluster.fired[f"rank {kind}"] += 1
        if kind == "never":
            return
        cluster.expected += 1
        if kind == "late":
            at = self._rng.uniform(3.0, 1.2 * cluster.settings.job_gc_timeout_s)
            network.after(at, cluster.add_consumer, spec, index, stops)
        else:
            self._after.setdefault(spec.name, []).append(Late(spec, index, stops, network.now))

    def replaced(self, consumer: SimulatedConsumer) -> bool:
        """Whether another process is started for a consumer that was killed."""
        if self._rng.random() >= LOST or (consumer.spec.sharing and consumer.spec.coordinated):
            return True  # a job that shares its computation joins with all its ranks
        self._cluster.fired["consumer not replaced"] += 1
        self._cluster.expected -= 1
        self._cluster.one_less(consumer.spec.name)
        if consumer.spec.equal_steps or consumer.spec.coordinated:
            self._cluster.network.after(SAID_S, self._look_for, consumer)
        return False

    def _look_for(self, lost: SimulatedConsumer) -> None:
        """Start it, if some wait for a rank that has not been there yet, and the job says for whom."""
        cluster, spec = self._cluster, lost.spec
        state = None if cluster.dispatcher is None else cluster.dispatcher.state
        job = None if state is None else state.jobs.get(spec.name)
        if cluster.ranks[spec.name, lost.consumer] is not lost or cluster.expected <= 0:
            return
        waits = job is not None and (held_back(job) or job.spec.coordinated)
        if job is None or not (waits and is_missing(job, lost.consumer)):
            cluster.network.after(SAID_S, self._look_for, lost)
            return
        cluster.fired["lost rank asked for"] += 1
        cluster.expected += 1
        cluster.add_consumer(spec, lost.consumer, {**lost.stops}, None, lost.states)

    def nobody_reads(self, name: str) -> None:
        """All that were there of a job have closed, or died: now the others come, sooner or later than is waited."""
        cluster, rng = self._cluster, self._rng
        waiting = self._after.pop(name, [])
        again = bool(waiting) and rng.random() < ANEW
        if again:
            cluster.fired["run again"] += 1
            cluster.run_again(name)
        for each in waiting:
            at = rng.uniform(0.1, (0.5 if again else 1.3) * cluster.settings.job_gc_timeout_s)
            born = each.born if rng.random() < 0.5 else cluster.network.now + at
            cluster.network.after(at, cluster.add_consumer, each.spec, each.rank, each.stops, born)
