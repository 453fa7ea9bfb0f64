"""Refills of a stream whose length nobody knows: each element has a random key, and those with the smallest come first.

Sorted by such keys the elements are in uniform random order, so that a refill is a uniform sample of what has not come
yet (bottom-k sampling: Cohen and Kaplan, "Summarizing data using bottom-k sketches", 2007). It takes a pass over the
stream, in order, and memory for the refill alone. Levels between the stream and memory (OneAccess, section 3) hold
larger refills, of which the smaller ones are taken: which element comes when is the same without them.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import IO, Any, NamedTuple, Protocol

import msgspec
import numpy as np

from millrace.elements import codec
from millrace.elements.chunk import Chunk
from millrace.elements.tree import sizes_of, tree_map
from millrace.engine.run.index_streams import Array, Feed
from millrace.errors import PipelineError, StoreFullError
from millrace.planning.orders import FullPermutation

END = (1 << 62) - 1
"""Above all keys."""
_BEFORE = -1
"""Below all keys."""
_SPARE = 64
"""Elements beyond a refill, or a quarter of it, that are held until those with the largest keys are sorted out."""
_SLOT_BYTES = 48
"""Bytes of an element's slots, and of its key."""


class Keyed(NamedTuple):
    """Some elements, and their keys: int64, different ones, in [0, END)."""

    keys: Array
    elements: list[Any]


class Level(Protocol):
    """Elements that can be read several times, in an order of their own."""

    def above(self, low: int) -> tuple[Generator[Keyed], int]:
        """Begin to read; gives elements, and a key: those above ``low`` and not above that one are among them."""
        ...


class Passes(Level):
    """The stream itself: each reading is a pass over it.

    Args:
        read: begins a pass, which gives the same elements in the same order each time.
        key: that the random keys follow from.
        label: of the operator, for messages.
    """

    def __init__(self, read: Callable[[], Iterator[Chunk]], key: int, label: str) -> None:
        self._read, self._label = read, label
        self._order = FullPermutation(END, key)  # of two elements' places none is the other's
        self.count: int | None = None
        """Elements of a pass; None: there was none yet."""

    def above(self, low: int) -> tuple[Generator[Keyed], int]:
        """Begin a pass, whatever ``low`` is.

        Raises:
            PipelineError: when it ends, if it had another number of elements than the one before.
        """
        return self._pass(), END

    def _pass(self) -> Generator[Keyed]:
        count = 0
        for chunk in self._read():
            yield Keyed(self._order.at(np.arange(count, count + len(chunk))), chunk.elements)
            count += len(chunk)
        self._ended(count)

    def _ended(self, count: int) -> None:
        if self.count not in (None, count):
            raise PipelineError(
                f"{self._label} reads its input several times, and once it had {self.count:,} elements, then {count:,}:"
                " make what is before it give the same each time, or save() that and load() it"
            )
        self.count = count

    def measure(self) -> int:
        """Count the elements, by a pass."""
        self.count = sum(map(len, self._read()))
        return self.count

    def pick(self, feed: Feed) -> Iterator[Chunk]:
        """Read the elements at the positions of a feed, which ascend, by a pass up to the last of them."""
        positions = np.concatenate(list(feed))
        count = at = 0
        for chunk in self._read():
            end = int(np.searchsorted(positions, count + len(chunk)))
            if end > at:
                chosen = (positions[at:end] - count).tolist()
                yield chunk.keep(chosen, [chunk.elements[index] for index in chosen])
            at, count = end, count + len(chunk)
            if at == len(positions):
                return
        self._ended(count)


