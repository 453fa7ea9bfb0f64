"""Invariants of jobs that share a window: nothing comes twice, and what a member missed of an epoch it was told."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from millrace.client.own_epoch import OwnEpoch
from millrace.control.journal.consumer_events import ConsumerJoined, ConsumerLeft, EpochBegan, Progressed
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobCreated
from millrace.control.journal.task_events import TaskEnded, TaskReleased
from millrace.control.state.state import State
from millrace.protocol import data_messages
from millrace.simulation.member_invariants import MemberInvariants
from millrace.simulation.virtual_network import Violation

if TYPE_CHECKING:
    from millrace.simulation.simulated_cluster import SimulatedCluster
    from millrace.simulation.simulated_consumer import SimulatedConsumer

Generation = tuple[str, int]
"""A group, by name, and which of those of this name."""


class WindowInvariants(MemberInvariants):
    """Hears what members that share a window have, and raises :class:`Violation`.

    Args:
        cluster: finds pipelines and the dispatcher.
    """

    def __init__(self, cluster: SimulatedCluster) -> None:
        super().__init__(cluster)
        self._outputs: dict[tuple[str, int, int], dict[int, int]] = defaultdict(dict)
        self._seeds: dict[str, int] = {}
        self._changed: dict[Generation, float] = {}  # when a member came or went last
        self._begun: dict[tuple[Generation, int], float] = {}  # when an epoch was
        self._over: set[tuple[str, int]] = set()
        self._sizes: dict[tuple[str, int], int | None] = {}
        self._first: dict[str, int] = {}

    def enters(self, state: State, event: Event) -> None:
        """Note what is decided about groups with a window."""
        job = state.jobs.get(getattr(event, "job", ""))
        if job is None or not job.windowed:
            return
        group, now = (job.name, job.generation), self._cluster.network.now
        match event:
            case ConsumerJoined() | ConsumerLeft():
                self._changed[group] = now
            case EpochBegan(epoch=epoch):
                self._begun.setdefault((group, epoch), now)
            case TaskReleased(reason=reason) if reason.startswith("nobody is there"):
                self._cluster.fired["lease taken back that waited for members"] += 1

    def durable(self, event: Event) -> None:
        """Note what every later life of the dispatcher knows."""
        if isinstance(event, JobCreated):
            self._seeds[event.spec.name] = event.seed
        elif isinstance(event, TaskEnded):
            self._outputs[event.job, self._seeds[event.job], event.epoch][event.task] = event.outputs
        elif isinstance(event, Progressed):  # who has all of a task may say so first, or alone if its worker dies
            read = {each.task: each.received for each in event.tasks if each.complete}
            self._outputs[event.job, self._seeds[event.job], event.epoch].update(read)

    def began(self, member: SimulatedConsumer, epoch: int, reused: int) -> None:
        """Note that a member reads an epoch; who comes when it is over is told nothing of it that has to be right."""
        assert member.joined is not None
        self._reused.setdefault((member.joined.job, member.joined.generation, epoch), reused)

    def told(self, member: SimulatedConsumer, epoch: int, unread: str) -> None:
        """Note what a member is told at the end of an epoch."""
        if member.inbox is not None and member.inbox.past:
            made_up_for = member.spec.visitation == "zero_once_or_more"
            if made_up_for == ("was over for this job" in unread):
                raise Violation(f"{member.name} is told of epoch {epoch}, which was over before it came: {unread!r}")
            self._over.add((member.name, epoch))
            self._cluster.fired["epoch was over for a member"] += 1

    def ended(self, member: SimulatedConsumer, epoch: int, _steps: int) -> None:
        """Check that a member has heard of all outputs of the epoch: they came, or it was told that it missed them."""
        assert member.joined is not None
        inbox = member.core.inbox
        if inbox is None or inbox.number != epoch:
            return
        self._cluster.fired["member missed outputs"] += inbox.missed > 0
        had = {task.task: task.received for task in inbox.progress(everything=True)}
        if sum(had.values()) != inbox.arrived + inbox.missed:
            raise Violation(f"{member.name} had {had} of epoch {epoch}: {inbox.arrived} came, {inbox.missed} missed")
        past = (member.name, epoch) in self._over
        heard = inbox.arrived + inbox.missed
        self._sizes[member.name, epoch] = None if inbox.past and not heard else heard
        if past:
            return
        for task, outputs in self._outputs[member.joined.job, member.joined.seed, epoch].items():
            if had.get(task) != outputs:
                where = f"task {task} of epoch {epoch}, which has {outputs}"
                raise Violation(f"{member.name} heard of {had.get(task)} outputs of {where}")

    def ended_own(self, member: SimulatedConsumer, own: OwnEpoch, upto: int) -> None:
        """Check that a member's own epoch, which ended in this epoch of the group, has as many elements as the data."""
        sizes = (self._sizes.get((member.name, epoch)) for epoch in range(self._first.get(member.name, 0), upto + 1))
        expected = next((size for size in sizes if size is not None), None)
        if own.used != expected:
            raise Violation(f"an epoch of {member.name} has {own.used} outputs, and the data {expected}")
        self._first[member.name] = upto + (self._sizes.get((member.name, upto), -1) != -1)
        self._cluster.fired["member read an epoch of its own"] += 1

    def left_own(self, member: SimulatedConsumer, epoch: int) -> None:
        """Note that a member left its own epoch in this epoch of the group, where its next one begins."""
        self._first[member.name] = epoch
        self._cluster.fired["member left an epoch of its own"] += 1

    def skipped(self, member: SimulatedConsumer, skipped: data_messages.Skipped) -> None:
        """Check that who is alone skips nothing of an epoch that it began alone."""
        dispatcher = self._cluster.dispatcher
        if dispatcher is None or member.joined is None or member.inbox is None:
            return
        job = dispatcher.state.jobs.get(member.joined.job)
        if job is None or job.generation != member.joined.generation or len(job.consumers) > 1:
            return
        group = job.name, job.generation
        begun = self._begun.get((group, skipped.epoch))
        upto, complete = member.inbox.holds(skipped.task)
        news = skipped.epoch == member.inbox.number and skipped.upto > upto and not complete
        if news and begun is not None and self._changed[group] < begun:
            raise Violation(f"{member.name} reads alone, and is to skip outputs: {skipped}")

    def ticked(self, state: State) -> None:
        """Check that no more tasks are remembered for who comes late than are to be."""
        for job in state.jobs.values():
            if not job.windowed:
                continue
            lives = [live for number, epoch in job.epochs.items() for live in epoch.live.values()]
            kept = [live for live in lives if live.finished and live.complete and not live.phase.leftovers]
            if len(kept) > state.settings.window_tasks + 1:
                raise Violation(f"{len(kept)} tasks of {job.name} are remembered that lie in windows")
