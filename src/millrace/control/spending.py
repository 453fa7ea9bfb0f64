"""What jobs have used so far, epoch by epoch: time of workers, and of whoever trains. Observed, never journalled."""

from __future__ import annotations

from millrace.control.observed import Spent
from millrace.control.supply import newest
from millrace.control.turn import Turn

_REMEMBERED = 100
"""Epochs of a job; those before are added up."""


def account(turn: Turn) -> None:
    """Time has passed since this was last called: it goes to the job that each worker serves, in the epoch it reads."""
    observed, state = turn.observed, turn.state
    since, observed.accounted = observed.accounted, turn.now
    if not since or turn.now <= since:
        return
    passed = turn.now - since
    for name in observed.spent.keys() - state.jobs.keys():
        del observed.spent[name]
    for job in state.jobs.values():
        workers = len(state.crew.by_job.get(job.name, ()))
        consumers = sum(place.lost_at is None for place in job.consumers.values())
        if workers or consumers:
            epochs = observed.spent.setdefault(job.name, {})
            spent = epochs.setdefault(newest(job), Spent())
            spent.worker_s += workers * passed
            spent.consumer_s += consumers * passed
            if len(epochs) > _REMEMBERED:
                first, second = sorted(epochs)[:2]
                before = epochs.pop(first)
                epochs[second].worker_s += before.worker_s
                epochs[second].consumer_s += before.consumer_s
