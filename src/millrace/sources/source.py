"""Contract of sources. Each format has one module; :mod:`millrace.sources` finds it by node type."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from millrace.planning.split_table import Split, SplitTable
from millrace.sources.read_queues import Feed
from millrace.sources.reads import Reads

ListingProgress = Callable[[int], None]
"""Callback of a listing: called with the number of files looked at since the last call, on any thread."""


def ignore_progress(_files: int) -> None:
    """Ignore the progress of a listing."""


def sliced(lists: Iterable[list[Any]], start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[Any]]:
    """Cut lists of elements to elements ``start`` to ``stop`` (-1: the end), at most ``chunk_size()`` at a time."""
    at = 0
    for elements in lists:
        low, high = max(start - at, 0), len(elements) if stop < 0 else min(stop - at, len(elements))
        at += len(elements)
        while low < high:
            end = min(low + max(1, chunk_size()), high)
            yield elements[low:end]
            low = end
        if 0 <= stop <= at:
            return


class PositionSource(Protocol):
    """Source in which every position costs about the same to read."""

    def fetch(self, positions: range | npt.NDArray[np.int64]) -> list[Any]:
        """Read the elements at ``positions`` (int64, any order), in that order. Called from several threads at once.

        Raises:
            SourceError: with the file's name.
            ElementError: the user's own dataset failed; ``where`` names the item.
        """
        ...


class SequentialSource(Protocol):
    """Source that is read from the start of a split onwards."""

    def read(self, split: Split, start: int, stop: int, chunk_size: Callable[[], int]) -> Iterator[list[Any]]:
        """Read elements ``start`` to ``stop`` (-1: the end) of ``split``, in lists of about ``chunk_size()`` elements.

        No list is empty. ``chunk_size`` is asked before each list, as the engine learns what an element costs; a list
        may be shorter, never longer. Closing the iterator closes what it opened.

        Raises:
            SourceError: with the file's name and the record's number.
        """
        ...


class StoredSource(Protocol):
    """Source of either kind whose elements are stored bytes, which it asks of its :class:`Reads` and of nobody else."""

    def entries(self, unit: int, start: int = 0, stop: int = -1) -> Feed:
        """Foretell the entries that reading a unit asks for, in order. Nothing that is read depends on it.

        Args:
            unit: a position, or the number of a split.
            start: of a split, its first element that is wanted.
            stop: one past the last; -1: the end.
        """
        ...


class SourceType(Protocol):
    """Module of this package, one per format, listed in :mod:`millrace.sources`."""

    def list_source(self, node: Any, reads: Reads, seen: ListingProgress) -> SplitTable:
        """List a source as :func:`millrace.sources.list_source` does; tell ``seen`` of each file that was looked at."""
        ...

    def open_source(self, node: Any, table: SplitTable, reads: Reads) -> PositionSource | SequentialSource:
        """Make the reader of the source that ``table`` describes; it opens no file yet."""
        ...
