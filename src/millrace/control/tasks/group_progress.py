"""How members of a group have come on, and what falls to each of what the group takes; observed, never journalled."""

from __future__ import annotations

from millrace.control.caching.profiling import measures
from millrace.control.journal.transaction import Transaction
from millrace.control.state.observed import (
    DetachedMember,
    GroupObservation,
    MemberObservation,
    Observed,
    ResourceUsage,
    add_usage,
)
from millrace.control.state.state import Job
from millrace.control.tasks import job_progress
from millrace.control.tasks.slots import unread_by
from millrace.graph.serialize import unpack
from millrace.protocol.messages import ConsumerReport

REMEMBERED = 100
"""Members of a group that have left and whose costs are told apart; those of others are added up."""
DETACHED = 20
"""Members that were detached, the last ones."""


def joined(tx: Transaction, job: Job, member: int) -> None:
    """Begin to observe a member that was none before."""
    _sight(tx.observed, job).members[member] = MemberObservation(at=tx.now)


def left(tx: Transaction, job: Job, member: int) -> None:
    """Keep what matters of a member that is none any more."""
    observation = _sight(tx.observed, job)
    seen = observation.members.pop(member, None)
    observation.given += 0 if seen is None else _given(seen)


def detached(tx: Transaction, job: Job, member: int, why: str) -> None:
    """Remember that a member was detached."""
    observation = _sight(tx.observed, job)
    observation.detached = [*observation.detached, DetachedMember(job.consumers[member].member, tx.now, why)][
        -DETACHED:
    ]


def reported(tx: Transaction, job: Job, member: int, message: ConsumerReport) -> None:
    """Note how much a member says that it was handed out, and that it missed."""
    members = _sight(tx.observed, job).members
    seen = members.get(member)
    if seen is None:  # since before this dispatcher
        read = message.batches
        members[member] = MemberObservation(message.epoch, read, message.missed, unseen=read, at=tx.now)
        return
    before = seen.read + seen.batches
    if message.epoch > seen.epoch:
        seen.read, seen.skipped = before, seen.skipped + seen.missed
        seen.epoch, seen.batches, seen.missed = message.epoch, 0, 0
    if message.epoch == seen.epoch:
        seen.batches, seen.missed = max(seen.batches, message.batches), max(seen.missed, message.missed)
    if tx.now > seen.at:
        seen.rate, seen.at = (seen.read + seen.batches - before) / (tx.now - seen.at), tx.now


def shares(observed: Observed, job: Job) -> dict[int, float]:
    """Divide what the group takes among its members that are there: by the elements of a second that each reads.

    So that nobody pays more than it would alone, however slow it is. As long as nobody reads, all pay the same.
    """
    seen = observed.groups.get(job.name, GroupObservation()).members
    rates = {
        member: seen[member].rate if member in seen else 0.0
        for member, place in job.consumers.items()
        if place.lost_at is None
    }
    total = sum(rates.values())
    return {member: rate / total if total > 0 else 1 / len(rates) for member, rate in rates.items()}


def divide(tx: Transaction, job: Job, used: ResourceUsage, passed: float) -> None:
    """Add what a group's workers have used while so many seconds passed to what falls to its members."""
    observation = _sight(tx.observed, job)
    parts = [(job.consumers[member], share) for member, share in shares(tx.observed, job).items()]
    if not parts:  # what is kept for who comes next
        add_usage(observation.spent.setdefault("", {}), job.newest, used)
    for place, share in parts:
        part = ResourceUsage(used.worker_s * share, passed, used.core_s * share, used.gib_s * share)
        add_usage(observation.spent.setdefault(place.member, {}), place.epoch, part)
    here = {place.member for place in job.consumers.values()}
    gone = [name for name in observation.spent if name and name not in here]
    for name in gone[: max(0, len(gone) - REMEMBERED)]:
        together = observation.spent.setdefault("", {})
        for epoch, each in observation.spent.pop(name).items():
            add_usage(together, epoch, each)


def lag(job: Job, member: int) -> int:
    """Count the outputs that another member has received and this one has not."""
    found = 0
    for epoch in job.epochs.values():
        for task in unread_by(job, epoch, member):
            readers = epoch.live[task].readers
            found += max(each.received for each in readers.values()) - readers[member].received
    return found


def saved(observed: Observed, job: Job) -> tuple[int, int, float]:
    """Count outputs that members were given and that were produced for them, and seconds of processors saved by that.

    Outputs that were given beyond those that were produced would have cost as much as these did, on average.
    """
    observation, graph = observed.groups.get(job.name, GroupObservation()), unpack(job.spec.structure)
    root = graph.id_of(graph.root)
    each = [_given(seen) for seen in observation.members.values()]
    given = observation.given + sum(each)
    made = max([job_progress.given(observed, job, root), *each])  # of tasks that are under way members have something
    nodes = measures(observed, job.name).values()
    outputs = sum(worker[root].elements for worker in nodes if root in worker)
    cpu_s = sum(node.cpu_s for worker in nodes for node in worker.values())
    return given, made, max(0, given - made) * cpu_s / outputs if outputs else 0.0


def _given(seen: MemberObservation) -> int:
    return seen.read + seen.batches - seen.unseen


def _sight(observed: Observed, job: Job) -> GroupObservation:
    return observed.groups.setdefault(job.name, GroupObservation())
