"""Quarantine: what ends workers is found in few steps, so that no job runs for ever or takes all workers down.

    deaths of a task   what is suspected                       its next lease
    none               nothing                                 is as any other
    one                all that the worker had                 says when it begins
    two                what had begun: the task is careful     says before each element where it is
    more               the element that the run was at         the same
    two in a row at    that element is poison                  does not touch it: it counts as one that the
    one element                                                function failed on

So whoever stops workers at random convicts nothing, unless an element takes longer than workers live.
"""

from __future__ import annotations

from collections.abc import Container

from millrace.control.journal.job_events import PlanningDied
from millrace.control.journal.task_events import PoisonFound, TaskDied
from millrace.control.journal.transaction import Transaction
from millrace.control.membership.jobs import fail_job
from millrace.control.state.state import PROBE_EACH, Job
from millrace.protocol.crash_sites import Poison
from millrace.protocol.messages import Failure, Notice

MOST_DEATHS = 16
"""Workers that may end with one task without anything being found."""
MOST_POISON = 100
"""Elements of a job that may end workers, as each takes some with it."""
PLANNING_DEATHS = 4


def suspect(tx: Transaction, job: Job, number: int, task: int) -> bool:
    """Whether the end of the worker that ran a task is held against the task, which is noted."""
    before = len(tx.events)
    live = job.epochs[number].live[task]
    observation = tx.observed.workers.get(live.worker)
    at = observation.at.get(live.lease) if observation is not None else None
    if live.deaths == 0 or (live.deaths < PROBE_EACH and at is not None):
        tx.emit(TaskDied(job.name, number, task))
    elif at is not None and at.place and at.place != live.at:
        tx.emit(TaskDied(job.name, number, task, at.place, at.where))
        if live.deaths >= MOST_DEATHS:
            text = (
                f"task {task} of epoch {number} has ended {live.deaths} workers, each time elsewhere, the last one at "
                f"{at.where}. Does a function need more and more memory? If it is that workers are stopped from "
                f"outside: more and smaller tasks, distribute(tasks=...), are done between two stops"
            )
            _give_up(tx, job, text)
    elif at is not None and at.place:
        _convict(tx, job, number, task, Poison(at.place, at.where))
    return len(tx.events) > before


def _convict(tx: Transaction, job: Job, number: int, task: int, poison: Poison) -> None:
    """Let nobody touch it again; what becomes of it is for ``on_error``, if it is a function's."""
    # Positions in a source mean the same element in every epoch, those behind a shuffle or batch do not.
    everywhere = min(poison.place[:2]) >= 0
    tx.emit(PoisonFound(job.name, number, task, poison, everywhere))
    ended = f"{poison.where} has ended the process of every worker that came to it: by a crash, os._exit, or all memory"
    if poison.place[0] < 0:
        _give_up(tx, job, ended)
    elif job.poisoned > MOST_POISON:
        _give_up(tx, job, f"more than {MOST_POISON} elements have ended workers, and now {ended}")
    else:
        tx.to_all(job, Notice(f"{ended}. It is not tried again, but treated as on_error says"))


def planning_died(tx: Transaction, worker: str, reason: str, accused: Container[str]) -> None:
    """Note that a worker has ended, perhaps because of what it listed or the sharding function that it asked.

    Not of ``accused`` jobs, of which it ran a task that may have done it: else an element that ends workers while they
    are asked about the next epoch would be taken for the sharding function.
    """
    for job in tx.state.jobs.values():
        asked = job.lister == worker or any(epoch.chooser == worker for epoch in job.epochs.values())
        if asked and job.name not in accused:
            tx.emit(PlanningDied(job.name))
            if job.planning_deaths >= PLANNING_DEATHS:
                text = (
                    f"{job.planning_deaths} workers ended while they listed its sources or ran its sharding function, "
                    f"the last one {reason}. Does it crash to import its functions or to open its data?"
                )
                _give_up(tx, job, text)


def _give_up(tx: Transaction, job: Job, text: str) -> None:
    fail_job(tx, job, Failure("JobFailedError", f"job {job.name!r} cannot go on: {text}"))
