"""Parts of an epoch that nobody reads, or nobody who is there: told where others' epoch ends, and in the status."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from millrace.control.journal.job_events import ShareUnread
from millrace.control.journal.transaction import Transaction
from millrace.control.state.observed import Observed
from millrace.control.state.state import Job, State, UnreadShare
from millrace.control.tasks.slots import is_missing, missing, round_robin, unread_by
from millrace.control.tasks.task_queue import held_back

NAMED = 8
"""Consumers that a sentence names, at most."""
NOT_SEEN = "was not seen yet, and its part is kept for it"
BETWEEN = "ended with an epoch, and its part is kept for the process that reads the next one"
_COUNTED = 10_000
"""Tasks of which the elements are counted, at most."""


def record(tx: Transaction, job: Job, number: int, consumer: int, tasks: Collection[int], why: str) -> None:
    """Note that nobody reads these tasks of a consumer, unless it was to be so; of rounds, all that it will lack."""
    if job.spec.coordinated:
        for share in _share(tx.state, job, number, consumer, why):
            tx.emit(ShareUnread(job.name, share))
    elif tasks and not (held_back(job) and why == "left"):
        elements = _elements(tx.state, job, number, tasks)
        tx.emit(ShareUnread(job.name, UnreadShare(number, consumer, len(tasks), elements, why)))


def shares(state: State, observed: Observed, job: Job, number: int) -> list[UnreadShare]:
    """List what of an epoch is not read, as far as that is known by now: by nobody, and by those who are not there."""
    found = [share for share in job.unread if share.epoch == number]
    epoch = job.epochs.get(number)
    if epoch is None or job.tables is None or job.spec.sharing:
        return found
    grace = state.settings.job_gc_timeout_s
    for consumer, place in sorted(job.consumers.items()):
        # Who is no longer waited for after a restart is known with a tick, as then others are told so.
        awaited = place.lost_at is None or (place.lost_at <= state.started and not observed.all_back)
        if place.epoch <= number and not awaited:
            who = f"process {place.pid} on {place.host or 'another host'}"
            why = f"was lost ({who}), and its part is kept for it for {grace:g} s from then on"
            if place.lingers and place.epoch < number:
                why = BETWEEN
            found += _share(state, job, number, consumer, why)
            report = observed.report(place.client)
            if report is not None and report.epoch == number and report.arrived > report.batches:
                why = f"was lost ({who}) and may not have used them, though it had received them"
                found.append(UnreadShare(number, consumer, 0, report.arrived - report.batches, why))
    begun = (reader for slot in sorted(epoch.unread) for reader in job.audience(slot) if is_missing(job, reader))
    for consumer in missing(job) if round_robin(job) else begun:
        found += _share(state, job, number, consumer, NOT_SEEN)
    return found + _deserted(state, job, number)


def _deserted(state: State, job: Job, number: int) -> list[UnreadShare]:
    """List what is of consumers that have gone, and of nobody else, as the order is fixed."""
    if job.spec.sharing:
        return []
    found: list[UnreadShare] = []
    if job.spec.coordinated:  # who left in the epoch is in the list already
        told = {share.consumer for share in job.unread if share.epoch == number and share.tasks}
        for consumer in sorted(job.left - job.consumers.keys() - told):
            found += _share(state, job, number, consumer, "had left")
        for consumer, place in sorted(job.consumers.items()):
            if place.past >= number and consumer not in told:
                found += _share(state, job, number, consumer, "was away; the process in its place goes on behind that")
    elif round_robin(job) and not held_back(job):
        for consumer in sorted(job.left - job.consumers.keys()):
            found += _share(state, job, number, consumer, "had left, and in a fixed order nobody has its part")
        for consumer, place in sorted(job.consumers.items()):
            if place.past >= number:
                found += _share(state, job, number, consumer, "was lost; the process in its place goes on behind that")
    return found


def record_deserted(tx: Transaction, job: Job, number: int) -> None:
    """Note the same of an epoch that is over."""
    for share in _deserted(tx.state, job, number) if job.tables is not None else ():
        tx.emit(ShareUnread(job.name, share))


def told(state: State, observed: Observed, job: Job, number: int) -> str:
    """Word what is not read for those who read the epoch, but for what waits for who may still come."""
    found = shares(state, observed, job, number)
    return said(job, [share for share in found if share.why not in (NOT_SEEN, BETWEEN)])


def _share(state: State, job: Job, number: int, consumer: int, why: str) -> list[UnreadShare]:
    epoch = job.epochs[number]
    tasks = unread_by(job, epoch, consumer)
    length = job.tasks_of(epoch)
    if job.spec.coordinated:
        lacking = len(tasks)
        if length is not None:
            own = sum(outputs < 0 for outputs in epoch.own.get(consumer, {}).values())
            lacking += length - epoch.over_before - own - len(epoch.shares.get(consumer, ()))
        return [UnreadShare(number, consumer, lacking, -1, why)] if lacking > 0 else []
    if round_robin(job) and length is not None:
        undealt = sum(len(range(s, length, job.stride)) - epoch.dealt.get(s, 0) for s in job.slots_of([consumer]))
        if undealt > 0:
            return [UnreadShare(number, consumer, len(tasks) + undealt, -1, why)]
    return [UnreadShare(number, consumer, len(tasks), _elements(state, job, number, tasks), why)] if tasks else []


def _elements(state: State, job: Job, number: int, tasks: Collection[int]) -> int:
    plan = state.plan(job, number)
    if not plan.exact or job.spec.sharding == "off" or len(tasks) > _COUNTED:
        return -1
    count = 0
    for task in tasks:
        live, planned = job.epochs[number].live.get(task), plan.task(task)
        count += planned.stop - planned.start - (live.received if live is not None else 0)
    return count


def said(job: Job, found: Sequence[UnreadShare]) -> str:
    """Word it in a sentence for each epoch; empty if there is nothing."""
    parts: dict[int, dict[int, list[UnreadShare]]] = {}
    for share in found:
        parts.setdefault(share.epoch, {}).setdefault(share.consumer, []).append(share)
    return ". ".join(f"Epoch {epoch} of job {job.name!r} lacks {_listed(job, each)}" for epoch, each in parts.items())


def _listed(job: Job, found: Mapping[int, Sequence[UnreadShare]]) -> str:
    """By consumer; of many consumers, the first ones and how many there are."""
    some = [_part(job, share) for consumer in list(found)[:NAMED] for share in found[consumer]]
    if len(found) > NAMED:
        some.append(f"parts of {_counted(len(found) - NAMED, 'more consumer')} ({len(found)} in all)")
    return "; ".join(some)


def _part(job: Job, share: UnreadShare) -> str:
    tasks, elements = _counted(share.tasks, "task"), _counted(share.elements, "element")
    if job.spec.coordinated and share.tasks:
        return f"the batches of {tasks} for consumer {share.consumer}, which {share.why}"
    amount = f"{elements} in {tasks}" if share.elements >= 0 else tasks
    return f"{amount if share.tasks else f'up to {elements}'} of consumer {share.consumer}, which {share.why}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' if count != 1 else ''}"
