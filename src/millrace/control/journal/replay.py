"""The one way in which the state changes: an event's reducer is applied to it."""

from __future__ import annotations

import functools
import operator
from typing import Any

from millrace.control.journal import (
    cache_events,
    consumer_events,
    dispatcher_events,
    epoch_events,
    job_events,
    scaling_events,
    task_events,
    worker_events,
)
from millrace.control.journal.event import REDUCERS, Changes, Event
from millrace.control.journal.state_validation import phase_of, validate_event
from millrace.control.state.index import SERVICE
from millrace.control.state.state import State

ENTITIES = (
    cache_events,
    consumer_events,
    dispatcher_events,
    epoch_events,
    job_events,
    scaling_events,
    task_events,
    worker_events,
)
"""All modules of events, which register their reducers as they are imported."""

AnyEvent: Any = functools.reduce(operator.or_, REDUCERS)
"""The union of all events, for decoding a journal."""


def apply(state: State, event: Event) -> None:
    """Change the state as an event says.

    Raises:
        InvalidStateError: the state is ``checked``, and makes no sense any more.
    """
    reducer = REDUCERS[type(event)]
    before = phase_of(state, event) if state.checked else None
    if reducer.changes is Changes.SERVING:
        state.index.serving_changes(getattr(event, "worker", ""))
    reducer.apply(state, event)
    job = getattr(event, "job", SERVICE)
    state.index.invalidate(job)
    if job:
        state.index.touched.add(job)
    if reducer.changes is not Changes.TASKS:
        state.index.invalidate(SERVICE)
    if before is not None:
        validate_event(state, event, before)
