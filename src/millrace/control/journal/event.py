"""What all events have in common."""

from __future__ import annotations

import msgspec


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all events."""
