"""Columns: many numbers, or many similar strings, in few bytes and without an object for each.

A data set may have millions of files. As columns its split table takes some thirty bytes a file, is sent as it lies in
memory, and an entry is read without the others being looked at. What comes from elsewhere is checked as it is decoded,
in bulk; nothing that is decoded takes more than a small multiple of the bytes it is made of.
"""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterable, Iterator
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt

BLOCK = 16
"""Strings from one that is written in full to the next."""

_AT_ONCE = 4096
"""Strings that are compressed at a time, in a matrix of at most :data:`_MATRIX_BYTES`."""
_MATRIX_BYTES = 1 << 20
_EMPTY = 4096
"""Most strings of a column without a byte of their own; others have at least one, in a length or in the text."""
_WIDTHS = {0: "u1", 1: "u1", 2: "<u2", 4: "<u4", 8: "<u8"}


class Integers(msgspec.Struct, frozen=True, array_like=True):
    """Column of integers, each as its distance from the smallest, in as few bytes as the largest takes.

    Attributes:
        count: how many there are.
        base: the smallest.
        width: bytes of each in ``data``: 0 if all are alike, else 1, 2, 4 or 8.
        data: unsigned, little-endian.
    """

    count: int = 0
    base: int = 0
    width: int = 0
    data: bytes = b""

    def __post_init__(self) -> None:
        if self.width not in _WIDTHS or not 0 <= self.count < 1 << 48 or len(self.data) != self.count * self.width:
            raise ValueError(f"a column of {self.count} integers has {len(self.data)} bytes, of {self.width} each")

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> int:
        at = index + self.count if index < 0 else index
        if not 0 <= at < self.count:
            raise IndexError(f"integer {index} of {self.count}")
        return self.base + int.from_bytes(self.data[at * self.width : (at + 1) * self.width], "little")

    def __iter__(self) -> Iterator[int]:
        for start in range(0, self.count, 4096):
            yield from self.part(start, start + 4096)

    def part(self, start: int, stop: int) -> list[int]:
        """Numbers from ``start`` to before ``stop``, or to the end."""
        stop = min(stop, self.count)
        if not self.width:
            return [self.base] * max(0, stop - start)
        found: list[int] = self._offsets()[start:stop].tolist()
        return [self.base + offset for offset in found] if self.base else found

    def array(self) -> npt.NDArray[np.int64]:
        """Convert to an array, int64 of shape (count,); numbers of unsigned columns may not fit."""
        if not self.width:
            return np.full(self.count, self.base, np.int64)
        return self._offsets().astype(np.int64) + self.base

    def places_of(self, number: int) -> npt.NDArray[np.intp]:
        """Find where ``number`` is, intp of shape (places,), in ascending order; in unsigned columns too."""
        offset = number - self.base
        if not 0 <= offset < 1 << 8 * self.width:
            return np.zeros(0, np.intp)
        return np.flatnonzero(self._offsets() == offset) if self.width else np.arange(self.count)

    def within(self, low: int, high: int) -> bool:
        """Whether all lie between ``low`` and ``high``, both included."""
        if not self.count:
            return True
        offsets = self._offsets()
        least, most = (int(offsets.min()), int(offsets.max())) if self.width else (0, 0)
        return low <= self.base + least and self.base + most <= high

    @property
    def total(self) -> int:
        """Sum of all, however large."""
        if not self.width:
            return self.base * self.count
        offsets = self._offsets().astype(np.uint64)
        halves = int((offsets >> np.uint64(32)).sum()), int((offsets & np.uint64(0xFFFFFFFF)).sum())
        return self.base * self.count + (halves[0] << 32) + halves[1]

    def _offsets(self) -> npt.NDArray[Any]:
        return np.frombuffer(self.data, _WIDTHS[self.width])


def integers(values: Iterable[int]) -> Integers:
    """Make a column of numbers, all of which are of 64 bits, with a sign or all without one."""
    if isinstance(values, array):
        found: npt.NDArray[Any] = np.frombuffer(values, values.typecode) if values else np.zeros(0, np.int64)
    else:
        listed = list(values)
        found = np.array(listed, np.uint64 if max(listed, default=0) >= 1 << 63 else np.int64)
    if not len(found):
        return Integers()
    base, top = int(found.min()), int(found.max())
    width = next(width for width in _WIDTHS if top - base < 1 << 8 * width)
    # A difference of int64 may need the 64th bit; unsigned arithmetic has it.
    offsets = found.astype(np.uint64) - np.uint64(base % (1 << 64))
    return Integers(len(found), base, width, offsets.astype(_WIDTHS[width]).tobytes() if width else b"")


