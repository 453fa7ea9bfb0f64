"""Index streams (feeds): which units to read, as a stream of int64 arrays, and the arithmetic from node to node."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, groupby
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from millrace.elements.chunk import Chunk, Origin
from millrace.planning.orders import runs
from millrace.planning.units import INFINITE

Array = npt.NDArray[np.int64]
Feed = Iterator[Array]
Route = Callable[[Array], tuple[Array, Array]]

BLOCK = 65536
"""Units per array of a feed."""
_FIRST_BLOCK = 64


def blocks(start: int, stop: int) -> Feed:
    """Yield units ``start`` to ``stop``; of those without end, few at first, as few may be wanted."""
    size = BLOCK if stop < INFINITE else _FIRST_BLOCK
    while start < stop:
        end = min(start + size, stop)
        yield np.arange(start, end, dtype=np.int64)
        start, size = end, min(2 * size, BLOCK)


def ascends(array: Array) -> bool:
    """Whether no unit is smaller than the one before it."""
    return len(array) < 2 or bool((array[1:] >= array[:-1]).all())


def compact(array: Array) -> range | Array:
    """Convert positions to a range where they are contiguous; a sampler may have drawn one of them twice."""
    if len(array) and array[-1] - array[0] == len(array) - 1 and bool((array[1:] > array[:-1]).all()):
        return range(int(array[0]), int(array[-1]) + 1)
    return array


class Cursor:
    """Cursor that takes positions from a feed as elements come along."""

    def __init__(self, feed: Feed) -> None:
        self._feed = feed
        self._array: Array = np.empty(0, np.int64)

    def take(self, count: int) -> Array:
        """Take the next ``count`` positions, fewer at the end."""
        while len(self._array) < count:
            following = next(self._feed, None)
            if following is None:
                break
            self._array = np.concatenate([self._array, following])
        taken, self._array = self._array[:count], self._array[count:]
        return taken


def positioned(chunks: Iterable[Chunk], feed: Feed, origin: Origin) -> Iterator[Chunk]:
    """Give elements an origin of their own: element by element the units of ``feed``."""
    cursor = Cursor(feed)
    for chunk in chunks:
        yield Chunk(chunk.elements, origin, compact(cursor.take(len(chunk))))


class Routes:
    """Distributor of a feed to several readers, each of which may run ahead of the others.

    Args:
        feed: the units, none twice.
        route: for an array of n units, (reader, unit for that reader), each int64 of length n.
        most: how many units a reader has at most: one that has had them all looks for no more.
    """

    def __init__(self, feed: Feed, route: Route, most: Callable[[int], int]) -> None:
        self._feed, self._route, self._most = feed, route, most
        self._queues: dict[int, deque[Array]] = {}
        self._choices: deque[Array] = deque()
        self._lock = threading.Lock()  # a reader may be pulled by a thread of its own

    def _advance(self) -> bool:
        array = next(self._feed, None)
        if array is None:
            return False
        which, within = self._route(array)
        self._choices.append(which)
        for reader in np.unique(which).tolist():
            self._queues.setdefault(reader, deque()).append(within[which == reader])
        return True

    def reader(self, number: int) -> Feed:
        """Yield the units of reader ``number``."""
        left = self._most(number)
        while left > 0:
            with self._lock:
                queue = self._queues.setdefault(number, deque())
                while not queue:
                    if not self._advance():
                        return
                array = queue.popleft()
            left -= len(array)
            yield array

    def choices(self) -> Feed:
        """Yield for each array of the feed the reader of each unit."""
        while True:
            with self._lock:
                if not self._choices and not self._advance():
                    return
                array = self._choices.popleft()
            yield array


def parts(feed: Feed, route: Route) -> Iterator[tuple[int | None, Feed]]:
    """Split a feed into stretches that lie in one part each, as ``route`` says: (part, units in it), in order.

    As soon as units don't ascend any more, None and the rest of the feed follow.
    """
    rest: list[Feed] = []

    def routed() -> Iterator[tuple[int, Array]]:
        for units in feed:
            if not ascends(units):
                rest.append(chain([units], feed))
                return
            which, within = route(units)
            for start, stop in runs(which):
                yield int(which[start]), within[start:stop]

    for part, stretch in groupby(routed(), key=itemgetter(0)):
        yield part, map(itemgetter(1), stretch)
    for units in rest:
        yield None, units


def covered(feed: Feed, shift: int, span: int) -> Iterator[tuple[int, int]]:
    """Find the stretches of positions, as (first, one past the last), that windows cover: of unit i from i * shift on.

    Of windows that follow one another and overlap, or touch, each position is in one stretch only.

    Args:
        feed: units, in any order.
        shift: positions from the beginning of one window to that of the next.
        span: positions of a window.
    """
    last = -2
    for units in feed:
        edges = np.flatnonzero(np.diff(units) != 1) + 1 if shift <= span else np.arange(1, len(units))
        for run in np.split(units, edges) if len(units) else ():
            first, end = int(run[0]) * shift, int(run[-1]) * shift + span
            if shift <= span and run[0] == last + 1:
                first += span - shift
            last = int(run[-1])
            yield first, end


def tee(feed: Feed, count: int) -> list[Feed]:
    """Make ``count`` feeds of the same units; safe to be pulled by different threads."""
    queues: list[deque[Array]] = [deque() for _ in range(count)]
    lock = threading.Lock()

    def branch(queue: deque[Array]) -> Feed:
        while True:
            with lock:
                if not queue:
                    array = next(feed, None)
                    if array is None:
                        return
                    for other in queues:
                        other.append(array)
                array = queue.popleft()
            yield array

    return [branch(queue) for queue in queues]


class Elements:
    """Cursor that takes elements, one chunk's slice after another, from a stream of chunks."""

    def __init__(self, chunks: Iterator[Chunk]) -> None:
        self._chunks = chunks
        self._chunk: Chunk | None = None

    def take(self, count: int) -> Iterator[Chunk]:
        """Take chunks of together ``count`` elements, fewer at the end."""
        while count > 0:
            if self._chunk is None:
                self._chunk = next(self._chunks, None)
                if self._chunk is None:
                    return
            chunk = self._chunk
            if len(chunk) <= count:
                self._chunk = None
            else:
                self._chunk = chunk.slice(count, len(chunk))
                chunk = chunk.slice(0, count)
            count -= len(chunk)
            if len(chunk):
                yield chunk
