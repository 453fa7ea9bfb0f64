"""Decisions that wait until they are durable."""

from __future__ import annotations

import logging
from typing import NamedTuple

import msgspec

from millrace.control import actions as act
from millrace.control.journal.event import Event
from millrace.control.journal.job_events import JobRemoved
from millrace.control.journal.worker_events import WorkerLost
from millrace.wire.control.control_server import Session

_logger = logging.getLogger(__name__)


class PendingDecision(NamedTuple):
    """Consequences of one input.

    Attributes:
        events: events that were applied.
        encoded: the events as they are journalled.
        actions: to be done once they are durable, with the session that each is for.
    """

    events: list[Event]
    encoded: list[msgspec.Raw]
    actions: list[tuple[act.Action, Session | None]]

    def log(self) -> None:
        """Log lost workers, and jobs that ended for want of consumers."""
        for event in self.events:
            if isinstance(event, WorkerLost):
                _logger.info("worker %s %s: what it had goes to others", event.worker, event.reason)
            elif isinstance(event, JobRemoved) and event.absent:
                _logger.warning("job %s is over: %s", event.job, event.reason)
