"""One running task: what its operators share, and what each of them is offered."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

import numpy as np

from millrace.elements.chunk import Chunk, Origin
from millrace.engine.calls import Calls
from millrace.engine.feeds import Array, compact
from millrace.engine.measure import Measure, Sizer
from millrace.engine.pool import Pool, ahead, in_order
from millrace.errors import PipelineError
from millrace.graph.nodes import AUTOTUNE, Graph, Opaque, Shuffle
from millrace.ops.contract import Context
from millrace.planning.keys import derive, mix
from millrace.planning.permutation import permute
from millrace.planning.plan import Task
from millrace.planning.tables import SplitTable
from millrace.planning.units import UnitMap
from millrace.sources.contract import PositionSource, SequentialSource

T = TypeVar("T")

DEFAULT_BUFFER_BYTES = 256 << 20


class RunningTask:
    """What all operators of one running task share."""

    def __init__(
        self,
        units: UnitMap,
        task: Task,
        *,
        seed: int,
        epoch: int,
        calls: Calls,
        measures: list[Measure],
        sizer: Sizer,
        pool: Pool | None,
        sources: Callable[[int], PositionSource | SequentialSource],
        nested: Callable[[Any, int], Iterator[Any]],
        leftovers: Mapping[int, list[Any]],
    ) -> None:
        self.units, self.task = units, task
        self.seed, self.epoch = seed, epoch
        self.calls, self.measures, self.pool = calls, measures, pool
        self.source, self.nested = sources, nested
        self.taken = leftovers
        self.left: dict[int, list[Any]] = {}
        self.chunk_size: Callable[[], int] = lambda: sizer.size
        buffer_bytes = units.graph.options().buffer_bytes or DEFAULT_BUFFER_BYTES
        self.budget = buffer_bytes // max(1, len(units.graph.nodes))
        self.window_budget = buffer_bytes

    def shuffle_key(self, number: int, node: Shuffle, repetition: int) -> int:
        """Key of a shuffle's order; the same in every epoch and repetition unless it reshuffles."""
        seed = self.seed if node.seed is None else node.seed
        if not node.reshuffle_each_iteration:
            return derive(seed, number)
        return derive(seed, number, self.epoch, repetition)

    def block_order(self, number: int, child: int, key: int) -> Callable[[Array], Iterator[tuple[int, int]]]:
        """For units of a windowed shuffle, the stretches [start, stop) of its input's units in random block order."""
        bounds = self.units.boundaries(child)
        count = len(bounds) - 1
        order = permute(np.arange(count, dtype=np.int64), count, key) if count else np.empty(0, np.int64)
        begins = bounds[:-1][order]
        ends = np.cumsum(bounds[1:][order] - begins)

        def stretches(units: Array) -> Iterator[tuple[int, int]]:
            for positions in _contiguous(units):
                at, stop = positions.start, positions.stop
                while at < stop:
                    block = int(np.searchsorted(ends, at, side="right"))
                    first = int(ends[block - 1]) if block else 0
                    last = min(stop, int(ends[block]))
                    base = int(begins[block]) - first
                    yield base + at, base + last
                    at = last

        return stretches


def _contiguous(units: Array) -> Iterator[range]:
    edges = (np.flatnonzero(np.diff(units) != 1) + 1).tolist()
    for start, stop in zip([0, *edges], [*edges, len(units)], strict=True):
        if stop > start:
            yield range(int(units[start]), int(units[stop - 1]) + 1)


