"""Bugs of groups of jobs that share a window, to be planted like :mod:`millrace.simulation.mutants`."""

from __future__ import annotations

from typing import Any

from millrace.client.epoch_buffer import EpochBuffer
from millrace.control.membership import jobs
from millrace.control.tasks import epochs, leases, slots
from millrace.protocol.job_spec import JobSpec
from millrace.worker.core.outbox import ReaderOutbox
from millrace.worker.core.window_buffer import WindowBuffer

_trim = WindowBuffer._trim  # noqa: SLF001
_behind = slots.behind


def _trim_all(self: WindowBuffer) -> bool:
    mark, self._mark = self._mark, self._next
    trimmed = _trim(self)
    self._mark = mark
    return trimmed


WINDOW_MUTANTS: dict[str, tuple[str, tuple[tuple[Any, Any, Any], ...]]] = {
    "skips-untold": (
        "A reader is not told that outputs which it lacks were dropped from the window.",
        ((ReaderOutbox, "_gap", lambda *_: None),),
    ),
    "furthest-skips": (
        "A full window drops what even the furthest reader lacks.",
        ((WindowBuffer, "_trim", _trim_all),),
    ),
    "window-without-bound": ("A window drops nothing.", ((WindowBuffer, "_trim", lambda _: False),)),
    "late-untold": (
        "A member that comes late is not told what was gone before that.",
        ((epochs, "send_gone", lambda *_: None),),
    ),
    "gone-untold": (
        "Members are not told that a task is gone of which they lack something.",
        ((leases, "tell_gone", lambda *_: None),),
    ),
    "nothing-left-behind": (
        "The epochs before the furthest member's go on, if it broke off.",
        ((jobs, "leave_behind", lambda *_: None),),
    ),
    "rank-skips-alone": (
        "Of a member that is behind one rank alone skips a task.",
        ((leases, "behind", lambda *asked: _behind(*asked)[:1]),),
    ),
    "skip-untold": (
        "Who skips a task is not told so.",
        ((leases, "tell_skips", lambda *_: None), (epochs, "send_gone", lambda *_: None)),
    ),
    "round-lost": (
        "A task of rounds that is lost with its worker does not run again, whoever has had some of them.",
        ((JobSpec, "runs_again", property(lambda self: self.visitation == "exactly_once")),),
    ),
    "own-epoch-short": (
        "What a member missed does not count to the elements that its own epoch is to have.",
        ((EpochBuffer, "outputs", property(lambda self: self.arrived)),),
    ),
}
"""By name, what is wrong, and what is replaced by what."""
