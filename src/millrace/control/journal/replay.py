"""Replay: the one way in which the state changes is that an event is applied to it."""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterator
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
from millrace.control.journal.event import Changes, Event
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
"""All modules of events."""


def _kinds(base: type[Event]) -> Iterator[type[Event]]:
    for kind in base.__subclasses__():
        if kind.__struct_config__.tag is not None:
            yield kind
        yield from _kinds(kind)


AnyEvent: Any = functools.reduce(operator.or_, _kinds(Event))
"""The union of all events, for decoding a journal."""


def apply(state: State, event: Event) -> None:
    """Change the state as an event says.

    Raises:
        InvalidStateError: the state is ``checked``, and makes no sense any more.
    """
    before = phase_of(state, event) if state.checked else None
    if event.changes is Changes.SERVING:
        state.index.serving_changes(getattr(event, "worker", ""))
    event.apply(state)
    job = getattr(event, "job", SERVICE)
    state.index.invalidate(job)
    if job:
        state.index.touched.add(job)
    if event.changes is not Changes.TASKS:
        state.index.invalidate(SERVICE)
    if before is not None:
        validate_event(state, event, before)
