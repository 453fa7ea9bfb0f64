"""Rate at which a consumer reads, and how much of that time it waits. Pure: times come in."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

from millrace.protocol.reports import Pace

WINDOW = 100
"""Elements over which means are taken."""


class Rates(NamedTuple):
    """Means over the last elements; see :class:`millrace.protocol.messages.ConsumerReport`. ``pace``: of all so far."""

    batch_time_s: float = 0.0
    wait_s: float = 0.0
    queue_elements: float = 0.0
    pace: Pace = Pace()


@dataclass(frozen=True, slots=True)
class _Lot:
    count: int
    elapsed: float
    waited: float
    queued: float


class ReadRateMeter:
    """Meter that counts by message, as elements of one message come without waiting."""

    def __init__(self) -> None:
        self.handed = 0
        """Elements of the messages that were used up."""
        self._lots: deque[_Lot] = deque()
        self._counted = 0
        self._began: float | None = None
        self._waited = 0.0
        self._queued = 0.0
        self._count = 0
        self._all = Pace()

    @property
    def pending(self) -> int:
        """Elements of the current message, handed out or not."""
        return self._count

    def took(self, count: int, asked: float, got: float, queued: int) -> None:
        """Note that the user came for more at ``asked`` and got a message of ``count`` elements at ``got`` (seconds).

        Args:
            count: elements of the message.
            asked: when the user had used up the message before.
            got: when this one was there.
            queued: elements that lay ready when the user came.
        """
        self._close(asked)
        if self._began is None:
            asked = got  # the wait for the first element is start-up
        self._began = asked
        self._count = count
        self._waited = got - asked
        self._queued = queued

    def ended(self, now: float) -> None:
        """Note that the epoch is over."""
        self._close(now)
        self._count = 0

    def rates(self, now: float, left: int = 0) -> Rates:
        """Means at time ``now``, with ``left`` elements of the current message not yet handed out."""
        lots, pace = list(self._lots), self._all
        begun = self._count - left
        if self._began is not None and begun > 0:
            current = _Lot(begun, now - self._began, self._waited, self._queued)
            lots.append(current)
            pace = _with(pace, current)
        count = sum(lot.count for lot in lots)
        if not count:
            return Rates()
        return Rates(
            sum(lot.elapsed for lot in lots) / count,
            sum(lot.waited for lot in lots) / count,
            sum(lot.queued * lot.count for lot in lots) / count,
            pace,
        )

    def _close(self, now: float) -> None:
        if self._began is None or not self._count:
            return
        lot = _Lot(self._count, now - self._began, self._waited, self._queued)
        self._lots.append(lot)
        self._all = _with(self._all, lot)
        self.handed += self._count
        self._counted += self._count
        while self._counted - self._lots[0].count >= WINDOW:
            self._counted -= self._lots.popleft().count


def _with(pace: Pace, lot: _Lot) -> Pace:
    return Pace(pace.elements + lot.count, pace.read_s + lot.elapsed, pace.waited_s + lot.waited)
