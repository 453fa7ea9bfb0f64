"""Figures of a member's own epoch, over the epochs of its group that it is filled from. Pure."""

from __future__ import annotations

from millrace.client.read_rate import Rates
from millrace.protocol.reports import Pace


class OwnFigures:
    """Elements handed out of an epoch, how fast, and what was missed meanwhile.

    Args:
        number: of the epoch.

    Attributes:
        number: of the epoch.
        seen: elements and rates as of the last look.
        missed: elements that a shared window no longer had.
        members: most jobs that shared the computation.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: tuple[int, Rates] = 0, Rates()
        self.missed = self.members = self.skipped = 0
        self._before = 0, Pace(), 0, 0
        self._start = 0, Pace(), 0, 0

    def begin(self, handed: int, pace: Pace, missed: int, skipped: int) -> None:
        """Go on with an epoch of the group, of which so much was counted for an epoch before this one."""
        self._before = self.seen[0], self.seen[1].pace, self.missed, self.skipped
        self._start = handed, pace, missed, skipped

    def with_group(self, handed: int, pace: Pace) -> tuple[int, Rates]:
        """Figures as they are if this was seen of the group's epoch."""
        (there, all_before, *_), (start, begun, *_) = self._before, self._start
        own = Pace(
            all_before.elements + pace.elements - begun.elements,
            all_before.read_s + pace.read_s - begun.read_s,
            all_before.waited_s + pace.waited_s - begun.waited_s,
        )
        return there + handed - start, Rates(pace=own)

    def look(self, handed: int, pace: Pace, missed: int, skipped: int, members: int) -> None:
        """Note what was seen of the group's epoch by now."""
        self.seen = self.with_group(handed, pace)
        self.missed = self._before[2] + missed - self._start[2]
        self.skipped = self._before[3] + skipped - self._start[3]
        self.members = max(self.members, members)
