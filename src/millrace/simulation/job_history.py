"""History of jobs and their epochs, as the invariants note it."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from millrace.protocol.job_spec import JobSpec


@dataclass
class EpochHistory:
    """History of one epoch of one job.

    Attributes:
        yielded: elements that a user has, and by which client; ``void``: the same of who was given up and did not know;
            ``received``: elements that a consumer had.
        dealt: tasks that became some consumer's, by which it is now; ``dropped``: of those, what nobody reads to the
            end.
        leased: tasks that were, for the first time or again.
        resumed: some of it was read before states were saved.
        said: consumers of whose part it was said that nobody reads all of it.
        begun: somebody reads it; ``interrupted``: and somebody stopped before its end.
        at: by client, the task that it read last; ``steps``: how many outputs it read up to the end.
        reused: the cache point below which the epoch is as the first one, as its readers were told; None: none was.
    """

    yielded: dict[int, str] = field(default_factory=dict)
    void: dict[int, str] = field(default_factory=dict)
    received: set[int] = field(default_factory=set)
    dealt: dict[int, int] = field(default_factory=dict)
    dropped: set[int] = field(default_factory=set)
    leased: set[int] = field(default_factory=set)
    steps: dict[str, int] = field(default_factory=dict)
    said: set[int] = field(default_factory=set)
    begun: bool = False
    resumed: bool = False
    interrupted: bool = False
    at: dict[str, int] = field(default_factory=dict)
    reused: int | None = None


@dataclass
class JobHistory:
    """History of one job, from its creation to its end.

    Attributes:
        joined: by consumer, the client that reads as it; ``reads``: the epoch that it has begun.
        gone: consumers that left; ``kept_at``: when the last one had, on the dispatcher's clock.
        never: expected consumers that had not come when the job was removed.
        broken: it failed.
        skipped: elements that no worker may touch.
    """

    spec: JobSpec
    epochs: dict[int, EpochHistory] = field(default_factory=dict)
    joined: dict[int, str] = field(default_factory=dict)
    reads: dict[int, int] = field(default_factory=dict)
    gone: set[int] = field(default_factory=set)
    kept_at: float = math.inf
    never: list[int] = field(default_factory=list)
    broken: bool = False
    skipped: set[int] = field(default_factory=set)

    def epoch(self, number: int) -> EpochHistory:
        """Return the history of an epoch."""
        return self.epochs.setdefault(number, EpochHistory())

    def interrupt(self, upto: int) -> None:
        """Somebody reads epoch ``upto`` no further, and may not have said what it had of those before."""
        for number, history in self.epochs.items():
            history.interrupted |= number <= upto