class NodeContext(Context):
    """What one operator of a running task is offered; see :class:`millrace.ops.contract.Context`."""

    AUTOTUNE = AUTOTUNE

    def __init__(
        self,
        task: RunningTask,
        number: int,
        repetition: int,
        outputs: Callable[[], Iterator[tuple[Origin, int, int]]] | None = None,
    ) -> None:
        self._task, self._number, self._repetition = task, number, repetition
        self._outputs = outputs
        self._node = task.units.graph.nodes[number]
        self._label = str(self._node)

    @property
    def label(self) -> str:
        return self._label

    @property
    def budget(self) -> int:
        # A shuffle's window decides what comes out, so it must not depend on how many operators share the memory.
        return self._task.window_budget if isinstance(self._node, Shuffle) else self._task.budget

    def call(self, function: Opaque, chunk: Chunk) -> tuple[list[int] | None, list[Any]]:
        return self._task.calls.call(self._number, self._label, function, chunk)

    def guard(self, chunk: Chunk, index: int, action: Callable[[], T]) -> tuple[bool, T | None]:
        return self._task.calls.guard(self._label, chunk, index, action)

    def in_order(self, function: Callable[[Chunk], T], chunks: Iterator[Chunk], parallel: int) -> Iterator[T]:
        task = self._task
        measure = task.measures[self._number]
        return in_order(function, chunks, parallel, pool=task.pool, budget=task.budget, measure=measure)

    def ahead(self, chunks: Iterator[Chunk], elements: int) -> Iterator[Chunk]:
        return ahead(chunks, elements, budget=self._task.budget, measure=self._task.measures[self._number])

    def elements_of(self, value: Any, parent: Chunk, index: int) -> Iterator[Any]:
        if isinstance(getattr(value, "graph", None), Graph):
            seed = derive(self._task.calls.key(self._number, parent.origin), int(parent.positions[index]))
            return self._task.nested(value.graph, seed)
        try:
            return iter(value)
        except TypeError:
            raise PipelineError(
                f"{self._label} must return a dataset or something to iterate over, not {type(value).__name__}"
            ) from None

    def generator(self) -> np.random.Generator:
        task = self._task
        if isinstance(self._node, Shuffle):
            key = task.shuffle_key(self._number, self._node, self._repetition)
        else:
            key = derive(task.seed, self._number, task.epoch, self._repetition)
        return np.random.Generator(np.random.PCG64(derive(key, task.task.index)))

    def chunk_size(self) -> int:
        return self._task.chunk_size()

    def mixed(self) -> Origin:
        return Origin(-1 - self._number, self._task.task.index, self._repetition)

    def children(self, parent: Chunk, index: int) -> int:
        return mix(derive(self._number, int(parent.positions[index]))) >> 2

    def outputs(self) -> Iterator[tuple[Origin, int, int]] | None:
        return None if self._outputs is None else self._outputs()

    def leftovers(self) -> Iterable[Any]:
        return self._task.taken.get(self._number, ())

    def leave(self, elements: list[Any]) -> bool:
        if self._task.task.parent < 0:
            return False
        self._task.left[self._number] = elements
        return True

    # -- for reading, beside what operators are offered ----------------------------------------------------------------

    def fetch(self, fetch: Callable[[Array], list[Any]], chunk: Chunk) -> Chunk:
        """The elements at the chunk's positions; errors of a map-style data set's own code name the position."""
        positions = np.asarray(chunk.positions, np.int64)
        try:
            return Chunk(fetch(positions), chunk.origin, compact(positions))
        except OSError:
            raise
        except Exception:  # noqa: BLE001 - a map-style data set is user code
            return self._fetch_each(fetch, Chunk([], chunk.origin, positions))

    def _fetch_each(self, fetch: Callable[[Array], list[Any]], chunk: Chunk) -> Chunk:
        positions = np.asarray(chunk.positions, np.int64)
        kept, elements = [], []
        for index in range(len(positions)):
            one = positions[index : index + 1]
            keep, found = self.guard(chunk, index, lambda one=one: fetch(one)[0])  # type: ignore[misc]
            if keep:
                kept.append(index)
                elements.append(found)
        return Chunk(elements, chunk.origin, positions[np.array(kept, np.int64)])

    def split_starts(self, table: SplitTable) -> Array:
        """First position of each split, int64."""
        counts = np.array([split.count for split in table.splits], np.int64)
        return np.cumsum(counts) - counts


def default_threads() -> int:
    """Threads for user functions when nobody says otherwise: one per core this process may use, and one more, as threads
    that decode also wait.
    """
    return len(os.sched_getaffinity(0)) + 1 if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1) + 1
