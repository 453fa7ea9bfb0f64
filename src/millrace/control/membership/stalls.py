"""Consumers that wait for another one: a tail of theirs needs what tasks of that one leave over.

Where that one was never seen, such tasks run, but their worker keeps what nobody reads, and has no room for more. In
any order they become tasks of whoever waits for them, as nobody has read anything of them. In a fixed order the one
that never came is given up when somebody has waited for as long as for one that was lost. What was read to its end, and
runs again behind them for what it leaves over, becomes a task of whoever waits for it in every order.

Where that one may not use yet what fills its buffer, as ranks are to get equally many elements, it is told to take in
more: of the task whose leftovers are needed, or of what comes before that.

Where reads are coordinated nobody who was never seen is given up, as every round has a batch of its: the others are
told whom they wait for.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from millrace.control.journal.task_events import TaskMoved
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import consumer_gone
from millrace.control.membership.late_joins import named
from millrace.control.state.state import Job
from millrace.control.tasks.epochs import send_ends
from millrace.control.tasks.leases import revoke
from millrace.control.tasks.slots import is_awaited, missing, round_robin
from millrace.control.tasks.task_queue import held_back, is_ready
from millrace.protocol.messages import Notice, StepsReady


def watch(tx: Transaction) -> None:
    """Have nobody wait for ever for a consumer that was never seen."""
    waiting: dict[str, float] = {}
    for job in list(tx.state.jobs.values()):
        if job.failure is None and job.tables is not None and held_back(job):
            _hurry(tx, job)
        absent: set[int] = set()
        if job.failure is None and job.tables is not None and missing(job):
            for consumer, place in job.consumers.items():
                if place.lost_at is None and place.epoch in job.epochs:
                    for slot in job.slots_of([consumer]):
                        absent |= _let_go_on(tx, job, place.epoch, slot)
                    if job.spec.coordinated:
                        waiting[job.name] = tx.observed.held_up.get(job.name, tx.now)
        if absent:
            since = waiting[job.name] = tx.observed.held_up.get(job.name, tx.now)
            grace = tx.state.settings.job_gc_timeout_s
            if tx.now - since > grace:
                for consumer in sorted(reader for slot in absent for reader in job.audience(slot)):
                    consumer_gone(tx, job, consumer, f"did not come within {grace:g} s, and others waited for it")
        if job.name in waiting and job.spec.coordinated:
            _tell_awaited(tx, job, waiting[job.name])
    tx.observed.held_up = waiting
    tx.observed.awaited &= waiting.keys()


def _tell_awaited(tx: Transaction, job: Job, since: float) -> None:
    """Tell all ranks whose rounds are kept for one that was never seen, once, after as long as a lost one has."""
    grace = tx.state.settings.job_gc_timeout_s
    if tx.now - since > grace and job.name not in tx.observed.awaited:
        tx.observed.awaited.add(job.name)
        text = (
            f"{named(missing(job))} of job {job.name!r} did not come within {grace:g} s: its batches of every round "
            "are kept for it, and the others wait once the workers' buffers are full of them. Start it, or end this job"
        )
        tx.to_all(job, Notice(text))


def _let_go_on(tx: Transaction, job: Job, number: int, slot: int) -> set[int]:
    """Give a slot what its tails wait for; slots of readers never seen that it still waits for."""
    epoch, held, moved = job.epochs[number], set(), False
    for task, owner in sorted(set(_inputs(tx, job, number, slot, reruns=True))):
        if not is_awaited(job, owner):
            continue
        live = epoch.live.get(task)
        if live is None or (round_robin(job) and not live.complete):
            held.add(owner)
            continue
        if live.worker:
            revoke(tx, job, number, task, f"consumer {slot} waits for what it leaves over")
        tx.emit(TaskMoved(job.name, number, task, slot))
        moved = True
    for reader in job.audience(slot) if moved else ():
        send_ends(tx, job, number, reader)  # else it may be through with what it knew of before these come
    return held


def _hurry(tx: Transaction, job: Job) -> None:
    """Have readers take in more whose full buffers keep tasks from ending that others wait for.

    Who may not use yet what it has, as the others have not as much, makes no room for what it is to receive.
    """
    awaited: dict[tuple[int, int], int] = {}
    for consumer, place in job.consumers.items():
        if place.epoch in job.epochs and job.epochs[place.epoch].steps < 0:
            mine = job.slots_of([consumer])
            for task, slot in (each for own in mine for each in _inputs(tx, job, place.epoch, own)):
                key, first = (place.epoch, slot), _to_take_in(tx, job, place.epoch, slot, task)
                if first is not None and slot not in mine:
                    awaited[key] = min(first, awaited.get(key, first))
    for (number, slot), task in awaited.items():
        known = tx.observed.steps.get((job.name, number), StepsReady(number, 0))
        for reader in job.audience(slot):
            if reader in job.consumers and job.consumers[reader].epoch == number:
                tx.to_consumer(job, reader, msgspec.structs.replace(known, awaited=task))


def _to_take_in(tx: Transaction, job: Job, number: int, slot: int, task: int) -> int | None:
    """Find what a slot is to take in first, so that a task of its comes to its end; None: it is not for the slot to do.

    It is the task itself if the slot's readers have heard of it. In a fixed order they hear of it once they come to it,
    and no worker gets it as long as too much lies unread: then it is the first that a worker has.
    """
    epoch = job.epochs[number]
    live = epoch.live.get(task)
    if live is not None and live.worker and not job.spec.deterministic:
        return task
    inputs = tx.state.plan(job, number).task(task).inputs
    if live is not None and not live.worker and not is_ready(job, number, task, inputs):
        return None  # it waits for others, which are looked at themselves
    return min((each for each in epoch.unread.get(slot, ()) if epoch.live[each].worker), default=None)


def _inputs(tx: Transaction, job: Job, number: int, slot: int, *, reruns: bool = False) -> Iterator[tuple[int, int]]:
    """Yield (task, its slot) of what a slot's tails take leftovers from and is still to be run.

    With ``reruns`` also of what was read to its end and runs again for what it leaves over.
    """
    epoch = job.epochs[number]
    if job.spec.sharding == "off":
        return
    tails = [task for task in epoch.pending.get(slot, ()) if not epoch.live[task].complete]
    while tails:
        for task in tx.state.plan(job, number).task(tails.pop()).inputs:
            live = epoch.live.get(task)
            if live is not None and not live.finished and (reruns or not live.complete):
                yield task, live.slot
                tails.append(task)
            elif live is None and round_robin(job):
                yield task, task % job.stride
