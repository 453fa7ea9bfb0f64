"""Invariants of jobs that share rounds in a window: all ranks of a job read the same tasks, each whole."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from millrace.control.journal.task_events import TaskEnded
from millrace.simulation.member_invariants import MemberInvariants
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.control.journal.event import Event
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer


class RoundWindowInvariants(MemberInvariants):
    """Hears what ranks have of members that share rounds in a window, and raises :class:`Violation`.

    Args:
        cluster: finds pipelines.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster)
        self._outputs: defaultdict[tuple[str, int, int], set[int]] = defaultdict(set)

    def decided(self, event: Event) -> None:
        """Note how many rounds a task had, of which the last run may have put out none, as nobody was to read it."""
        if isinstance(event, TaskEnded):
            self._outputs[event.job, event.epoch, event.task].add(event.outputs)

    def ended(self, member: SimulatedConsumer, epoch: int, _steps: int) -> None:
        """Check that a rank has the rounds that the others of its job have, of each task all, or none and was told."""
        rounds, inbox = self._cluster.invariants.rounds, member.core.inbox
        wrong = rounds.ended(member, epoch, whole=False)
        if wrong:
            raise Violation(wrong)
        if inbox is None or inbox.number != epoch:
            return
        read, made = rounds.read(member, epoch)
        tasks = {task for task, _ in read}
        lacking = sorted(which for which in made - read if which[0] in tasks)
        if lacking:
            raise Violation(f"{member.name} has read others of the tasks of epoch {epoch}, and not {lacking}")
        told = {each.task for each in inbox.progress(everything=True) if each.complete}
        length = self._cluster.pipelines[member.spec.structure].plan_for(member.spec).length or 0
        untold = sorted(set(range(length)) - told)
        if untold:
            raise Violation(f"{member.name} ends epoch {epoch}, and was told nothing of tasks {untold}")
        if {task for task, _ in made - read} - inbox.left_out_tasks:
            raise Violation(f"{member.name} lacks rounds of tasks of epoch {epoch} that it was not to skip")
        assert member.joined is not None
        counted = [
            self._outputs[member.joined.job, epoch, task]
            for task in inbox.left_out_tasks
            if task not in inbox.uncounted
        ]
        if not sum(map(min, counted)) <= inbox.missed <= sum(map(max, counted)):
            raise Violation(
                f"{member.name} skipped tasks of {counted} rounds in epoch {epoch}, and says {inbox.missed}"
            )
        self._cluster.fired["member skipped tasks"] += bool(inbox.left_out_tasks)
