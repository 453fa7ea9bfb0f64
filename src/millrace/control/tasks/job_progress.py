"""How far jobs have come, epoch by epoch, as observed and never journalled, and summaries of those that are over."""

from __future__ import annotations

from itertools import zip_longest
from typing import Any

import msgspec

from millrace.control.journal.transaction import Transaction
from millrace.control.state.ended_jobs import FinishedJob
from millrace.control.state.observed import EpochObservation, JobObservation, Observed
from millrace.control.state.state import Job, State
from millrace.control.tasks.job_load import load_of, window_of
from millrace.graph.serialize import unpack
from millrace.policies.bottleneck import bottleneck
from millrace.protocol.messages import ConsumerReport, TaskFinished
from millrace.protocol.reports import Pace

EPOCHS = 5
"""Of a job that are told apart; those before are added up."""


def begun(tx: Transaction, job: Job) -> None:
    """Begin to observe a job."""
    tx.observed.progress[job.name] = JobObservation(tx.state.next_lease)


def reported(tx: Transaction, job: Job, consumer: int, message: ConsumerReport) -> None:
    """Note how much of an epoch a consumer says that it has read."""
    epoch = _epoch(tx, job, message.epoch)
    if epoch is not None and not epoch.read:
        epoch.began, epoch.share = tx.now, share_of(tx.state, job, message.epoch) or 0.0
    if epoch is not None and message.batches >= epoch.read.get(consumer, (0, Pace()))[0]:
        epoch.read[consumer] = message.batches, message.pace


def computed(tx: Transaction, message: TaskFinished) -> bool:
    """Count what the operators gave in a task that ran to its end, once, however often it runs.

    Returns:
        Whether this is that one time.
    """
    job = tx.state.jobs.get(message.ref.job)
    if job is None or not _dealt(tx, job, message.ref.epoch, message.ref.task):
        return False
    epoch = _epoch(tx, job, message.ref.epoch)
    lease = tx.observed.progress[job.name].lease
    if epoch is None or message.lease < lease or message.ref.task in epoch.counted:
        return False
    epoch.counted.add(message.ref.task)
    epoch.passed += [0] * (len(message.passed) - len(epoch.passed))
    for node, elements in enumerate(message.passed):
        epoch.passed[node] += elements
    return True


def _dealt(tx: Transaction, job: Job, number: int, task: int) -> bool:
    """Whether the task may have been leased, and be over by now: what is counted takes a bit for each task below it."""
    epoch = job.epochs.get(number)
    if epoch is not None:
        return task in epoch.live or task < max(epoch.cursors.values(), default=0)
    observation = tx.observed.progress.get(job.name)
    return observation is not None and number in observation.epochs and job.length is not None and task < job.length


def _epoch(tx: Transaction, job: Job, number: int) -> EpochObservation | None:
    """Find the observation of an epoch; None if it was added up with others."""
    observation = tx.observed.progress.setdefault(job.name, JobObservation())
    if number not in observation.epochs:
        if observation.epochs and number < min(observation.epochs):
            return None
        observation.epochs[number] = EpochObservation()
        while len(observation.epochs) > EPOCHS:
            over = observation.epochs.pop(min(observation.epochs))
            observation.elements += over.elements
            observation.passed = [sum(each) for each in zip_longest(observation.passed, over.passed, fillvalue=0)]
            observation.pace = _sum(observation.pace, over.pace)
    return observation.epochs[number]


def given(observed: Observed, job: Job, node: int) -> int:
    """Count the elements that an operator gave in all tasks that have ended, of all epochs that somebody has begun."""
    observation = observed.progress.get(job.name, JobObservation())
    counts = [
        observation.passed,
        *(epoch.passed for number, epoch in observation.epochs.items() if number <= job.newest),
    ]
    return sum(passed[node] for passed in counts if node < len(passed))


def share_of(state: State, job: Job, number: int) -> float | None:
    """Part of an epoch's tasks that its consumers have read, from 0 to 1; None: it has no end, or is not planned."""
    epoch = job.epochs.get(number)
    total = job.tasks_of(epoch) if epoch is not None else None
    if epoch is None or not total:
        return None
    read = float(epoch.done - epoch.dropped)
    plan = state.plan(job, number)
    for task, live in epoch.live.items():
        if live.complete:
            read += 1
        elif live.received and plan.exact and not (job.spec.sharding == "off" or job.spec.coordinated):
            planned = plan.task(task)
            read += min(1.0, live.received / max(1, planned.stop - planned.start))
    return min(1.0, read / total)


def progress(state: State, observed: Observed, job: Job, now: float) -> dict[str, Any]:
    """How much of the newest epoch was read, and how long the rest will take at the pace so far."""
    number = job.newest
    share = share_of(state, job, number)
    observation = observed.progress.get(job.name, JobObservation()).epochs.get(number)
    left_s = None if share is None or share < 1 else 0.0
    if share is not None and observation is not None and observation.read and share > observation.share:
        left_s = (1 - share) * (now - observation.began) / (share - observation.share)
    return {"share": share, "left_s": left_s}


def epochs(observed: Observed, job: Job) -> list[dict[str, Any]]:
    """List the last epochs that somebody has read, the newest last: what was read of them and what operators gave."""
    found = observed.progress.get(job.name, JobObservation()).epochs
    labels = [str(node) for node in unpack(job.spec.structure).nodes] if found else []
    return [
        {
            "epoch": number,
            "elements": epoch.elements,
            "seconds": epoch.pace.read_s,
            "waited_s": epoch.pace.waited_s,
            "operators": [
                {"operator": label, "elements": elements}
                for label, elements in zip(labels, epoch.passed or [0] * len(labels), strict=False)
            ],
        }
        for number, epoch in sorted(found.items())
        if epoch.read
    ]


def summary(tx: Transaction, job: Job, reason: str) -> FinishedJob:
    """Sum up what is worth knowing of a job that is over."""
    observation = tx.observed.progress.get(job.name, JobObservation())
    read = [epoch for epoch in observation.epochs.values() if epoch.read]
    pace = observation.pace
    for epoch in read:
        pace = _sum(pace, epoch.pace)
    load = load_of(tx.state, tx.observed, job, window_of(tx.observed, job.name))
    batch_s, wait_s = (pace.read_s / pace.elements, pace.waited_s / pace.elements) if pace.elements else (0.0, 0.0)
    return FinishedJob(
        job.name,
        reason,
        tx.now,
        tx.now - job.created,
        max((number for number, epoch in observation.epochs.items() if epoch.read), default=-1) + 1,
        observation.elements + sum(epoch.elements for epoch in read),
        pace,
        bottleneck(msgspec.structs.replace(load, batch_s=batch_s, wait_s=wait_s)).reason,
        job.failure.message.partition("\n")[0] if job.failure is not None else None,
    )


def _sum(one: Pace, other: Pace) -> Pace:
    return Pace(one.elements + other.elements, one.read_s + other.read_s, one.waited_s + other.waited_s)
