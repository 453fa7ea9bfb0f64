"""Refills of a reservoir: elements from all over the data, read forward in one go and handed out in random order.

Which element comes at a position of the output is said by the order alone. So a refill may be any run of positions: as
many as the user said, or as many as there is room for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.run.index_streams import Array, Cursor, Feed, compact


class Refills:
    """Reader of the units of a feed, a refill at a time.

    Args:
        at: finds the unit of the input at each position of the output.
        read: reads units of the input that ascend, none twice, each of which is one element.
        size: most elements of a refill.
        budget: most bytes of a refill; one element may have more.
        each: bytes of an element, about; 0: unknown.
    """

    def __init__(
        self, at: Callable[[Array], Array], read: Callable[[Feed], Iterator[Chunk]], size: int, budget: int, each: float
    ) -> None:
        self._at, self._read, self._budget = at, read, budget
        self._room = max(1, min(size, int(budget / each))) if each else size
        self._left: Array = np.empty(0, np.int64)

    def chunks(self, feed: Feed, origin: Origin, size: Callable[[], int]) -> Iterator[Chunk]:
        """Yield the elements at the positions of a feed, in chunks of ``size()`` elements."""
        cursor = Cursor(feed)
        while True:
            missing = self._room - len(self._left)
            positions = np.concatenate([self._left, cursor.take(missing)]) if missing > 0 else self._left[: self._room]
            rest = self._left[self._room :]
            if not len(positions):
                return
            elements, failure = self._refill(positions)
            if failure is None and len(elements) < len(positions):
                self._room = len(elements)
            self._left = np.concatenate([positions[len(elements) :], rest])
            start = 0
            while start < len(elements):
                stop = min(len(elements), start + max(1, size()))
                yield Chunk(elements[start:stop], origin, compact(positions[start:stop]))
                start = stop
            if failure is not None:
                raise failure

    def _refill(self, positions: Array) -> tuple[list[Any], Exception | None]:
        """Read the elements of the first positions, as many as there is room for; and what went wrong behind them."""
        units, places = np.unique(self._at(positions), return_inverse=True)
        first = np.full(len(units), len(positions))  # position at which each is handed out
        np.minimum.at(first, places, np.arange(len(positions)))
        elements: list[Any] = [None] * len(units)
        sizes = np.zeros(len(units))
        read, wanted = 0, len(positions)
        failure = None
        try:
            for chunk in self._read(iter([units])):
                here = slice(read, read + len(chunk))
                for number in (read + np.flatnonzero(first[here] < wanted)).tolist():
                    elements[number] = chunk.elements[number - read]
                sizes[here] = np.where(first[here] < wanted, chunk.nbytes / max(1, len(chunk)), 0)
                read += len(chunk)
                while sizes.sum() > self._budget and wanted > 1:
                    wanted -= wanted // 2
                    for number in np.flatnonzero(first[:read] >= wanted).tolist():
                        elements[number], sizes[number] = None, 0
        except Exception as error:  # noqa: BLE001 - raised once what comes before it has been handed out
            missing = int(first[read:].min())
            if missing < wanted:
                wanted, failure = missing, error
        return [elements[place] for place in places[:wanted].tolist()], failure
