"""Progress of ranks that all read every task of an epoch: what all of them have, and what some have beyond."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import NamedTuple

from millrace.planning.checkpoint import Checkpoint, TasksRead
from millrace.planning.progress import TaskSet

ALL = -1
"""In the place of a number of outputs: the rank has all of the task."""


class RanksProgress(NamedTuple):
    """Progress of all ranks.

    Attributes:
        done: tasks that every rank has read to their end.
        begun: (task, outputs that every rank has that has not read it to its end) of others, where there are any.
        own: by rank, (task, outputs that it has, or :data:`ALL`) where that is not the same.
    """

    done: TaskSet
    begun: list[tuple[int, int]]
    own: dict[int, list[tuple[int, int]]]


def read_by(checkpoint: Checkpoint, tasks: int | None) -> TasksRead:
    """Tell what a rank has read of the epoch of its state, which has so many tasks (None: without end)."""
    if checkpoint.ended and tasks is not None:
        return TasksRead(tasks)
    return TasksRead(checkpoint.done, checkpoint.later, checkpoint.begun)


def ranks_progress(checkpoints: Iterable[Checkpoint], epoch: int, tasks: int | None) -> RanksProgress:
    """Compare what the states of all ranks say of an epoch.

    Args:
        checkpoints: of all ranks, each once; those of an earlier epoch have nothing of it.
        epoch: its number.
        tasks: how many it has; None: it has no end.
    """
    read: dict[int, tuple[TaskSet, dict[int, int]]] = {}
    for each in checkpoints:
        there = read_by(each, tasks) if each.epoch == epoch else TasksRead()
        read[each.rank] = there.done(), dict(there.begun)
    common = functools.reduce(TaskSet.__and__, (done for done, _ in read.values()))
    touched = {task for _, begun in read.values() for task in begun}
    for done, _ in read.values():
        touched.update(range(common.low, done.low))
        touched.update(task for part in done.beyond() for task in part.tolist())
    found = RanksProgress(common, [], {})
    for task in sorted(task for task in touched if task not in common):
        had = {rank: ALL if task in done else begun.get(task, 0) for rank, (done, begun) in read.items()}
        least = min(outputs for outputs in had.values() if outputs != ALL)
        if least:
            found.begun.append((task, least))
        for rank, outputs in had.items():
            if outputs != least:
                found.own.setdefault(rank, []).append((task, outputs))
    return found
