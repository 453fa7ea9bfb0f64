"""What all messages and all events have in common."""

from __future__ import annotations

import msgspec


class Message(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all messages."""


class Event(msgspec.Struct, frozen=True, omit_defaults=True):
    """Base of all events."""
