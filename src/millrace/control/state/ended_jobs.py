"""Jobs that are over: what is remembered of them for who comes late, and for the status."""

from __future__ import annotations

import msgspec

from millrace.protocol.reports import Pace


class EndedJob(msgspec.Struct, frozen=True):
    """Record of a job that is over: who comes under its name may be late.

    Attributes:
        at: when it was removed, for this reason.
        num_consumers: that were expected; None: whoever joined.
        readers: by consumer, the host and process id of who read as it last.
        absent: how many of the expected consumers were never seen.
    """

    at: float
    reason: str
    num_consumers: int | None
    readers: dict[int, tuple[str, int]]
    absent: int


class FinishedJob(msgspec.Struct, frozen=True):
    """Summary of a job that is over.

    Attributes:
        name: of the job.
        why: it is over.
        at: when that was, and ``seconds`` how long after it had begun.
        epochs: that were begun, and ``elements`` of all of them that were handed out.
        pace: of all its consumers.
        bottleneck: of its loop, in a sentence.
        failure: the first line of what made it fail; None: nothing did.
    """

    name: str
    why: str
    at: float
    seconds: float
    epochs: int
    elements: int
    pace: Pace
    bottleneck: str
    failure: str | None = None
