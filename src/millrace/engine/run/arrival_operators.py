"""Operators behind ``distribute()``: they run on what arrives of one epoch, in the training process.

They are the engine's own, over chunks of what arrives. In addition each element that was handed out is traced to its
arrivals, so that a state can say where to go on. An element's *path* says that: the number of the arrival it comes from
and, if ``flat_map`` or ``unbatch`` made it, which of their elements it is, one number for each of them. Collecting
operators (``batch``, ``rebatch``) begin a *level*: above it paths begin with the number of the collection, and a log
below it says which path that is. Chunks carry their paths in their origin, so that no operator knows of it and nothing
is done for each element.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import pairwise
from operator import length_hint
from typing import Any, Generic, NamedTuple, TypeVar, cast

import numpy as np

from millrace.elements.chunk import Chunk, Origin, Positions
from millrace.engine.metrics import Measure, Sizer, clock, close
from millrace.engine.run.arrival_metrics import ArrivalMetrics
from millrace.engine.run.program import nested
from millrace.engine.run.task import Budget, NodeContext, RunningTask
from millrace.engine.threads.operator_threads import OperatorThreads, ThreadPool
from millrace.engine.user_code.tracing import Path, Traced, traced
from millrace.errors import StateError
from millrace.graph import nodes as g
from millrace.graph.operator_graph import Graph
from millrace.host_limits import usable_cores
from millrace.ops import OPERATORS
from millrace.ops.stacking import count_rows, slice_rows
from millrace.planning.checkpoint import Part
from millrace.planning.plan import Task
from millrace.planning.split_table import TableSummary
from millrace.planning.units import UnitMap

Chunks = Iterator[Chunk]

COUNTING = (g.Take, g.Skip, g.Shard, g.Enumerate)
"""Operators that count the elements that one process gets."""
_MAKING = (g.FlatMap, g.Unbatch)
_COLLECTING = (g.Batch, g.PaddedBatch)
_PASSING = (g.Map, g.Filter, g.TakeWhile, g.Prefetch, g.WithOptions)


Arrival = tuple[list[Any], int, int]
"""Elements that arrived, their task, and the number of the first among its outputs; no elements: there are no more."""


class Begin(NamedTuple):
    """Position where the operators begin.

    Attributes:
        seed: of the job.
        epoch: its number.
        rank: of this consumer.
        counts: what a state says of the operators that are :func:`counted`; empty: nothing was read.
        parts: outputs that were handed out in part.
    """

    seed: int
    epoch: int
    rank: int = 0
    counts: Sequence[int] = ()
    parts: Iterable[Part] = ()


def counted(graph: Graph) -> list[int]:
    """List the node ids of operators of which states count something.

    Counting operators count the elements that they have had, collecting ones the collections that they gave.
    """
    kinds = (*COUNTING, *_COLLECTING, g.Rebatch)
    return [number for number, node in enumerate(graph.nodes) if isinstance(node, kinds)]


def inexact(graph: Graph) -> g.Node | None:
    """Find the first operator because of which there is no state in the middle of an epoch; None: none."""
    collected = False
    for node in graph.nodes[1:]:
        if isinstance(node, _COLLECTING):
            collected = True
        elif isinstance(node, (*_MAKING, g.Rebatch)):
            if collected:
                return node
            collected = isinstance(node, g.Rebatch)
        elif not isinstance(node, (*_PASSING, *COUNTING)):
            return node
    return None


class ArrivalOperators:
    """Run of the operators behind ``distribute()`` over one epoch. One thread pulls chunks.

    Args:
        graph: a chain of operators whose source is :class:`millrace.graph.nodes.Arrivals`.
        begin: where they begin.
        account: is told what arrives, and what becomes of it.
        take: gives what arrives next; waits for it.
        wake: has whoever waits there give up, for good.
        metrics: of the operators and of who pulls; None: nobody looks at them.
    """

    def __init__(
        self,
        graph: Graph,
        begin: Begin,
        account: Account,
        take: Callable[[], Arrival],
        wake: Callable[[], None] = lambda: None,
        metrics: ArrivalMetrics | None = None,
    ) -> None:
        pool = ThreadPool(usable_cores(), graph.options().num_threads)
        threads = [OperatorThreads(pool) for _ in graph.nodes]
        metrics = metrics or ArrivalMetrics(graph)
        self._task = task = RunningTask(
            UnitMap(graph, {0: TableSummary(cheap=False, count=-1, pieces=1)}, begin.seed),
            Task(begin.rank, 0, 1),
            seed=begin.seed,
            epoch=begin.epoch,
            budget=Budget(graph),
            measures=metrics.begin(threads, min(pool.cores, pool.most)),
            sizers=[Sizer() for _ in graph.nodes],
            operator_threads=threads,
            sources=_no_source,
            reads=lambda _number: None,
            nested=nested,
            allocate=np.empty,
        )
        self._running = _running(task, account, take, wake, pool)
        self.chunks = metrics.loop.timed(self._running)

    @property
    def skipped(self) -> int:
        """Number of elements that ``on_error`` left out here."""
        return self._task.calls.skipped

    def close(self) -> None:
        """Stop threads and let go of everything. Idempotent."""
        self._running.close()
        self.chunks.close()


def _running(
    task: RunningTask, account: Account, take: Callable[[], Arrival], wake: Callable[[], None], pool: ThreadPool
) -> Generator[Chunk, None, None]:
    """Yield the chunks that come out; the run ends with this generator, also when nobody knows of it any more."""
    chunks = _arrivals(account, take, task.measures[0])
    for number, node in enumerate(task.units.graph.nodes):
        if number:
            chunks = task.measured(number, _operator(task, account, number, node, chunks))
    ended = False
    try:
        # Not "yield from": closing that waits for a prefetch's thread, which may wait for arrivals until it is woken.
        for chunk in chunks:  # noqa: UP028
            yield chunk
        ended = True
    finally:
        if not ended:
            wake()
        try:
            task.stop(chunks)
        finally:
            pool.close()


def _arrivals(account: Account, take: Callable[[], Arrival], measure: Measure) -> Chunks:
    ordinal = 0
    while True:
        began, cpu = clock(), time.thread_time()
        elements, task, first = take()
        measure.pulled_s += clock() - began
        measure.pulled_cpu_s += time.thread_time() - cpu
        if not elements:
            account.exhausted = True
            return
        account.arrived(ordinal, task, first, len(elements))
        origin = traced(Origin(0, task), (), ordinal - first)
        ordinal += len(elements)
        yield Chunk(elements, origin, range(first, first + len(elements)))


def _operator(task: RunningTask, account: Account, number: int, node: g.Node, chunks: Chunks) -> Chunks:
    context, run = BehindContext(task, number, 0), OPERATORS[type(node)]
    if account.inexact is not None:
        context.traces = False
        return run(node, [chunks], context)
    done = account.done(number)
    if isinstance(node, COUNTING):
        return run(_going_on(node, done), [account.logged(number, chunks)], context)
    if isinstance(node, _COLLECTING):
        return _numbered(run(node, [account.logged(number, chunks)], context), done)
    if isinstance(node, g.Rebatch):
        return _numbered(run(node, [account.logged_rows(number, chunks)], context), done)
    if isinstance(node, _MAKING):
        return account.made(run(node, [chunks], context), context.made)
    return run(node, [chunks], context)


class Account:
    """Account of the elements handed out of an epoch, in terms of what arrived. It keeps no element alive.

    Attributes:
        current: elements of the last chunk that are still to be handed out.
        inexact: see :func:`inexact`.
        exhausted: all that is to come has arrived.
        ended: whoever reads was told that there is no more.
    """

    def __init__(
        self, graph: Graph, begin: Begin, yielded: Callable[[int, int, int], None], *, ended: bool = False
    ) -> None:
        self.inexact = inexact(graph)
        self._numbers = counted(graph)
        self._counts = [*begin.counts] or [0] * len(self._numbers)
        self.exhausted, self.ended = False, ended
        self.current: Iterator[Any] = iter(())
        self._graph, self._yielded = graph, yielded
        self._chunk: Chunk | None = None
        self._begun = dict(zip(self._numbers, self._counts, strict=True))
        self._lock = threading.RLock()
        self._runs: deque[tuple[int, int, int, int]] = deque()
        self._logs: dict[int, _Log | _RowLog] = {}
        self._before = {(task, output): tuple(path) for task, output, path in begin.parts}
        self._part: Part | None = None
        self._touched = False

    def now(self) -> tuple[list[int], list[Part]]:
        """Take the ``counts`` and ``parts`` of a state; what arrived before these was said to be yielded.

        Raises:
            StateError: there is none here, as operators hold back what they have had, in an order of their own.
        """
        with self._lock:
            if self.inexact is not None and self._touched and not self.ended:
                raise StateError(
                    f"there is no state within an epoch where {self.inexact} stands behind distribute(): it has had "
                    "elements that have not come out, which a state does not hold. Save at an epoch's end, or put it "
                    "before distribute()"
                )
            if self._chunk is not None:
                left = length_hint(self.current)  # of a list's iterator, so exact
                self._settle(self._chunk, len(self._chunk) - left)
            parts = [(task, output, [*path]) for (task, output), path in self._before.items()]
            if self._part is not None:
                parts = [each for each in parts if each[:2] != self._part[:2]] + [self._part]
            return ([*self._counts] if any(self._counts) else []), sorted(parts)

    def hand_out(self, chunk: Chunk | None) -> None:
        """Begin to hand out the elements of ``chunk``; all those before were."""
        with self._lock:
            if self._chunk is not None:
                self._settle(self._chunk, len(self._chunk))
            # At once: whoever is interrupted between them would have handed out all of it.
            self._chunk, self.current = chunk, iter(chunk.elements if chunk is not None else [])
            self._touched = self._touched or chunk is not None
            if self.inexact is not None and self._touched:
                self._release(None)

    def end(self) -> None:
        """End the epoch: whoever reads is told that there is no more."""
        with self._lock:
            self.hand_out(None)
            self.ended = True
            if self.exhausted:  # what no element came of is done with as well
                self._release(None)
                self._part = None
                self._before.clear()

    def done(self, number: int) -> int:
        """Count with which node ``number`` began."""
        return self._begun.get(number, 0)

    # -- what the operators tell ---------------------------------------------------------------------------------------

    def arrived(self, ordinal: int, task: int, first: int, count: int) -> None:
        """Note that arrivals from number ``ordinal`` on are outputs of a task, from number ``first`` on."""
        with self._lock:
            self._runs.append((ordinal, task, first, count))
            if self.inexact is not None and self._touched:
                self._release(None)

    def logged(self, number: int, chunks: Chunks) -> Chunks:
        """Note the chunks that node ``number`` takes, and pass them on."""
        log = self._logs[number] = _Log()
        try:
            for chunk in chunks:
                with self._lock:
                    log.add(cast(Traced, chunk.origin), chunk.positions)
                yield chunk
        finally:
            close(chunks)

    def logged_rows(self, number: int, chunks: Chunks) -> Chunks:
        """Note the batches whose rows node ``number`` takes, and pass them on without rows handed out before."""
        log, label = _RowLog(), str(self._graph.nodes[number])
        self._logs[number] = log
        try:
            for chunk in chunks:
                origin = cast(Traced, chunk.origin)
                elements, rows = [*chunk.elements], [count_rows(element, label) for element in chunk.elements]
                for index, position in enumerate(chunk.positions if self._before else ()):
                    before = self._rows_before(origin, int(position))
                    elements[index] = slice_rows(elements[index], min(before, rows[index]), rows[index])
                with self._lock:
                    for element, position, count in zip(elements, chunk.positions, rows, strict=True):
                        left = count_rows(element, label)
                        log.add((*origin.above, int(position) + origin.shift), count - left, left)
                yield Chunk(elements, chunk.origin, chunk.positions)
        finally:
            close(chunks)

    def made(self, chunks: Chunks, parents: deque[tuple[int, Traced, int]]) -> Chunks:
        """Pass on what an operator makes of ``parents``, with its paths, without what was handed out before."""
        first, origin, position = -1, Traced(0, 0), -1
        after = -1
        try:
            for chunk in chunks:
                positions = np.asarray(chunk.positions, np.int64)
                edges = np.flatnonzero(np.diff(positions) != 1) + 1
                for start, stop in pairwise([0, *edges.tolist(), len(positions)]):
                    place = int(positions[start])
                    while place != after:  # the next parent's; of some nothing was made
                        first, origin, position = parents.popleft()
                        after = place if first == place and origin == chunk.origin else after
                    after = place + stop - start
                    rows = self._rows_before(origin, position)
                    rows = max(0, min(stop - start, first + rows - place))
                    if rows == stop - start:
                        continue
                    whole = origin.place if origin.above else (origin.split, position)
                    child = traced(chunk.origin, (*origin.above, position + origin.shift), -first, whole)
                    yield Chunk(chunk.elements[start + rows : stop], child, range(place + rows, place + stop - start))
        finally:
            close(chunks)

    def _rows_before(self, origin: Traced, position: int) -> int:
        """Count the elements made of the one there that were handed out before."""
        if not self._before:
            return 0
        path = self._before.get(origin.place if origin.above else (origin.split, position), ())
        within = (*origin.above[1:], position + origin.shift) if origin.above else ()
        return path[len(within)] if len(path) > len(within) and path[: len(within)] == within else 0

    # -- what was handed out -------------------------------------------------------------------------------------------

    def _settle(self, chunk: Chunk, count: int) -> None:
        """Settle that so many elements of the chunk were handed out."""
        if self.inexact is not None or not count:
            return
        origin = cast(Traced, chunk.origin)
        path = (*origin.above, int(chunk.positions[count - 1]) + origin.shift)
        for place, number in reversed([*enumerate(self._numbers)]):
            log, node, begun = self._logs[number], self._graph.nodes[number], self._begun[number]
            if isinstance(node, (*_COLLECTING, g.Rebatch)):
                self._counts[place] = path[0] + 1
                path = log.path((path[0] + 1 - begun) * node.batch_size)
            else:
                self._counts[place] = begun + cast(_Log, log).upto(path)
        self._release(path[0] + (len(path) == 1))
        if len(path) == 1:
            self._part = None
        else:
            ordinal, task, first, _ = self._runs[0]
            self._part = (task, first + path[0] - ordinal, [*path[1:-1], path[-1] + 1])

    def _release(self, until: int | None) -> None:
        """Release what arrived before number ``until``; None: all."""
        while self._runs:
            ordinal, task, first, count = self._runs[0]
            gone = count if until is None else min(count, until - ordinal)
            if gone <= 0:
                return
            self._runs.popleft()
            self._yielded(task, first + gone, gone)
            if self._before:
                for place in [place for place in self._before if place[0] == task and first <= place[1] < first + gone]:
                    del self._before[place]
            if gone < count:
                self._runs.appendleft((ordinal + gone, task, first + gone, count - gone))
                return


class BehindContext(NodeContext):
    """Context of an operator behind ``distribute()``.

    Attributes:
        made: (position of the first, origin and position of the parent) of what it makes of others, in order.
        traces: whether somebody takes these away.
    """

    def __init__(self, task: RunningTask, number: int, repetition: int) -> None:
        super().__init__(task, number, repetition)
        self.made: deque[tuple[int, Traced, int]] = deque()
        self.traces = True

    def children(self, parent: Chunk, index: int) -> int:
        """First position of the elements made of one element."""
        first = super().children(parent, index)
        if self.traces and isinstance(parent.origin, Traced):
            self.made.append((first, parent.origin, int(parent.positions[index])))
        return first


E = TypeVar("E")


class _Entries(Generic[E]):
    """Entries of some elements each that an operator took, in order; those handed out are forgotten."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, E]] = deque()
        self._before = 0

    def _append(self, size: int, entry: E) -> None:
        if size:
            self._entries.append((size, entry))

    def _forget(self) -> None:
        self._before += self._entries.popleft()[0]

    def _find(self, count: int) -> tuple[E, int]:
        """Find the entry with the element of this number, from 1, and its number there; else the last one's last."""
        while count - self._before > self._entries[0][0] and len(self._entries) > 1:
            self._forget()
        size, entry = self._entries[0]
        return entry, min(count - self._before, size)


