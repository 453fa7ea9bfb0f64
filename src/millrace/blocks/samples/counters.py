"""Counters that the processes of one host add to together, without locks: each has a row of its own in a file."""

from __future__ import annotations

import mmap
import operator
import os
import threading
import weakref
from typing import Any, Final

import msgspec
import numpy as np

from millrace.blocks.samples.claims import lock
from millrace.policies.figures import label
from millrace.private_folder import private

_ROWS = 1024
"""Processes that may count at a time. Rows of those that ended are taken over, with what they counted."""


class SampleCounts(msgspec.Struct, frozen=True):
    """Counts of a dataset's reads and fetches, in all processes that share its cache.

    Attributes:
        hits: reads that found their sample in the cache.
        misses: reads that had to get it from the dataset, or waited for somebody who was getting it.
        joined: of the misses, those that waited for a fetch which was under way.
        waited_s: seconds that reads took in all: looking it up, fetching, waiting.
        missed_s: of these, seconds of misses.
        fetched: samples that were got from the dataset, by reads and ahead of them.
        ahead: of these, those that were fetched ahead of being read.
        fetch_s: seconds that fetches took, on whatever threads.
        stored: samples that were put into the cache.
        stored_bytes: bytes of those.
        evicted: samples of this dataset or another that left the cache to make room.
        failed: fetches ahead that failed; a read of that sample tries again, and raises what is wrong.
        refused: samples that could not be kept, because they are too large, can't be pickled or the disk is full.
    """

    hits: int = 0
    misses: int = 0
    joined: int = 0
    waited_s: float = 0.0
    missed_s: float = 0.0
    fetched: int = 0
    ahead: int = 0
    fetch_s: float = 0.0
    stored: int = 0
    stored_bytes: int = 0
    evicted: int = 0
    failed: int = 0
    refused: int = 0

    def __add__(self, other: SampleCounts) -> SampleCounts:
        return SampleCounts(*map(operator.add, msgspec.structs.astuple(self), msgspec.structs.astuple(other)))

    def prometheus(self, **labels: str) -> str:
        """Write the counts as metrics, in the text format that Prometheus reads.

        Args:
            **labels: of every metric, such as ``dataset="train"``.
        """
        written = ",".join(f'{name}="{label(value)}"' for name, value in labels.items())
        lines = []
        for name, count in msgspec.structs.asdict(self).items():
            unit = name.removesuffix("_s") + "_seconds" if name in _SECONDS else name
            metric = f"millrace_samples_{unit}_total"
            lines += [f"# TYPE {metric} counter", f"{metric}{{{written}}} {count}"]
        return "\n".join([*lines, ""])

    @property
    def reads(self) -> int:
        """Samples that were read."""
        return self.hits + self.misses

    @property
    def miss_rate(self) -> float:
        """Share of the reads that missed, between 0 and 1."""
        return self.misses / self.reads if self.reads else 0.0


_FIELDS: Final = tuple(field.name for field in msgspec.structs.fields(SampleCounts))
_SECONDS: Final = frozenset(name for name in _FIELDS if name.endswith("_s"))
_COLUMNS = 1 + len(_FIELDS)
"""Whose counts they are, and the counts."""
_BYTES = _ROWS * _COLUMNS * 8


class SampleCounters:
    """Counters in a file. Thread-safe, and usable in forked children.

    Args:
        path: of the file.
        owner: number of whom this process counts for; several may count in one file.
    """

    def __init__(self, path: str, owner: int = 0) -> None:
        self._path, self._owner = path, owner
        self._lock = threading.Lock()
        self._pid = -1
        self._open()

    def _open(self) -> None:
        """Map the file, and find a row that no other living process counts in."""
        self._handle = private(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC)
        self._close = weakref.finalize(self, os.close, self._handle)
        os.posix_fallocate(self._handle, 0, _BYTES)
        self._table = np.frombuffer(mmap.mmap(self._handle, _BYTES), np.int64).reshape(_ROWS, _COLUMNS)
        row = self._table[self._free_row()]
        row[0] = self._owner
        self._row = row[1:]
        self._pid = os.getpid()

    def _free_row(self) -> int:
        """Find a row to count in: left by a process of the same owner if there is one, or nobody's, or else any."""
        owners = self._table[:, 0]
        for these in (lambda row: owners[row] == self._owner, lambda row: owners[row] == 0, lambda _: True):
            for row in range(_ROWS):
                if these(row) and lock(self._handle, row, wait=False) and these(row):
                    return row
        return _ROWS - 1  # counting beside somebody else may lose some of it, which is better than to fail

    def add(self, **counts: float) -> None:
        """Add to counters of :class:`SampleCounts`, by name."""
        if self._pid != os.getpid():  # what a forked child inherits is its parent's row, and a lock that may be held
            self._lock = threading.Lock()
            self._open()
        with self._lock:
            for name, count in counts.items():
                self._row[_FIELDS.index(name)] += round(count * 1e9) if name in _SECONDS else count

    def read(self) -> SampleCounts:
        """Sum what all processes have counted."""
        return _summed(self._table)

    def reads(self) -> int:
        """Count the samples that were read by all processes of this owner; cheaper than :meth:`read`."""
        return int(self._table[self._table[:, 0] == self._owner, 1:3].sum())

    def close(self) -> None:
        """Leave the row to others; what is counted later counts for nothing. Idempotent."""
        with self._lock:
            if self._pid == os.getpid():
                self._close()
                self._row = np.zeros(len(_FIELDS), np.int64)


def read_counts(path: str) -> SampleCounts:
    """Sum what is counted in the file at ``path``, without counting there."""
    return _summed(np.fromfile(path, np.int64).reshape(-1, _COLUMNS))


def _summed(table: np.ndarray[Any, np.dtype[np.int64]]) -> SampleCounts:
    sums = table[:, 1:].sum(axis=0).tolist()
    return SampleCounts(*(n / 1e9 if name in _SECONDS else n for name, n in zip(_FIELDS, sums, strict=True)))
