"""Detaching: a member of a group that holds up the others is one no more, and goes on alone from its state.

A member holds up others at a moment if one of them has nothing in hand, while it has something, or is gone, and lacks
outputs that the other has got. So nobody is blamed where workers are slow: then all have nothing in hand. Or it is more
than one epoch behind the other: of that one's epoch nothing is computed before it comes to the one in front, which may
have given nothing to read.
"""

from __future__ import annotations

from millrace.control.journal.transaction import Transaction
from millrace.control.membership import job_quotas
from millrace.control.membership.jobs import consumer_gone
from millrace.control.state.observed import Observed
from millrace.control.state.state import Consumer, Job
from millrace.control.tasks import group_progress
from millrace.control.tasks.slots import unread_by
from millrace.policies.sharing.lockstep import count_waiting, detach
from millrace.protocol import messages as msg


def watch(tx: Transaction) -> None:
    """Detach members for which others have waited too long."""
    counted: dict[str, dict[int, float]] = {}
    for job in list(tx.state.jobs.values()):
        if not job.spec.sharing or job.windowed or job.failure is not None:
            continue
        waited = tx.observed.waited_for.get(job.name)
        seconds = 0.0 if waited is None else tx.now - tx.observed.waited_at
        holding = _holding(tx.observed, job) or _in_the_way(tx, job)
        there = [each for each in holding if job.consumers[each].since <= tx.observed.waited_at]
        found = count_waiting(waited or {}, job.consumers, there, seconds)
        decision = detach(found, tx.state.settings.lockstep_wait_s)
        for member in decision.value:
            if member not in job.consumers:
                continue  # it has gone with another rank of its job
            place = job.consumers[member]
            text = (
                f"job {place.member!r} was detached from the jobs that it shares its computation with: it "
                f"{decision.reason}"
            )
            tx.to_consumer(job, member, msg.JobFailed(msg.Failure("DetachedError", text), detached=True))
            group_progress.detached(tx, job, member, decision.reason)
            job_quotas.keep_place(tx, job, place.member)
            consumer_gone(tx, job, member, decision.reason, kind="DetachedError")
            found = {each: waited for each, waited in found.items() if each in job.consumers}
        counted[job.name] = found
    tx.observed.waited_for, tx.observed.waited_at = counted, tx.now


def _holding(observed: Observed, job: Job) -> list[int]:
    """List the members for which another one waits now."""
    idle = {member: _has_nothing(observed, place) for member, place in job.consumers.items()}
    waiting = [member for member, nothing in idle.items() if nothing]
    return [
        member
        for member, nothing in idle.items()
        if not nothing and any(_holds_up(job, member, each) for each in waiting if each not in job.mates(member))
    ]


def _in_the_way(tx: Transaction, job: Job) -> list[int]:
    """List the members for which others wait that skipped what these lack, so that they have nothing more of it.

    What was kept for a member may fill buffers in front of what others are to read next. Then every run waits for a
    reader, and nothing is computed. If all members wait, as one is ahead in one slot and behind in another, it is the
    one that is furthest behind.
    """
    idle = {reader: _has_nothing(tx.observed, place) for reader, place in job.consumers.items()}
    if not (job.skipping and len(idle) > job.spec.together and any(idle.values())):
        return []
    reports = [observation.report for observation in tx.observed.workers.values() if observation.report is not None]
    lanes = [lane for report in reports if report.job == job.name for lane in report.lanes if lane.running]
    if not lanes or any(lane.blocked_s <= 0 for lane in lanes):
        return []
    unread = {reader: sum(len(unread_by(job, epoch, reader)) for epoch in job.epochs.values()) for reader in idle}
    if all(idle.values()):
        return [max(unread, key=lambda reader: (unread[reader], reader))]
    waited = {reader: any(idle[each] for each in idle if each not in job.mates(reader)) for reader in idle}
    return [reader for reader in idle if not idle[reader] and unread[reader] and waited[reader]]


def _has_nothing(observed: Observed, place: Consumer) -> bool:
    """Whether a member's user waits for elements of its epoch, and has none."""
    report = observed.report(place.client)
    if place.lost_at is not None or report is None or report.epoch != place.epoch:
        return False
    return report.waits


def _holds_up(job: Job, member: int, other: int) -> bool:
    """Whether another one that waits may wait for a member that has something."""
    behind = job.consumers[other].epoch - job.consumers[member].epoch
    return (behind > 1 and not job.skipping) or _lacks(job, member, other)


def _lacks(job: Job, member: int, other: int) -> bool:
    """Whether a member lacks outputs that another one has."""
    for epoch in job.epochs.values():
        for task in unread_by(job, epoch, member):  # most of what is kept is there for its leftovers alone
            mine, its = epoch.live[task].readers[member], epoch.live[task].readers[other]
            skips = task in epoch.skips.get(other, ())
            if (its.complete and not skips) or its.received > mine.received:
                return True
    return False