class _Log(_Entries[tuple[Path, int, Positions]]):
    """Log of the paths of what an operator took."""

    def add(self, origin: Traced, positions: Positions) -> None:
        """Append these positions."""
        self._append(len(positions), (origin.above, origin.shift, positions))

    def upto(self, path: Path) -> int:
        """Count the entries up to the one that ``path`` leads to, that one included unless it was left in part."""
        while self._entries:
            _, (above, shift, positions) = self._entries[0]
            depth = len(above)
            if above > path[:depth]:
                break
            last = path[depth] - (len(path) > depth + 1) - shift  # of the positions, if they are of the same parent
            if above == path[:depth] and int(positions[-1]) > last:
                return self._before + int(np.searchsorted(np.asarray(positions), last, side="right"))
            self._forget()
        return self._before

    def path(self, count: int) -> Path:
        """Path of the element of this number, from 1; if there are fewer, of the last."""
        (above, shift, positions), within = self._find(count)
        return (*above, int(positions[within - 1]) + shift)


class _RowLog(_Entries[tuple[Path, int, int]]):
    """Log of the paths of the rows that an operator took of batches."""

    def add(self, path: Path, skipped: int, rows: int) -> None:
        """Append a batch, of which the first rows were ``skipped``."""
        self._append(rows, (path, skipped, rows))

    def path(self, count: int) -> Path:
        """Path of the row of this number, from 1; if there are fewer, of the last."""
        (path, skipped, rows), within = self._find(count)
        return path if within >= rows else (*path, skipped + within - 1)


def _going_on(node: g.Node, count: int) -> g.Node:
    """Return the operator as it is after so many elements."""
    match node:
        case g.Take(count=most) if most >= 0:
            return replace(node, count=max(0, most - count))
        case g.Skip(count=least) if least >= 0:
            return replace(node, count=max(0, least - count))
        case g.Shard():
            return replace(node, index=(node.index - count) % node.num_shards)
        case g.Enumerate():
            return replace(node, start=node.start + count)
    return node


def _numbered(chunks: Chunks, done: int) -> Chunks:
    """Renumber collections, going on from those that there were before."""
    try:
        for chunk in chunks:
            start = int(chunk.positions[0]) + done
            yield Chunk(chunk.elements, Traced(*chunk.origin), range(start, start + len(chunk)), chunk.failure)
    finally:
        close(chunks)


def _no_source(number: int) -> Any:
    raise AssertionError(f"node {number} is no source that is read here")
