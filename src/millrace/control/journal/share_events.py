"""What became of what a consumer was to read; more of :mod:`millrace.control.journal.events`."""

from __future__ import annotations

import msgspec

from millrace.control.journal.event import Event


class UnreadShare(msgspec.Struct, frozen=True, array_like=True):
    """A part of an epoch that nobody reads.

    Attributes:
        epoch: of which.
        consumer: whose it was.
        tasks: how many, of which parts may have been read.
        elements: how many at most; -1 if the plan cannot tell.
        why: what the consumer did, or what was done; goes on behind its name.
    """

    epoch: int
    consumer: int
    tasks: int
    elements: int
    why: str


class ShareUnread(Event, frozen=True, tag="ShareUnread"):
    """Nobody will read this, and it is said."""

    job: str
    share: UnreadShare
