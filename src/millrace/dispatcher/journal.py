"""Where events become durable before anybody hears of what follows from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from millrace.control.events import AnyEvent


class Journal(Protocol):
    """An append-only list of events."""

    async def append(self, events: Sequence[AnyEvent]) -> None:
        """Returns when these are durable, all or none."""


class MemoryJournal:
    """Remembers nothing: a restarted dispatcher starts empty."""

    async def append(self, events: Sequence[AnyEvent]) -> None:
        """Returns at once."""
