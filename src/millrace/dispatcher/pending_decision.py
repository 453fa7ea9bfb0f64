"""What was decided and waits until it is durable."""

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
    """What follows from one input.

    Attributes:
        events: that became so.
        encoded: the same as they are journalled.
        actions: to be done then, with the session that each is for.
    """

    events: list[Event]
    encoded: list[msgspec.Raw]
    actions: list[tuple[act.Action, Session | None]]

    def log(self) -> None:
        """Say what was lost."""
        for event in self.events:
            if isinstance(event, WorkerLost):
                _logger.info("worker %s %s: what it had goes to others", event.worker, event.reason)
            elif isinstance(event, JobRemoved) and event.absent:
                _logger.warning("job %s is over: %s", event.job, event.reason)
