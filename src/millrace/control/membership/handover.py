"""Handover of what a consumer that goes has not read: it becomes others' to read, or is said to be unread.

Others get it while they read the epoch, or have still to come to it. In a fixed order nobody gets another's part.
"""

from __future__ import annotations

from collections.abc import Iterable

from millrace.control.journal.job_events import ShareUnread
from millrace.control.journal.task_events import TaskMoved
from millrace.control.journal.transaction import Transaction
from millrace.control.state.state import Consumer, Job, UnreadShare
from millrace.control.tasks.leases import forgo, revoke
from millrace.control.tasks.slots import active, is_awaited, round_robin, unread_by
from millrace.control.tasks.task_queue import held_back
from millrace.control.tasks.unread import record
from millrace.protocol.messages import ConsumerReport


def hand_on(tx: Transaction, job: Job, consumer: int, why: str, epochs: Iterable[int] | None = None) -> int:
    """Give others what a consumer has not read, of these epochs or of all; returns how many tasks became theirs."""
    moved = 0
    for number in sorted(job.epochs if epochs is None else epochs):
        epoch = job.epochs[number]
        tasks = unread_by(job, epoch, consumer)
        heirs = [] if round_robin(job) else _heirs(tx, job, number, consumer)
        if not heirs:
            if job.spec.sharding != "off":
                record(tx, job, number, consumer, tasks, why)
            for task in tasks:
                if task in epoch.live:  # else it went with another one
                    forgo(tx, job, number, task, consumer)
            continue
        for task in tasks:
            if epoch.live[task].worker:
                revoke(tx, job, number, task, f"consumer {consumer} {why}")
            heir = min(heirs, key=lambda i: (len(epoch.unread.get(i, ())), i))
            tx.emit(TaskMoved(job.name, number, task, heir))
        moved += len(tasks)
    return moved


def _heirs(tx: Transaction, job: Job, number: int, consumer: int) -> list[int]:
    """Slots that could still get tasks of the epoch: of readers that read it, else were lost, else were never seen."""
    others = [i for i, other in job.consumers.items() if i != consumer and other.epoch <= number > other.past]
    others = [i for i in others if not has_ended(tx, job.consumers[i], number)]
    there = [i for i in others if job.consumers[i].lost_at is None]
    mine = job.slots_of([consumer])
    heirs = [*job.slots_of(there or others)]
    return heirs or [slot for slot in active(job) if slot not in mine and is_awaited(job, slot)]


def report_of(tx: Transaction, place: Consumer, number: int) -> ConsumerReport | None:
    """Find what a consumer has said last of an epoch; None if that was of another."""
    report = tx.observed.report(place.client)
    return report if report is not None and report.epoch == number else None


def has_ended(tx: Transaction, place: Consumer, number: int) -> bool:
    """Its reader was told that the epoch has no more, so that it would not read what becomes its now."""
    report = report_of(tx, place, number)
    return report is not None and report.ended


def tell_doubt(tx: Transaction, job: Job, consumer: int, place: Consumer, why: str) -> None:
    """Note what a consumer that was lost had received and not handed out, as far as it had said: nobody gets it."""
    report = report_of(tx, place, place.epoch)
    if report is not None and report.arrived > report.batches and job.spec.sharding != "off":
        lost = report.arrived - report.batches
        text = f"{why}; it had received them, and may not have used them"
        tx.emit(ShareUnread(job.name, UnreadShare(place.epoch, consumer, 0, lost, text)))


def give_again(tx: Transaction, job: Job, consumer: int, number: int) -> None:
    """Have a consumer's tasks of an epoch run anew: their workers have let go of what was received, if not used."""
    epoch = job.epochs.get(number)
    if epoch is None:
        return
    for task in unread_by(job, epoch, consumer):
        if epoch.live[task].worker or task in epoch.failures:
            revoke(tx, job, number, task, f"consumer {consumer} had used nothing of it, and begins anew")


def record_unused(tx: Transaction, job: Job, consumer: int, place: Consumer, unused: int) -> None:
    """Note what a consumer had received and not handed out when it closed in mid-epoch; nobody gets it."""
    if job.spec.sharding != "off" and not held_back(job):
        why = "closed before it had handed them out"
        tx.emit(ShareUnread(job.name, UnreadShare(place.epoch, consumer, 0, unused, why)))


def nothing_used(tx: Transaction, job: Job, consumer: int, place: Consumer) -> bool:
    """Whether a consumer has handed nothing out of the epoch that it began last, as far as anybody was told."""
    epoch = job.epochs.get(place.epoch)
    if place.epoch < 0 or epoch is None:
        return place.epoch >= 0 and job.tables is None
    report = report_of(tx, place, place.epoch)
    mine = [epoch.live[task].readers[consumer] for task in unread_by(job, epoch, consumer)]
    dealt = sum(epoch.dealt.get(slot, 0) for slot in job.slots_of([consumer]))
    got = dealt if job.length is None else len(epoch.shares.get(consumer, ()))
    untouched = all(progress.received <= progress.start for progress in mine)
    return got <= len(mine) and untouched and (report is None or not report.batches)
