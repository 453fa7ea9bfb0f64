"""Choice of the samples of an order that come next, where cached ones stand in for others (Quiver, section 4.6). Pure.

Of the samples that come next many times as many are looked up as are needed. Those that are cached are handed out, the
others stay pending, and later passes go over these alone. So several jobs read one cached part of the data, each in an
order of its own.

A :class:`PendingOrder` has a row for each sample that was drawn from the order and not handed out. Rows stand as the
order has them, so that the first row is the oldest one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

LOOKED_UP = 64
"""Most samples to choose at a time, where a sampler doesn't say how large batches are."""
MOST_PENDING = 1 << 22
"""Most samples to have drawn and not handed out: a sampler need not end. Each takes some 25 bytes, and its index."""
MOST_BEHIND = 4 * MOST_PENDING
"""Most samples to draw behind one that is not handed out: one may never be cached, and a state has a bit for each."""
_FEW = 1024
"""Rows to make room for at first."""


def choice_size(room: int | None) -> int:
    """Decide how many single indices to choose at a time: what was looked up must not have gone when it is read.

    Args:
        room: samples that the cache can hold; None: not known yet.
    """
    return LOOKED_UP if room is None else max(1, min(LOOKED_UP, room // 16))


class Drawn(NamedTuple):
    """Samples of an order, one row each.

    Attributes:
        indices: as the sampler gave them.
        owners: int32, numbers of the datasets that the samples are of.
        numbers: int64, positions in those.
    """

    indices: list[Any]
    owners: NDArray[np.int32]
    numbers: NDArray[np.int64]


class PendingOrder:
    """Samples of an order that were not handed out yet, and how far passes over them have come.

    Row numbers hold until the next call of :meth:`extend` or :meth:`begin_pass`.

    Attributes:
        drawn: samples of the order so far, handed out or not.
        left: of these, those that were not handed out.
        waiting: of those left, the ones that were asked for.
    """

    def __init__(self) -> None:
        self._indices: list[Any] = []
        self._positions = np.empty(_FEW, np.int64)
        self._owners = np.empty(_FEW, np.int32)
        self._numbers = np.empty(_FEW, np.int64)
        self._left = np.zeros(_FEW, bool)
        self._asked = np.zeros(_FEW, bool)
        self._open = np.zeros(_FEW, bool)  # by position behind the base, whether that sample is pending
        self._base = 0  # no position before it is pending
        self._first = 0  # no row before it is left
        self._cursor = 0  # row at which this pass goes on
        self._considered = 0  # row from which on samples come next that may be asked for
        self.drawn = self.left = self.waiting = 0

    def extend(self, drawn: Drawn, kept: NDArray[np.bool_]) -> None:
        """Add samples that come next in the order.

        Args:
            drawn: these samples, but for those that were handed out before.
            kept: for each of them, whether it was not.
        """
        if len(self._indices) + len(drawn.indices) > len(self._left):
            self._make_room(len(drawn.indices))
        begin, end = len(self._indices), len(self._indices) + len(drawn.indices)
        self._indices += drawn.indices
        self._positions[begin:end] = self.drawn + np.flatnonzero(kept)
        self._extend_open(kept)
        self._owners[begin:end], self._numbers[begin:end] = drawn.owners, drawn.numbers
        self._left[begin:end], self._asked[begin:end] = True, False
        self.drawn += len(kept)
        self.left += end - begin

    def _extend_open(self, kept: NDArray[np.bool_]) -> None:
        begin, end = self.drawn - self._base, self.drawn - self._base + len(kept)
        if end > len(self._open):
            closed = self._oldest_position() - self._base
            old = self._open[closed:begin]
            self._open = np.zeros(max(_FEW, 2 * (len(old) + len(kept))), bool)
            self._open[: len(old)] = old
            self._base += closed
            begin, end = begin - closed, end - closed
        self._open[begin:end] = kept

    def _oldest_position(self) -> int:
        return int(self._positions[self._first]) if self.left else self.drawn

    def _make_room(self, more: int) -> None:
        if 2 * self.left <= len(self._indices):
            self._drop_handed_out()
        size = len(self._left)
        while size < len(self._indices) + more:
            size *= 2
        rows = len(self._indices)
        for name in ("_positions", "_owners", "_numbers", "_left", "_asked"):
            old = getattr(self, name)
            new = np.zeros(size, old.dtype)
            new[:rows] = old[:rows]
            setattr(self, name, new)

    def _drop_handed_out(self) -> None:
        rows = len(self._indices)
        left = np.flatnonzero(self._left[:rows])
        self._cursor, self._considered = np.searchsorted(left, (self._cursor, self._considered)).tolist()
        self._first = 0
        self._indices = [self._indices[row] for row in left.tolist()]
        for column in (self._positions, self._owners, self._numbers, self._asked):
            column[: len(left)] = column[left]
        self._left[:rows] = False
        self._left[: len(left)] = True

    # -- choosing ------------------------------------------------------------------------------------------------------

    def ahead(self) -> int:
        """Count the samples that this pass has not come to."""
        rows = slice(self._cursor, len(self._indices))
        return int(np.count_nonzero(self._left[rows] & ~self._asked[rows]))

    def scan(self, most: int) -> NDArray[np.int64]:
        """Rows that this pass comes to next, up to ``most``; it goes on behind them.

        Samples that were asked for are passed over: a pass would else go no further than they are fetched ahead, and
        find nothing that others have fetched.
        """
        rows, self._cursor = self._next(self._cursor, most, unasked=True)
        return rows

    def scan_again(self, row: int) -> None:
        """Let this pass go on behind ``row``, which it has come to already."""
        self._cursor = row + 1

    def begin_pass(self) -> None:
        """Begin a pass over all that is left."""
        self._cursor = 0
        if 2 * self.left <= len(self._indices):
            self._drop_handed_out()

    def overdue(self, most: int) -> NDArray[np.int64]:
        """Rows, up to ``most``, that may be passed over no more: that many samples were drawn behind them."""
        rows = self.oldest(most)
        return rows[self._positions[rows] < self.drawn - MOST_BEHIND]

    def oldest(self, most: int) -> NDArray[np.int64]:
        """First rows that are left, up to ``most``."""
        return self._next(self._first, most)[0]

    def _next(self, begin: int, most: int, *, unasked: bool = False) -> tuple[NDArray[np.int64], int]:
        """Rows that are left from ``begin`` on, up to ``most``, and the row behind them."""
        rows, size = len(self._indices), 2 * most
        while True:
            part = slice(begin, min(rows, begin + size))
            found = np.flatnonzero(self._left[part] & ~self._asked[part] if unasked else self._left[part])
            if len(found) >= most:
                return found[:most] + begin, begin + int(found[most - 1]) + 1 if most else begin
            if begin + size >= rows:
                return found + begin, rows
            size *= 4

    def take(self, rows: NDArray[np.int64]) -> list[tuple[int, Any]]:
        """Hand out samples; returns their positions in the order, and their indices."""
        self._left[rows] = False
        self._open[self._positions[rows] - self._base] = False
        self.left -= len(rows)
        self.waiting -= int(np.count_nonzero(self._asked[rows]))
        self._asked[rows] = False
        oldest = self.oldest(1)
        self._first = int(oldest[0]) if len(oldest) else len(self._indices)
        return [
            (position, self._indices[row])
            for position, row in zip(self._positions[rows].tolist(), rows.tolist(), strict=True)
        ]

    def places(self, rows: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Give the datasets that the samples of these rows are of, and their positions in those."""
        return self._owners[rows], self._numbers[rows]

    # -- fetching ------------------------------------------------------------------------------------------------------

    def consider(self, most: int) -> NDArray[np.int64]:
        """Rows to ask for next, up to ``most``, if they are not cached: the oldest ones that were not asked for.

        Behind the last row that was drawn it begins anew.
        """
        if self._considered >= len(self._indices):
            self._considered = self._first
        rows, self._considered = self._next(self._considered, most, unasked=True)
        return rows

    def ask(self, rows: NDArray[np.int64]) -> None:
        """Count these samples as asked for."""
        self._asked[rows] = True
        self.waiting += len(rows)

    def asked(self) -> NDArray[np.int64]:
        """Rows that were asked for and are left, the oldest ones first."""
        return np.flatnonzero(self._asked[self._first : len(self._indices)]) + self._first

    # -- states --------------------------------------------------------------------------------------------------------

    def pending(self, chosen: Sequence[int] = ()) -> tuple[int, bytes]:
        """Write down which samples are pending: a bit for each from the oldest one to the last one that was drawn.

        Args:
            chosen: positions of samples that were handed out here, and that whoever asks counts as pending.

        Returns:
            The oldest one's position in the order, and the bits.
        """
        begin = min([self._oldest_position(), *chosen])
        bits = np.zeros(self.drawn - begin, bool)
        known = max(begin, self._base)
        bits[known - begin :] = self._open[known - self._base : self.drawn - self._base]
        bits[np.asarray(chosen, np.int64) - begin] = True
        return begin, np.packbits(bits).tobytes()


def kept_of(begin: int, bits: bytes, drawn: int) -> NDArray[np.bool_]:
    """Read what :meth:`PendingOrder.pending` wrote: for each sample of an order, up to ``drawn``, if it is pending."""
    kept = np.zeros(drawn, bool)
    kept[begin:] = np.unpackbits(np.frombuffer(bits, np.uint8), count=drawn - begin).astype(bool)
    return kept
