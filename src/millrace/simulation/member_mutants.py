"""Bugs of groups of jobs that share one computation, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from typing import Any

from millrace.control.membership import detaching, gathering, groups, jobs, stalls
from millrace.simulation.window_mutants import WINDOW_MUTANTS
from millrace.worker.core.slot_buffer import SlotBuffer

_leave = SlotBuffer.leave


def _take_all(self: SlotBuffer, reader: int) -> None:
    _leave(self, reader)
    for key in list(self.tasks):
        self.spare(key)


MEMBER_MUTANTS: dict[str, tuple[str, tuple[tuple[Any, Any, Any], ...]]] = {
    "late-member": (
        "A member that comes reads the epoch that others read, be some of it over.",
        ((groups, "first_epoch", lambda job: max(0, job.newest)),),
    ),
    "never-left": (
        "Workers do not hear that a member has left its group.",
        ((jobs, "tell_audience", lambda *_: None),),
    ),
    "never-detached": ("Nobody is detached.", ((detaching, "count_waiting", lambda *_: {}),)),
    "detached-at-once": (
        "Who holds up others is detached at once.",
        ((detaching, "count_waiting", lambda _counted, _members, holding, _seconds: dict.fromkeys(holding, 1e9)),),
    ),
    "left-with-all": (
        "A member that leaves takes what the others lack with it.",
        ((SlotBuffer, "leave", _take_all),),
    ),
    "sent-no-more": (
        "A worker does not give back what it has let go of when a member that has come asks for it.",
        ((SlotBuffer, "lacks", lambda *_: False),),
    ),
    "rank-before-the-others": (
        "A rank of a member is let in before the others have come, as if it were all of it.",
        ((gathering, "gather", lambda _tx, _spec, _name, item: [item]),),
    ),
    "silent-move": (
        "Who was told its share is not told of tasks that become its, as it waits for what they leave over.",
        ((stalls, "send_ends", lambda *_: None),),
    ),
    **WINDOW_MUTANTS,
}
"""By name, what is wrong, and what is replaced by what."""