class Strings(msgspec.Struct, frozen=True, array_like=True, dict=True):
    """Column of strings, each without the beginning that it shares with the one before.

    The first of each :data:`BLOCK` is written in full, so that any can be read by way of a few others.

    Attributes:
        shared: by string, how many bytes it begins with that the one before begins with.
        added: by string, how many bytes follow on these.
        text: the bytes that follow, UTF-8; file names that are none keep their bytes, as ``os.fsencode`` has it.
    """

    shared: Integers = Integers()
    added: Integers = Integers()
    text: bytes = b""

    def __post_init__(self) -> None:
        most, count = len(self.text), len(self.shared)
        # Before anything is made of it: a column of equal numbers takes no bytes, and may claim any count.
        affordable = most + len(self.shared.data) + len(self.added.data) + _EMPTY
        if count != len(self.added) or count > affordable:
            raise ValueError(f"strings are damaged: {count} in {most} bytes")
        if not self.added.within(0, most) or not self.shared.within(0, most):
            raise ValueError("strings are damaged: their lengths are not those of their text")
        shared, added = self.shared.array(), self.added.array()
        if int(added.sum()) != most or shared[::BLOCK].any() or (shared[1:] > shared[:-1] + added[:-1]).any():
            raise ValueError("strings are damaged: their parts do not make up their text")

    def __len__(self) -> int:
        return len(self.shared)

    def __getitem__(self, index: int) -> str:
        at = index + len(self) if index < 0 else index
        if not 0 <= at < len(self):
            raise IndexError(f"string {index} of {len(self)}")
        block, within = divmod(at, BLOCK)
        latest: tuple[int, list[str]] = self.__dict__.get("_latest", (-1, []))  # as one, as other threads may read, too
        known, strings = latest
        if known != block:
            strings = self._block(block)
            self.__dict__["_latest"] = block, strings
        return strings[within]

    def __iter__(self) -> Iterator[str]:
        for block in range(-(-len(self) // BLOCK)):
            yield from self._block(block)

    @functools.cached_property
    def _starts(self) -> npt.NDArray[np.int64]:
        """Offset in the text of each block."""
        ends = np.cumsum(self.added.array())
        return np.concatenate([np.zeros(1, np.int64), ends[BLOCK - 1 :: BLOCK]])

    def _block(self, block: int) -> list[str]:
        first, at = block * BLOCK, int(self._starts[block])
        found, last = [], b""
        for shared, added in zip(
            self.shared.part(first, first + BLOCK), self.added.part(first, first + BLOCK), strict=True
        ):
            last = last[:shared] + self.text[at : at + added]
            at += added
            found.append(last.decode("utf-8", "surrogateescape"))
        return found


class StringsWriter:
    """Writer of a column of strings, some at a time, without holding more than the column and these."""

    def __init__(self) -> None:
        self._shared, self._added = array("I"), array("I")
        self._text = bytearray()
        self._waiting: list[bytes] = []
        self._last = b""

    def __len__(self) -> int:
        return len(self._shared) + len(self._waiting)

    def add(self, string: str) -> None:
        """Append one string.

        Raises:
            UnicodeEncodeError: the string is no file name and no text.
        """
        self.extend([string.encode("utf-8", "surrogateescape")])

    def extend(self, strings: Iterable[bytes]) -> None:
        """Append strings as their bytes."""
        self._waiting += strings
        if len(self._waiting) >= _AT_ONCE:
            self._write()

    def column(self) -> Strings:
        """Return the column of all that were added."""
        self._write()
        return Strings(integers(self._shared), integers(self._added), bytes(self._text))

    def _write(self) -> None:
        waiting, self._waiting = self._waiting, []
        start = 0
        while start < len(waiting):
            some = waiting[start : start + _AT_ONCE]
            while len(some) > 1 and len(some) * max(map(len, some)) > _MATRIX_BYTES:
                some = some[: len(some) // 2]
            self._compress(some)
            start += len(some)

    def _compress(self, some: list[bytes]) -> None:
        """Write strings as rows of a matrix, all at a time."""
        listed = [self._last[: max(map(len, some))], *some]
        matrix = np.array(listed, bytes).view(np.uint8).reshape(len(listed), -1)
        lengths = np.fromiter(map(len, listed), np.int64, len(listed))
        differs = matrix[1:] != matrix[:-1]
        shared = np.where(differs.any(1), differs.argmax(1), matrix.shape[1])
        shared = np.minimum(shared, np.minimum(lengths[1:], lengths[:-1]))  # zeros behind the shorter one are no bytes
        shared[-len(self._shared) % BLOCK :: BLOCK] = 0
        at = np.arange(matrix.shape[1])
        self._text += matrix[1:][(at >= shared[:, None]) & (at < lengths[1:, None])].tobytes()
        self._shared.frombytes(shared.astype(np.uintc).tobytes())
        self._added.frombytes((lengths[1:] - shared).astype(np.uintc).tobytes())
        self._last = some[-1]
