"""Invariants of jobs that share one computation: each has all of every epoch that it reads, once."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import TYPE_CHECKING

from millrace.control.journal.consumer_events import ConsumerJoined, ConsumerLeft, Progressed
from millrace.control.journal.event import Event
from millrace.protocol import messages as msg
from millrace.simulation.pipelines import Output, bare, values_of
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer


LONG_S = 100.0
"""Within which whoever stands still was detached long ago, and the others go on."""
HELD_UP = "held up the others"


class MemberInvariants:
    """Hears what members have, and raises :class:`Violation`.

    Args:
        cluster: finds pipelines.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster
        self._yielded: dict[tuple[str, int], set[int]] = defaultdict(set)
        self._reused: dict[tuple[str, int, int], int] = {}
        self._came: dict[tuple[str, int], tuple[float, float]] = {}  # says the journal, and when that was here
        self._last: dict[tuple[str, int], int] = {}
        self._read: dict[str, float] = {}

    def began(self, member: SimulatedConsumer, epoch: int, reused: int) -> None:
        """Note that a member reads an epoch, which is as the first one below a cache point."""
        assert member.joined is not None
        before = self._reused.setdefault((member.joined.job, member.joined.generation, epoch), reused)
        if before != reused:
            raise Violation(
                f"epoch {epoch} of {member.name} is as the first one below {reused}, others' below {before}"
            )

    def yielded(self, member: SimulatedConsumer, epoch: int, task: int, outputs: Sequence[Output]) -> None:
        """Note that a member's user has outputs of a task."""
        assert member.joined is not None
        key = member.client, epoch
        pipeline = self._cluster.pipelines[member.spec.structure]
        if member.spec.coordinated:
            wrong = self._cluster.invariants.rounds.yielded(member, epoch, outputs, pipeline.plan)
            if wrong:
                raise Violation(wrong)
        elif member.spec.deterministic and task < self._last.get(key, -1):
            raise Violation(f"task {task} of epoch {epoch} was read by {member.name} after task {self._last[key]}")
        self._last[key] = task
        reused = self._reused[member.joined.job, member.joined.generation, epoch]
        values = pipeline.epoch_of_values(epoch, reused)
        for given in (each for output in outputs for each in output):
            element = bare(given)
            self._cluster.invariants.elements += 1
            if values_of(given) != values:
                raise Violation(f"element {element} of epoch {epoch} has the random values of epoch {values_of(given)}")
            if element in self._yielded[key]:
                raise Violation(f"element {element} of epoch {epoch} came to {member.name} twice")
            self._yielded[key].add(element)

    def ended(self, member: SimulatedConsumer, epoch: int, _steps: int) -> None:
        """Check that a member which has read an epoch to its end has all of it."""
        pipeline = self._cluster.pipelines[member.spec.structure]
        plan = pipeline.plan_for(member.spec)
        tasks = map(plan.task, range(plan.length or 0))
        absent = {each for task in tasks for each in pipeline.born_in(task)} - self._yielded[member.client, epoch]
        if member.spec.coordinated:
            self._ended_rounds(member, epoch, absent)
        elif absent and member.spec.visitation == "exactly_once":
            raise Violation(f"elements {sorted(absent)} of epoch {epoch} never came to {member.name}, which read on")

    def _ended_rounds(self, member: SimulatedConsumer, epoch: int, absent: set[int]) -> None:
        """Check that a rank has read all rounds, and that these lack no more than fills none."""
        assert member.joined is not None
        rounds, pipeline = self._cluster.invariants.rounds, self._cluster.pipelines[member.spec.structure]
        wrong = rounds.ended(member, epoch, whole=True)
        lost = absent - rounds.elements(member.joined.job, member.joined.seed, epoch)
        if wrong or len(lost) >= pipeline.together * (1 if pipeline.mixes else pipeline.batch_size):
            raise Violation(wrong or f"elements {sorted(lost)} of epoch {epoch} of {member.name} fill a round")

    def stood_still(self, member: SimulatedConsumer, waiting: Sequence[SimulatedConsumer]) -> None:
        """Check that nobody waits for a member that stood still: it would have been detached.

        As long as any member reads on, who has nothing to read waits for workers, of which the group may have few.
        """
        now = self._cluster.network.now
        still = {each.spec.name for each in self._cluster.consumers if each.stands_still}
        for other in waiting:
            alike = member.joined is not None and other.joined is not None and other.joined.job == member.joined.job
            joined = "" if other.joined is None else other.joined.job
            since = max(other.waits_since, self._cluster.stirred_at, self._read.get(joined, 0.0))
            alike = alike and other.spec.name not in {member.spec.name, *still}  # of its own ranks one stands still
            if alike and now - since > LONG_S:
                raise Violation(f"{other.name} has waited for {now - since:.0f} s, and {member.name} stood still")

    def decided(self, event: Event) -> None:
        """Check that nobody is detached before others can have waited for long enough."""
        now = self._cluster.network.now
        if isinstance(event, Progressed):
            self._read[event.job] = now
        elif isinstance(event, ConsumerJoined):
            key = event.job, event.consumer
            if event.member and event.epoch >= 0 and key not in self._came:
                self._cluster.fired["member came later"] += 1
            if key not in self._came or self._came[key][0] != event.since:
                self._came[key] = event.since, now
        elif isinstance(event, ConsumerLeft):
            lived = now - self._came.get((event.job, event.consumer), (0.0, 0.0))[1]
            self._cluster.fired["member detached"] += HELD_UP in event.reason
            if HELD_UP in event.reason and lived < self._cluster.settings.lockstep_wait_s:
                raise Violation(f"member {event.consumer} of {event.job} was detached {lived:.1f} s after it came")

    def failed(self, member: SimulatedConsumer, failure: msg.Failure) -> None:
        """Its user gets an error."""
        self._cluster.invariants.failed(member, failure)

    def told(self, _member: SimulatedConsumer, _epoch: int, _unread: str) -> None:
        """Look at nothing that a member is told of what is not read: others read what one does not."""

    def received(self, *_: object) -> None:
        """Look at nothing else."""

    abandoned = too_late = received