class SpilledLevel(Level):
    """Refill on a local disk, in a file without a name, which is gone however the process ends.

    Args:
        below: what it is taken from.
        passes: the stream below all levels.
        folder: of the file; empty: that for temporary files.
        size: elements that it has at most.
        label: of the operator, for messages.
    """

    def __init__(self, below: Level, passes: Passes, folder: str, size: int, label: str) -> None:
        self._below, self._passes, self._folder, self._size, self._label = below, passes, folder, size, label
        self._high = _BEFORE
        self._file: IO[bytes] | None = None

    def above(self, low: int) -> tuple[Generator[Keyed], int]:
        """Begin to read the file, which is filled anew if all of it lies below.

        Raises:
            StoreFullError: the disk is full.
            PipelineError: the file can't be made.
            CodecError: an element has no form as bytes.
        """
        if low >= self._high:
            self._fill(low)
        return self._held(), self._high

    def _fill(self, low: int) -> None:
        self.close()
        with self._errors():
            self._file = tempfile.TemporaryFile(prefix="millrace-reservoir-", dir=self._folder or None)  # noqa: SIM115
        chunks, high = self._below.above(low)
        # Once it is known how many there are, little is written that is sorted out later.
        limit = high if self._passes.count is None else min(high, _likely(low, self._size, self._passes.count))
        kept, count = [np.empty(0, np.int64)], 0  # keys
        most = self._size + max(_SPARE, self._size // 4)
        with contextlib.closing(chunks):
            for keys, elements in chunks:
                chosen = np.flatnonzero((keys > low) & (keys <= limit))
                if not len(chosen):
                    continue
                self._write(keys[chosen], [elements[index] for index in chosen.tolist()])
                kept.append(keys[chosen])
                count += len(chosen)
                if count > most:
                    smallest, limit = _smallest(np.concatenate(kept), self._size)
                    kept, count = [smallest], self._size
        if count > self._size:
            _, limit = _smallest(np.concatenate(kept), self._size)
        self._high = limit

    def _write(self, keys: Array, elements: list[Any]) -> None:
        pieces = codec.encode(elements)
        head = msgspec.msgpack.encode((keys.tobytes(), sum(memoryview(piece).nbytes for piece in pieces)))
        assert self._file is not None
        with self._errors():
            self._file.write(len(head).to_bytes(4, "little") + head)
            for piece in pieces:
                self._file.write(memoryview(piece).cast("B"))

    def _held(self) -> Generator[Keyed]:
        file = self._file
        assert file is not None
        with self._errors():
            file.seek(0)  # after it has written what it still held
        while length := file.read(4):
            packed, size = msgspec.msgpack.decode(file.read(int.from_bytes(length, "little")), type=tuple[bytes, int])
            message, keys = file.read(size), np.frombuffer(packed, np.int64)
            chosen = np.flatnonzero(keys <= self._high)
            if len(chosen):
                elements = codec.decode(message, own=True)
                yield Keyed(keys[chosen], [elements[index] for index in chosen.tolist()])

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            place = self._folder or tempfile.gettempdir()
            if isinstance(error, FileNotFoundError | NotADirectoryError | PermissionError):
                raise PipelineError(f"{self._label}: a level can't be kept in {place}: {error.strerror}") from error
            raise StoreFullError(
                f"{self._label}: a level of {self._size:,} elements in {place} cannot grow: {error.strerror}; make it "
                "smaller, or give the path of another folder"
            ) from error

    def close(self) -> None:
        """Close the file. Idempotent."""
        if self._file is not None:
            with contextlib.suppress(OSError):  # what it could not write to a full disk, as has been said
                self._file.close()
            self._file = None


@contextlib.contextmanager
def levels_above(passes: Passes, sizes: Sequence[int], folders: Sequence[str], label: str) -> Iterator[Level]:
    """Stack levels on a stream, from the largest on, in these folders or that for temporary files; gives the last."""
    with contextlib.ExitStack() as stack:
        last: Level = passes
        for size, folder in zip(sizes, folders or [""] * len(sizes), strict=True):
            last = stack.enter_context(contextlib.closing(SpilledLevel(last, passes, folder, size, label)))
        yield last


def refills(level: Level, size: int, budget: int) -> Iterator[list[Any]]:
    """Yield refills until there is no element left, each in random order; they are emptied by whoever takes them.

    Args:
        level: what they are taken from.
        size: elements of a refill, at most.
        budget: bytes of a refill, at most; one element may have more.
    """
    low = _BEFORE
    while low < END:
        held, low = _refill(level, low, size, budget)
        if held:
            yield held


def _refill(level: Level, low: int, size: int, budget: int) -> tuple[list[Any], int]:
    """Read the elements with the smallest keys above ``low``, in the order of these; gives the largest key, too."""
    chunks, limit = level.above(low)
    found, held, sizes, total = [np.empty(0, np.int64)], list[Any](), list[int](), 0  # the first of these are keys
    with contextlib.closing(chunks):
        for keys, elements in chunks:
            chosen = np.flatnonzero((keys > low) & (keys <= limit))
            if not len(chosen):
                continue
            more = [tree_map(_alone, elements[index]) for index in chosen.tolist()]
            nbytes = [each + _SLOT_BYTES for each in sizes_of(more)]
            found.append(keys[chosen])
            held += more
            sizes += nbytes
            total += sum(nbytes)
            if len(held) > size + max(_SPARE, size // 4) or total > budget:
                # Rather less than fits, as else each chunk would sort again.
                known = np.concatenate(found)
                stays = _first(known, sizes, size, budget * 3 // 4 if total > budget else budget)
                limit = min(limit, int(known[stays[-1]])) if len(stays) < len(known) else limit
                found, held, sizes = [known[stays]], [held[at] for at in stays], [sizes[at] for at in stays]
                total = sum(sizes)
    known = np.concatenate(found)
    stays = _first(known, sizes, size, budget)
    if len(stays) < len(known):
        limit = int(known[stays[-1]])
    return [held[at] for at in stays], limit


def _alone(leaf: Any) -> Any:
    """Copy an array that is a part of another one, which it would keep in memory as a whole."""
    return leaf.copy() if type(leaf) is np.ndarray and leaf.base is not None else leaf


def _first(keys: Array, sizes: list[int], size: int, budget: int) -> list[int]:
    """Places of the smallest keys, in their order: as many as may be held, and at least one."""
    order = np.argsort(keys)[:size]
    within = np.cumsum(np.asarray(sizes, np.int64)[order]) <= budget
    return order[: max(1, int(within.sum()))].tolist() if len(order) else []


def _smallest(keys: Array, count: int) -> tuple[Array, int]:
    kept = np.partition(keys, count - 1)[:count]
    return kept, int(kept[-1])


def _likely(low: int, size: int, count: int) -> int:
    """Find a key up to which there are ``size`` elements above ``low`` at most, and rarely more."""
    return low + int((size + 3 * size**0.5) / max(1, count) * END) + 1
