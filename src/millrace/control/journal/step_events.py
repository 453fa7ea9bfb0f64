"""Steps of ranks that get equally many elements; more of :mod:`millrace.control.journal.events`."""

from __future__ import annotations

from millrace.control.journal.event import Event


class StepsEnded(Event, frozen=True, tag="StepsEnded"):
    """Of ranks that are to get equally many elements of the epoch one has no more than ``steps``: all end there."""

    job: str
    epoch: int
    steps: int
