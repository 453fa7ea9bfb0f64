"""Recent segments: what was read last of objects, so that what is read piece by piece is fetched once."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future

Range = tuple[int, int]
Fetch = Callable[[list[Range]], Sequence[memoryview]]
SEGMENT_BYTES = 64 << 10
"""Bytes that are fetched at least, and kept: about a message of a block, whose elements are read in any order."""
MOST_BYTES = 64 << 20
"""Bytes that are kept, of one store in one process."""
_LARGE = 16
"""Segments of one range from which on it is fetched as it is: whoever asks for so much asks for it once."""
_WORTH = 1.5
"""Reads of a segment, on average, from which on it is worth keeping whole."""
_SMOOTHING = 64
"""Segments over which that is averaged; and reads in a row that try anew where it was not worth it, of as many rows."""


class RecentSegments:
    """Segments of objects in a bucket, the least recently used of which go first. Thread-safe.

    Elements below a ``shuffle`` lie all over the messages of their blocks. Each alone is a request, and a message is
    fetched for each of its elements; kept for a while, it is fetched once. Where data are so much larger than what is
    kept that segments go before they are read again, exactly what is asked for is fetched, unless it is there. Of these
    reads 64 in a row try anew, of 64 times as many: elements that lie near to one another are read soon after.

    Args:
        most_bytes: bound of what is kept.
    """

    def __init__(self, most_bytes: int = MOST_BYTES) -> None:
        self._most = most_bytes // SEGMENT_BYTES
        self._lock = threading.Lock()
        self._kept: OrderedDict[tuple[Hashable, int], bytes] = OrderedDict()
        self._uses: dict[tuple[Hashable, int], int] = {}
        self._flying: dict[tuple[Hashable, int], Future[bytes]] = {}
        self._worth, self._reads = 2 * _WORTH, 0

    def read(self, name: Hashable, size: int, ranges: Sequence[Range], fetch: Fetch) -> list[bytes | memoryview]:
        """Read ranges of an object; each segment is fetched by one thread, for which others wait.

        Args:
            name: of the object, and of its version.
            size: its bytes.
            ranges: bytes ``start`` to ``stop`` each.
            fetch: reads ranges; what it raises is raised here, and for those who waited for it.
        """
        with self._lock:
            self._reads += 1
            tries = self._worth >= _WORTH or self._reads // _SMOOTHING % _SMOOTHING == 0
            large = [
                stop - start >= _LARGE * SEGMENT_BYTES
                or not (tries or all((name, number) in self._kept for number in _numbers(start, stop)))
                for start, stop in ranges
            ]
        direct = [each for each, alone in zip(ranges, large, strict=True) if alone]
        there = iter(fetch(direct) if direct else ())
        small = [each for each, alone in zip(ranges, large, strict=True) if not alone]
        segments = self._segments(name, size, small, fetch, learns=tries) if small else {}
        return [
            next(there) if alone else _cut(segments, start, stop)
            for (start, stop), alone in zip(ranges, large, strict=True)
        ]

    def _segments(
        self, name: Hashable, size: int, ranges: Sequence[Range], fetch: Fetch, *, learns: bool
    ) -> dict[int, bytes]:
        wanted = sorted({number for start, stop in ranges for number in _numbers(start, stop)})
        found: dict[int, bytes] = {}
        mine: dict[int, Future[bytes]] = {}
        others: dict[int, Future[bytes]] = {}
        with self._lock:
            for number in wanted:
                key = name, number
                if key in self._kept:
                    self._kept.move_to_end(key)
                    self._uses[key] += 1
                    if learns:  # else what has been there for long would be all that is read
                        self._worth += max(0.0, min(self._uses[key], 2 * _WORTH) - self._worth) / _SMOOTHING
                    found[number] = self._kept[key]
                elif key in self._flying:
                    others[number] = self._flying[key]
                else:
                    mine[number] = self._flying[key] = Future()
        if mine:
            found |= self._fetch(name, size, mine, fetch)
        return found | {number: future.result() for number, future in others.items()}

    def _fetch(self, name: Hashable, size: int, mine: dict[int, Future[bytes]], fetch: Fetch) -> dict[int, bytes]:
        asked = [(number * SEGMENT_BYTES, min((number + 1) * SEGMENT_BYTES, size)) for number in mine]
        try:
            got = dict(zip(mine, map(bytes, fetch(asked)), strict=True))
        except BaseException as error:
            with self._lock:
                for number in mine:
                    del self._flying[name, number]
            for future in mine.values():
                future.set_exception(error)
            raise
        with self._lock:
            for number, data in got.items():
                del self._flying[name, number]
                self._kept[name, number], self._uses[name, number] = data, 1
            while len(self._kept) > self._most:
                gone, _ = self._kept.popitem(last=False)
                self._worth += (self._uses.pop(gone) - self._worth) / _SMOOTHING
        for number, future in mine.items():
            future.set_result(got[number])
        return got


def _numbers(start: int, stop: int) -> range:
    """Numbers of the segments that a range lies in."""
    return range(start // SEGMENT_BYTES, -(-stop // SEGMENT_BYTES))


def _cut(segments: dict[int, bytes], start: int, stop: int) -> bytes:
    """Cut a range out of the segments that it lies in; fewer bytes, where one of them is shorter than it should be."""
    parts, at = [], start
    while at < stop:
        number, within = divmod(at, SEGMENT_BYTES)
        part = segments[number][within : within + stop - at]
        parts.append(part)
        if not part:
            break
        at += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
