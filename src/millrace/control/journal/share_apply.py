"""What the events of :mod:`millrace.control.journal.share_events` change in the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.control.journal import share_events as ev
from millrace.control.state.state import UNREAD, State


def _share_unread(state: State, event: ev.ShareUnread) -> None:
    job = state.jobs[event.job]
    job.unread = [*job.unread, event.share][-UNREAD:]


SHARE_APPLY: dict[type[msgspec.Struct], Callable[[State, Any], None]] = {
    ev.ShareUnread: _share_unread,
}
