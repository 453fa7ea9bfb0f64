"""What the events of :mod:`millrace.control.share_events` change in the state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from millrace.control import share_events as ev
from millrace.control.state import UNREAD, State


def _share_unread(state: State, event: ev.ShareUnread) -> None:
    job = state.jobs[event.job]
    job.unread = [*job.unread, event.share][-UNREAD:]


SHARE_APPLY: dict[type[msgspec.Struct], Callable[[State, Any], None]] = {
    ev.ShareUnread: _share_unread,
}
