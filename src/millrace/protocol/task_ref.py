"""Name of a task, as messages say it."""

from __future__ import annotations

import msgspec


class TaskRef(msgspec.Struct, frozen=True, array_like=True):
    """One task of one epoch of one job."""

    job: str
    epoch: int
    task: int
