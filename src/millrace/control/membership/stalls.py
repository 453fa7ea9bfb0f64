"""Consumers that wait for one that was never seen: a tail of theirs needs what tasks of that one leave over.

Such tasks run, but their worker keeps what nobody reads, and has no room for more. In any order they become tasks of
whoever waits for them, as nobody has read anything of them. In a fixed order the one that never came is given up when
somebody has waited for as long as for one that was lost.
"""

from __future__ import annotations

from collections.abc import Iterator

from millrace.control.journal.task_events import TaskMoved
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import consumer_gone
from millrace.control.state.state import Job
from millrace.control.tasks.leases import revoke
from millrace.control.tasks.slots import is_awaited, missing, round_robin, stride


def watch(tx: Transaction) -> None:
    """Have nobody wait for ever for a consumer that was never seen."""
    waiting: dict[str, float] = {}
    for job in list(tx.state.jobs.values()):
        absent: set[int] = set()
        if job.failure is None and job.tables is not None and missing(job):
            for consumer, place in job.consumers.items():
                if place.lost_at is None and place.epoch in job.epochs:
                    absent |= _let_go_on(tx, job, place.epoch, job.slot_of(consumer))
        if absent:
            since = waiting[job.name] = tx.observed.held_up.get(job.name, tx.now)
            grace = tx.state.settings.job_gc_timeout_s
            if tx.now - since > grace:
                for consumer in sorted(reader for slot in absent for reader in job.audience(slot)):
                    consumer_gone(tx, job, consumer, f"did not come within {grace:g} s, and others waited for it")
    tx.observed.held_up = waiting


def _let_go_on(tx: Transaction, job: Job, number: int, slot: int) -> set[int]:
    """Give a slot what its tails wait for; slots of readers never seen that it still waits for."""
    epoch, held = job.epochs[number], set()
    for task, owner in sorted(set(_inputs(tx, job, number, slot))):
        if not is_awaited(job, owner):
            continue
        if round_robin(job):
            held.add(owner)
            continue
        if epoch.live[task].worker:
            revoke(tx, job, number, task, f"consumer {slot} waits for what it leaves over")
        tx.emit(TaskMoved(job.name, number, task, slot))
    return held


def _inputs(tx: Transaction, job: Job, number: int, slot: int) -> Iterator[tuple[int, int]]:
    """Yield (task, its slot) of what a slot's tails take leftovers from and is still to be run."""
    epoch = job.epochs[number]
    if job.spec.sharding == "off":
        return
    tails = [task for task in epoch.pending.get(slot, ()) if not epoch.live[task].complete]
    while tails:
        for task in tx.state.plan(job, number).task(tails.pop()).inputs:
            live = epoch.live.get(task)
            if live is not None and not live.finished and not live.complete:
                yield task, live.slot
                tails.append(task)
            elif live is None and round_robin(job):
                yield task, task % stride(job)
